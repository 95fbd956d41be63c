"""A scenario: a broker, a name server and clients under load, a schedule of faults, and what must hold.

The load: producers that number their messages for a queue each, delayed messages, transactions that commit,
roll back or have to be asked for, and a consumer group; in a fifth of the seeds, groups that pop (`pops`).
Some brokers are masters with a slave. The faults: see `faults`.

What must hold:
- a message that was acknowledged is there: after a kill always, after a power cut with SYNC_FLUSH always,
  with ASYNC_FLUSH if it was flushed before; of a SYNC_MASTER its slave has it when it is acknowledged;
- there is no message that nobody sent, and none in another queue than it was sent to;
- the offsets of a queue have no gap, and each leads to the record that has it;
- the messages of a producer are in the order in which they were acknowledged;
- delayed messages come, and not early, whichever way clocks are set; committed transactions are seen, once,
  those rolled back never; a lock is nobody else's before its time;
- the consumer group has seen every message that is there; its offsets never went back while the broker ran,
  and with a restart not behind what had been committed long before;
- the topic that was created is never forgotten;
- queues that are made again from the log are the same, byte by byte, and no key of the index is missing;
- every call of a client came to an end, and after the faults all messages are taken again.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from unittest import mock

from kourou.broker.state.locks import MAX_LIVE_MS
from kourou.client import Consumer, Message, MessageQueue, Producer, TransactionState
from kourou.errors import KourouError
from kourou.message.ids import decode_offset_message_id
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import CreateTopic
from kourou.store import PutMessageResult, PutMessageStatus
from kourou.store.put import InnerMessage, MessagePutter, WaitingMessage
from simulator.faults import Fault, Faults, make_schedule
from simulator.lives import Lives
from simulator.loop import NODE
from simulator.model import SLOTS, Model, check_rebuilt, name_of
from simulator.pops import CLIENTS, Popping
from simulator.world import BROKER_PORT, HOSTS, NAMESRV, World

TOPIC = "orders"
QUEUES = 2
LOAD_S = 12.0
SETTLE_S = 40.0
LAST_S = 3.0
LIMIT_S = 240.0
DELAY_MS = 1000
SAVED_AFTER_S = 4.0  # an offset is on the disk, where that works
BROKER_NAME = "broker-a"
BROKER = f"{HOSTS['broker']}:{BROKER_PORT}"


class Scenario:
    """One run."""

    def __init__(self, seed: int, faults: list[Fault] | None = None) -> None:
        self.seed = seed
        self.world = World(seed)
        self._chance = random.Random(f"load {seed}")
        self.model = Model()
        self.is_sync_flush = self._chance.random() < 0.6
        self.has_slave = self._chance.random() < 0.25
        self.has_pops = seed % 10 in (6, 9)  # the others are the runs that they were
        self.has_buffer = seed % 20 == 19  # of check points
        self.has_timers = random.Random(f"timers {seed}").random() < 0.3 or self.has_pops
        self.schedule = make_schedule(seed, self.has_slave, self.has_pops) if faults is None else faults
        self.faults = Faults(self.world, seed, self._note_losses)
        self.lives = Lives(seed, BROKER_NAME, self._cuts_that_lose)
        self.pops = [
            Popping(
                seed, topic, self.world.now_ms, self.faults, in_order=in_order,
                power_cuts=self._cuts_that_lose, saves=self._saves(), has_buffer=self.has_buffer,
            )
            for topic, in_order in (("pops", False), ("line", True))
            if self.has_pops
        ]  # fmt: skip
        self._is_over = False
        self._digest = hashlib.sha256()
        self.counts: Counter[str] = Counter()
        self.world.broker_config["broker"] = {
            "brokerName": BROKER_NAME,
            "flushDiskType": "SYNC_FLUSH" if self.is_sync_flush else "ASYNC_FLUSH",
            "mappedFileSizeCommitLog": self._chance.choice((8192, 16384, 65536)),
            "mappedFileSizeConsumeQueue": 20 * self._chance.choice((16, 64, 1024)),
            "maxHashSlotNum": SLOTS,
            "maxIndexNum": self._chance.choice((64, 256)),
            "maxMessageSize": 4096,
            "flushIntervalCommitLog": 300,
            "flushCommitLogLeastPages": self._chance.choice((0, 1, 4)),
            "messageDelayLevel": "1s 2s",
            "transactionTimeOut": 500,
            "transactionCheckInterval": 400,
            "transactionCheckMax": 1000,
            "enablePopBufferMerge": str(self.has_buffer).lower(),
            "popCkStayBufferTime": 3000,
            "popCkStayBufferTimeOut": 1000,
            "timerWheelEnable": str(self.has_timers).lower(),
            "timerPrecisionMs": 100,
            "timerMaxDelaySec": 20,
            "timerRollWindowSlot": 30,  # three seconds: what is further away is put again on its way
            "timerFlushIntervalMs": 300,
            "mappedFileSizeTimerLog": 52 * 64,
            "diskMaxUsedSpaceRatio": 99,
            "commitLogRecoverMaxNum": 1_000_000,  # of files as small as these
            "fileReservedTime": 72,
            "flushConsumerOffsetInterval": 1000,
            "flushIntervalConsumeQueue": 200,
            "flushConsumeQueueThoroughInterval": self._chance.choice((1000, 4000, 60_000)),
        }
        if any("power" in fault.kind or fault.kind == "sync fails" for fault in self.schedule):
            # The CRC of a body does not tell that properties are torn: a half message may lose its topic,
            # and a slave has a record that is not its master's.
            self.world.broker_config["broker"] |= {
                "enabledAppendPropCRC": "true",
                "forceVerifyPropCRC": "true",
            }
        if self.has_slave:
            master = self.world.broker_config["broker"]
            master |= {"brokerRole": "SYNC_MASTER", "haSyncFromStart": "true"}
            self.world.broker_config["slave"] = {**master, "brokerRole": "SLAVE", "brokerId": 1}

    def _cuts_that_lose(self) -> int:
        """Power cuts that what was acknowledged may not survive."""
        return 0 if self.is_sync_flush else self.faults.power_cuts

    def _saves(self) -> bool:
        """Whether nothing keeps the broker from saving its tables in time."""
        return {fault.kind for fault in self.schedule}.isdisjoint({"sync fails", "slow disk", "disk full"})

    def run(self) -> str:
        """Play it to its end, and check; a digest of what happened. AssertionError if something is wrong."""
        put_message, put_waiting = MessagePutter.put_message, MessagePutter.put_waiting

        def note(
            putter: MessagePutter, topic: str, body: bytes | memoryview, result: PutMessageResult
        ) -> None:
            if topic == TOPIC and result.status is PutMessageStatus.PUT_OK:
                times = self.world.now_ms(), putter.clock.now_ms()
                self.model.arrivals[name_of(body)].append(times)

        def put(putter: MessagePutter, message: InnerMessage) -> PutMessageResult:
            result = put_message(putter, message)
            note(putter, message.topic, message.body, result)
            return result

        def put_due(putter: MessagePutter, messages: Sequence[WaitingMessage]) -> PutMessageResult:
            result = put_waiting(putter, messages)
            for topic, _, _, body, _ in messages:
                note(putter, topic, body, result)
            return result

        with mock.patch.multiple(MessagePutter, put_message=put, put_waiting=put_due):
            self.world.play(self._main(), LIMIT_S)
        return self._digest.hexdigest()

    def _note(self, *what: object) -> None:
        self._digest.update(f"{self.world.loop.time():.6f} {what}\n".encode())

    # The play

    async def _main(self) -> None:
        world = self.world
        await self.faults.start("namesrv")
        await self.faults.start("broker")
        if self.has_slave:
            await self.faults.start("slave")
        client = world.add_node("client")
        loop = asyncio.get_running_loop()
        faults = loop.create_task(self.faults.inflict(self.schedule, self._note))
        await world.run(client, self._clients(faults))

    async def _clients(self, faults: asyncio.Task[None]) -> None:
        async with (
            Producer(NAMESRV, group="PG", ip=HOSTS["client"], checker=self._check, retries=0) as producer,
            Consumer(
                NAMESRV,
                group="CG",
                subscribe=TOPIC,
                consume_from="first",
                start_timeout_s=None,  # servers may be down for longer
                ip=HOSTS["client"],
                instance="consumer",
            ) as consumer,
        ):
            await self._create_topic(producer)
            eating = asyncio.create_task(self._consume(consumer))
            watching = asyncio.create_task(self._watch_offsets())
            locking = asyncio.create_task(self._watch_locks())
            senders = [asyncio.create_task(self._send(producer, f"p{n}", n % QUEUES)) for n in range(3)]
            senders += [asyncio.create_task(self._send_later(producer, "delayed", self._by_level))]
            senders += [asyncio.create_task(self._send_in_transaction(producer))]
            senders += [asyncio.create_task(self.lives.run(producer, partial(producer.core.ask, BROKER)))]
            ask = partial(producer.core.ask, BROKER)
            send = partial(_send_to, producer)
            senders += [asyncio.create_task(each.produce(send, ask)) for each in self.pops]
            popping = [
                asyncio.create_task(each.consume(number, ask))
                for each in self.pops
                for number in range(CLIENTS)
            ]
            if self.has_timers:
                senders += [asyncio.create_task(self._send_later(producer, "timed", self._by_timer))]
                senders += [asyncio.create_task(self._send_later(producer, "paused", self._by_pause))]
            await asyncio.sleep(LOAD_S)
            self._is_over = self.lives.is_over = True
            for each in self.pops:
                each.is_over = True
            await faults
            await asyncio.gather(*senders)
            await asyncio.sleep(SETTLE_S)
            await self._send_last(producer)
            await asyncio.sleep(LAST_S)
            for watch in (watching, locking, *popping):
                if watch.done():
                    watch.result()
                watch.cancel()
            self._check_all()
            eating.cancel()
            await asyncio.gather(eating, watching, locking, *popping, return_exceptions=True)
        assert not self.world.loop.errors, self.world.loop.errors

    async def _create_topic(self, producer: Producer) -> None:
        header = CreateTopic(TOPIC, "TBW102", QUEUES, QUEUES, 6, "SINGLE_TAG")
        while True:
            try:
                await producer.core.ask(BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
                return
            except KourouError:
                await asyncio.sleep(0.2)

    # The load

    async def _put(self, producer: Producer, message: Message, queue_id: int) -> Any:
        name = name_of(message.body)
        model = self.model
        model.bodies[name] = bytes(message.body)
        model.queue_of[name] = queue_id
        model.open_calls += 1
        try:
            receipt = await producer.send(
                message, queue=MessageQueue(TOPIC, BROKER_NAME, queue_id), timeout_s=4.0
            )
        except KourouError as error:
            self._note("refused", name, type(error).__name__)
            return None
        finally:
            model.open_calls -= 1
        self._note(receipt.status, name, receipt.queue_offset)
        return receipt if receipt.status == "SEND_OK" else None

    def _lives(self) -> tuple[int, int]:
        return self.faults.power_cuts, self.faults.lives["slave"]

    def _promise(self, name: str, receipt: Any, lives_before: tuple[int, int]) -> None:
        if not self.is_sync_flush and lives_before[0] != self.faults.power_cuts:
            self.model.lost_with_power.add(name)  # the answer was still under way when the power went
        where = decode_offset_message_id(receipt.offset_message_id).physical_offset
        self.model.promised[name] = where
        if "slave" in self.faults.running and lives_before == self._lives():
            self._check_slave(name, where)

    async def _send(self, producer: Producer, who: str, queue_id: int) -> None:
        chance = random.Random(f"{who} {self.seed}")
        number = 0
        while not self._is_over:
            name = f"{who}-{number}"
            number += 1
            body = f"{name} ".encode() + chance.randbytes(chance.choice((0, 30, 300, 2500)))
            message = Message(TOPIC, body, keys=[name])
            lives = self._lives()
            receipt = await self._put(producer, message, queue_id)
            if receipt is not None:
                self._promise(name, receipt, lives)
                self.model.acknowledged[who, queue_id].append(name)
            await asyncio.sleep(chance.expovariate(20))

    async def _send_later(
        self, producer: Producer, who: str, plan: Callable[[random.Random], tuple[int, dict[str, Any]]]
    ) -> None:
        """Messages that come later; `plan` says when each is due, and how the broker is told."""
        chance = random.Random(f"{who} {self.seed}")
        number = 0
        while not self._is_over:
            name = f"{who}-{number}"
            number += 1
            self.model.due_ms[name], how = plan(chance)
            lives = self._lives()
            message = Message(TOPIC, f"{name} ".encode(), **how)
            receipt = await self._put(producer, message, chance.randrange(QUEUES))
            if receipt is not None:
                self._promise(name, receipt, lives)
            await asyncio.sleep(chance.expovariate(5))

    def _by_level(self, chance: random.Random) -> tuple[int, dict[str, Any]]:
        return self.world.now_ms() + DELAY_MS, {"delay_level": 1}

    def _by_timer(self, chance: random.Random) -> tuple[int, dict[str, Any]]:
        # A time that is named is one of the broker's clock.
        due_ms = self.world.now_ms() + self.world.set_by_ms["broker"] + chance.choice((300, 1500, 8000))
        return due_ms, {"deliver_at": due_ms}

    def _by_pause(self, chance: random.Random) -> tuple[int, dict[str, Any]]:
        delay_ms = chance.choice((300, 1500, 8000))
        return self.world.now_ms() + delay_ms, {"delay_s": delay_ms / 1000}

    async def _send_in_transaction(self, producer: Producer) -> None:
        chance = random.Random(f"transactions {self.seed}")
        number = 0
        model = self.model
        while not self._is_over:
            name = f"transaction-{number}"
            number += 1
            is_good = chance.random() < 0.6
            (model.committed if is_good else model.rolled_back).add(name)
            model.bodies[name] = f"{name} ".encode()
            model.open_calls += 1
            lives = self._lives()
            told = chance.random() < 0.5
            state = self._state_of(name) if told else TransactionState.UNKNOWN
            try:
                receipt = await producer.send_in_transaction(
                    Message(TOPIC, model.bodies[name]), partial(_answer, state), timeout_s=4.0
                )
                if receipt.receipt.status == "SEND_OK":
                    self._promise(name, receipt.receipt, lives)
            except KourouError:
                pass
            finally:
                model.open_calls -= 1
            await asyncio.sleep(chance.expovariate(5))

    async def _send_last(self, producer: Producer) -> None:
        """The faults are over: there is no reason not to take a message."""
        for number in range(3 * QUEUES):
            name, lives = f"last-{number}", self._lives()
            receipt = await self._put(producer, Message(TOPIC, f"{name} ".encode()), number % QUEUES)
            assert receipt is not None, f"{name} was not taken, though nothing is in the way"
            self._promise(name, receipt, lives)

    def _state_of(self, name: str) -> TransactionState:
        return TransactionState.COMMIT if name in self.model.committed else TransactionState.ROLLBACK

    def _check(self, message: Any) -> TransactionState:
        return self._state_of(name_of(message.body))

    async def _consume(self, consumer: Consumer) -> None:
        async for message in consumer:
            name = name_of(message.body)
            self._note("consumed", name, message.queue_offset)
            self.model.consumed.setdefault(name, self.world.now_ms())
            self.model.consumed_places.add((message.queue_id, message.queue_offset))

    async def _watch_offsets(self) -> None:
        """Committed offsets do not go back while a broker runs, nor far when it is started again."""
        saves = self._saves()
        seen: dict[int, list[tuple[float, int]]] = {queue_id: [] for queue_id in range(QUEUES)}
        life = 0
        while True:
            await asyncio.sleep(0.25)
            if not self.is_sync_flush and self.faults.power_cuts:
                return  # messages that were seen may be lost: the group goes back to where the queue ends
            if "broker" not in self.faults.running:
                continue
            broker, now = self.world.brokers["broker"], self.world.loop.time()
            is_new, life = life != self.faults.lives["broker"], self.faults.lives["broker"]
            for queue_id, history in seen.items():
                offset = broker.offsets.query("CG", TOPIC, queue_id)
                if is_new and history:
                    ended = history[-1][0]
                    history[:] = [item for item in history if saves and item[0] < ended - SAVED_AFTER_S]
                if history:
                    assert offset >= history[-1][1], f"the offset of queue {queue_id} went back"
                history.append((now, offset))

    async def _watch_locks(self) -> None:
        """Nobody else gets a lock as long as it lasts, by true time."""
        queue, life, locked_s = MessageQueue(TOPIC, BROKER_NAME, 0), 0, 0.0
        while True:
            await asyncio.sleep(0.25)
            if "broker" not in self.faults.running:
                continue
            locks, now_s = self.world.brokers["broker"].locks, self.world.loop.time()
            if life != self.faults.lives["broker"]:
                assert locks.try_lock("ordered", queue, "owner"), "a lock that is free was refused"
                life, locked_s = self.faults.lives["broker"], now_s
            elif now_s - locked_s < MAX_LIVE_MS / 1000:
                assert not locks.try_lock("ordered", queue, "rival"), "a lock was lost before its time"

    # What must hold

    def _note_losses(self) -> None:
        """What was not flushed may be gone; with SYNC_FLUSH nothing of it was acknowledged."""
        if self.is_sync_flush:
            return
        flushed = self.world.brokers["broker"].store.commit_log.files.flushed_where
        for model in (self.model, self.lives.model, *(each.model for each in self.pops)):
            model.lost_with_power |= {name for name, where in model.promised.items() if where >= flushed}

    def _check_slave(self, name: str, where: int) -> None:
        """A slave has what its SYNC_MASTER acknowledges."""
        message = self.world.brokers["slave"].store.look_message(where)
        assert message is not None, f"{name} was acknowledged and the slave does not have it"
        assert message.body == self.model.bodies[name], f"{name} is another message on the slave"
        self.counts["seen on the slave"] += 1

    def _check_all(self) -> None:
        assert NODE.get() is not None
        model = self.model
        assert model.open_calls == 0, "a call never came to an end"
        broker = self.world.brokers["broker"]
        topic = broker.topics.get(TOPIC)
        assert topic is not None, "the topic is forgotten"
        assert topic.read_queue_nums == QUEUES, "the topic is another one"
        found = model.look(broker.store, TOPIC)
        self._note("found", sorted((name, tuple(places)) for name, places in found.items()))
        model.check(found, self.world.now_ms())
        model.check_seen(found)
        self.lives.check(broker, self.world.now_ms())
        for each in self.pops:
            each.check()
            self.counts["messages popped"] += each.deliveries
            self.counts["messages popped again"] += each.again
        if self.has_slave:
            model.check(model.look(self.world.brokers["slave"].store, TOPIC), self.world.now_ms())
            self.lives.check(self.world.brokers["slave"], self.world.now_ms())
        if self.seed % 4 == 0:
            check_rebuilt(broker.store)
            self.counts["stores made again"] += 1
        self.counts += Counter(
            {
                "messages acknowledged": len(model.promised),
                "messages lost with the power, as ASYNC_FLUSH may": len(model.lost_with_power),
                "messages consumed": len(model.consumed),
                "topics and groups deleted and made again": self.lives.deletions,
                "virtual seconds": int(self.world.loop.time()),
            }
        )


async def _send_to(producer: Producer, topic: str, queue_id: int, body: bytes) -> int | None:
    queue = MessageQueue(topic, BROKER_NAME, queue_id)
    receipt = await producer.send(Message(topic, body), queue=queue, timeout_s=4.0)
    if receipt.status != "SEND_OK":
        return None
    return decode_offset_message_id(receipt.offset_message_id).physical_offset


def _answer(state: TransactionState, message: Any) -> TransactionState:
    return state
