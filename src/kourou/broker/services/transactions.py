"""TransactionService: messages that are seen when their producer says so (TransactionalMessageServiceImpl).

A prepared message lies in RMQ_SYS_TRANS_HALF_TOPIC, with its own topic and queue in its properties, where no
consumer looks. END_TRANSACTION commits it (a copy goes to its own queue) or rolls it back; either way its
offset in the half queue goes into an op message, `0,1,4,`, several offsets at a time:

    half  0 1 2 3 4 5 …      the group CID_RMQ_SYS_TRANS is, in this queue, at the first that is not resolved
    op    "0,1,4,"  "3,"     and in this one at the first op message that still tells of one behind that

Halves that stay unresolved are checked: their producer group is asked for the outcome. A half that is asked
for is put again at the end of the queue with the number of its checks, so that the queue's begin moves on;
after `transactionCheckMax` checks it goes to TRANS_CHECK_MAX_TIME_TOPIC. What op messages say is read once,
at the start, and known from then on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from kourou.auth.rules import sending
from kourou.broker.names import TRANSACTION_GROUP
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import StoredMessage, decode, encode
from kourou.message.host import pack_host
from kourou.message.properties import encode_properties
from kourou.message.topics import TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CheckTransactionState, EndTransaction
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE
from kourou.store.put import InnerMessage
from kourou.store.status import PutMessageResult, PutMessageStatus

if TYPE_CHECKING:
    from kourou.broker.server import Broker
    from kourou.broker.state.clients import Client

log = logging.getLogger(__name__)

QUEUE = 0  # of the half and of the op topic; each has one
REMOVE_TAG = "d"
AT_ONCE = 128  # halves looked at before other work has its turn
MAX_DIGITS = 19  # of a number in a property: it fits a long
INDEX_PRECISION_MS = 2000  # an index entry has whole seconds
RETRY_S = 1.0  # until an op message that the store did not take is tried again

# A producer that hears this, or hears nothing because it does not wait for an answer, is asked by a check.
_NOT_KNOWN_YET = "whether it was committed before the broker started is not known until the index is complete"

# What checks note in a half. One that a sender sets could have halves of others left out.
_OF_CHECKS = (names.TRANSACTION_CHECK_TIMES, names.TRANSACTION_PREPARED_QUEUE_OFFSET)

_STORED = (
    PutMessageStatus.PUT_OK,
    PutMessageStatus.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE,
)


# Topic and unique id of a half. Senders choose the id: alone it would let one end the half of another topic.
_Key = tuple[str, str]


class HalfEvent(Enum):
    """What becomes of a half."""

    PREPARED, COMMITTED, ROLLED_BACK, GIVEN_UP = range(4)


class TransactionService:
    """Halves, what became of them, and the checks of those of which nothing is known."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resolved: dict[int, int | None] = {}  # half offset -> op offset, None until it is written
        self._newest: dict[_Key, int] = {}  # half offsets of halves that were put again
        self._left: Counter[int] = Counter()  # op offset -> halves of it that were not passed yet
        self._unwritten: list[int] = []  # half offsets for the next op message
        self._unwritten_bytes = 0
        self._op_timer: asyncio.TimerHandle | None = None
        self._half_at = 0
        self._op_at = 0
        self.on_half: Callable[[HalfEvent, str, int], None] | None = None  # hears topic and birth of a half
        self._unsure_from = self._unsure_to = 0  # halves from before the start that may have been committed

    # Messages

    def prepare(self, message: InnerMessage) -> PutMessageResult:
        """Put a message that waits for its producer's word."""
        properties = message.properties
        unique_id = properties.get(names.UNIQ_KEY)
        if unique_id:
            properties[names.TRANSACTION_ID] = unique_id
        for name in _OF_CHECKS:
            properties.pop(name, None)
        properties[names.REAL_TOPIC] = message.topic
        properties[names.REAL_QUEUE_ID] = str(message.queue_id)
        message.properties_raw = None
        message.sys_flag &= ~sysflag.TRANSACTION_MASK
        message.topic, message.queue_id = TRANS_HALF_TOPIC, QUEUE
        self._broker.store.look_at_clock()
        result = self._put(message)
        self._broker.store.look_at_clock()
        if self.on_half is not None and result.status in _STORED:
            self.on_half(HalfEvent.PREPARED, properties[names.REAL_TOPIC], message.born_timestamp)
        return result

    def find_half(self, physical_offset: int, topic: str = TRANS_HALF_TOPIC) -> StoredMessage | None:
        """The half at a place in the log, or one that was given up; None if there is none."""
        found = self._broker.store.look_message(physical_offset)
        return found if found is not None and found.topic == topic else None

    def end(
        self, request: RemotingCommand, header: EndTransaction, half: StoredMessage | None
    ) -> RemotingCommand | None:
        """A producer commits or rolls back a half; None where nothing is said to it, as in Java."""
        outcome = header.commit_or_rollback
        if outcome not in (sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK):
            return None  # it does not know yet, and is asked again
        mistake = _mistake(half, header)
        if half is None or mistake is not None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=mistake)
        if not header.from_transaction_check and self._is_too_late(half):
            return request.response(ResponseCode.ILLEGAL_OPERATION)
        offset = self._newest.get(_key(half.properties), half.queue_offset)
        if offset in self._resolved:
            return request.response()  # said before
        if self._may_be_committed(offset):
            if self._was_committed(half):
                return request.response()
            if self._broker.store.index_catch_up.is_behind:
                return request.response(ResponseCode.SYSTEM_ERROR, remark=_NOT_KNOWN_YET)
        committed = outcome == sysflag.TRANSACTION_COMMIT
        if committed:
            result = self._broker.put(_final_message(half))
            if result.status not in _STORED:
                return request.response(
                    ResponseCode.SYSTEM_ERROR, remark=f"{result.status.name}: {result.reason}"
                )
        if offset >= self._half_at:
            self._resolve(offset)
        self._tell_of(HalfEvent.COMMITTED if committed else HalfEvent.ROLLED_BACK, half)
        return request.response()

    def _tell_of(self, event: HalfEvent, half: StoredMessage) -> None:
        if self.on_half is not None:
            self.on_half(event, half.properties.get(names.REAL_TOPIC, ""), half.born_timestamp)

    def _may_be_committed(self, half_offset: int) -> bool:
        """Whether only the topic itself tells what became of a half."""
        return half_offset < self._half_at or self._unsure_from <= half_offset < self._unsure_to

    def _was_committed(self, half: StoredMessage) -> bool:
        """Whether a message of this half, or of another copy of it, is in its own queue."""
        topic, unique_id = half.properties.get(names.REAL_TOPIC), half.properties.get(names.UNIQ_KEY)
        if not topic or not unique_id:
            return False
        since = min(half.born_timestamp, half.store_timestamp) - INDEX_PRECISION_MS
        found = self._broker.store.query_message(
            topic, unique_id, begin=since, after_offset=half.physical_offset
        )
        messages = [decode(record, check_crc=False) for record in found.records]
        return any(
            message.sys_flag & sysflag.TRANSACTION_MASK == sysflag.TRANSACTION_COMMIT
            and message.properties.get(names.PRODUCER_GROUP) == half.properties.get(names.PRODUCER_GROUP)
            for message in messages
        )

    def _is_too_late(self, half: StoredMessage) -> bool:
        """Whether a half with an immunity of its own is past it: then only a check ends it."""
        if not half.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS):
            return False
        self._broker.store.look_at_clock()
        return self._is_older(half, self._immunity_ms(half))

    def _is_older(self, half: StoredMessage, span_ms: int) -> bool:
        """Whether a half has been in the store for longer than this, as of the last look at the clock.

        By elapsed time since it was stored first: its birth is told by the clock of its producer.
        """
        store, first = self._broker.store, _number(half, names.TRANSACTION_PREPARED_QUEUE_OFFSET)
        queue = store.queues.get(TRANS_HALF_TOPIC, QUEUE)
        entry = None if queue is None or first is None else queue.get(first)
        half = (entry and store.look_message(entry.physical_offset)) or half
        return store.clock_steps.left_ms(half.store_timestamp + span_ms, half.physical_offset, span_ms) < 0

    def _immunity_ms(self, half: StoredMessage) -> int:
        """How long a half is not checked: what its producer asked for, but never less than the time-out."""
        asked_s = _number(half, names.CHECK_IMMUNITY_TIME_IN_SECONDS) or 0
        return max(asked_s * 1000, self._broker.config.transaction_time_out)

    # Op messages

    def _resolve(self, half_offset: int) -> None:
        self._resolved[half_offset] = None
        self._unwritten.append(half_offset)
        self._unwritten_bytes += len(str(half_offset)) + 1
        if self._unwritten_bytes > self._broker.config.transaction_op_msg_max_size:
            self.write_ops()
        elif self._op_timer is None and self._loop is not None:
            delay = self._broker.config.transaction_op_batch_interval / 1000
            self._op_timer = self._loop.call_later(delay, self.write_ops)

    def write_ops(self) -> None:
        """Write what was resolved since the last time."""
        if self._op_timer is not None:
            self._op_timer.cancel()
            self._op_timer = None
        if not self._unwritten:
            return
        body = "".join(f"{offset}," for offset in self._unwritten).encode()
        host = pack_host(self._broker.config.broker_ip1, self._broker.config.listen_port)
        message = InnerMessage.of(
            TRANS_OP_HALF_TOPIC, QUEUE, body, {names.WAIT_STORE_MSG_OK: "true", names.TAGS: REMOVE_TAG},
            born_timestamp=self._broker.clock.now_ms(), born_host=host, store_host=host,
        )  # fmt: skip
        result = self._put(message)
        if result.status not in _STORED:
            log.error("an op message waits: %s %s", result.status.name, result.reason)
            if self._loop is not None:
                self._op_timer = self._loop.call_later(RETRY_S, self.write_ops)
            return
        for half_offset in self._unwritten:
            self._tell(half_offset, result.queue_offset)
        self._unwritten.clear()
        self._unwritten_bytes = 0

    def _tell(self, half_offset: int, op_offset: int) -> None:
        """An op message says that a half is resolved."""
        if half_offset >= self._half_at:
            self._resolved[half_offset] = op_offset
            self._left[op_offset] += 1
        else:
            self._resolved.pop(half_offset, None)
        self._left.setdefault(op_offset, 0)

    # Life

    def start(self) -> None:
        """Learn what op messages say, and begin."""
        self._loop = asyncio.get_running_loop()
        self.learn()
        queue = self._broker.store.queues.get(TRANS_HALF_TOPIC, QUEUE)
        self._unsure_from, self._unsure_to = self._half_at, 0 if queue is None else queue.max_offset

    def learn(self) -> None:
        """Learn what op messages say."""
        store = self._broker.store
        self._resolved.clear()
        self._left.clear()
        self._half_at = self._start_of(TRANS_HALF_TOPIC)
        self._op_at = self._start_of(TRANS_OP_HALF_TOPIC)
        queue = store.queues.get(TRANS_OP_HALF_TOPIC, QUEUE)
        for entry in queue.iterate(self._op_at) if queue is not None else ():
            record = store.commit_log.message(entry.physical_offset, entry.size)
            self._left.setdefault(entry.queue_offset, 0)
            for half_offset in _offsets_in(record):
                self._tell(half_offset, entry.queue_offset)

    def unresolved(self) -> Iterator[StoredMessage]:
        """The halves that nobody has ended yet."""
        queue = self._broker.store.queues.get(TRANS_HALF_TOPIC, QUEUE)
        for entry in queue.iterate(max(self._half_at, queue.min_offset)) if queue is not None else ():
            if entry.queue_offset not in self._resolved:
                half = self._broker.store.look_message(entry.physical_offset)
                if half is not None:
                    yield half

    async def _find_committed(self) -> None:
        """A crash may come between a commit and its op message: what was committed is not asked for again.

        Halves that were there at the start are looked for by their unique ids, before the first check.
        """
        store = self._broker.store
        queue = store.queues.get(TRANS_HALF_TOPIC, QUEUE)
        while queue is not None and self._unsure_from < self._unsure_to:
            first = max(self._unsure_from, self._half_at, queue.min_offset)
            until = min(first + AT_ONCE, self._unsure_to)
            for entry in queue.iterate(first):
                if entry.queue_offset >= until:
                    break
                if entry.queue_offset in self._resolved:
                    continue
                half = store.look_message(entry.physical_offset)
                if half is not None:
                    self._newest[_key(half.properties)] = entry.queue_offset
                    if self._was_committed(half):
                        self._resolve(entry.queue_offset)
            self._unsure_from = until
            await asyncio.sleep(0)

    def _start_of(self, topic: str) -> int:
        offset = self._broker.offsets.query(TRANSACTION_GROUP, topic, QUEUE)
        low = max(self._broker.store.min_offset(topic, QUEUE), 0)
        return max(offset, low)

    def stop(self) -> None:
        """Write what is not written."""
        self.write_ops()
        self._loop = None
        if self._op_timer is not None:
            self._op_timer.cancel()

    async def run(self) -> None:
        """Check halves, every `transactionCheckInterval`."""
        while True:
            await asyncio.sleep(self._broker.config.transaction_check_interval / 1000)
            try:
                await self.check()
            except Exception:
                log.exception("checking transactions failed; it is tried again")

    # A slave that acts for its master

    def overdue(self) -> Iterator[StoredMessage]:
        """The halves that a producer should have ended by now and has not; what comes before is passed."""
        self._broker.store.look_at_clock()
        if self._broker.store.index_catch_up.is_behind:
            return  # as in `check`
        queue = self._broker.store.queues.get(TRANS_HALF_TOPIC, QUEUE)
        for entry in queue.iterate(max(self._half_at, queue.min_offset)) if queue is not None else ():
            half = None
            if entry.queue_offset not in self._resolved:
                half = self._broker.store.look_message(entry.physical_offset)
            if half is None or self._was_committed(half):
                self.handed_over(entry.queue_offset)
            elif not self._is_older(half, self._immunity_ms(half)):
                return
            else:
                yield half

    def handed_over(self, half_offset: int) -> None:
        """A half is another broker's business now."""
        self._pass(half_offset)
        self._save()

    # Checks

    async def check(self) -> None:
        """Pass the halves that are resolved, and ask for those that have been unresolved for too long."""
        store = self._broker.store
        store.look_at_clock()  # also while nothing is decided: a step not seen is taken for time that passed
        if store.index_catch_up.is_behind:
            return  # which of them were committed is told by the index alone
        await self._find_committed()
        # By its place and not, as in Java, by its time: the clock may have been ahead when it was stored.
        began_at = store.max_offset(TRANS_HALF_TOPIC, QUEUE)
        while True:
            queue = store.queues.get(TRANS_HALF_TOPIC, QUEUE)
            if queue is None:
                return
            self._half_at = max(self._half_at, queue.min_offset)
            passed = 0
            for entry in queue.iterate(self._half_at):
                if passed >= AT_ONCE:
                    break
                if entry.queue_offset not in self._resolved:
                    record = store.commit_log.message(entry.physical_offset, entry.size)
                    if record is not None and not self._look_at(record, began_at):
                        self._save()
                        return
                self._pass(entry.queue_offset)
                passed += 1
            self._save()
            if passed < AT_ONCE:
                return
            await asyncio.sleep(0)

    def _look_at(self, record: memoryview, began_at: int) -> bool:
        """What is to be done with a half that nobody has ended; False if this and what follows can wait, as
        those do that came since the check began, at the queue's end of then."""
        try:
            half = decode(record)
        except CorruptRecordError as error:
            log.error("a half message cannot be read and is left out: %s", error)
            return True
        if self._newest.get(_key(half.properties), -1) > half.queue_offset:
            return True  # it was put again: that one counts
        config = self._broker.config
        times = _number(half, names.TRANSACTION_CHECK_TIMES) or 0
        gap_ms = self._broker.store.clock_steps.gap_ms(half.physical_offset + 1)
        reserved_ms = config.store.file_reserved_time * 3_600_000 + gap_ms
        if half.queue_offset >= began_at:
            return False
        if times >= config.transaction_check_max:
            return self._discard(half)
        if self._is_older(half, reserved_ms):
            # The broker may have been off all the time: nobody was asked yet.
            return self._discard(half) if times else self._ask(half, 1)
        if names.CHECK_IMMUNITY_TIME_IN_SECONDS in half.properties:
            if not self._is_older(half, self._immunity_ms(half)):
                return self._keep_immune(half)
        elif times == 0 and not self._is_older(half, config.transaction_time_out):
            return False
        return self._ask(half, times + 1)

    def _keep_immune(self, half: StoredMessage) -> bool:
        """A half that may not be checked yet goes to the end, so that those behind it can be."""
        first = _number(half, names.TRANSACTION_PREPARED_QUEUE_OFFSET)
        if first is not None and first in self._resolved:
            self._pass(first)
            return True
        properties = {**half.properties}
        properties.setdefault(names.TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        return self._put_again(half, properties) is not None

    def _ask(self, half: StoredMessage, times: int) -> bool:
        """Put a half to the end of the queue with its number of checks, and ask a producer of its group."""
        properties = {**half.properties, names.TRANSACTION_CHECK_TIMES: str(times)}
        if names.CHECK_IMMUNITY_TIME_IN_SECONDS in properties:  # it is as old as its first copy
            properties.setdefault(names.TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        result = self._put_again(half, properties)
        if result is None:
            return False
        group = properties.get(names.PRODUCER_GROUP, "")
        producer = self._broker.producers.pick(group, lambda client: self._may_end(client, properties))
        if producer is None:
            log.warning(
                "a transaction of %s cannot be checked: no producer of that group is connected", group
            )
            return True
        topic, queue_id = properties.get(names.REAL_TOPIC, ""), properties.get(names.REAL_QUEUE_ID, "")
        asked = replace(
            half, topic=topic, queue_id=int(queue_id) if queue_id.isdecimal() else 0,
            properties_raw=encode_properties(properties), queue_offset=result.queue_offset,
            physical_offset=result.physical_offset, _properties=None,
        )  # fmt: skip
        unique_id = properties.get(names.UNIQ_KEY)
        header = CheckTransactionState(
            result.queue_offset, result.physical_offset, TRANS_HALF_TOPIC, unique_id, unique_id,
            asked.offset_message_id, self._broker.config.broker_name,
        )  # fmt: skip
        producer.send_oneway(
            RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, header.fields(), encode(asked))
        )
        return True

    def _may_end(self, client: Client, properties: Mapping[str, str]) -> bool:
        """Whether a producer may see a half: anybody may say to be of a group."""
        owner, actions = sending(properties.get(names.REAL_TOPIC, ""))
        return self._broker.guard.may(client.user, client.connection.peer, owner, *actions)

    def _discard(self, half: StoredMessage) -> bool:
        """Keep a half that was checked too often, or is too old, where an operator finds it."""
        log.error("%s was checked too often and is given up", half.offset_message_id)
        self._broker.topics.create_for_send_back(TRANS_CHECK_MAX_TIME_TOPIC, 1, PERM_READ | PERM_WRITE)
        message = _copy(half, TRANS_CHECK_MAX_TIME_TOPIC, QUEUE, half.properties)
        is_kept = self._put(message).status in _STORED
        if is_kept:
            self._tell_of(HalfEvent.GIVEN_UP, half)
        return is_kept

    def resume(self, half: StoredMessage) -> bool:
        """Check a half again that was given up."""
        properties = {**half.properties, names.TRANSACTION_CHECK_TIMES: "0"}
        return self._put(_copy(half, TRANS_HALF_TOPIC, QUEUE, properties)).status in _STORED

    def _put_again(self, half: StoredMessage, properties: dict[str, str]) -> PutMessageResult | None:
        message = _copy(half, TRANS_HALF_TOPIC, QUEUE, properties)
        result = self._put(message)
        if result.status in _STORED:
            self._newest[_key(properties)] = result.queue_offset
            return result
        log.error("a half message was not put again: %s %s", result.status.name, result.reason)
        return None

    def _put(self, message: InnerMessage) -> PutMessageResult:
        result = self._broker.store.put_message(message)
        self._broker.has_put()
        return result

    def _pass(self, half_offset: int) -> None:
        """A half needs no looking at any more."""
        op_offset = self._resolved.pop(half_offset, None)
        if op_offset is not None:
            self._left[op_offset] -= 1
        self._half_at = max(self._half_at, half_offset + 1)

    def _save(self) -> None:
        """Note how far halves and op messages are done, for the next start."""
        while self._left.get(self._op_at, -1) == 0:
            del self._left[self._op_at]
            self._op_at += 1
        self._newest = {key: offset for key, offset in self._newest.items() if offset >= self._half_at}
        offsets = self._broker.offsets
        for topic, offset in ((TRANS_HALF_TOPIC, self._half_at), (TRANS_OP_HALF_TOPIC, self._op_at)):
            if offsets.query(TRANSACTION_GROUP, topic, QUEUE) != offset:
                offsets.commit("transactions", TRANSACTION_GROUP, topic, QUEUE, offset)


def _key(properties: Mapping[str, str]) -> _Key:
    return properties.get(names.REAL_TOPIC, ""), properties.get(names.UNIQ_KEY, "")


def _offsets_in(record: memoryview | None) -> list[int]:
    """The offsets in an op message; none where it says nothing that can be read."""
    if record is None:
        return []
    try:
        op = decode(record)
        if op.properties.get(names.TAGS) != REMOVE_TAG:
            raise CorruptRecordError("it has another tag")
        return [int(text) for text in bytes(op.body).decode().split(",") if text]
    except (CorruptRecordError, ValueError) as error:
        log.error("an op message is left out: %s", error)
        return []


def _number(half: StoredMessage, name: str) -> int | None:
    """A property that is a number; None if it is none, or one that no broker has written."""
    text = half.properties.get(name, "")
    return int(text) if text.isdecimal() and len(text) < MAX_DIGITS else None


def _mistake(half: StoredMessage | None, header: EndTransaction) -> str | None:
    if half is None:
        return "Find prepared transaction message failed"
    if half.properties.get(names.PRODUCER_GROUP) != header.producer_group:
        return "The producer group wrong"
    if half.queue_offset != header.tran_state_table_offset:
        return "The transaction state table offset wrong"
    if half.physical_offset != header.commit_log_offset:
        return "The commit log offset wrong"
    return None


def _final_message(half: StoredMessage) -> InnerMessage:
    """A half as consumers get it."""
    properties = {**half.properties}
    topic = properties.pop(names.REAL_TOPIC, "")
    queue_id = properties.pop(names.REAL_QUEUE_ID, "0")
    message = _copy(half, topic, int(queue_id) if queue_id.isdecimal() else 0, properties)
    message.sys_flag = message.sys_flag & ~sysflag.TRANSACTION_MASK | sysflag.TRANSACTION_COMMIT
    message.reconsume_times = half.reconsume_times
    message.prepared_transaction_offset = half.physical_offset
    return message


def _copy(half: StoredMessage, topic: str, queue_id: int, properties: dict[str, str]) -> InnerMessage:
    return InnerMessage(
        topic, queue_id, half.body, None, properties, half.sys_flag,
        half.born_timestamp, half.born_host, half.store_host, half.flag,
    )  # fmt: skip
