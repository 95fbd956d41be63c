"""Broker: the store, the tables and the services, behind listening sockets.

`start` opens the store, which recovers, then the tables, then the sockets, and only then says at the name
servers that it is there. `stop` goes the other way: name servers, parked replies, sockets, tables, store.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any

from kourou.auth import AccessTables, AuthConfig, Guard
from kourou.auth.config import is_true
from kourou.auth.model import Resource
from kourou.auth.rules import SUB
from kourou.auth.rules import group as group_of
from kourou.broker.config import DEFAULT_PORT, BrokerConfig
from kourou.broker.handlers import make_handlers
from kourou.broker.messages.bloom import BloomFilter
from kourou.broker.messages.filter_data import FILE_NAME as FILTER_FILE
from kourou.broker.messages.filter_data import ConsumerFilters
from kourou.broker.messages.pull import MessagePuller
from kourou.broker.messages.send import BUSY, MessageSender
from kourou.broker.metrics.broker import BrokerMetrics
from kourou.broker.metrics.stats import BrokerStats
from kourou.broker.pop.buffer import Buffer
from kourou.broker.pop.modes import FILE_NAME as MODES_FILE
from kourou.broker.pop.modes import RequestModes
from kourou.broker.pop.order import FILE_NAME as ORDER_FILE
from kourou.broker.pop.order import OrderTable
from kourou.broker.pop.popper import Popper
from kourou.broker.pop.recovery import restore_offsets
from kourou.broker.pop.revive import ReviveService
from kourou.broker.services.ha_group import BrokerGroup
from kourou.broker.services.registrar import Registrar
from kourou.broker.services.schedule import DelayService
from kourou.broker.services.slave import SlaveService, check_replication_port, check_role
from kourou.broker.services.slave_offsets import FILE_NAME as SLAVE_OFFSET_FILE
from kourou.broker.services.timer.service import TIMER_PROPERTIES, TimerService
from kourou.broker.services.transactions import TransactionService
from kourou.broker.state.clients import Client, Clients
from kourou.broker.state.groups import SubscriptionGroups
from kourou.broker.state.locks import QueueLocks
from kourou.broker.state.offsets import ConsumerOffsets
from kourou.broker.state.state_file import StateFile
from kourou.broker.state.topics import TopicTable
from kourou.clock import Clock, SystemClock
from kourou.errors import ConfigError
from kourou.message import properties as names
from kourou.message.topics import TIMER_TOPIC
from kourou.remoting.budgets import Bound, Budgets, Refusals, within
from kourou.remoting.buffers import Buffers
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection
from kourou.remoting.metrics import WatchConfig, exports
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import ConsumerGroupName
from kourou.remoting.server import RemotingServer
from kourou.remoting.timing import RequestWatch, TimedConnection
from kourou.remoting.tls import RenewedContext, TlsConfig, renewed_server_context
from kourou.store import BrokerRole, InnerMessage, MessageStore, PutMessageResult, PutMessageStatus
from kourou.store.config import DEFAULT_HA_PORT
from kourou.store.log.disk import Disk
from kourou.store.replication.proof import Admission, Identity
from kourou.store.replication.service import Replication

log = logging.getLogger(__name__)

MAX_PORT = 65535
FAST_PORT_STEP = 2  # the port of clients that set vipChannelEnabled is this much below
EXPIRE_INTERVAL_S = 10.0
PROTECT_INTERVAL_S = 180.0  # Java's protectBroker
INDEX_DELAY_S = 0.02  # a thousand keys at once cost a fifth of what they cost one by one
MAX_LATER = 10_000  # answers that wait for another peer
ROUTE_WAIT_S = 1.0  # for the name servers to know a new topic; clients wait three for an answer
MAX_LEVEL_LENGTH = 10  # of the text of a delay level
_WAITS = frozenset((names.DELAY_TIME_LEVEL, *TIMER_PROPERTIES, names.TIMER_OUT_MS))


class Broker:
    """A broker: `start`, `stop`, and what it knows in between."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self.config = config or BrokerConfig()
        check_role(self.config)
        self.clock: Clock = clock or SystemClock()
        self._disk = disk
        self._tls = tls
        self.budgets, self.refusals = Budgets.read(self.config.others), Refusals()
        bound = partial(Bound.of, self.budgets, self.refusals)
        self.topics = TopicTable(
            self.config,
            self.clock,
            timer_wheel_enable=self.config.store.timer_wheel_enable,
            bound=bound("maxTopics"),
        )
        self.groups = SubscriptionGroups(
            self.config, self.clock, bound=bound("maxSubscriptionGroups"), pairs=bound("maxGroupTopics")
        )
        self.offsets = ConsumerOffsets(self.config, self.clock, bound=bound("maxConsumerOffsets"))
        self.locks = QueueLocks(self.clock, bound=bound("maxQueueLocks"))
        self.clients = Clients(self.config, self.clock, self.topics, self.groups, bound=bound)
        self.producers, self.consumers = self.clients.producers, self.clients.consumers
        self.consumers.on_group_changed = self._notify_group
        self.stats = BrokerStats(
            self.config, self.clock, self.topics.is_system_topic, bound=bound("maxGroupTopics")
        )
        self.orders = OrderTable(self.clock, bound=bound("maxConsumerOffsets"))
        self.orders.is_known = lambda topic, group: (
            self.topics.get(topic) is not None and self.groups.get(group) is not None
        )
        self.modes = RequestModes(bound=bound("maxGroupTopics"))
        self.pop_buffer = Buffer(self)
        self.revive = ReviveService(self)
        self.delay = DelayService(self)
        self.transactions = TransactionService(self)
        self.timers = TimerService(self)
        bloom = BloomFilter(
            self.config.max_error_rate_of_bloom_filter, self.config.expect_consumer_num_use_filter
        )
        self.config.store.bit_map_length_consume_queue_ext = bloom.bit_num
        self.filters = ConsumerFilters(
            self.clock, bloom, self.config.filter_data_clean_time_span, bound=bound("maxConsumerFilters")
        )
        self.consumers.on_group_gone = self.filters.unregister
        self.master_is_up = True  # of a slave: whether its master is there
        is_slave = self.config.store.broker_role is BrokerRole.SLAVE
        self.slave: SlaveService | None = SlaveService(self) if is_slave else None
        acts = self.config.enable_slave_acting_master
        self.group: BrokerGroup | None = BrokerGroup(self) if acts else None
        self.metrics: BrokerMetrics | None = None
        if exports(self.config.metrics_exporter_type):
            self.metrics = BrokerMetrics(self)
        self.watch: RequestWatch | None = None  # None where no request is timed
        slow_ms = WatchConfig.read(self.config.others).slow_request_threshold_ms
        if slow_ms > 0 or self.metrics is not None:
            self.watch = RequestWatch(slow_ms, None if self.metrics is None else self.metrics.request_meter)
        self.started_ms = self.clock.now_ms()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._later = 0
        self._index_due = False
        root = self.config.store.store_path_root_dir
        self.auth = AuthConfig.read(self.config.others)
        check_replication_port(self.config, self.auth, tls)
        self.access = AccessTables(self.auth.directory or f"{root}/config")
        self.guard = Guard(self.auth, self.access, lambda: self.config.broker_cluster_name)
        self._files = {
            name: StateFile(f"{root}/config/{name}", table)
            for name, table in (
                ("topics.json", self.topics),
                ("subscriptionGroup.json", self.groups),
                (self.offsets.file_name, self.offsets),
                ("delayOffset.json", self.delay),
                (FILTER_FILE, self.filters),
                (ORDER_FILE, self.orders),
                (MODES_FILE, self.modes),
            )
        }
        if self.slave is not None:
            self._files[SLAVE_OFFSET_FILE] = StateFile(
                f"{root}/config/{SLAVE_OFFSET_FILE}", self.slave.offsets
            )
        self._behind_log = (self.offsets.file_name, "delayOffset.json")
        self._settling: dict[str, asyncio.Task[None]] = {}  # by file, those that have not begun
        self._saving = asyncio.Lock()
        self._saves_begun = 0
        self._saved_by = dict.fromkeys(self._files, 0)  # the number of the write that a file is from

    # Life

    async def start(self) -> None:
        """Open the store, listen, register."""
        if self.metrics is None:
            await self._start()
            return
        await self.metrics.start()
        try:
            await self._start()
        except BaseException:
            await self.metrics.stop()
            raise
        self.metrics.is_serving = True

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        _raise_file_limit()
        self.store = MessageStore(
            self.config.store,
            disk=self._disk,
            clock=self.clock,
            post=self._post,
            is_batch_topic=self.topics.is_batch_topic,
        )
        try:
            for file in self._files.values():
                file.load()
            self.access.open(self.auth)
            recovery = self.store.load()
            self.timers.load()
        except BaseException:
            self.store.abandon()
            raise
        deleted_at = self.store.queues.deleted_at
        self.offsets.forget_deleted(deleted_at, None if recovery.clean else recovery.start_offset)
        self.offsets.log_offset = self._log_offset
        self.store.on_topic_deleted = self.forget_topic
        self.filters.latest_ms = self._latest_ms
        if not recovery.clean and self.slave is None:
            self._restore_topics(recovery.start_offset)
        self.store.start()
        self.init_max_offset = self.store.commit_log.max_offset  # where the log ended at the start
        self.client = RemotingClient(
            tls=self._tls, credentials=self.auth.inner, on_close=self._lost_connection_to
        )
        try:
            self.replication = self._make_replication()
            self.sender = MessageSender(self)
            self.puller = MessagePuller(self)
            self.popper = Popper(self)
            if self.slave is None:
                self._recover_pops(None if recovery.clean else recovery.start_offset)
            self.store.dispatcher.on_arrive = self._arrived
            self.store.dispatcher.awaited_by_pops = self.popper.awaited
            self.registrar = Registrar(self)
            handlers = make_handlers(self)
            guarded = within(self.budgets, self.refusals, self.guard.guard(handlers))
            self.server = RemotingServer(
                guarded,
                on_close=self._connection_lost,
                tls=self._tls,
                make_connection=Connection if self.watch is None else partial(TimedConnection, self.watch),
                buffers=Buffers(self.budgets, self.refusals),
            )
            if self.metrics is not None:
                self.metrics.attach()
            # Before anybody can ask for anything: a send may make a topic at once.
            self._topics_settled: asyncio.Task[None] | None = None  # the last change, until it is known
            self.topics.on_change, self.groups.on_change = self._topics_changed, self._groups_changed
            await self._listen()
        except BaseException:
            if hasattr(self, "server"):
                await self.server.stop()
            if hasattr(self, "replication"):
                await self.replication.stop()
            self.timers.abandon()
            self.store.shutdown()
            raise
        self.configure()  # the port is known now
        self.timers.start()
        if self.group is not None:
            if self.slave is None:
                await self.group.take_back()
            else:
                self.spawn(self.group.run())
        if self.slave is None:
            self.delay.start()
            self.transactions.start()
            if self.metrics is not None:
                self.metrics.count_halves()
            self.spawn(self.transactions.run())
            self.spawn(self.revive.run())
        else:
            self.spawn(self.slave.run())
        self.spawn(self.registrar.run())
        self.spawn(self._every(self.config.flush_consumer_offset_interval / 1000, self.save))
        self.spawn(self._every(EXPIRE_INTERVAL_S, self._expire))
        self.spawn(self._every(PROTECT_INTERVAL_S, self._protect))

    def _restore_topics(self, recovered_from: int) -> None:
        """Make topics again whose first messages were acknowledged just before a crash, and whose
        configuration was not on the disk yet. Deleted topics are not among them: they have no queues."""
        for name, queues in self.store.queues.table.items():
            if self.topics.get(name) is not None or self.topics.is_system_topic(name):
                continue
            firsts = [entry for queue in queues.values() if (entry := queue.get(0)) is not None]
            if firsts and all(entry.physical_offset >= recovered_from for entry in firsts):
                self.topics.restore(name, max(queues) + 1)

    def _recover_pops(self, recovered_from: int | None) -> None:
        """After a crash, offsets are older than the log: have what was popped and revived since not come
        again. None after a clean stop, which may have come before that was done."""
        offsets = self.offsets
        doubted_from = offsets.read_revive_offset
        if recovered_from is not None:
            since = recovered_from if offsets.read_log_offset is None else offsets.read_log_offset
            moved = restore_offsets(self, since)
            log.info("offsets are those of %d, %d moved on to what was popped since", since, moved)
            doubted_from = since if doubted_from is None else doubted_from
        self.revive.doubt(doubted_from)
        offsets.revive_offset = lambda: self.revive.doubted_from

    def _log_offset(self) -> int | None:
        """Where the log ends, for those who read offsets together with it; None where nobody does."""
        queues = self.store.queues
        is_read = bool(queues.deleted_at) or queues.get(TIMER_TOPIC, 0) is not None
        return self.store.commit_log.files.max_wrote if is_read else None

    async def _listen(self) -> None:
        host, wanted = self.config.bind_address, self.config.listen_port
        if not 0 <= wanted <= MAX_PORT:
            raise ConfigError(f"listenPort={wanted}: a port is a number up to {MAX_PORT}")
        self.config.listen_port = port = await self.server.start(host, wanted)
        try:
            await self.server.start(host, max(port - FAST_PORT_STEP, 0))
        except OSError as error:
            log.warning("port %d cannot be used, nor vipChannelEnabled: %s", port - FAST_PORT_STEP, error)
        await self._listen_for_slaves(host, port if wanted != DEFAULT_PORT else 0)

    async def _listen_for_slaves(self, host: str, port: int) -> None:
        """On `haListenPort`. Where nobody set that and the broker has a port of its own, slaves have the next
        one, or, if that is taken, any."""
        store = self.config.store
        if port and store.ha_listen_port == DEFAULT_HA_PORT:
            try:
                store.ha_listen_port = await self.replication.start(host, port + 1)
                return
            except OSError as error:
                log.info("port %d is taken, slaves get another one: %s", port + 1, error)
                store.ha_listen_port = 0
        if not 0 <= store.ha_listen_port <= MAX_PORT:
            raise ConfigError(f"haListenPort={store.ha_listen_port}: a port is a number up to {MAX_PORT}")
        store.ha_listen_port = await self.replication.start(host, store.ha_listen_port)

    def _make_replication(self) -> Replication:
        """Replication as it is configured; `haTlsEnable` and `haSyncFromStart` are keys of ours."""
        others, tls = self.config.others, None
        if is_true(others, "haTlsEnable"):
            tls = self._tls
            if tls is None or not tls.has_server_certificate:
                raise ConfigError("haTlsEnable=true needs tls.server.certPath and tls.server.keyPath")
        replication = Replication(
            self.store,
            from_start=is_true(others, "haSyncFromStart"),
            server_tls=None if tls is None else renewed_server_context(tls),
            client_tls=None if tls is None else RenewedContext(tls.client_context, tls.client_files()).get,
            check_master=None if self.slave is None else self.slave.check_master,
            admission=Admission(self.guard.secret_of_slave, self.guard.takes_unproven_slave),
            identity=self._identity(),
        )
        if replication.client is not None and self.slave is not None:
            replication.client.on_connected = self.slave.replicates
        return replication

    def _identity(self) -> Identity | None:
        """Who this broker is to its master; None where nothing is to be proved."""
        config, inner = self.config, self.auth.inner
        if inner is None or not self.auth.ha_authentication_enabled:
            return None
        return Identity(inner.access_key, inner.secret_key, f"{config.broker_name}:{config.broker_id}")

    async def stop(self) -> None:
        """Stop taking work, answer what waits, save, flush, close."""
        if self.metrics is None:
            await self._stop()
            return
        self.metrics.is_serving = False
        try:
            await self._stop()
        finally:
            await self.metrics.stop()

    async def _stop(self) -> None:
        await self.registrar.unregister()
        self.sender.stop()
        if self.group is not None:
            await self.group.acting.stop()
        self.delay.stop()
        self.transactions.stop()
        await self.timers.stop()
        self.puller.stop()
        self.popper.stop()
        self.pop_buffer.stop()
        async with self._saving:  # what is written now is written to its end
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.store.flusher.flush()  # answers the sends that wait for the disk
        await self.replication.stop()  # and those that wait for slaves, which have the whole log then
        await asyncio.sleep(0)
        await self.server.stop()
        await self.client.close()
        try:
            await self.save()
        finally:
            self.store.shutdown()

    def configure(self) -> None:
        """Have sends and pulls take the configuration and the topics as they are now."""
        calculates = self.config.enable_calc_filter_bit_map
        self.store.queues.bitmap_of = self.filters.bitmap_of if calculates else None
        self.replication.configure()
        self.sender.configure()
        self.puller.configure()
        self.popper.configure()

    # Messages

    def _arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,
        tags_code: int,
        timestamp: int,
        properties: dict[str, str] | None,
    ) -> None:
        """A message is in its queue, and somebody waits for one."""
        self.puller.on_arrive(topic, queue_id, next_offset, tags_code, timestamp, properties)
        self.popper.on_arrive(topic, queue_id, next_offset, tags_code, timestamp, properties)

    def put(self, message: InnerMessage) -> PutMessageResult:
        """Put a message where it belongs now: its queue, or where it waits for its time. Hot."""
        if _WAITS.isdisjoint(message.properties):
            result = self.store.put_message(message)
            self.has_put()
            return result
        level = message.properties.get(names.DELAY_TIME_LEVEL, "0")
        if not level.removeprefix("-").isdecimal() or len(level) > MAX_LEVEL_LENGTH:
            return PutMessageResult(
                PutMessageStatus.MESSAGE_ILLEGAL,
                reason=f"{names.DELAY_TIME_LEVEL} is no number: {level[:20]}",
            )
        refused = self.timers.divert(message)
        if refused is not None:
            return refused
        delayed = int(level) > 0
        if delayed:
            self.delay.divert(message)
        result = self.store.put_message(message)
        self.has_put()
        if result.status is PutMessageStatus.PUT_OK:
            if delayed:
                self.delay.arrived(message.queue_id + 1)
            elif message.topic == TIMER_TOPIC:
                self.timers.arrived()
        return result

    def has_put(self) -> None:
        """A message was put: its index keys are written soon, with those of others. Hot."""
        if not self._index_due:
            self._index_due = True
            self._loop.call_later(INDEX_DELAY_S, self._write_index)

    def _post(self, call: Callable[[], None]) -> None:
        """From a worker of the store: have something done on the loop."""
        self._loop.call_soon_threadsafe(call)

    def _write_index(self) -> None:
        self._index_due = False
        self.replication.appended()
        self.store.index.try_write_pending()

    # Answers that take longer

    def answer_later(
        self,
        connection: Connection,
        request: RemotingCommand,
        work: Coroutine[Any, Any, RemotingCommand | bytes],
    ) -> None:
        """Answer a request when `work` is done."""
        if self._later >= MAX_LATER:
            work.close()
            connection.reply(request, request.response(ResponseCode.SYSTEM_BUSY, remark=BUSY))
            return
        self._later += 1
        self.spawn(self._answer_later(connection, request, work))

    async def _answer_later(
        self,
        connection: Connection,
        request: RemotingCommand,
        work: Coroutine[Any, Any, RemotingCommand | bytes],
    ) -> None:
        try:
            answer = await work
        except Exception as error:
            answer = connection.failure(request, error)
        finally:
            self._later -= 1
        connection.reply(request, answer)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do something beside the requests, until the broker stops."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, OSError):
            log.error("a table could not be saved; it is tried again: %s", error)
        elif error is not None:
            log.error("what ran beside the requests failed: %s", task.get_coro(), exc_info=error)

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except OSError as error:
                log.error("%s failed; it is tried again: %s", work.__name__, error)
            except Exception:
                log.exception("%s failed; it is tried again", work.__name__)

    # State

    async def save(self, *only: str) -> None:
        """Write the tables that changed, all or those of the files named, in a worker. OSError where one
        cannot be written; the others are. One write does for all who wait when it begins."""
        failure: OSError | None = None
        begun = self._saves_begun
        async with self._saving:
            for name, file in self._files.items():
                if (only and name not in only) or self._saved_by[name] > begun:
                    continue
                self._saves_begun += 1
                write = file.pending(self._flush_log if name in self._behind_log else None)
                try:
                    if write is not None:
                        await self._loop.run_in_executor(None, write)
                        self._saved_by[name] = self._saves_begun
                except OSError as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def _flush_log(self) -> None:
        """Bring the log to the disk; OSError if it cannot be. By a worker.

        Offsets of delays and of transactions say what was delivered: with the power gone, what was delivered
        must not be lost while they say so.
        """
        self.store.flusher.flush()
        if self.store.flusher.failed:
            raise OSError(errno.EIO, "offsets are not saved: the log cannot be brought to the disk")

    def saved_ms(self, name: str) -> int:
        """When a table was written last; 0 if it never was."""
        try:
            return os.stat(self._files[name].path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return 0

    def _topics_changed(self, changed: set[str]) -> None:
        self.configure()
        self.registrar.topic_changed(changed)
        self._topics_settled = self._settle_soon("topics.json")

    def _groups_changed(self, changed: set[str]) -> None:
        self.puller.configure()
        self._settle_soon("subscriptionGroup.json")

    def _settle_soon(self, file: str) -> asyncio.Task[None]:
        """Settle what changed in this turn of the loop: one request may make thousands of groups."""
        if file not in self._settling:
            self._settling[file] = self.spawn(self._settle_turn(file))
        return self._settling[file]

    async def _settle_turn(self, file: str) -> None:
        del self._settling[file]
        await self.settle(file)

    def _latest_ms(self) -> int:
        """The latest time that a message may say which is there: by the clock here, or that of a master."""
        store = self.store
        return max(store.look_at_clock().latest_ms, store.checkpoint.dispatched_msg_timestamp)

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether there is such a queue: its topic has it, or had it and has not forgotten its messages."""
        found = self.topics.get(topic)
        if found is None or queue_id < 0:
            return False
        is_there = queue_id < max(found.read_queue_nums, found.write_queue_nums)
        return is_there or self.store.queues.get(topic, queue_id) is not None

    def forget_topic(self, topic: str) -> None:
        """A topic was deleted: groups that consumed it begin anew with the one that is made again."""
        self.offsets.remove_topic(topic)
        self.orders.forget_topic(topic)
        self.pop_buffer.forget(topic=topic)
        if self.slave is not None:
            self.slave.offsets.remove_topic(topic)
        self.stats.forget_topic(topic)
        self.timers.metrics.forget(topic)

    def answer_settled(
        self, connection: Connection, request: RemotingCommand, *files: str, body: bytes | None = None
    ) -> None:
        """Answer a request when what it changed is on the disk and, of topics, at the name servers."""
        self.answer_later(connection, request, self._settled(request, *files, body=body))

    async def _settled(self, request: RemotingCommand, *files: str, body: bytes | None) -> RemotingCommand:
        await self.settle(*files)
        return request.response(body=body)

    def reply_when_routed(
        self, connection: Connection, request: RemotingCommand, answer: RemotingCommand | bytes
    ) -> None:
        """Answer when the name servers know a topic that the request has just made. Who is answered may start
        a consumer of it, which asks for the route once, and then only every thirty seconds."""
        settled = self._topics_settled
        assert settled is not None

        async def when_routed() -> RemotingCommand | bytes:
            await asyncio.wait((settled,), timeout=ROUTE_WAIT_S)
            return answer

        self.answer_later(connection, request, when_routed())

    async def settle(self, *files: str) -> None:
        """Have a change on the disk and, of topics, at the name servers."""
        await self.save(*files)
        if "topics.json" in files:
            await self.registrar.register_changed()

    # Clients

    def _lost_connection_to(self, address: str) -> None:
        self.registrar.connection_lost(address)

    def _connection_lost(self, connection: Connection) -> None:
        self.puller.connection_lost(connection)
        self.popper.connection_lost(connection)
        self.clients.connection_lost(connection)

    async def _expire(self) -> None:
        self.clients.expire()
        self.locks.expire()
        self.filters.expire()
        if self.stats.tick():
            self.puller.configure()  # it holds on to counters that were dropped

    async def _protect(self) -> None:
        """Stop groups that read what is no longer in memory, where that is wanted."""
        if self.config.disable_consume_if_consumer_read_slowly:
            for group in self.stats.groups_behind(self.config.consumer_fallbehind_threshold):
                log.warning("group %s is too far behind: it may not consume until that is changed", group)
                self.groups.disable_consume(group)

    def may_consume(self, client: Client, *resources: Resource) -> bool:
        """Whether a client may be sent what is about topics and groups: its user's rights may be others now
        than they were at its heartbeat."""
        return all(self.guard.may(client.user, client.connection.peer, each, SUB) for each in resources)

    def _notify_group(self, group: str, clients: Iterable[Client]) -> None:
        """Tell the clients of a group that there are others than before: they share its queues anew."""
        for client in clients:
            if self.may_consume(client, group_of(group)):
                fields = ConsumerGroupName(group).fields()
                client.connection.send_oneway(
                    RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields)
                )


def _raise_file_limit() -> None:
    """A queue takes a file, and a mapped file two descriptors: take what the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
