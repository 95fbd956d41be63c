"""Clients: programs that send to RocketMQ and consume from it, Java's clusters and Kourou's alike.

    core, routes      what the clients of a process share with their name servers and brokers
    options           what a user may say
    message           a message as a user makes it; validators, namespace
    produce/          Producer, and the way of a message to a broker
    consume/          Consumer, PullConsumer and SimpleConsumer, and the way of a message to them
    background        tasks of a client; signals, repeated warnings, traces

Frames and connections are not here (`kourou.remoting`), nor records (`kourou.message`). `kourou.sync` has
the same for programs without an event loop.

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["o-1"]))

    async with Consumer("127.0.0.1:9876", group="billing", subscribe={"orders": "paid"}) as consumer:
        async for message in consumer: ...
"""

from kourou.client.consume.consumer import Consumer, Handler
from kourou.client.consume.pop.batches import PopBatch
from kourou.client.consume.pop.popping import ExpiredHandleError
from kourou.client.consume.pop.simple_consumer import SimpleConsumer
from kourou.client.consume.pull_consumer import PullConsumer
from kourou.client.consume.received import MessageBatch, ReceivedMessage, ReconsumeLater
from kourou.client.consume.stats import ConsumeEvent
from kourou.client.consume.subscriptions import Sql
from kourou.client.core import ClientError, NoRouteError, RefusedError
from kourou.client.message import Message
from kourou.client.options import (
    ConsumerOptions,
    ProducerOptions,
    PullConsumerOptions,
    SimpleConsumerOptions,
)
from kourou.client.produce.producer import Producer
from kourou.client.produce.receipts import NotSentError, SendEvent, SendReceipt, SendRefusedError
from kourou.client.produce.requests import RequestTimeoutError, make_reply
from kourou.client.produce.transactions import TransactionReceipt, TransactionState
from kourou.message.model import MessageQueue

__all__ = [
    "Producer",
    "Consumer",
    "PullConsumer",
    "SimpleConsumer",
    "ProducerOptions",
    "ConsumerOptions",
    "PullConsumerOptions",
    "SimpleConsumerOptions",
    "Message",
    "MessageBatch",
    "MessageQueue",
    "PopBatch",
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
    "ExpiredHandleError",
    "NoRouteError",
    "NotSentError",
    "RefusedError",
    "RequestTimeoutError",
    "SendRefusedError",
]
