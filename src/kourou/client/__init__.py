"""Clients: programs that send to RocketMQ and consume from it, Java's clusters and Kourou's alike.

What lives here: Producer, Consumer and PullConsumer, and what they share with their name servers and brokers
(`core`, `routes`). What does not: frames and connections (`kourou.remoting`), records (`kourou.message`).
`kourou.sync` has the same for programs without an event loop.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["o-1"]))

    async with Consumer("127.0.0.1:9876", group="billing", subscribe={"orders": "paid"}) as consumer:
        async for message in consumer: ...

The way of a message to a consumer: `Assignment` says which queues are read; for each a pull is under way
(`pulling`), whose answer is a MessageBatch (`received`) in the ProcessQueue; the Inbox gives queues that have
something to whoever takes: the handler's tasks, `async for`, `batches` or `fetch_arrow`. What is done moves
the offset that `offsets` keeps.

What a user may say is in `options`; what runs beside a user's calls, in `background`.
"""

from kourou.client.consumer import Consumer, Handler
from kourou.client.consumer_stats import ConsumeEvent
from kourou.client.core import ClientError, NoRouteError, RefusedError
from kourou.client.message import Message
from kourou.client.options import ConsumerOptions, ProducerOptions, PullConsumerOptions
from kourou.client.producer import Producer
from kourou.client.pull_consumer import PullConsumer
from kourou.client.receipts import NotSentError, SendEvent, SendReceipt, SendRefusedError
from kourou.client.received import MessageBatch, ReceivedMessage, ReconsumeLater
from kourou.client.requests import RequestTimeoutError, make_reply
from kourou.client.subscriptions import Sql
from kourou.client.transactions import TransactionReceipt, TransactionState
from kourou.remoting.lenient_json import MessageQueue

__all__ = [
    "Producer",
    "Consumer",
    "PullConsumer",
    "ProducerOptions",
    "ConsumerOptions",
    "PullConsumerOptions",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "ReceivedMessage",
    "SendReceipt",
    "SendEvent",
    "TransactionReceipt",
    "TransactionState",
    "make_reply",
    "ConsumeEvent",
    "Handler",
    "ReconsumeLater",
    "Sql",
    "ClientError",
    "NoRouteError",
    "NotSentError",
    "RefusedError",
    "RequestTimeoutError",
    "SendRefusedError",
]
