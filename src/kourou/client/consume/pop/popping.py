"""Popper: the requests of POP of one group, and what their answers say (MQClientAPIImpl).

A receipt is the topic of a message, as it is called on the wire, and its handle. Handles name the broker that
they are sent to. They count for the invisible time; then the message belongs to whoever pops it next.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from kourou.client.consume.pop.batches import PopBatch
from kourou.client.core import ClientCore, ClientError, NoRouteError, RefusedError
from kourou.client.namespace import wrap
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import Handle, retry_topic
from kourou.remoting.protocol.headers import AckMessage, ChangeInvisibleTime, Notification, PopMessage
from kourou.remoting.protocol.subscription import SubscriptionData

ANSWER_S = 15.0  # after the time that a broker may wait
ANY_QUEUE = -1
FULL_PAUSE_S = 1.0  # after a broker had too many requests that wait

_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)

Receipt = tuple[str, str]  # topic on the wire, handle


class ExpiredHandleError(ClientError):
    """The invisible time of messages was over before they were acknowledged: they come again."""


class Popper:
    """Pops, acknowledges and hides messages for one group."""

    def __init__(
        self,
        core: ClientCore,
        group: str,
        *,
        namespace: str | None = None,
        init_mode: int = 0,
        is_orderly: bool = False,
    ) -> None:
        self._core = core
        self._group = group
        self._namespace = namespace
        self._init_mode = init_mode  # where a group without an offset begins: 0 first, 1 last
        self._is_orderly = is_orderly
        self._ahead_ms: dict[str, int] = {}  # by how much the clock of a broker is ahead of ours

    async def pop(
        self,
        queue: MessageQueue,
        wanted: SubscriptionData,
        *,
        most: int,
        invisible_ms: int,
        poll_s: float,
        attempt_id: str | None = None,
    ) -> PopBatch:
        """Messages of a topic at a broker; where it has none, it waits so long and gives an empty batch."""
        header = PopMessage(
            self._group, queue.topic, queue.queue_id, most, invisible_ms, int(poll_s * 1000),
            init_mode=self._init_mode, exp_type=wanted.expression_type, exp=wanted.sub_string,
            order=self._is_orderly, attempt_id=attempt_id,
        )  # fmt: skip
        address = await self._address(queue)
        fields = {**header.fields(), "bname": queue.broker_name}
        request = RemotingCommand(RequestCode.POP_MESSAGE, fields)
        answer = await self._core.call(address, request, poll_s + ANSWER_S)
        if answer.code == ResponseCode.SUCCESS:
            batch = PopBatch(
                queue, bytes(answer.body or b""), answer.ext_fields, self._group, wanted,
                namespace=self._namespace,
            )  # fmt: skip
            self._ahead_ms[queue.broker_name] = batch.pop_time_ms - _now_ms()
            return batch
        if answer.code == ResponseCode.POLLING_FULL:
            await asyncio.sleep(min(poll_s, FULL_PAUSE_S))
        elif answer.code not in _NOTHING:
            raise RefusedError(address, f"a pop of {queue.topic}", answer)
        return PopBatch.none(queue)

    async def has_messages(
        self, queue: MessageQueue, wanted: SubscriptionData, poll_s: float, attempt_id: str | None
    ) -> bool:
        """Whether a broker has messages of a topic, as soon as it has; it waits so long."""
        header = Notification(
            self._group, queue.topic, queue.queue_id, int(poll_s * 1000), order=self._is_orderly,
            attempt_id=attempt_id, exp_type=wanted.expression_type, exp=wanted.sub_string,
        )  # fmt: skip
        address = await self._address(queue)
        answer = await self._core.ask(
            address, RequestCode.NOTIFICATION, header, timeout_s=poll_s + ANSWER_S, broker=queue.broker_name
        )
        return answer.ext_fields.get("hasMsg") == "true"

    async def ack(self, receipts: Sequence[Receipt]) -> None:
        """Acknowledge messages, those of a broker in one request; ExpiredHandleError if it was too late."""
        by_broker: dict[str, list[tuple[str, Handle, str]]] = defaultdict(list)
        late = 0
        for topic, text in receipts:
            handle = Handle.read(text)
            if self.is_expired(handle):
                late += 1
            else:
                by_broker[handle.broker].append((topic, handle, text))
        calls = [self._ack(broker, found) for broker, found in by_broker.items()]
        failures = [one for one in await asyncio.gather(*calls, return_exceptions=True) if one is not None]
        if failures:
            raise failures[0]
        if late:
            raise ExpiredHandleError(
                f"{late} of {len(receipts)} messages were not acknowledged: their invisible time was over, "
                f"and they come again"
            )

    async def _ack(self, broker: str, found: list[tuple[str, Handle, str]]) -> None:
        topic, handle, text = found[0]
        address = await self._address(MessageQueue(topic, broker, ANY_QUEUE))
        if len(found) > 1:
            body = {"brokerName": broker, "acks": self._batch_acks((one[0], one[1]) for one in found)}
            code = RequestCode.BATCH_ACK_MESSAGE
            await self._core.ask(address, code, None, lenient_json.dumps(body), broker=broker)
            return
        real = retry_topic(topic, self._group, handle.kind)
        header = AckMessage(self._group, real, handle.queue_id, text, handle.queue_offset)
        await self._core.ask(address, RequestCode.ACK_MESSAGE, header, broker=broker)

    def _batch_acks(self, found: Iterable[tuple[str, Handle]]) -> list[dict[str, Any]]:
        """An entry for the messages of each check point, as bits of a Java BitSet."""
        bits: dict[tuple[str, Handle], int] = defaultdict(int)
        for topic, handle in found:
            point = topic, handle._replace(queue_offset=0)
            bits[point] |= 1 << (handle.queue_offset - handle.start_offset)
        return [
            {
                "b": base64.b64encode(value.to_bytes((value.bit_length() + 7) // 8, "little")).decode(),
                "c": self._group,
                "it": handle.invisible_ms,
                "pt": handle.pop_time_ms,
                "q": handle.queue_id,
                "r": handle.kind,
                "rq": handle.revive_queue,
                "so": handle.start_offset,
                "t": topic,
            }
            for (topic, handle), value in bits.items()
        ]

    async def change_invisible(
        self, receipt: Receipt, invisible_ms: int, *, is_suspended: bool = False
    ) -> str:
        """Have a message come again so long from now; its new handle. ExpiredHandleError if it was too late.

        With `is_suspended` this time does not count as an attempt.
        """
        topic, text = receipt
        handle = Handle.read(text)
        if self.is_expired(handle):
            raise ExpiredHandleError("the invisible time of this message is over: it comes again by itself")
        real = retry_topic(topic, self._group, handle.kind)
        header = ChangeInvisibleTime(
            self._group, real, handle.queue_id, text, handle.queue_offset, invisible_ms, suspend=is_suspended
        )
        address = await self._address(MessageQueue(topic, handle.broker, ANY_QUEUE))
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        answer = await self._core.ask(address, code, header, broker=handle.broker)
        found = answer.ext_fields
        changed = handle._replace(
            start_offset=handle.queue_offset, pop_time_ms=int(found["popTime"]),
            invisible_ms=int(found["invisibleTime"]), revive_queue=int(found["reviveQid"]),
        )  # fmt: skip
        return changed.text

    def is_expired(self, handle: Handle) -> bool:
        """Whether the invisible time is over, by the clock of the broker as far as it is known."""
        return _now_ms() + self._ahead_ms.get(handle.broker, 0) >= handle.ends_ms

    async def _address(self, queue: MessageQueue) -> str:
        """Where the master of a broker is: slaves give out nothing."""
        address = (await self._core.route(queue.topic)).master(queue.broker_name)
        if address is None:
            address = (await self._core.fetch_route(queue.topic)).master(queue.broker_name)
        if address is None:
            raise NoRouteError(f"broker {queue.broker_name} of {queue.topic} has no master now")
        if not self._core.has_heartbeat(address):
            await self._core.ensure_heartbeat(address)
        return address

    def receipt_of(self, topic: str, handle: str) -> Receipt:
        """The receipt of a message of a topic as users call it."""
        return wrap(self._namespace, topic), handle


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
