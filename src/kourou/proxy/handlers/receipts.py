"""AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue, and the renewal of receipt handles
(AckMessageActivity, ChangeInvisibleDurationActivity, DefaultReceiptHandleManager).

A receipt handle is that of POP, with the offset of the record in the log as a ninth part.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kourou.errors import KourouError
from kourou.message.codec import decode
from kourou.proxy.calls import Call, Owner, as_status
from kourou.proxy.protocol import milliseconds, pb
from kourou.proxy.statuses import OK, StatusError, check, of_all
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import BadHandleError, Handle, retry_topic
from kourou.remoting.protocol.header import to_number
from kourou.remoting.protocol.headers import AckMessage, ChangeInvisibleTime, ConsumerSendMsgBack, ViewMessage

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

log = logging.getLogger(__name__)

MAX_KEPT = 200_000  # handles that are renewed, of all clients
RELEASE_MS = 1000  # until a message that nobody works on comes again
DLQ_LEVEL = -1
_RENEWALS_MS = (60_000, 180_000, 300_000, 600_000, 1_800_000, 3_600_000)  # each longer than the one before


def check_invisible_time(asked_ms: int, least_ms: int, most_ms: int) -> None:
    """Raise StatusError if a message may not be invisible for so long. Node's push consumer asks for 0 ms."""
    wrong = f"small. min is {least_ms}" if asked_ms < least_ms else f"large. max is {most_ms}"
    if not least_ms <= asked_ms <= most_ms:
        raise StatusError(pb.Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too {wrong}")


@dataclass(frozen=True, slots=True)
class Receipt:
    """A message that was given out."""

    topic: str  # as its group knows it
    group: str
    handle: Handle
    physical_offset: int

    @property
    def text(self) -> str:
        """The handle as clients have it."""
        return f"{self.handle.text} {self.physical_offset}"

    @property
    def real_topic(self) -> str:
        """Where it lies: the topic, or the retry topic of the group."""
        return retry_topic(self.topic, self.group, self.handle.kind)

    @classmethod
    def read(cls, topic: str, group: str, text: str) -> Receipt:
        """The receipt that a text is. Raises StatusError if it is none."""
        try:
            handle = Handle.read(text)
        except BadHandleError as error:
            raise StatusError(pb.Code.INVALID_RECEIPT_HANDLE, str(error)) from None
        rest = text.split(" ")[len(handle) :]
        place = to_number(rest[0]) if rest else None
        return cls(topic, group, handle, -1 if place is None else place)


@dataclass(slots=True)
class _Kept:
    """A receipt that is renewed until its client is done with it."""

    receipt: Receipt
    since_ms: int
    renewals: int = 0
    failures: int = 0
    is_released: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


_Key = tuple[Owner, str, str]  # client, group, the handle that the client was given


class Receipts:
    """What clients do with messages that they have."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._kept: dict[_Key, _Kept] = {}

    def __len__(self) -> int:
        return len(self._kept)

    # Calls

    async def ack(self, call: Call, request: Any) -> Any:
        """AckMessage: these are done."""
        topic, group = self._proxy.names_of(call, request)
        if not request.entries:
            raise StatusError(pb.Code.INTERNAL_SERVER_ERROR, "ack message result is empty")
        entries = await asyncio.gather(
            *(self._ack_one(call, topic, group, entry) for entry in request.entries)
        )
        return pb.AckMessageResponse(status=of_all(entries), entries=entries)

    async def _ack_one(self, call: Call, topic: str, group: str, entry: Any) -> Any:
        result = pb.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=entry.receipt_handle)
        try:
            async with self._taken(call, topic, group, entry.receipt_handle) as receipt:
                answer = await self.ack_message(receipt)
                if answer.code == ResponseCode.NO_MESSAGE:
                    remark = answer.remark or "there is no such message"
                    raise StatusError(pb.Code.INVALID_RECEIPT_HANDLE, remark)
                check(answer)
            result.status.CopyFrom(OK)
        except KourouError as error:
            result.status.CopyFrom(as_status(error))
        return result

    async def change(self, call: Call, request: Any) -> Any:
        """ChangeInvisibleDuration: it comes again at another time."""
        topic, group = self._proxy.names_of(call, request)
        invisible_ms = milliseconds(request.invisible_duration)
        check_invisible_time(invisible_ms, 0, self._proxy.config.max_invisible_time_mills)
        async with self._taken(call, topic, group, request.receipt_handle) as receipt:
            changed = await self.change_invisible(receipt, invisible_ms, is_suspended=request.suspend)
        return pb.ChangeInvisibleDurationResponse(status=OK, receipt_handle=changed.text)

    async def forward(self, call: Call, request: Any) -> Any:
        """ForwardMessageToDeadLetterQueue: nobody can do it."""
        topic, group = self._proxy.names_of(call, request)
        async with self._taken(call, topic, group, request.receipt_handle) as receipt:
            await self._check_place(receipt)
            check(await self.to_dead_letters(receipt, request.message_id, request.max_delivery_attempts))
        return pb.ForwardMessageToDeadLetterQueueResponse(status=OK)

    @asynccontextmanager
    async def _taken(self, call: Call, topic: str, group: str, text: str) -> AsyncIterator[Receipt]:
        """The receipt of a handle; if what is done with it works, it is not renewed any more.

        Raises StatusError if it has expired. While it is held no renewal changes it.
        """
        receipt = Receipt.read(topic, group, text)
        key = call.owner, group, text
        kept = self._kept.get(key)
        if kept is not None:
            async with kept.lock:
                yield kept.receipt
                self._kept.pop(key, None)
            return
        await self._proxy.cluster.route(topic)
        if receipt.handle.ends_ms <= self._proxy.now_ms():
            raise StatusError(pb.Code.INVALID_RECEIPT_HANDLE, "handle has expired")
        yield receipt

    # Requests to brokers

    async def ack_message(self, receipt: Receipt) -> RemotingCommand:
        """ACK_MESSAGE: what the broker answers."""
        handle = receipt.handle
        header = AckMessage(
            receipt.group, receipt.real_topic, handle.queue_id, handle.text, handle.queue_offset
        )
        return await self._proxy.cluster.call(handle.broker, RequestCode.ACK_MESSAGE, header)

    async def change_invisible(
        self, receipt: Receipt, invisible_ms: int, *, is_suspended: bool = False
    ) -> Receipt:
        """CHANGE_MESSAGE_INVISIBLETIME: the receipt that counts from now on. Raises StatusError."""
        handle = receipt.handle
        header = ChangeInvisibleTime(
            receipt.group, receipt.real_topic, handle.queue_id, handle.text, handle.queue_offset,
            invisible_ms, suspend=is_suspended,
        )  # fmt: skip
        answer = await self._proxy.cluster.call(
            handle.broker, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header
        )
        if answer.code == ResponseCode.NO_MESSAGE:
            raise StatusError(pb.Code.INVALID_RECEIPT_HANDLE, "there is no such message")
        fields = check(answer).ext_fields
        changed = handle._replace(
            start_offset=handle.queue_offset,
            pop_time_ms=int(fields.get("popTime", handle.pop_time_ms)),
            invisible_ms=int(fields.get("invisibleTime", invisible_ms)),
            revive_queue=int(fields.get("reviveQid", handle.revive_queue)),
        )
        return Receipt(receipt.topic, receipt.group, changed, receipt.physical_offset)

    async def _check_place(self, receipt: Receipt) -> None:
        """Raise StatusError unless the message lies where a receipt of a client says: what lies there, of
        whichever topic, would be the group's to read."""
        handle = receipt.handle
        header = ViewMessage(receipt.physical_offset, receipt.real_topic)
        answer = await self._proxy.cluster.call(handle.broker, RequestCode.VIEW_MESSAGE_BY_ID, header)
        found = decode(answer.body) if answer.code == ResponseCode.SUCCESS and answer.body else None
        if found is None or (found.topic, found.queue_id, found.queue_offset) != (
            receipt.real_topic, handle.queue_id, handle.queue_offset,
        ):  # fmt: skip
            raise StatusError(
                pb.Code.INVALID_RECEIPT_HANDLE, "the receipt handle does not say where the message is"
            )

    async def to_dead_letters(self, receipt: Receipt, message_id: str, most: int = 0) -> RemotingCommand:
        """A message goes to the dead letters of its group, and is done."""
        header = ConsumerSendMsgBack(
            receipt.physical_offset, receipt.group, DLQ_LEVEL, message_id, receipt.topic,
            max_reconsume_times=max(most - 1, 0),
        )  # fmt: skip
        answer = await self._proxy.cluster.call(
            receipt.handle.broker, RequestCode.CONSUMER_SEND_MSG_BACK, header
        )
        if answer.code == ResponseCode.SUCCESS:
            await self.ack_message(receipt)
        return answer

    # Renewal

    def keep(self, owner: Owner, receipt: Receipt) -> None:
        """Renew a receipt until its client is done with it."""
        if len(self._kept) < MAX_KEPT:  # beyond that messages come again when their time is over
            self._kept[owner, receipt.group, receipt.text] = _Kept(receipt, self._proxy.now_ms())

    def release(self, owner: Owner) -> None:
        """A client goes: what it has comes again soon, but for what it acknowledges with its last breath."""
        for key, kept in self._kept.items():
            if key[0] == owner and not kept.is_released:
                kept.is_released = True
                self._proxy.start_task(self._release(key, kept), "releasing a message")

    async def _release(self, key: _Key, kept: _Kept) -> None:
        try:
            async with kept.lock:
                if key not in self._kept:
                    return  # it was done meanwhile
                kept.receipt = await self.change_invisible(kept.receipt, RELEASE_MS, is_suspended=True)
            await asyncio.sleep(RELEASE_MS / 1000)
        finally:
            self._kept.pop(key, None)

    def give_back(self, receipt: Receipt) -> None:
        """Have a message that nobody works on come again soon; it is not counted."""
        work = self.change_invisible(receipt, RELEASE_MS, is_suspended=True)
        self._proxy.start_task(work, "giving back a message")

    async def renew(self) -> None:
        """Renew what would end soon."""
        config, now_ms = self._proxy.config, self._proxy.now_ms()
        ahead_ms = now_ms + config.renew_ahead_time_millis
        due = [
            (key, kept)
            for key, kept in self._kept.items()
            if kept.receipt.handle.ends_ms < ahead_ms and not kept.is_released
        ]
        await asyncio.gather(*(self._renew_one(key, kept, now_ms) for key, kept in due))

    async def _renew_one(self, key: _Key, kept: _Kept, now_ms: int) -> None:
        config = self._proxy.config
        is_old = now_ms - kept.since_ms > config.renew_max_time_millis
        if is_old or kept.failures >= config.max_renew_retry_times:
            self._kept.pop(key, None)
            return
        step_ms = _RENEWALS_MS[min(kept.renewals, len(_RENEWALS_MS) - 1)]
        async with kept.lock:
            if key not in self._kept:
                return  # it was done meanwhile
            try:
                kept.receipt = await self.change_invisible(kept.receipt, step_ms)
                kept.renewals += 1
                kept.failures = 0
            except KourouError as error:
                kept.failures += 1
                log.info("a receipt of %s was not renewed: %s", kept.receipt.group, error)
