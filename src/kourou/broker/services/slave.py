"""SlaveService: what a slave takes from its master beside the log (SlaveSynchronize).

Every ten seconds, by requests to the master: topics, consumer groups, offsets of groups, how far delay levels
are delivered, and counts of timers; more often how far the timers are. Offsets that groups committed here
while the master was away go to the master first, where they are ahead of its own.

Before bytes of a log are taken, the master is looked at: a log that ends before this one, begins behind it,
has files of another size or another record where this one has its last, is not the one to go on with.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

from kourou.auth.config import AuthConfig, is_true
from kourou.auth.model import is_loopback
from kourou.broker.config import MASTER_ID, BrokerConfig
from kourou.broker.services.slave_offsets import SlaveOffsets
from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.broker.state.offsets import SEPARATOR, deleted_after, log_offset_of, table_of
from kourou.errors import ConfigError, KourouError
from kourou.properties_file import parse_properties
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import UpdateConsumerOffset
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig
from kourou.remoting.tls import TlsConfig, TlsMode
from kourou.store.config import BrokerRole
from kourou.store.timer.files import read_timer_checkpoint

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

SYNC_INTERVAL_S = 10.0
CHECKPOINT_INTERVAL_S = 3.0  # of the timers: a slave enters only what its master has entered
LOOK_INTERVAL_S = 1.0  # for a master, while there is none
CALL_TIMEOUT_S = 3.0
SAY_AGAIN_S = 60.0
# No answer, or one that is none
_UNUSABLE = (KourouError, ValueError, TypeError, KeyError, AttributeError)
EMPTY_IT = "Stop this slave, empty its store and start it"


class SlaveService:
    """A slave's knowledge of its master."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.offsets = SlaveOffsets()
        self.master_address = ""
        self.master_flush_offset = 0  # what the master, or an operator, said last
        self._found = asyncio.Event()
        self._say_again = 0.0
        self.synchronized = 0  # how often everything was taken

    # The master

    def master_is(self, address: str | None, ha_address: str | None) -> None:
        """A name server says where the master is, or that there is none."""
        broker = self._broker
        client = broker.replication.client
        if client is not None and ha_address and not broker.config.store.ha_master_address:
            client.set_address(ha_address)
        address = address or ""
        if address == self.master_address:
            return
        log.info("the master is at %s now, not at %s", address or "no address", self.master_address or "any")
        self.master_address = address
        if address:
            self._found.set()
            if client is not None:
                client.wake()

    def master_is_gone(self) -> None:
        """The name server says that the master is away."""
        self.master_address = ""
        client = self._broker.replication.client
        if client is not None and not self._broker.config.store.ha_master_address:
            client.set_address("")

    def replicates(self, is_connected: bool) -> None:
        """The connection to the master's log stands, or is gone."""
        self._broker.master_is_up = is_connected
        self._broker.offsets.on_commit = None if is_connected else self.offsets.note
        if is_connected:
            self._broker.puller.wake_all()  # they go to the master
            self._found.set()

    async def run(self) -> None:
        """Take what there is to take, again and again."""
        self.replicates(False)
        next_sync = 0.0
        while True:
            if self.master_address:
                try:
                    if time.monotonic() >= next_sync or self._found.is_set():
                        self._found.clear()
                        await self.synchronize()
                        next_sync = time.monotonic() + SYNC_INTERVAL_S
                    else:
                        await self._take_timer_checkpoint()
                except _UNUSABLE as error:
                    self._say(f"nothing is taken from the master at {self.master_address}: {error}")
                except Exception:
                    log.exception("taking the tables of the master failed; it is tried again")
            elif not self.master_address:
                self._found.clear()
                await self._look_for_master()
            pause_s = CHECKPOINT_INTERVAL_S if self.master_address else LOOK_INTERVAL_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._found.wait()

    async def _look_for_master(self) -> None:
        """Ask the name servers for a master that came since the last registration, and register if there is
        one: that says where it is."""
        async for members in self._broker.registrar.members(CALL_TIMEOUT_S):
            if MASTER_ID in members:
                await self._broker.registrar.register_all()
                return

    def _say(self, text: str) -> None:
        if time.monotonic() >= self._say_again:
            self._say_again = time.monotonic() + SAY_AGAIN_S
            log.warning("%s", text)

    async def _ask(self, code: RequestCode, fields: dict[str, str] | None = None) -> RemotingCommand:
        request = RemotingCommand(code, fields or {})
        answer = await self._broker.client.call(self.master_address, request, CALL_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise KourouError(f"request {code.name} was answered with {answer.code}: {answer.remark}")
        return answer

    async def _ask_json(self, code: RequestCode) -> dict[str, Any]:
        answer = await self._ask(code)
        # Java's tables of offsets have numbers as keys, and may be large.
        found = await asyncio.to_thread(lenient_json.loads, bytes(answer.body or b"{}"))
        if not isinstance(found, dict):
            raise KourouError(f"request {code.name} was answered with no object")
        return found

    # Tables

    async def synchronize(self) -> None:
        """Take everything once."""
        await self._take_topics()
        await self._take_groups()
        await self._take_offsets()
        self._broker.modes.decode(await self._ask_json(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        self._broker.modes.dirty = True
        self._broker.delay.decode(await self._ask_json(RequestCode.GET_ALL_DELAY_OFFSET))
        self._broker.delay.dirty = True
        if self._broker.timers.enabled:
            await self._take_timer_metrics()
            await self._take_timer_checkpoint()
        await self._broker.save()
        self.synchronized += 1

    async def _take_topics(self) -> None:
        value = await self._ask_json(RequestCode.GET_ALL_TOPIC_CONFIG)
        version = DataVersion.from_json(value.get("dataVersion") or {})
        topics = self._broker.topics
        if version == topics.data_version:
            return
        table = value["topicConfigTable"]
        changed = topics.replace_all(
            {name: TopicConfig.from_json(entry, name) for name, entry in table.items()}, version
        )
        if not changed:
            return
        gone = {name for name in changed if topics.get(name) is None and not topics.is_system_topic(name)}
        for name in gone:
            self._broker.offsets.remove_topic(name)
        # Their queues stay until the log, which may be ahead of this table or behind it, says what to do.
        self._broker.configure()
        await self._broker.registrar.register_all()

    async def _take_groups(self) -> None:
        value = await self._ask_json(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        version = DataVersion.from_json(value.get("dataVersion") or {})
        if version == self._broker.groups.data_version:
            return
        table = value["subscriptionGroupTable"]
        groups = {name: SubscriptionGroupConfig.from_json(entry, name) for name, entry in table.items()}
        self._broker.groups.replace_all(groups, value.get("forbiddenTable") or {}, version)
        self._broker.puller.configure()

    async def _take_offsets(self) -> None:
        """Give the master what it has not heard of, then take what it has."""
        value = await self._ask_json(RequestCode.GET_ALL_CONSUMER_OFFSET)
        gone = deleted_after(self._broker.store.queues.deleted_at, log_offset_of(value))

        def is_there(key: str) -> bool:
            return key.partition(SEPARATOR)[0] not in gone

        table = {key: queues for key, queues in table_of(value["offsetTable"]).items() if is_there(key)}
        for key, queue_id, offset in self.offsets.newer_than(table):
            topic, _, group = key.partition(SEPARATOR)
            fields = UpdateConsumerOffset(group, topic, queue_id, offset).fields()
            try:
                await self._ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
            except KourouError as error:
                log.warning("the master does not take the offset of %s, queue %d: %s", key, queue_id, error)
            else:
                self.offsets.forget(key, queue_id)
            table.setdefault(key, {})[queue_id] = offset
        found = value.get("lmqOffsetTable") or {}
        lmq_table = {key: int(offset) for key, offset in found.items() if is_there(key)}
        version = DataVersion.from_json(value.get("dataVersion") or {})
        self._broker.offsets.take(table, lmq_table, version)

    async def _take_timer_metrics(self) -> None:
        metrics = self._broker.timers.metrics
        metrics.decode(await self._ask_json(RequestCode.GET_TIMER_METRICS))
        metrics.dirty = True

    async def _take_timer_checkpoint(self) -> None:
        timers = self._broker.timers
        if timers.enabled and not timers.delivers:
            answer = await self._ask(RequestCode.GET_TIMER_CHECK_POINT)
            checkpoint = read_timer_checkpoint(memoryview(bytes(answer.body or b"")))
            if checkpoint is not None:
                timers.follow(checkpoint)

    # Whether the master is the right one

    async def check_master(self) -> str | None:
        """What makes the master's log another than this one, or this slave one that no master can know; None
        if nothing does, or nothing is known."""
        auth = self._broker.auth
        if auth.ha_authentication_enabled and auth.inner is None:
            return (
                "this slave cannot prove who it is: set innerClientAuthenticationCredentials, to what the"
                " master has. Under a master of Java's, or one without access control, set"
                " haAuthenticationEnable=false"
            )
        if not self.master_address:
            return None
        try:
            return await self._check_master()
        except _UNUSABLE as error:
            log.info("the master at %s cannot be looked at: %s", self.master_address, error)
            return None

    async def _check_master(self) -> str | None:
        store = self._broker.store
        master, end = self.master_address, store.commit_log.files.max_wrote
        if not end:
            return await self._check_file_size()
        info = (await self._ask_json(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
        first, last = int(info["commitLogMinOffset"]), int(info["commitLogMaxOffset"])
        if end > last:
            return (
                f"this slave is ahead of its master {master}: its log ends at {end}, the master's at {last}."
                f" If the master lost messages, make this slave the master. Else: {EMPTY_IT}"
            )
        if end < first:
            return (
                f"this slave is too far behind its master {master}: its log ends at {end}, the master's"
                f" begins at {first}. {EMPTY_IT}"
            )
        mistake = await self._check_file_size()
        return mistake or await self._check_last_record()

    async def _check_file_size(self) -> str | None:
        answer = await self._ask(RequestCode.GET_BROKER_CONFIG)
        text = str(bytes(answer.body or b""), "utf-8", "replace")
        size = parse_properties(text).get("mappedFileSizeCommitLog", "")
        own = self._broker.config.store.mapped_file_size_commit_log
        if not size.isdecimal() or int(size) == own:
            return None
        return (
            f"the master's log files have {size} bytes, this slave's {own}:"
            f" set mappedFileSizeCommitLog={size} here, with an empty store"
        )

    async def _check_last_record(self) -> str | None:
        """Compare the last whole record of this log with what the master has in its place."""
        checkpoint = self._broker.store.checkpoint
        offset = max(checkpoint.dispatched_physical_offset, checkpoint.confirm_phy_offset)
        record = self._broker.store.commit_log.message_at(offset)
        if record is None:
            return None
        mine = bytes(record)
        request = RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
        answer = await self._broker.client.call(self.master_address, request, CALL_TIMEOUT_S)
        if answer.code == ResponseCode.SUCCESS and bytes(answer.body or b"") == mine:
            return None
        return (
            f"the master {self.master_address} has another record at {offset} than this slave: it is the"
            f" master of another log. Give this slave the right master. If it is the right one: {EMPTY_IT}"
        )


def check_role(config: BrokerConfig) -> None:
    """Bring role and id of a broker into agreement, as Java does at its start."""
    if config.store.broker_role is not BrokerRole.SLAVE:
        config.broker_id = MASTER_ID
    elif config.broker_id <= MASTER_ID:
        raise ConfigError("Slave's brokerId must be > 0")


def check_replication_port(config: BrokerConfig, auth: AuthConfig, tls: TlsConfig | None) -> None:
    """ConfigError if the port for slaves gives to anybody what clients are kept out of, the whole log, and no
    key says that this is wanted."""
    is_slave = config.store.broker_role is BrokerRole.SLAVE
    if (
        auth.authentication_enabled
        and not is_slave
        and not auth.ha_authentication_enabled
        and not auth.ha_trusted_slaves
    ):
        raise ConfigError(
            "haAuthenticationEnable=false at a master with authenticationEnabled=true: whoever reaches"
            " haListenPort would read all messages. Leave it out, and set"
            " innerClientAuthenticationCredentials here and at the slaves; slaves that cannot prove who they"
            " are, as Java's, are taken from the addresses of haTrustedSlaves (0.0.0.0/0,::/0 is anybody)"
        )
    others = config.others
    is_plain = tls is not None and tls.server_mode is TlsMode.enforcing and not is_true(others, "haTlsEnable")
    stays_here = not is_slave and is_loopback(config.bind_address)
    if is_plain and not stays_here and not is_true(others, "haPlaintextAllowed"):
        raise ConfigError(
            "tls.server.mode=enforcing, and all messages would go to slaves in the clear: set"
            " haTlsEnable=true, tls.server.certPath and tls.server.keyPath here and at the other brokers of"
            " this name; or haPlaintextAllowed=true, where nobody else can listen between them"
        )
