"""Pulls a range of a queue, with several pulls under way at once.

A broker gives at most 32 messages a pull unless it is configured otherwise, so waiting for each answer
would cost a round trip for every 32. The range is cut into windows, each of which is pulled until it is
complete, whatever the broker gives at once; windows are as long as the broker's answers turn out to be.
What comes is handed over in the order of the queue, in pieces of many records.

Offsets that are gone (retention overtook the reader) are data loss: an error that names the queue and the
offsets, or a warning. Only a master can say so: a slave that does not have them may get them yet.

A broker that is away is looked for again, at its master's place and its slaves', until it has taken too long.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kourou.errors import KourouError
from kourou.message import codec
from kourou.message.scan import records as scan
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, RemotingCommand, frame_head, new_opaque
from kourou.spark.channel import (
    RETRY_CODES,
    AnsweredError,
    AwayError,
    Channel,
    ChannelError,
    NetSettings,
    Wait,
    channel_to,
)
from kourou.spark.cluster import SUBSCRIPTION_FLAG, ClusterView, Server, first_of

log = logging.getLogger(__name__)

FIRST_WINDOW = 32  # what brokers give by default
MAX_WINDOW = 4096
# So many pulls are under way, but not more than answers of so many bytes: those a broker may have to hold.
DEPTH = 64
FIRST_DEPTH = 16
IN_FLIGHT_BYTES = 4 * 1024 * 1024
# So many bytes of records are handed over together, at most unless an answer has more.
PIECE_BYTES = 4 * 1024 * 1024

# Remarks of a broker that says "retry": messages do not match, or their file is about to be deleted. A slave
# whose master is up says "retry" to everything else that it does not find, too.
_NO_MATCH, _REMOVING = "NO_MATCHED_MESSAGE", "MESSAGE_WAS_REMOVING"
# An answer with records, as brokers write it: fields in the order of their names.
_FOUND = re.compile(
    rb'\{"code":0,"extFields":\{[^{}]*?"nextBeginOffset":"(\d{1,18})"[^{}]*\},"flag":1,"language":"\w+",'
    rb'"opaque":(\d+),'
)


_NOT_THERE = (
    ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED, ResponseCode.PULL_NOT_FOUND,
)  # fmt: skip
# Slaves get the tables of topics and groups every few seconds, long after the messages.
_NOT_ON_SLAVE_YET = (*_NOT_THERE, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)


class OffsetsGoneError(KourouError):
    """Messages that should be read are not there any more."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A part of a queue; the end is not included."""

    topic: str
    broker_name: str
    queue_id: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.broker_name}-{self.queue_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSettings:
    """How to pull."""

    net: NetSettings
    group: str
    expression: str = "*"
    expression_type: str = "TAG"
    depth: int = DEPTH
    fail_on_data_loss: bool = True


class Source:
    """Where a range is pulled from."""

    def __init__(self, cluster: ClusterView, wanted: QueueRange, servers: Sequence[Server]) -> None:
        self._cluster = cluster
        self._wanted = wanted
        self._servers = servers
        self.is_slave = False

    def connect(self) -> Channel:
        """A channel to the first server that is there."""
        server, channel = first_of(
            self._servers, lambda server: channel_to(server.address, self._cluster.settings)
        )
        self.is_slave = server.is_slave
        return channel

    def look_again(self) -> None:
        """Ask where the broker is now: at another place, or only its slave is left. Its master is first."""
        try:
            self._cluster.route(self._wanted.topic)
            self._servers = self._cluster.servers(self._wanted.broker_name)
        except (AwayError, AnsweredError) as error:  # it may be at the old place
            log.info("%s: %s", self._wanted, error)


class _Window:
    """A part of the range, and what has come of it."""

    __slots__ = ("at", "end", "opaque", "start", "wait")

    def __init__(self, start: int, end: int) -> None:
        self.start = self.at = start
        self.end = end
        self.opaque = 0
        self.wait: Wait | None = None


class _Requests:
    """The requests for the windows of a range: but for three numbers all are the same."""

    def __init__(self, wanted: QueueRange, settings: PullSettings) -> None:
        self._net = settings.net
        self._fields = {
            "consumerGroup": settings.group,
            "topic": wanted.topic,
            "queueId": str(wanted.queue_id),
            "sysFlag": str(SUBSCRIPTION_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": settings.expression,
            "subVersion": "0",
            "expressionType": settings.expression_type,
            "bname": wanted.broker_name,
        }
        header = RemotingCommand(RequestCode.PULL_MESSAGE, self._fields, opaque=0).encode_header()
        for hole, filled in (
            (b"%", b"%%"),
            (b'"extFields":{', b'"extFields":{"queueOffset":"%d","maxMsgNums":"%d",'),
            (b'"opaque":0', b'"opaque":%d'),
        ):
            header = header.replace(hole, filled)
        self._header = header

    def frame(self, window: _Window) -> bytes:
        """The request for what is missing of a window, which gets its opaque. Hot."""
        window.opaque = new_opaque()
        count = window.end - window.at
        if self._net.access_key is None:
            return frame_head(JSON, self._header % (window.at, count, window.opaque))
        fields = {"queueOffset": str(window.at), "maxMsgNums": str(count), **self._fields}
        request = RemotingCommand(RequestCode.PULL_MESSAGE, fields, opaque=window.opaque)
        return self._net.sign(request).encode()


class QueuePuller:
    """Pulls one range of one queue."""

    def __init__(self, wanted: QueueRange, settings: PullSettings, source: Source) -> None:
        self._range = wanted
        self._settings = settings
        self._source = source
        self._requests = _Requests(wanted, settings)
        self._channel: Channel | None = None
        self._pending: deque[_Window] = deque()
        self._window = FIRST_WINDOW
        self._grows = True
        self._depth = min(settings.depth, FIRST_DEPTH)
        self._largest_bytes = 0  # of the answers
        self.pulls = 0

    def pieces(self) -> Iterator[memoryview]:
        """The records of the range, in order, one behind the other; each piece is good until the next."""
        piece, size = bytearray(PIECE_BYTES), 0
        try:
            for body in self._bodies():
                if size + len(body) > len(piece):
                    if size:
                        yield memoryview(piece)[:size]
                        size = 0
                    if len(body) > len(piece):
                        piece = bytearray(len(body))
                piece[size : size + len(body)] = body
                size += len(body)
            if size:
                yield memoryview(piece)[:size]
        finally:
            if self._channel is not None and self._channel.owed:
                self._channel.close()  # somebody stopped early: what comes still is nobody's

    def _bodies(self) -> Iterator[memoryview]:
        position = self._range.start
        while position < self._range.end or self._pending:
            if position < self._range.end and len(self._pending) <= self._depth // 2:
                # Many at once, while the other half is under way.
                fresh: list[_Window] = []
                while position < self._range.end and len(self._pending) + len(fresh) < self._depth:
                    fresh.append(_Window(position, min(position + self._window, self._range.end)))
                    position = fresh[-1].end
                self._pending += fresh
                self._submit(fresh)
            window = self._pending[0]
            yield from self._complete(window)
            self._pending.popleft()

    def _submit(self, windows: Collection[_Window]) -> None:
        try:
            if self._channel is None:
                self._channel = self._source.connect()
            self._ask(self._channel, windows)
        except ChannelError as error:
            self._again(self._pending[0], error)

    def _ask(self, channel: Channel, windows: Collection[_Window]) -> None:
        self.pulls += len(windows)
        channel.send([self._requests.frame(window) for window in windows])

    def _again(self, failed: _Window, error: KourouError) -> None:
        """Connect again after a pause, and send what is under way once more."""
        if failed.wait is None:
            failed.wait = Wait(self._settings.net, f"broker {self._range.broker_name}")
        while True:
            failed.wait.pause(error)
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            try:
                self._source.look_again()
                self._channel = self._source.connect()
                self._ask(self._channel, self._pending)
                return
            except ChannelError as failure:
                error = failure

    def _complete(self, window: _Window) -> Iterator[memoryview]:
        while window.at < window.end:
            assert self._channel is not None
            try:
                body = self._found(self._channel, window)
                if body is None:
                    answer = self._channel.wait(window.opaque)
                    if answer.code in RETRY_CODES:
                        self._again(window, self._refused(answer))
                        continue
                    body = self._take(window, answer)
            except AwayError as error:
                self._again(window, error)
                continue
            window.wait = None
            if body:
                yield body
            if window.at < window.end:
                self._submit([window])

    def _found(self, channel: Channel, window: _Window) -> memoryview | None:
        """The records of the next answer, if it is this window's and as most are. Hot."""
        if channel.kept:
            return None
        frame = channel.next_frame()
        header_end = 4 + int.from_bytes(frame[1:4], "big")
        match = _FOUND.match(frame, 4, header_end)
        if match is None or int(match[2]) != window.opaque:
            channel.keep(frame)
            return None
        channel.owed -= 1
        return self._go_on(window, int(match[1]), frame[header_end:])

    def _go_on(self, window: _Window, following: int, body: memoryview) -> memoryview:
        before = window.at
        if following <= before:
            raise KourouError(f"{self._range}: a pull at {before} leads to {following}, which is not forward")
        if body:
            if len(body) > self._largest_bytes:
                self._largest_bytes = len(body)
                self._depth = min(self._settings.depth, max(IN_FLIGHT_BYTES // len(body), 2))
            body = self._cut(window, body, following)
        self._learn(window, before, following)
        window.at = min(following, window.end)
        return body

    def _take(self, window: _Window, answer: RemotingCommand) -> memoryview | None:
        before, code, is_slave = window.at, answer.code, self._source.is_slave
        leads_on = code == ResponseCode.PULL_RETRY_IMMEDIATELY and (
            not is_slave or answer.remark == _NO_MATCH
        )
        if code == ResponseCode.SUCCESS or leads_on:
            following = int(answer.ext_fields["nextBeginOffset"])
            if answer.remark == _REMOVING:
                self._lost(before, min(following, window.end))
            return self._go_on(window, following, memoryview(answer.body or b""))
        if code not in (_NOT_ON_SLAVE_YET if is_slave else _NOT_THERE):
            raise self._refused(answer)
        if is_slave:
            raise AwayError(
                f"a slave of {self._range.broker_name} does not have {self._range} at {before} yet"
            )
        low = int(answer.ext_fields.get("minOffset", "0"))
        # Nothing at an offset that the queue had: deleted, lost by the log, or the queue was made anew.
        reached = low if before < low < window.end else window.end
        self._lost(before, reached)
        window.at = reached
        return None

    def _refused(self, answer: RemotingCommand) -> AnsweredError:
        return AnsweredError(self._range.broker_name, f"a pull of {self._range}", answer)

    def _lost(self, first: int, end: int) -> None:
        text = f"{self._range}: offsets {first} to {end - 1} are not there any more"
        if self._settings.fail_on_data_loss:
            raise OffsetsGoneError(f"{text} (deleted by retention, or the topic was made anew);"
                                   " failOnDataLoss=false reads what is left")  # fmt: skip
        log.warning("%s: they are left out", text)

    def _cut(self, window: _Window, body: memoryview, following: int) -> memoryview:
        """What belongs to the window alone: others may be answered with the same records.

        A record that begins before the window is an inner batch, which the window before has already.
        """
        first = window.start if window.start > self._range.start else 0
        if following <= window.end and not self._may_begin_early(body, first):
            return body
        found = scan.find_records(body)
        offsets = scan.headers(body, found.positions)["queue_offset"]
        own = found.positions[(offsets >= first) & (offsets < window.end)]
        if len(own) == 0:
            return body[:0]
        after = found.positions[offsets >= window.end]
        return body[int(own[0]) : int(after[0]) if len(after) else len(body)]

    @staticmethod
    def _may_begin_early(body: memoryview, first: int) -> bool:
        offset: int = codec.LONG.unpack_from(body, codec.QUEUE_OFFSET_AT)[0]  # of the first record
        return offset < first

    def _learn(self, window: _Window, before: int, following: int) -> None:
        if before != window.start:
            return
        given = following - before
        if given < window.end - window.start:
            self._window, self._grows = max(given, 1), False
        elif self._grows and window.end - window.start == self._window:
            self._window = min(2 * self._window, MAX_WINDOW)
