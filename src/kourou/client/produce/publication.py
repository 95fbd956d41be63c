"""Publication: the queues of a topic that messages are sent to, and the requests that carry them there
(TopicPublishInfo).

Most of a request is the same for all messages of a queue: that part is made once, and what differs is put in
between. Hot: it takes a third of the time of a dictionary that is dumped.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import orjson

from kourou.client.core import ClientCore, ClientError, NoRouteError
from kourou.client.namespace import unwrap, wrap
from kourou.client.produce.faults import LatencyFaults
from kourou.client.routes import TopicRoute
from kourou.client.validators import check_send_topic
from kourou.errors import KourouError
from kourou.message import Message
from kourou.message.model import MessageQueue
from kourou.message.properties import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import JSON, LANGUAGE, VERSION, RemotingCommand, frame_head

Select = Callable[[Sequence[MessageQueue]], MessageQueue]

# How long the route of the default topic stands in for that of a topic that no name server knows yet
STAND_IN_S = 1.0

_PLAIN = b'"j":"0","m":"false"'  # reconsume times, whether it is a batch
_BATCH = b'"j":"0","m":"true"'
# System flag, born timestamp, flag, properties; then the flag of the request, and its number
_REST = b'"f":"%d","g":"%d","h":"%d","i":%b,%b},"flag":%d,"opaque":%d}'


class RequestOptions(NamedTuple):
    """What the requests of a producer have in common."""

    group: str
    namespace: str | None
    create_topic_key: str
    default_queues: int
    unit_mode: bool


class Target(NamedTuple):
    """A queue that can be sent to."""

    queue: MessageQueue  # as users know it, without a namespace
    address: str
    head: bytes  # of a request to it


class Publication:
    """Where messages of a topic go, as a route has it."""

    __slots__ = ("_options", "_targets", "_turn", "queues", "route", "topic", "valid_until_s")

    def __init__(
        self, route: TopicRoute, options: RequestOptions, valid_until_s: float | None = None
    ) -> None:
        self.route = route
        self.topic = route.topic  # on the wire
        self.valid_until_s = valid_until_s  # by the loop's clock, of a route that stands in for another
        self._options = options
        user_topic = unwrap(options.namespace, route.topic)
        self.queues = tuple(queue._replace(topic=user_topic) for queue in route.write_queues)
        self._targets = {queue: self._make_target(queue) for queue in self.queues}
        self._turn = random.randrange(len(self.queues)) if self.queues else 0

    def _make_target(self, queue: MessageQueue) -> Target:
        address = self.route.master(queue.broker_name)
        if address is None:
            raise NoRouteError(
                f"broker {queue.broker_name} of topic {queue.topic} has no master now: messages need one"
            )
        options = self._options
        fields = {
            "a": options.group, "b": self.topic, "c": options.create_topic_key,
            "d": str(options.default_queues), "e": str(queue.queue_id),
            "k": "true" if options.unit_mode else "false", "n": queue.broker_name,
        }  # fmt: skip
        head = b'"language":"%b","serializeTypeCurrentRPC":"JSON","version":%d,"extFields":%b' % (
            LANGUAGE.encode(), VERSION, orjson.dumps(fields),
        )  # fmt: skip
        return Target(queue, address, head[:-1] + b",")

    def target(self, queue: MessageQueue) -> Target:
        """A queue that the caller chose, also one that the route does not have."""
        return self._targets.get(queue) or self._make_target(queue)

    def select(self, select: Select) -> Target:
        """The queue that a caller's function chooses."""
        if not self.queues:
            raise NoRouteError(f"no broker takes messages for topic {self.topic} now")
        queue = select(self.queues)
        if not isinstance(queue, MessageQueue):
            raise ClientError(f"`select` must give one of the queues of topic {self.topic}, not {queue!r}")
        return self.target(queue)

    def next(self, avoid: str | None, faults: LatencyFaults | None, is_retry: bool) -> Target:
        """The next queue in turn, on another broker than `avoid` if there is one. Hot."""
        queues = self.queues
        if not queues:
            raise NoRouteError(f"no broker takes messages for topic {self.topic} now")
        if avoid is None and faults is None:
            self._turn += 1
            return self._targets[queues[self._turn % len(queues)]]
        if faults is not None and is_retry:
            self._turn = random.randrange(len(queues))
        checks = [_anyone] if faults is None else [faults.is_available, faults.is_reachable]
        for is_usable in checks:
            for _ in queues:
                self._turn += 1
                queue = queues[self._turn % len(queues)]
                if queue.broker_name != avoid and is_usable(queue.broker_name):
                    return self._targets[queue]
        self._turn += 1  # there is no other
        return self._targets[queues[self._turn % len(queues)]]


class Publications:
    """Where messages of each topic go: as routes have it, which are fetched and fetched again."""

    def __init__(self, core: ClientCore, options: RequestOptions) -> None:
        self._core = core
        self._options = options
        self._known: dict[str, Publication] = {}  # by topic, as users know it

    async def get(self, topic: str) -> Publication:
        """Where messages of a topic go now. Hot."""
        known = self._known.get(topic)
        if known is not None:
            if known.valid_until_s is None:
                try:
                    if await self._core.route(known.topic) is known.route and known.queues:
                        return known
                except NoRouteError:
                    pass  # it is gone: its next message may make it again
            elif asyncio.get_running_loop().time() < known.valid_until_s:
                return known
        wire_topic = wrap(self._options.namespace, topic)
        check_send_topic(wire_topic)
        try:
            route = await self._core.route(wire_topic)
            if not route.write_queues:
                route = await self._core.fetch_route(wire_topic)  # a broker may have come back
            made = Publication(route, self._options)
        except NoRouteError:
            until_s = asyncio.get_running_loop().time() + STAND_IN_S
            made = Publication(await self._stand_in(wire_topic), self._options, until_s)
        self._known[topic] = made
        return made

    async def learn(self, publication: Publication, deadline: float) -> None:
        """A broker cannot be reached: others may be known by now. What is known still counts."""
        with contextlib.suppress(KourouError, TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._core.fetch_route(publication.topic)

    async def _stand_in(self, topic: str) -> TopicRoute:
        """The route of a topic that its first message makes: that of the default topic, with fewer queues."""
        key = self._options.create_topic_key
        try:
            default = await self._core.route(key)
        except NoRouteError:
            raise NoRouteError(
                f"no name server knows topic {topic}, and no broker makes topics by itself ({key} is "
                f"nowhere): create it"
            ) from None
        usable = [queue for queue in default.write_queues if queue.queue_id < self._options.default_queues]
        queues = tuple(queue._replace(topic=topic) for queue in usable)
        return TopicRoute(topic, queues, queues, default.addresses)


class SendRequest(RemotingCommand):
    """A request with a message in it. Hot: its header is put together of bytes."""

    head: bytes = b""
    values: tuple[int | bytes, ...] = ()  # system flag, time of birth, flag, properties
    more: bytes = b""

    @classmethod
    def of(
        cls,
        code: RequestCode,
        target: Target,
        message: Message,
        body: bytes | bytearray | memoryview,
        sys_flag: int,
    ) -> SendRequest:
        """The request that brings a message, or a batch as its body."""
        values = (sys_flag, time.time_ns() // 1_000_000, message.flag, _dump_properties(message))
        more = _BATCH if code == RequestCode.SEND_BATCH_MESSAGE else _PLAIN
        # join takes a bytearray too
        return cls(code, None, body, head=target.head, values=values, more=more)  # type: ignore[arg-type]

    def reconsumed(self, times: int, max_times: int | None) -> None:
        """Say how often a message of a retry topic was consumed before, and how often it may be."""
        self.more = b'"j":"%d","m":"false"' % times
        if max_times is not None:
            self.more += b',"l":"%d"' % max_times

    def encode_header(self) -> bytes:
        """The header."""
        return b"".join(
            (
                b'{"code":%d,' % self.code,
                self.head,
                _REST % (*self.values, self.more, self.flag, self.opaque),
            )
        )

    def encode(self) -> bytes:
        """The whole frame."""
        header, body = self.encode_header(), self.body
        assert body is not None
        return b"".join((frame_head(JSON, header, len(body)), body))


def _anyone(broker_name: str) -> bool:
    return True


def _dump_properties(message: Message) -> bytes:
    """The property string as JSON. Raises ClientError if a property would become another one, or none."""
    count = len(message.properties)
    try:
        # Every message has an id, so that there is at least one.
        text = "\x02".join(map("\x01".join, message.properties.items())) + "\x02"
    except TypeError:
        raise ClientError(
            f"properties of a message for topic {message.topic} are str, tags and keys too: "
            f"{message.properties}"
        ) from None
    if text.count(NAME_VALUE_SEPARATOR) != count or text.count(PROPERTY_SEPARATOR) != count:
        raise ClientError(
            f"properties of a message for topic {message.topic} must not have U+0001 or U+0002 in them"
        )
    try:
        return orjson.dumps(text)
    except TypeError as error:
        raise ClientError(f"properties of a message for topic {message.topic}: {error}") from error
