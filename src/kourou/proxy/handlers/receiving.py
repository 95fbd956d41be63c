"""ReceiveMessage: a POP_MESSAGE to the broker that the client names (ReceiveMessageActivity)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from kourou.message import properties as names
from kourou.message.codec import StoredMessage, decode
from kourou.proxy import messages
from kourou.proxy.calls import Call
from kourou.proxy.handlers.receipts import Receipt, check_invisible_time
from kourou.proxy.protocol import milliseconds, pb, timestamp
from kourou.proxy.statuses import OK, StatusError, of_answer
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.handles import read_counts, read_handles
from kourou.remoting.protocol.headers import PopMessage

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

log = logging.getLogger(__name__)

FROM_LAST = 1  # initMode: where a group begins that has no offset
ANSWER_MS = 5000  # that a broker may take beyond the time for which a pop waits
MAX_MESSAGES = 32
ALL = "*"

_NONE = {
    ResponseCode.POLLING_FULL: pb.Status(code=pb.Code.TOO_MANY_REQUESTS, message="polling full"),
    ResponseCode.POLLING_TIMEOUT: pb.Status(code=pb.Code.MESSAGE_NOT_FOUND, message="no new message"),
    ResponseCode.PULL_NOT_FOUND: pb.Status(code=pb.Code.MESSAGE_NOT_FOUND, message="no new message"),
}
_NO_MATCH = pb.Status(code=pb.Code.MESSAGE_NOT_FOUND, message="no match message")


class Receiving:
    """What consumers are given."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def receive(self, call: Call, request: Any) -> AsyncIterator[Any]:
        """ReceiveMessage: a status, the messages, and the time."""
        proxy = self._proxy
        topic, group = call.name_of(request.message_queue.topic), call.name_of(request.group)
        proxy.check_topic(topic)
        proxy.check_group(group)
        settings = proxy.clients.settings(call)
        header = PopMessage(
            group, topic, -1, max(1, min(request.batch_size, MAX_MESSAGES)), self._invisible_ms(request),
            self._poll_ms(call, request, settings), proxy.now_ms(), FROM_LAST,
            *_filter_of(request.filter_expression),
            order=settings is not None and settings.subscription.fifo,
            attempt_id=request.attempt_id or None,
        )  # fmt: skip
        await proxy.cluster.route(topic)
        most = int((await proxy.cluster.group(group, topic)).get("retryMaxTimes", 16)) + 1
        found = await self._pop(request.message_queue.broker.name, header)
        if isinstance(found, RemotingCommand):
            status = _NONE.get(ResponseCode(found.code)) if found.code in _NONE else of_answer(found)
            yield pb.ReceiveMessageResponse(status=status)
        else:
            given = [each for each in found if self._is_wanted(header, *each, most)]
            yield pb.ReceiveMessageResponse(status=OK if given else _NO_MATCH)
            for number, (record, receipt) in enumerate(given):
                message = messages.to_message(record, receipt.text, header.invisible_time)
                if request.auto_renew:
                    proxy.receipts.keep(call.owner, receipt)
                try:
                    yield pb.ReceiveMessageResponse(message=message)
                except (asyncio.CancelledError, GeneratorExit):
                    for _, lost in given[number:]:
                        proxy.receipts.give_back(lost)
                    raise
        yield pb.ReceiveMessageResponse(delivery_timestamp=timestamp(proxy.now_ms()))

    async def _pop(
        self, broker_name: str, header: PopMessage
    ) -> RemotingCommand | list[tuple[StoredMessage, Receipt]]:
        """The messages of a pop, or the answer that has none.

        A client may go while the broker looks: then the messages come again soon.
        """
        timeout_s = (header.poll_time + ANSWER_MS) / 1000
        asked = asyncio.ensure_future(
            self._proxy.cluster.call(broker_name, RequestCode.POP_MESSAGE, header, timeout_s=timeout_s)
        )
        try:
            answer = await asyncio.shield(asked)
        except asyncio.CancelledError:
            self._proxy.start_task(self._give_back(asked, header, broker_name), "giving back messages")
            raise
        return self._read(answer, header, broker_name)

    async def _give_back(
        self, asked: asyncio.Future[RemotingCommand], header: PopMessage, broker_name: str
    ) -> None:
        found = self._read(await asked, header, broker_name)
        for _, receipt in () if isinstance(found, RemotingCommand) else found:
            self._proxy.receipts.give_back(receipt)

    def _read(
        self, answer: RemotingCommand, header: PopMessage, broker_name: str
    ) -> RemotingCommand | list[tuple[StoredMessage, Receipt]]:
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            return answer
        fields, body, position = answer.ext_fields, memoryview(answer.body), 0
        counts = read_counts(fields)
        found: list[tuple[StoredMessage, Receipt]] = []
        for handle in read_handles(fields, broker_name):
            record = decode(body, position)
            position += record.store_size
            record.topic = header.topic
            if counts:
                of_queue = counts.get((handle.queue_id, -1), 0)
                record.reconsume_times = counts.get((handle.queue_id, handle.queue_offset), of_queue)
            found.append(
                (record, Receipt(header.topic, header.consumer_group, handle, record.physical_offset))
            )
        return found

    def _is_wanted(self, header: PopMessage, record: StoredMessage, receipt: Receipt, most: int) -> bool:
        """Whether a message goes to the client: it has a tag that is wanted, and attempts left."""
        if not _has_tag(record.properties.get(names.TAGS, ""), header):
            self._proxy.start_task(self._proxy.receipts.ack_message(receipt), "acknowledging another tag")
            return False
        if record.reconsume_times + 1 > most:
            work = self._proxy.receipts.to_dead_letters(receipt, record.message_id, most)
            self._proxy.start_task(work, "putting a message to the dead letters")
            return False
        return True

    def _invisible_ms(self, request: Any) -> int:
        config = self._proxy.config
        if request.auto_renew:
            return config.default_invisible_time_mills
        asked = milliseconds(request.invisible_duration)
        check_invisible_time(asked, config.min_invisible_time_mills_for_recv, config.max_invisible_time_mills)
        return asked

    def _poll_ms(self, call: Call, request: Any, settings: Any) -> int:
        """How long to wait for messages: what is asked for, but no longer than the client waits."""
        config, left_ms = self._proxy.config, call.remaining_ms()
        if request.HasField("long_polling_timeout"):
            poll_ms = milliseconds(request.long_polling_timeout)
        else:
            half_ms = 0 if settings is None else milliseconds(settings.request_timeout) // 2
            poll_ms = left_ms - half_ms
        least = config.grpc_client_consumer_min_long_polling_timeout_millis
        poll_ms = max(least, min(poll_ms, config.grpc_client_consumer_max_long_polling_timeout_millis))
        if poll_ms <= left_ms:
            return poll_ms
        if left_ms >= least:
            return left_ms
        raise StatusError(
            pb.Code.ILLEGAL_POLLING_TIME,
            "the deadline time remaining is not enough for polling, please check network condition",
        )


def _has_tag(tag: str, header: PopMessage) -> bool:
    """Whether a tag is wanted: a broker compares its hash alone."""
    if header.exp_type != "TAG" or header.exp in (None, "", ALL):
        return True
    return tag in {part.strip() for part in (header.exp or "").split("||")}


def _filter_of(expression: Any) -> tuple[str, str]:
    """The kind of a filter, and its expression."""
    if expression.type == pb.FilterType.SQL:
        return "SQL92", expression.expression
    return "TAG", expression.expression or ALL
