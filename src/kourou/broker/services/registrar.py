"""Registrar: tells every name server that this broker lives and which topics it has (BrokerOuterAPI).

All topics at the start and every 30 s; the topics that changed as soon as they change. Name servers are
told side by side, and one that does not answer holds up nobody.

A name server that was restarted knows nobody. So each is asked every second whether it still has what it was
told (QUERY_DATA_VERSION, which is a sign of life too), and is told everything again when it has not, when its
connection was lost, or when it hung. What fails is tried again after a pause that doubles, and that is drawn
by lot so that a hundred brokers do not come at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import zlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from kourou.errors import KourouError
from kourou.remoting.connection import CallTimeoutError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.registration import Registration, encode_registration
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE, DataVersion

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 3.0
_MIN_PERIOD_MS, _MAX_PERIOD_MS = 10_000, 60_000  # Java's bounds of registerNameServerPeriod
CHECK_INTERVAL_S = 1.0  # Java's brokerHeartbeatInterval
HANGS_AFTER_S = 5.0  # a name server that says nothing for so long gets a new connection
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 1.0
# A slave comes after its master: one that a name server hears of first would act for it.
SLAVE_PAUSE_S = 2.0


class Registrar:
    """One broker's standing at its name servers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed: set[str] = set()
        self._unreachable: set[str] = set()  # those whose absence was logged
        # The name servers that know this broker, and the version of the topics that they were told last
        self.registered_at: dict[str, DataVersion] = {}
        self._masters: dict[str, dict[str, str]] = {}  # what each of them says of the master of a slave
        self._lost: dict[str, asyncio.Event] = {}  # by name server
        name = f"{broker.config.broker_name} {broker.config.broker_id}"
        self._chance = random.Random(name)  # other brokers draw other pauses
        self._leaving = False

    def topic_changed(self, names: set[str]) -> None:
        """Topics to tell of with the next `register_changed`."""
        self._changed |= names

    def connection_lost(self, address: str) -> None:
        """A connection of this broker's is gone: a name server may have forgotten it."""
        lost = self._lost.get(address)
        if lost is not None:
            self._forget(address)
            lost.set()

    async def run(self) -> None:
        """Stand at all name servers, those that `namesrvAddr` names now."""
        while not self._leaving:
            for server in self._broker.config.name_servers:
                if server not in self._lost:
                    self._lost[server] = asyncio.Event()
                    self._broker.spawn(self._stand_at(server))
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _stand_at(self, server: str) -> None:
        """Register at a name server, see that it knows, and again."""
        loop, lost = asyncio.get_running_loop(), self._lost[server]
        pause_s, due = FIRST_PAUSE_S, 0.0
        while not self._leaving and server in self._broker.config.name_servers:
            lost.clear()
            try:
                if server not in self.registered_at or loop.time() >= due:
                    await self._register([server])
                    due = loop.time() + self._period_s()
                elif await self._is_known_at(server):
                    pause_s = FIRST_PAUSE_S
            except Exception:
                log.exception("the registration at %s failed; it is tried again", server)
                self._forget(server)
            if server in self.registered_at:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(CHECK_INTERVAL_S, due - loop.time())):
                        await lost.wait()
            if server not in self.registered_at:
                later_s = 0.0 if self._broker.slave is None else SLAVE_PAUSE_S
                await asyncio.sleep(later_s + pause_s * self._chance.uniform(0.5, 1.0))
                pause_s = min(2 * pause_s, MOST_PAUSE_S)
        del self._lost[server]
        self._forget(server)

    def _period_s(self) -> float:
        period_ms = self._broker.config.register_name_server_period
        return min(max(period_ms, _MIN_PERIOD_MS), _MAX_PERIOD_MS) / 1000

    async def _is_known_at(self, server: str) -> bool:
        """Whether a name server still has what it was told, or what it is being told."""
        told = self.registered_at[server]
        body = lenient_json.dumps(told.to_json())
        request = RemotingCommand(RequestCode.QUERY_DATA_VERSION, self._identity(), body)
        try:
            answer = await self._broker.client.call(server, request, HANGS_AFTER_S)
            known = lenient_json.loads(answer.body) if answer.body else None
            counter = told.counter if known is None else DataVersion.from_json(known).counter
        except CallTimeoutError:
            log.warning("name server %s hangs: it gets a new connection", server)
            self._broker.client.drop(server)
            self._forget(server)
            return False
        except (KourouError, ValueError, TypeError, AttributeError) as error:
            log.info("name server %s does not say whether it knows this broker: %s", server, error)
            self._forget(server)
            return False
        has_changed = answer.code == ResponseCode.SUCCESS and answer.ext_fields.get("changed") == "true"
        is_later = known is not None and told.counter < counter <= self._broker.topics.data_version.counter
        if has_changed and not is_later:
            log.info("name server %s does not know this broker any more", server)
            self._forget(server)
            return False
        return True

    async def register_all(self) -> None:
        """Tell all name servers of all topics."""
        self._changed.clear()
        await self._register(self._broker.config.name_servers)

    async def members(self, timeout_s: float) -> AsyncIterator[dict[int, str]]:
        """The brokers of this name by their ids, as each name server that answers knows them."""
        config = self._broker.config
        fields = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        for server in config.name_servers:
            request = RemotingCommand(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
            try:
                answer = await self._broker.client.call(server, request, timeout_s)
                group = lenient_json.loads(bytes(answer.body or b"{}")).get("brokerMemberGroup") or {}
                found = {int(key): str(address) for key, address in (group.get("brokerAddrs") or {}).items()}
            except (KourouError, ValueError, TypeError, AttributeError) as error:
                log.debug("name server %s does not say who is there: %s", server, error)
                continue
            yield found

    async def register_changed(self) -> None:
        """Tell the name servers of the topics that changed since the last time. One that cannot be reached
        is told everything when it can."""
        changed, self._changed = self._changed, set()
        servers = self._broker.config.name_servers
        await self._register([server for server in servers if server not in self._unreachable], changed)

    async def _register(self, servers: Iterable[str], changed: set[str] | None = None) -> None:
        """Tell name servers of all topics, or those that know this broker of some."""
        if self._leaving:
            return
        await asyncio.gather(*(self._register_at(server, changed) for server in servers))
        if self._broker.slave is not None and self._masters:
            # One that was just started may not have heard of the master yet.
            order = self._broker.config.name_servers
            said = [self._masters[server] for server in order if server in self._masters]
            found = next((fields for fields in said if fields.get("masterAddr")), {})
            self._broker.slave.master_is(found.get("masterAddr"), found.get("haServerAddr"))

    def _registration(self, changed: set[str] | None) -> Registration:
        topics, permission = self._broker.topics.topics, self._broker.config.broker_permission
        if changed is not None:
            topics = {name: topics[name] for name in changed if name in topics}
        if permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE:
            topics = {name: replace(topic, perm=topic.perm & permission) for name, topic in topics.items()}
        return Registration(self._broker.topics.data_version, topics, filter_servers=[])

    async def _register_at(self, server: str, changed: set[str] | None) -> None:
        """Register at a name server."""
        config = self._broker.config
        registration = self._registration(changed if server in self.registered_at else None)
        body = encode_registration(registration, compressed=config.compressed_register)
        fields = self._identity() | {
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "compressed": str(config.compressed_register).lower(),
            "enableActingMaster": str(config.enable_slave_acting_master).lower(),
            "haServerAddr": config.ha_address,
        }
        if config.enable_slave_acting_master:
            fields["heartbeatTimeoutMillis"] = str(config.broker_not_active_timeout_millis)
        request = RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)
        try:
            answer = await self._broker.client.call(
                server, request, config.register_broker_timeout_mills / 1000
            )
        except KourouError as error:
            if isinstance(error, CallTimeoutError):
                self._broker.client.drop(server)  # it hangs, or is to be found somewhere else by now
            if server not in self._unreachable:
                log.warning("not registered at name server %s, which is tried again: %s", server, error)
            self._forget(server)
            self._unreachable.add(server)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._forget(server)
            log.warning("name server %s refused the registration: %s %s", server, answer.code, answer.remark)
            return
        self.registered_at[server] = registration.data_version
        self._masters[server] = answer.ext_fields
        if server in self._unreachable:
            log.warning("registered at name server %s again", server)
            self._unreachable.discard(server)
        if answer.body:
            try:
                ordered = list(lenient_json.loads(answer.body).get("table") or ())
            except (ValueError, TypeError, AttributeError) as error:
                log.warning("name server %s does not say which topics are ordered: %s", server, error)
                return
            if self._broker.slave is None:  # a slave has its master's topics
                self._broker.topics.update_order(ordered)

    def _forget(self, server: str) -> None:
        self.registered_at.pop(server, None)
        self._masters.pop(server, None)

    async def unregister(self) -> None:
        """Tell all name servers that this broker leaves; from now on it is not registered any more."""
        self._leaving = True
        requests = [
            self._broker.client.call(
                server,
                RemotingCommand(RequestCode.UNREGISTER_BROKER, self._identity()),
                UNREGISTER_TIMEOUT_S,
            )
            for server in self._broker.config.name_servers
        ]
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.info("a name server was not told that this broker leaves: %s", outcome)

    def _identity(self) -> dict[str, str]:
        config = self._broker.config
        return {
            "brokerAddr": config.address,
            "brokerId": str(config.broker_id),
            "brokerName": config.broker_name,
            "clusterName": config.broker_cluster_name,
        }
