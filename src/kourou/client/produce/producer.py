"""Producer: sends messages (DefaultMQProducer, TransactionMQProducer).

A message goes to the next queue of its topic, in turn; where a broker does not take it, to a queue of another
one, `retries` times. A message with a `sharding_key`, or a `select` of the caller's, always goes to the same
queue, so that those of one key keep their order, and is not tried elsewhere.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["o-1"]))
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Self, TypeVar

from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import (
    ClientCore,
    ClientError,
    NoRouteError,
    local_ip,
    make_client_id,
)
from kourou.client.namespace import wrap
from kourou.client.options import ProducerOptions, check_seconds, takes
from kourou.client.produce.batches import batch_ids, frame_of, split_batch
from kourou.client.produce.publication import Publication, Publications, RequestOptions, Select
from kourou.client.produce.receipts import (
    DEFAULT_REGION,
    SEND_OK,
    SendEvent,
    SendReceipt,
    SendRefusedError,
)
from kourou.client.produce.requests import REPLY_TYPE, PendingReply, on_reply
from kourou.client.produce.sending import Sender
from kourou.client.produce.transactions import (
    Checks,
    Execute,
    TransactionReceipt,
    TransactionState,
    end_request,
    find_state,
)
from kourou.client.trace import Tracer, of_end, of_recall, of_send, trace_group
from kourou.client.validators import check_body, check_group, check_not_delayed, check_topic
from kourou.errors import KourouError
from kourou.message import Message, decode_offset_message_id, properties, sysflag
from kourou.message.batch import encode_batch
from kourou.message.compression import compress
from kourou.message.ids import UniqueIdGenerator
from kourou.message.model import MessageQueue
from kourou.message.properties import java_hash
from kourou.message.recall import RecallHandle
from kourou.message.topics import DLQ_PREFIX, RETRY_PREFIX, TRACE_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import EndTransaction, RecallMessage

log = logging.getLogger(__name__)

_Sent = TypeVar("_Sent", bound=Message)

COMPRESS_IN_THREAD_FROM_BYTES = 64 * 1024  # it takes milliseconds, which would block the event loop


class Producer:
    """Sends messages to the topics of a cluster. Use it in an `async with`. Its options are those of
    ProducerOptions."""

    @takes(ProducerOptions)
    def __init__(self, options: ProducerOptions) -> None:
        self.options = options
        self.group = wrap(options.namespace, options.group)
        check_group(self.group)
        self._namespace = options.namespace
        self._checks: Checks | None = None
        self._trace_topic = (TRACE_TOPIC if options.trace is True else options.trace) or None
        self._tracer: Tracer | None = None
        ip = options.ip or local_ip()
        self._unique_id = UniqueIdGenerator(ip)
        self._owns_core = options.core is None
        self._is_open = not self._owns_core
        self.core = options.core or ClientCore(
            options.namesrv,
            client_id=make_client_id(ip, options.instance) + (f"@{options.unit}" if options.unit else ""),
            tls=options.tls,
            credentials=options.credentials,
        )
        self.core.producer_groups.add(self.group)
        self.core.add_handler(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, on_reply)
        self._publications = Publications(
            self.core,
            RequestOptions(
                self.group, options.namespace, options.create_topic_key, options.default_queues,
                options.unit_mode,
            ),
        )  # fmt: skip
        self._sender = Sender(self.core, self._publications, self.group, options)
        if options.on_send is not None:
            self._sender.on_send.append(options.on_send)

    # Life

    async def __aenter__(self) -> Self:
        if self._owns_core:
            await self.core.__aenter__()
        if self._trace_topic is not None:
            self._tracer = await start_tracer(self.core, self.group, "PRODUCE", self._trace_topic)
            self._sender.on_send.append(self._trace_send)
        if self.options.checker is not None:
            self._checks = Checks(
                self.core, self.group, self._namespace, self.options.checker, self._trace_end_of_check
            )
        self._is_open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_open = False
        if self._checks is not None:
            await self._checks.close()
        if self._tracer is not None:
            await self._tracer.stop()
        if self._owns_core:
            await self.core.__aexit__()

    # Sends

    async def send(
        self,
        message: Message,
        *,
        select: Select | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message, and wait until the broker has it."""
        check_seconds("timeout_s", timeout_s)
        select = _selection(message, select, queue)
        body, sys_flag = self._prepare(message)
        if len(body) >= self.options.compress_from_bytes:
            body, sys_flag = await self._compress(body), sys_flag | self.options.compression.sys_flag
        return await self._sender.send(message, _code_of(message), body, sys_flag, select, timeout_s)

    async def send_oneway(
        self, message: Message, *, select: Select | None = None, queue: MessageQueue | None = None
    ) -> None:
        """Send a message, and do not wait for anything."""
        select = _selection(message, select, queue)
        body, sys_flag = self._prepare(message)
        if len(body) >= self.options.compress_from_bytes:
            body, sys_flag = await self._compress(body), sys_flag | self.options.compression.sys_flag
        await self._sender.send_oneway(message, _code_of(message), body, sys_flag, select)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        select: Select | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together, in as many requests as their size takes, one after the other.

        With a `queue` all go to that one; else each request goes to the next.
        """
        self._check_open()
        check_seconds("timeout_s", timeout_s)
        if isinstance(messages, Message) or not isinstance(messages, Iterable):
            raise ClientError(f"send_batch takes several messages, not {messages!r}")
        receipts = []
        for part in split_batch(list(messages), self.options.max_message_bytes):
            for message in part:
                check_body(message, self.options.max_message_bytes)
                self._mark(message)
            first = part[0]
            chosen = _selection(first, select, queue) if select is not None or queue is not None else None
            body = encode_batch(part)
            frame = frame_of(first, body, self._unique_id())
            receipts.append(
                await self._sender.send(
                    frame, RequestCode.SEND_BATCH_MESSAGE, body, 0, chosen, timeout_s, batch_ids(part)
                )
            )
        return receipts

    async def send_in_transaction(
        self, message: _Sent, execute: Execute[_Sent], *, timeout_s: float | None = None
    ) -> TransactionReceipt:
        """Send a message that consumers see only if `execute` commits.

        `execute` is a plain function or an async one; it is called when the broker has the message. What it
        raises is logged and in the receipt, and the broker will ask the `checker`.
        """
        if not callable(execute):
            raise ClientError(f"execute is a function that does the work of a transaction, not {execute!r}")
        check_not_delayed(message, "a message of a transaction")
        message.properties[properties.TRANSACTION_PREPARED] = "true"
        message.properties[properties.PRODUCER_GROUP] = self.group
        receipt = await self.send(message, timeout_s=timeout_s)
        state, error = TransactionState.ROLLBACK, None  # a slave may not have the message
        if receipt.status == SEND_OK:
            if receipt.transaction_id is not None:
                message.properties[properties.TRANSACTION_ID] = receipt.transaction_id
            state, error = await find_state(execute, message)
        try:
            await self._end_transaction(message, receipt, state, error)
        except KourouError as failure:
            log.warning("END_TRANSACTION (%s of %s) failed, the broker will ask: %s", state, receipt, failure)
        return TransactionReceipt(receipt, state, error)

    async def request(
        self,
        message: Message,
        *,
        timeout_s: float | None = None,
        select: Select | None = None,
        queue: MessageQueue | None = None,
    ) -> ReceivedMessage:
        """Send a request, and wait for the reply; raises RequestTimeoutError if none comes in time."""
        check_seconds("timeout_s", timeout_s)
        timeout_s = timeout_s or self.options.timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        with PendingReply(message, self.core.client_id, timeout_s) as pending:
            # The reply may come through any broker of the topic, so all need a heartbeat first.
            route = (await self._publication(message.topic)).route
            masters = {route.master(name) for name in route.addresses} - {None}
            await asyncio.gather(
                *(self.core.ensure_heartbeat(address) for address in masters if address is not None)
            )
            await self.send(message, select=select, queue=queue, timeout_s=timeout_s)
            return await pending.wait(deadline)

    async def recall(self, topic: str, handle: str) -> str:
        """Take back a timer message that was not delivered yet, by the handle of its receipt; its id."""
        if not isinstance(handle, str) or not handle:
            raise ClientError(
                f"{handle!r} is no recall handle: a receipt has one if the message has delay_s or deliver_at "
                "and the broker keeps timer messages"
            )
        if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
            raise ClientError(f"messages of topic {topic} cannot be recalled")
        wire_topic = wrap(self._namespace, topic)
        check_topic(wire_topic)
        told = RecallHandle.decode(handle)
        broker_name = told.broker_name
        route = (await self._publication(topic)).route
        address = route.master(broker_name) or self.core.broker_address(broker_name)
        if address is None:
            raise NoRouteError(f"broker {broker_name}, which has the message, is not known for topic {topic}")
        fields = {**RecallMessage(wire_topic, handle, self.group).fields(), "bname": broker_name}
        request = RemotingCommand(RequestCode.RECALL_MESSAGE, fields)
        answer = await self.core.call(address, request, self.options.timeout_s)
        is_success = answer.code == ResponseCode.SUCCESS
        if self._tracer is not None:
            region = answer.ext_fields.get(properties.MSG_REGION, DEFAULT_REGION)
            self._tracer.record(of_recall(topic, told.unique_id, region, is_success=is_success))
        if not is_success:
            raise SendRefusedError(MessageQueue(topic, broker_name, 0), address, answer, "the recall of")
        return answer.ext_fields.get("msgId", "")

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that messages of a topic can be sent to."""
        return list((await self._publication(topic)).queues)

    # What sends are made of

    def _mark(self, message: Message) -> None:
        marks = message.properties
        if properties.UNIQ_KEY not in marks:
            marks[properties.UNIQ_KEY] = self._unique_id()
        if properties.WAIT_STORE_MSG_OK not in marks:
            marks[properties.WAIT_STORE_MSG_OK] = "true"
        if self._namespace:
            marks[properties.INSTANCE_ID] = self._namespace

    def _prepare(self, message: Message) -> tuple[bytes | memoryview, int]:
        """Give a message its id; its body, and its system flag."""
        self._check_open()
        body = check_body(message, self.options.max_message_bytes)
        self._mark(message)
        is_half = message.properties.get(properties.TRANSACTION_PREPARED) == "true"
        return body, sysflag.TRANSACTION_PREPARED if is_half else 0

    async def _compress(self, body: bytes | memoryview) -> bytes:
        if len(body) < COMPRESS_IN_THREAD_FROM_BYTES:
            return compress(body, self.options.compression, self.options.compress_level)
        return await asyncio.to_thread(compress, body, self.options.compression, self.options.compress_level)

    def _check_open(self) -> None:
        if not self._is_open:
            raise ClientError("the producer is not open: use it in an `async with`")

    async def _publication(self, topic: str) -> Publication:
        self._check_open()
        return await self._publications.get(topic)

    # Transactions and traces

    async def _end_transaction(
        self, message: Message, receipt: SendReceipt, state: TransactionState, error: Exception | None
    ) -> None:
        broker_name = receipt.queue.broker_name
        address = self.core.broker_address(broker_name)
        if address is None:
            raise NoRouteError(f"broker {broker_name} is not known any more")
        header = EndTransaction(
            self.group,
            receipt.queue_offset,
            decode_offset_message_id(receipt.offset_message_id).physical_offset,
            state.sys_flag,
            receipt.message_id,
            topic=wrap(self._namespace, message.topic),
            transaction_id=receipt.transaction_id,
        )
        if self._tracer is not None:
            self._tracer.record(of_end(message, receipt.message_id, address, state, is_from_check=False))
        remark = None if error is None else f"executeLocalTransactionBranch exception: {error!r}"
        await self.core.send_oneway(address, end_request(header, broker_name, remark))

    def _trace_send(self, event: SendEvent) -> None:
        context = of_send(event)
        if context is not None and self._tracer is not None and event.message.topic != self._tracer.topic:
            self._tracer.record(context)

    def _trace_end_of_check(self, message: ReceivedMessage, address: str, state: TransactionState) -> None:
        if self._tracer is not None:
            self._tracer.record(of_end(message, message.message_id, address, state, is_from_check=True))


async def start_tracer(core: ClientCore, group: str, kind: str, topic: str = TRACE_TOPIC) -> Tracer:
    """A tracer that sends through a client's connections; `kind` is PRODUCE or CONSUME."""
    producer = Producer(core=core, group=trace_group(group, kind), timeout_s=5.0)
    tracer = Tracer(producer, group, topic)
    await tracer.start()
    return tracer


def _code_of(message: Message) -> RequestCode:
    if message.properties.get(properties.MESSAGE_TYPE) == REPLY_TYPE:
        return RequestCode.SEND_REPLY_MESSAGE_V2
    return RequestCode.SEND_MESSAGE_V2


def _selection(message: Message, select: Select | None, queue: MessageQueue | None) -> Select | None:
    """How the queue of a message is chosen, if not in turn. Hot."""
    if not isinstance(message, Message):
        raise ClientError(f"a Message is sent, not {message!r}")
    if select is not None and not callable(select):
        raise ClientError(f"select is a function of the queues, not {select!r}")
    if queue is not None:
        if not isinstance(queue, MessageQueue):
            raise ClientError(f"queue is a MessageQueue, as `queues` gives them, not {queue!r}")
        if queue.topic != message.topic:
            raise ClientError(f"a message for topic {message.topic} cannot go to a queue of {queue.topic}")
        return lambda queues: queue
    if select is None and properties.SHARDING_KEY in message.properties:
        number = abs(java_hash(message.properties[properties.SHARDING_KEY]))
        return lambda queues: queues[number % len(queues)]  # as Java's SelectMessageQueueByHash
    return select
