"""What brokers have stored, read over the wire with plain pulls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from kourou.message.codec import StoredMessage, decode
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import PullMessage
from support.recorded.wire import Caller
from support.sites.servers import Server

WAIT_S = 120  # Java dispatches what it stored a little later
_WITH_SUBSCRIPTION = 4


async def read_ids(brokers: Mapping[str, Server], topic: str, count: int) -> set[str]:
    """The ids of the messages of a topic, once there are so many. A message may be there twice: a Java broker
    that asks for a transaction more often than it writes down which have ended may commit it again."""
    found: set[str] = set()
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages of {topic}"
        found = {message.message_id for message in await asyncio.to_thread(_read, brokers, topic, 4)}
        await asyncio.sleep(0.05)
    return found


async def read_stored(
    brokers: Mapping[str, Server], topic: str, count: int, queues: int = 4
) -> list[StoredMessage]:
    """All messages of a topic on all brokers, once there are so many."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = await asyncio.to_thread(_read, brokers, topic, queues)
        if len(found) >= count:
            assert len(found) == count, f"{len(found)} messages of {topic}, not {count}"
            return found
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages of {topic}"
        await asyncio.sleep(0.05)


def _read(brokers: Mapping[str, Server], topic: str, queues: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    for server in brokers.values():
        with Caller(server.port) as caller:
            for queue in range(queues):
                found += _read_queue(caller, topic, queue)
    return found


def _read_queue(caller: Caller, topic: str, queue: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    offset = 0
    while True:
        header = PullMessage(
            "reader", topic, queue, offset, 1000, _WITH_SUBSCRIPTION, 0, 0, 0, subscription="*",
            expression_type="TAG",
        )  # fmt: skip
        answer = caller.call(RemotingCommand(RequestCode.PULL_MESSAGE, header.fields()))
        if answer.code != ResponseCode.SUCCESS:
            return found
        body, at = answer.body or b"", 0
        while at < len(body):
            message = decode(body, at)
            found.append(message)
            at += message.store_size
        offset = int(answer.ext_fields["nextBeginOffset"])
