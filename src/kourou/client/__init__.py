"""Clients: programs that send to RocketMQ and consume from it, Java's clusters and Kourou's alike.

What lives here: what all clients of a process share with their name servers and brokers (`core`), where
topics are (`routes`), and the Producer. What does not: frames and connections (`kourou.remoting`), records
(`kourou.message`).

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send(Message("orders", b"...", {"TAGS": "paid", "KEYS": "o-1"}))
"""

from kourou.client.core import ClientError, NoRouteError, RefusedError
from kourou.client.producer import Producer, SendReceipt
from kourou.message import Message

__all__ = ["ClientError", "Message", "NoRouteError", "Producer", "RefusedError", "SendReceipt"]
