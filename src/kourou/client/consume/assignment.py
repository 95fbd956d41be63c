"""Assignment: the queues that a consumer reads, who decides on them, and the pulls that fill them.

The clients of a group share the queues of its topics: each asks a broker who the others are, sorts queues and
clients as the others do, and takes what the strategy gives it: at the start, every 20 s, and when a broker
says that somebody came or went. Or a broker shares them, and says of each topic whether it is pulled or
popped. A queue that goes away is not read any more, its offset is kept; one that is
read in order keeps its lock until what is being worked on is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from kourou.client.background import Background, notify
from kourou.client.consume.offsets import Offsets
from kourou.client.consume.pop.queues import PopQueues
from kourou.client.consume.process_queue import ProcessQueue
from kourou.client.consume.pulling import Puller, PullStatus
from kourou.client.consume.strategies import AVERAGE, Strategy
from kourou.client.consume.subscriptions import build_subscription
from kourou.client.core import ClientCore, ClientError, NoRouteError, RefusedError
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.connection import ConnectionLostError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.handles import RETRY_V1, RETRY_V2, normal_topic, retry_topic
from kourou.remoting.protocol.header import Header
from kourou.remoting.protocol.headers import ConsumerGroupName, GetMaxOffset, QueueOfTopic, SearchOffset
from kourou.remoting.protocol.heartbeat import CLUSTERING
from kourou.remoting.protocol.subscription import ALL, SubscriptionData

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
REBALANCE_AGAIN_S = 1.0  # after no lock or no route was found
YOUNG_S = 30.0  # how long brokers may take to create a group's retry topic
LOCK_INTERVAL_S = 20.0
UNLOCK_DELAY_S = 20.0  # how long a queue that was lost stays locked for messages in work
LAST_WORD_PAUSES_S = (0.1, 0.5, 1.0)  # tries to commit the offset of a queue that was lost
PULL_PAUSE_FIRST_S = 0.1  # after a pull that failed; it doubles
PULL_PAUSE_MOST_S = 3.0

POP = "POP"  # a request mode; the other is PULL

# Answers after which a broker has to be told again what the group subscribes to
_UNKNOWN_SUBSCRIPTION = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How queues are read; the defaults are Java's."""

    consume_from: str | datetime = "last"  # where a group without an offset begins: first, last, or a time
    pull_batch_size: int = 32
    max_cached_messages: int = 1000  # of a queue, pulled and not consumed
    max_cached_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000  # offsets between the oldest that is not consumed and the newest pulled
    is_broadcast: bool = False
    is_orderly: bool = False
    is_auto_commit: bool = True  # whether what is consumed is kept by itself

    def __post_init__(self) -> None:
        if not isinstance(self.consume_from, datetime) and self.consume_from not in ("first", "last"):
            raise ClientError(f'consume_from is "first", "last" or a datetime, not {self.consume_from!r}')


class Assignment:
    """The queues of one consumer."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        offsets: Offsets,
        options: ReadOptions,
        *,
        puller: Puller,
        strategy: Strategy = AVERAGE,
        on_messages: Callable[[ProcessQueue], None],
        on_change: Callable[[str, list[MessageQueue]], None] | None = None,
        pops: PopQueues | None = None,
    ) -> None:
        self._core = core
        self.group = group
        self.offsets = offsets
        self.options = options
        self._puller = puller
        self._strategy = strategy
        self._on_messages = on_messages
        self._on_change = on_change
        self._pops = pops  # there, brokers share the queues and say how they are read; else clients do
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        self._leaving: dict[MessageQueue, asyncio.Task[None]] = {}
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._everything: dict[str, SubscriptionData] = {}
        self._is_paused = False
        self._young_until = 0.0
        self._wanted = asyncio.Event()
        self._rebalancing = asyncio.Lock()
        self._background = Background()
        self._readers = Background()  # pulls, and the last words of queues that are left

    # Life

    async def find_routes(self, timeout_s: float | None) -> None:
        """Wait until the name servers know all topics; after the timeout, raise why they do not.

        Without a timeout nothing is waited for: the topics are read whenever they are there.
        """
        deadline = asyncio.get_running_loop().time() + (timeout_s or 0.0)
        for topic in self.subscriptions:
            try:
                if timeout_s is None or topic.startswith(RETRY_PREFIX):
                    await self._core.fetch_route(topic)
                else:
                    await self._core.wait_for_route(topic, deadline, timeout_s)
            except KourouError as error:
                if timeout_s is None:
                    log.info("group %s has no route of %s yet: %s", self.group, topic, error)
                elif not topic.startswith(RETRY_PREFIX):  # which the brokers make when they hear of the group
                    raise

    async def start(self) -> None:
        """Take queues, and go on doing so."""
        self._young_until = time.monotonic() + YOUNG_S
        await self._core.send_heartbeats()
        is_balanced = await self.rebalance()
        self._background.start(self._rebalance_on(is_balanced), f"sharing the queues of group {self.group}")
        if self._locks:
            renewing = self._core.every(LOCK_INTERVAL_S, self._renew_locks)
            self._background.start(renewing, f"renewing the locks of group {self.group}")

    async def stop(self) -> None:
        """Release all queues and commit their offsets."""
        await self._background.close()
        async with self._rebalancing:
            for queue in list(self.queues.values()):
                self.drop(queue)
            await asyncio.gather(*self._leaving.values(), return_exceptions=True)
        await self._readers.close()

    @property
    def _locks(self) -> bool:
        return self.options.is_orderly and not self.options.is_broadcast

    # Rebalance

    def request_rebalance(self) -> None:
        """A client joined or left the group: rebalance soon."""
        self._wanted.set()

    async def _rebalance_on(self, is_balanced: bool) -> None:
        while True:
            pause_s = REBALANCE_INTERVAL_S if is_balanced else REBALANCE_AGAIN_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wanted.wait()
            self._wanted.clear()
            try:
                is_balanced = await self.rebalance()
            except Exception:
                self._warn("", "group %s: rebalance failed; it is tried again", trace=True)
                is_balanced = False

    async def rebalance(self) -> bool:
        """Rebalance all topics. Returns whether this client now reads every queue of its share."""
        async with self._rebalancing:
            is_balanced = True
            for topic in list(self.subscriptions):
                try:
                    is_balanced &= await self._rebalance_topic(topic)
                except NoRouteError as error:
                    if normal_topic(topic, self.group) is not None:
                        continue  # nothing was ever popped and not acknowledged
                    if not topic.startswith(RETRY_PREFIX):
                        self._warn(topic, "group %s reads nothing of %s: %s", topic, error)
                    is_balanced = False
                except KourouError as error:
                    self._warn(topic, "group %s: rebalance of %s failed: %s", topic, error)
                    is_balanced = False
            for queue in list(self.queues.values()):
                if queue.queue.topic not in self.subscriptions:
                    self.drop(queue)
            return is_balanced

    async def _rebalance_topic(self, topic: str) -> bool:
        route = await self._core.route(topic)
        is_complete = True
        if topic.startswith(RETRY_PREFIX) and time.monotonic() < self._young_until:
            # Each broker makes it when it first hears of the group, and tells the name server then.
            brokers = {name.broker_name for name in self.queues if name.topic != topic}
            if not brokers <= set(route.addresses):
                route = await self._core.fetch_route(topic)
                is_complete = brokers <= set(route.addresses)
        if self._pops is not None:
            return await self._follow_broker(topic, self._pops) and is_complete
        queues = sorted(route.read_queues)
        if self.options.is_broadcast:
            mine = queues
        else:
            client_ids = sorted(await self._client_ids(topic))
            mine = self._strategy(self.group, self._core.client_id, queues, client_ids)
        return await self.assign(topic, mine) and is_complete

    async def _client_ids(self, topic: str) -> list[str]:
        """The clients of the group, as a broker of the topic knows them."""
        code, header = RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupName(self.group)
        ids: list[str] = (await self._ask_any(topic, code, header)).get("consumerIdList") or []
        return ids

    async def _ask_any(
        self, topic: str, code: RequestCode, header: Header | None, body: bytes | None = None
    ) -> dict[str, Any]:
        """The answer of the first broker of a topic that gives one."""
        route = await self._core.route(topic)
        failure: KourouError = NoRouteError(f"no broker of {topic} is known")
        for broker_name in route.addresses:
            address = self._core.broker_address(broker_name)
            if address is None:
                continue
            await self._core.ensure_heartbeat(address)
            try:
                answer = await self._core.ask(address, code, header, body)
            except KourouError as error:
                failure = error
                continue
            found: dict[str, Any] = lenient_json.loads(answer.body or b"{}")
            return found
        raise failure

    async def _follow_broker(self, topic: str, pops: PopQueues) -> bool:
        """Take the queues that a broker says, in the mode that it says; whether all of them are taken."""
        question = {
            "topic": topic,
            "consumerGroup": self.group,
            "clientId": self._core.client_id,
            "messageModel": CLUSTERING,
            "strategyName": self._strategy.name,
        }
        body = lenient_json.dumps(question)
        answer = await self._ask_any(topic, RequestCode.QUERY_ASSIGNMENT, None, body)
        found = answer.get("messageQueueAssignments")
        if found is None:
            return False  # it does not know yet: what is read now is kept
        by_mode: dict[bool, list[MessageQueue]] = {True: [], False: []}
        for one in found:
            by_mode[one.get("mode") == POP].append(MessageQueue.from_json(one["messageQueue"]))
        popped, pulled = by_mode[True], by_mode[False]
        has_changed = pops.assign(topic, [queue for queue in popped if queue in pops.queues])
        self._read_pop_retries(topic, bool(popped), bool(pulled))
        is_complete = await self.assign(topic, pulled)
        if popped:
            # Pops begin at the offsets of the group, so what was pulled has to be committed first.
            await asyncio.gather(*self._leaving.values(), return_exceptions=True)
            has_changed |= pops.assign(topic, popped)
        if has_changed:
            log.info("group %s pops %s", self.group, popped or f"{topic} no more")
            notify(self._on_change, topic, popped or pulled)
        return is_complete

    def _read_pop_retries(self, topic: str, is_popped: bool, is_pulled: bool) -> None:
        """What was popped and not acknowledged comes again in topics that only pops look at: pull these."""
        for kind in (RETRY_V1, RETRY_V2):
            name = retry_topic(topic, self.group, kind)
            if is_popped and self.subscriptions.pop(name, None) is not None:
                for queue in [queue for queue in self.queues.values() if queue.queue.topic == name]:
                    self.drop(queue)
            elif is_pulled and not topic.startswith(RETRY_PREFIX) and name not in self.subscriptions:
                self.subscriptions[name] = build_subscription(name, ALL)
                self.request_rebalance()

    async def assign(self, topic: str, mine: Iterable[MessageQueue]) -> bool:
        """Read exactly these queues of a topic; whether all of them are read now."""
        wanted = list(mine)
        before = {queue for queue in self.queues if queue.topic == topic}
        for queue in before - set(wanted):
            self.drop(self.queues[queue])
        added = [queue for queue in wanted if queue not in before]
        ready = [queue for queue in added if queue not in self._leaving]
        if self._locks and ready:
            locked = await self._lock(ready)
            ready = [queue for queue in ready if queue in locked]
        results = await asyncio.gather(*(self._add(queue) for queue in ready), return_exceptions=True)
        for queue, result in zip(ready, results):
            if isinstance(result, KourouError):
                self._warn(queue, "group %s does not read %s yet: %s", queue, result)
            elif result is not None:
                raise result
        now = [queue for queue in self.queues if queue.topic == topic]
        if before != set(now):
            log.info("group %s reads %d queues of %s", self.group, len(now), topic)
            await self._tell_brokers(topic)
            notify(self._on_change, topic, now)
        return set(now) == set(wanted)

    async def _tell_brokers(self, topic: str) -> None:
        """A new version of a subscription goes to the brokers, as Java's clients do when queues move."""
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            version = max(int(time.time() * 1000), subscription.sub_version + 1)
            self.subscriptions[topic] = replace(subscription, sub_version=version)
            await self._core.send_heartbeats()

    async def _add(self, queue: MessageQueue) -> None:
        self.offsets.forget(queue)
        position = await self.start_position(queue)
        added = ProcessQueue(queue, position, exclusive=self.options.is_orderly, locked=self._locks)
        added.is_paused = self._is_paused
        self.queues[queue] = added
        self._pulls[queue] = self._start_pulling(added)

    async def start_position(self, queue: MessageQueue) -> int:
        """Where a queue is read from: the offset that is kept, or where a new group begins."""
        kept = await self.offsets.read(queue)
        if kept is not None and kept >= 0:
            return kept
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if self.options.consume_from == "first" or (is_retry and self.options.consume_from == "last"):
            return 0
        if isinstance(self.options.consume_from, datetime) and not is_retry:
            return await self.offset_at(queue, int(self.options.consume_from.timestamp() * 1000))
        return await self.max_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset after the last message of a queue."""
        header = GetMaxOffset(queue.topic, queue.queue_id)
        return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message of a queue."""
        header = QueueOfTopic(queue.topic, queue.queue_id)
        return await self._ask_offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at a time or after it."""
        header = SearchOffset(queue.topic, queue.queue_id, timestamp_ms)
        return await self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _ask_offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        await self._core.route(queue.topic)
        answer = await self._core.ask(self._core.address_of(queue), code, header, broker=queue.broker_name)
        return int(answer.ext_fields["offset"])

    def drop(self, queue: ProcessQueue, *, has_lock: bool = True) -> None:
        """Release a queue."""
        name = queue.queue
        self.queues.pop(name, None)
        pull = self._pulls.pop(name, None)
        if pull is not None:
            pull.cancel()
        commit_offset = queue.commit_offset  # before the waiting messages are dropped
        queue.drop()
        leave = self._leave(queue, pull, commit_offset, has_lock)
        task = self._leaving[name] = self._readers.start(leave, f"leaving {name}")
        task.add_done_callback(lambda _: self._leaving.pop(name, None))

    async def _leave(
        self, queue: ProcessQueue, pull: asyncio.Task[None] | None, commit_offset: int, has_lock: bool
    ) -> None:
        name = queue.queue
        if pull is not None:
            await asyncio.gather(pull, return_exceptions=True)
        if self._locks and has_lock and not queue.idle.is_set():
            # Nobody else gets the queue before its lock is released, so messages in work can finish.
            try:
                async with asyncio.timeout(UNLOCK_DELAY_S):
                    await queue.idle.wait()
            except TimeoutError:
                log.warning("%s is released while one of its messages is still in work", name)
            oldest = queue.oldest
            commit_offset = oldest.start if oldest is not None else max(commit_offset, queue.done_offset)
        if self.options.is_auto_commit and (has_lock or not self._locks):
            self.offsets.update(name, commit_offset)
            for pause_s in LAST_WORD_PAUSES_S:
                if await self.offsets.persist([name]):
                    break
                await asyncio.sleep(pause_s)
        self.offsets.forget(name)
        self._puller.forget(name)
        if self._locks and has_lock:
            await self._unlock([name])

    # Locks

    async def _lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Take or renew the locks of queues. Returns the queues that are locked now."""
        locked: set[MessageQueue] = set()
        for address, part in self._by_master(queues).items():
            body = lenient_json.dumps(self._lock_body(part))
            try:
                answer = await self._core.ask(address, RequestCode.LOCK_BATCH_MQ, None, body)
            except KourouError as error:
                self._warn(address, "group %s got no locks at %s: %s", address, error)
                continue
            found = lenient_json.loads(answer.body or b"{}").get("lockOKMQSet") or []
            locked |= {MessageQueue.from_json(value) for value in found}
        return locked

    async def _unlock(self, queues: Collection[MessageQueue]) -> None:
        for address, part in self._by_master(queues).items():
            body = lenient_json.dumps(self._lock_body(part))
            try:
                await self._core.ask(address, RequestCode.UNLOCK_BATCH_MQ, None, body, timeout_s=1.0)
            except KourouError as error:
                log.warning("group %s: the locks at %s run out by themselves: %s", self.group, address, error)

    def _lock_body(self, queues: Collection[MessageQueue]) -> dict[str, object]:
        return {"consumerGroup": self.group, "clientId": self._core.client_id, "mqSet": list(queues)}

    def _by_master(self, queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            address = self._core.broker_address(queue.broker_name)
            if address is not None:
                found.setdefault(address, []).append(queue)
        return found

    async def _renew_locks(self) -> None:
        held = {name: queue for name, queue in self.queues.items() if not queue.is_dropped}
        renewed = await self._lock(list(held))
        for name, queue in held.items():
            if name in renewed:
                queue.locked_at = time.monotonic()
                self._on_messages(queue)
            elif not queue.has_lock and self.queues.get(name) is queue:
                # Another client may read it by now: start again from the offset at the broker.
                log.warning("group %s has lost the lock of %s", self.group, name)
                self.drop(queue, has_lock=False)
                self.request_rebalance()

    def _warn(self, about: Hashable, text: str, *args: object, trace: bool = False) -> None:
        """Log a warning with the group's name; a repeated one at growing intervals."""
        self._core.warnings.warn(log, (self.group, about), text, self.group, *args, trace=trace)

    # Pulls

    def _start_pulling(self, queue: ProcessQueue) -> asyncio.Task[None]:
        return self._readers.start(self._pull_on(queue), f"pulling {queue.queue}")

    async def _pull_on(self, queue: ProcessQueue) -> None:
        """Pull as long as the queue is ours and there is room for what comes."""
        pause_s = PULL_PAUSE_FIRST_S
        while not queue.is_dropped:
            self._note_room(queue)
            await queue.room.wait()
            try:
                await self._pull_once(queue)
                pause_s = PULL_PAUSE_FIRST_S
            except Exception as error:
                if isinstance(error, RefusedError) and error.code in _UNKNOWN_SUBSCRIPTION:
                    log.info("%s: the subscription is told again: %s", queue.queue, error)
                    await self._core.send_heartbeats()
                else:
                    text = "group %s pulls %s again in %.1f s: %s"
                    is_bug = not isinstance(error, KourouError)
                    self._warn(queue.queue, text, queue.queue, pause_s, error, trace=is_bug)
                await asyncio.sleep(pause_s)
                if isinstance(error, ConnectionLostError):
                    await self._core.refresh_routes()  # a slave may have what the master had
                pause_s = min(pause_s * 2, PULL_PAUSE_MOST_S)

    async def _pull_once(self, queue: ProcessQueue) -> None:
        epoch, name = queue.epoch, queue.queue
        queue.last_pull_at = time.time()
        tells = self.options.is_auto_commit and not self.options.is_broadcast
        commit = self.offsets.known(name) if tells else None
        pulled = await self._puller.pull(
            name,
            queue.position,
            self.subscriptions.get(name.topic) or self._everything_of(name.topic),
            most=self.options.pull_batch_size,
            commit_offset=commit,
        )
        if queue.is_dropped or queue.epoch != epoch:
            return  # the queue was moved while the pull was under way
        queue.max_offset = pulled.max_offset
        if pulled.status is PullStatus.MOVED:
            log.warning(
                "%s: offset %d is not within %d to %d: going on at %d",
                name, queue.position, pulled.min_offset, pulled.max_offset, pulled.next_offset,
            )  # fmt: skip
            self._move(queue, pulled.next_offset)
        elif pulled.batch is not None:
            queue.put(pulled.batch)
            self._on_messages(queue)
        else:
            is_empty = queue.count == 0
            queue.position = pulled.next_offset
            if is_empty and self.options.is_auto_commit:
                self.offsets.update(name, queue.commit_offset)

    def _everything_of(self, topic: str) -> SubscriptionData:
        """What is wanted of a topic whose queues were assigned: the same object each time."""
        return self._everything.setdefault(topic, SubscriptionData(topic))

    def _note_room(self, queue: ProcessQueue) -> None:
        """Flow control: pull no more while too much is pulled and not consumed."""
        options = self.options
        if queue.is_paused or (
            queue.count > options.max_cached_messages
            or queue.size_bytes > options.max_cached_bytes
            or (not options.is_orderly and queue.span > options.max_span)
        ):
            queue.room.clear()
        else:
            queue.room.set()

    def pause(self, queues: Iterable[ProcessQueue] | None = None) -> None:
        """Pause these queues, or all queues and those that are assigned later."""
        self._is_paused |= queues is None
        for queue in self.queues.values() if queues is None else queues:
            queue.is_paused = True

    def resume(self, queues: Iterable[ProcessQueue] | None = None) -> None:
        """Resume these queues, or all."""
        self._is_paused &= queues is not None
        for queue in self.queues.values() if queues is None else queues:
            queue.is_paused = False
            self._note_room(queue)
            self._on_messages(queue)

    @property
    def is_caught_up(self) -> bool:
        """Whether the last pulls reached the ends of all queues, or flow control stops them."""
        return all(
            queue.position >= queue.max_offset or not queue.room.is_set() for queue in self.queues.values()
        )

    def consumed(self, queue: ProcessQueue) -> None:
        """Messages of a queue were consumed: note its new offset, and pull again if there is room."""
        if not queue.is_dropped:
            if self.options.is_auto_commit:
                self.offsets.update(queue.queue, queue.commit_offset)
            self._note_room(queue)

    def seek(self, queue: ProcessQueue, offset: int) -> None:
        """Seek to an offset of a queue. A pull that waits at the broker is cancelled."""
        self._move(queue, offset)
        pull = self._pulls.get(queue.queue)
        if pull is not None:
            pull.cancel()
            self._pulls[queue.queue] = self._start_pulling(queue)

    def _move(self, queue: ProcessQueue, offset: int) -> None:
        queue.seek(offset)
        if self.options.is_auto_commit:
            self.offsets.update(queue.queue, offset)
