"""Pulls a range of a queue, with several pulls under way at once.

A broker gives at most 32 messages a pull unless it is configured otherwise, so waiting for each answer
would cost a round trip for every 32. The range is cut into windows, each of which is pulled until it is
complete, whatever the broker gives at once; windows are as long as the broker's answers turn out to be.
What comes is handed over in the order of the queue, in pieces of many records.

Offsets that are gone (retention overtook the reader) are data loss: an error that names the queue and the
offsets, or a warning.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kourou.errors import KourouError
from kourou.message import codec, scan
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.spark.channel import (
    BACK_OFF_MOST_S,
    RETRY_CODES,
    AnsweredError,
    Channel,
    ChannelError,
    NetSettings,
)
from kourou.spark.cluster import SUBSCRIPTION_FLAG

log = logging.getLogger(__name__)

FIRST_WINDOW = 32  # what brokers give by default
MAX_WINDOW = 4096
DEPTH = 16
# So many bytes of records are handed over together.
PIECE_BYTES = 4 * 1024 * 1024

# With this remark a broker skips messages whose file it is about to delete.
_REMOVING = "MESSAGE_WAS_REMOVING"
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


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


class _Window:
    """A part of the range, and what has come of it."""

    __slots__ = ("at", "bodies", "end", "opaque", "start", "tries")

    def __init__(self, start: int, end: int) -> None:
        self.start = self.at = start
        self.end = end
        self.bodies: list[memoryview] = []
        self.opaque = 0
        self.tries = 0


class QueuePuller:
    """Pulls one range of one queue."""

    def __init__(self, wanted: QueueRange, settings: PullSettings, connect: Callable[[], Channel]) -> None:
        self._range = wanted
        self._settings = settings
        self._connect = connect
        self._channel: Channel | None = None
        self._pending: deque[_Window] = deque()
        self._window = FIRST_WINDOW
        self._grows = True
        self.pulls = 0

    def pieces(self) -> Iterator[bytes]:
        """The records of the range, in order, as bytes that lie one behind the other."""
        bodies: list[memoryview] = []
        size = 0
        try:
            for body in self._bodies():
                bodies.append(body)
                size += len(body)
                if size >= PIECE_BYTES:
                    yield b"".join(bodies)
                    bodies, size = [], 0
            if bodies:
                yield b"".join(bodies)
        finally:
            if self._channel is not None and self._channel.owed:
                self._channel.close()  # somebody stopped early: what comes still is nobody's

    def _bodies(self) -> Iterator[memoryview]:
        position = self._range.start
        while position < self._range.end or self._pending:
            while position < self._range.end and len(self._pending) < self._settings.depth:
                window = _Window(position, min(position + self._window, self._range.end))
                position = window.end
                self._pending.append(window)
                self._submit(window)
            window = self._pending[0]
            self._complete(window)
            self._pending.popleft()
            yield from window.bodies

    def _submit(self, window: _Window) -> None:
        try:
            if self._channel is None:
                self._channel = self._connect()
            window.opaque = self._channel.submit(self._request(window))
        except ChannelError as error:
            self._again(window, error)

    def _again(self, failed: _Window, error: KourouError) -> None:
        """Connect again after a pause, and send what is under way once more."""
        settings = self._settings.net
        while True:
            failed.tries += 1
            if failed.tries > settings.retries:
                raise error
            log.warning("a pull of %s is tried again: %s", self._range, error)
            time.sleep(min(settings.retry_interval_s * 2**failed.tries, BACK_OFF_MOST_S))
            if self._channel is not None:
                self._channel.close()
                self._channel = None
            try:
                self._channel = self._connect()
                for window in self._pending:
                    window.opaque = self._channel.submit(self._request(window))
                return
            except ChannelError as failure:
                error = failure

    def _complete(self, window: _Window) -> None:
        while window.at < window.end:
            assert self._channel is not None
            try:
                answer = self._channel.wait(window.opaque)
            except ChannelError as error:
                self._again(window, error)
                continue
            if answer.code in RETRY_CODES:
                self._again(window, self._refused(answer))
                continue
            self._take(window, answer)
            if window.at < window.end:
                self._submit(window)

    def _take(self, window: _Window, answer: RemotingCommand) -> None:
        before = window.at
        if answer.code in _GOES_ON:
            following = int(answer.ext_fields["nextBeginOffset"])
            if answer.remark == _REMOVING:
                self._lost(before, min(following, window.end))
            if following <= before:
                raise KourouError(
                    f"{self._range}: a pull at {before} leads to {following}, which is not forward"
                )
            if answer.body is not None and len(answer.body):
                window.bodies.append(self._cut(window, memoryview(answer.body), following))
            self._learn(window, before, following)
            window.at = min(following, window.end)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            low = int(answer.ext_fields["minOffset"])
            self._lost(before, min(low, window.end) if low > before else window.end)
            window.at = low if before < low < window.end else window.end
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            # Nothing at an offset that the queue had: the log has lost it, or the queue was made anew.
            self._lost(before, window.end)
            window.at = window.end
        else:
            raise self._refused(answer)

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

    def _request(self, window: _Window) -> RemotingCommand:
        self.pulls += 1
        settings = self._settings
        fields = {
            "consumerGroup": settings.group,
            "topic": self._range.topic,
            "queueId": str(self._range.queue_id),
            "queueOffset": str(window.at),
            "maxMsgNums": str(window.end - window.at),
            "sysFlag": str(SUBSCRIPTION_FLAG),
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": settings.expression,
            "subVersion": "0",
            "expressionType": settings.expression_type,
            "bname": self._range.broker_name,
        }
        return RemotingCommand(RequestCode.PULL_MESSAGE, fields)
