"""Requests: a message that is answered with one, through the broker (request and reply, RIP-8).

A request is a message like any other, with three properties: CORRELATION_ID, which the reply has too,
REPLY_TO_CLIENT, who waits for it, and TTL. Its consumer sends the reply to the reply topic of the cluster;
the broker hands it to the client that asked (PUSH_REPLY_MESSAGE_TO_CLIENT), on the connection of its
heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Protocol

from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import ClientError
from kourou.message import Message, parse_host
from kourou.message import properties as names
from kourou.message.codec import MAGIC_V1, body_crc
from kourou.message.model import MessageQueue
from kourou.message.properties import decode_properties
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import ReplyMessage

log = logging.getLogger(__name__)

REPLY_TYPE = "reply"  # MSG_TYPE of a reply
_REPLY_TOPIC_POSTFIX = "_REPLY_TOPIC"

# Whoever waits for a reply, by correlation id. All clients of a process share it, as in Java: the ids are
# unique, and several producers may share a connection.
_waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}


class RequestTimeoutError(ClientError):
    """The request was sent, and no reply came in time."""


class _HasProperties(Protocol):
    @property
    def properties(self) -> dict[str, str]: ...


def make_reply(request: _HasProperties, body: bytes) -> Message:
    """The reply to a request that was consumed; it is sent like any message."""
    asked = request.properties
    for name in (names.CLUSTER, names.CORRELATION_ID, names.REPLY_TO_CLIENT):
        if not asked.get(name):
            raise ClientError(f"this message is no request, or no broker of 4.6 or later kept it: no {name}")
    reply = Message(asked[names.CLUSTER] + _REPLY_TOPIC_POSTFIX, body)
    reply.properties[names.MESSAGE_TYPE] = REPLY_TYPE
    for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL):
        if name in asked:
            reply.properties[name] = asked[name]
    return reply


class PendingReply:
    """A request under way, in a `with`."""

    def __init__(self, message: Message, client_id: str, timeout_s: float) -> None:
        self._topic = message.topic
        self._timeout_s = timeout_s
        self._id = str(uuid.uuid4())
        message.properties[names.CORRELATION_ID] = self._id
        message.properties[names.REPLY_TO_CLIENT] = client_id
        message.properties[names.TTL] = str(round(timeout_s * 1000))

    def __enter__(self) -> PendingReply:
        self._future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        _waiting[self._id] = self._future
        return self

    def __exit__(self, *_: object) -> None:
        _waiting.pop(self._id, None)
        self._future.cancel()

    async def wait(self, deadline: float) -> ReceivedMessage:
        """The reply; raises RequestTimeoutError if there is none."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._future
        except TimeoutError:
            raise RequestTimeoutError(
                f"a request was sent to topic {self._topic}, and no reply came within {self._timeout_s:g} s: "
                f"see whether its consumers run and reply"
            ) from None


def on_reply(connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply for somebody here."""
    header = ReplyMessage.read(request)
    properties = decode_properties(header.properties)
    properties[names.ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
    body = bytes(request.body or b"")
    reply = ReceivedMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=0,
        physical_offset=0,
        body=body,
        properties_raw=header.properties,
        flag=header.flag,
        sys_flag=header.sys_flag,
        born_timestamp=header.born_timestamp,
        born_host=_pack(header.born_host),
        store_timestamp=header.store_timestamp,
        store_host=_pack(header.store_host),
        reconsume_times=header.reconsume_times,
        prepared_transaction_offset=0,
        body_crc=body_crc(body),
        magic=MAGIC_V1,
        store_size=0,
        _properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
    )
    future = _waiting.get(properties.get(names.CORRELATION_ID, ""))
    if future is None or future.done():
        log.warning("unexpected reply of %s: it is too late, or for another client", connection.peer)
    else:
        reply.open_body()
        future.set_result(reply)
    return request.response()


def _pack(host: str) -> bytes:
    """A host as records have it, of the text that Java gives an address: `/192.0.2.7:10911`."""
    try:
        return parse_host(host.lstrip("/"))
    except (KeyError, ValueError):
        return bytes(8)
