"""How long requests take: the log of slow ones, and what the metrics get.

A server whose requests are timed uses TimedConnection instead of Connection; others pay nothing. A request
that is answered later keeps the time it came at (`RemotingCommand.began`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from time import perf_counter
from typing import Any, Protocol

from kourou.remoting.connection import Answer, Connection, Handler, Pieces
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import ONEWAY_FLAG, RemotingCommand

log = logging.getLogger(__name__)

SLOW_LINES = 10  # per SLOW_SPAN_S: a slow day must not fill the disk with logs
SLOW_SPAN_S = 10.0
_TOPICS = ("topic", "b", "originTopic")  # names of a field, of which a request has one
_GROUPS = ("consumerGroup", "producerGroup", "group", "a")

_REQUEST_NAMES = {int(code): code.name for code in RequestCode}


class RequestMeter(Protocol):
    """Who counts requests."""

    def count(self, request: RemotingCommand, answer: Answer, elapsed_s: float, kind: int) -> None:
        """A request was answered after so long; `kind` is one of ONEWAY, UNSENT or 0, and HELD or not."""


ONEWAY, UNSENT, HELD = 1, 2, 4


class RequestWatch:
    """Hears of each request how long it took. `slow_ms` of 0 logs none."""

    def __init__(self, slow_ms: int, meter: RequestMeter | None = None) -> None:
        self.slow_s = slow_ms / 1000 if slow_ms > 0 else math.inf
        self.meter = meter
        self.slow_requests = 0
        self._span_ends = 0.0
        self._lines = 0  # in this span
        self._unlogged = 0  # since the last line

    def slow(self, connection: Connection, request: RemotingCommand, elapsed_s: float) -> None:
        """Log a slow request, unless too many were logged recently."""
        self.slow_requests += 1
        now = time.monotonic()
        if now >= self._span_ends:
            self._span_ends, self._lines = now + SLOW_SPAN_S, 0
        if self._lines >= SLOW_LINES:
            self._unlogged += 1
            return
        self._lines += 1
        more = f" (and {self._unlogged} more that were not logged)" if self._unlogged else ""
        self._unlogged = 0
        fields = request.ext_fields
        log.warning(
            "slow request %s of %s took %d ms: topic %s, group %s%s",
            _REQUEST_NAMES.get(request.code, request.code),
            connection.peer,
            elapsed_s * 1000,
            _first(fields, _TOPICS),
            _first(fields, _GROUPS),
            more,
        )


def _first(fields: Mapping[str, str], names: tuple[str, ...]) -> str:
    text = next((fields[name] for name in names if name in fields), "-")
    return text[:255]


class TimedConnection(Connection):
    """A connection whose requests are timed."""

    def __init__(self, watch: RequestWatch, handlers: Mapping[int, Handler], **options: Any) -> None:
        super().__init__(handlers, **options)
        self._watch = watch

    def answer(self, command: RemotingCommand, handler: Handler) -> None:
        """Have a request handled, and send what its handler returns, or the error that it raises. Hot."""
        command.began = began = perf_counter()
        try:
            response = handler(self, command)
        except Exception as error:
            response = self.failure(command, error)
        if response is None:
            command.detach()
            return
        elapsed_s = perf_counter() - began
        watch, is_oneway = self._watch, command.flag & ONEWAY_FLAG
        if elapsed_s >= watch.slow_s:
            watch.slow(self, command, elapsed_s)
        if watch.meter is not None:
            watch.meter.count(command, response, elapsed_s, is_oneway and ONEWAY)
        if not is_oneway:
            self.send(response)

    def answer_again(self, command: RemotingCommand, handler: Handler) -> None:
        """The same for a request that was held: slow is what it takes now, not what it waited."""
        held_since = command.began
        began = perf_counter()
        try:
            response = handler(self, command)
        except Exception as error:
            response = self.failure(command, error)
        if response is None:
            command.detach()
            return
        now = perf_counter()
        watch = self._watch
        if now - began >= watch.slow_s:
            watch.slow(self, command, now - began)
        is_oneway = command.flag & ONEWAY_FLAG
        if watch.meter is not None:
            watch.meter.count(command, response, now - held_since, self._kind(is_oneway) | HELD)
        if not is_oneway:
            self.send(response)

    def reply(self, request: RemotingCommand, answer: RemotingCommand | bytes | Pieces) -> None:
        """Answer a request whose handler returned None before."""
        elapsed_s = perf_counter() - request.began
        watch = self._watch
        if elapsed_s >= watch.slow_s:
            watch.slow(self, request, elapsed_s)
        is_oneway = request.flag & ONEWAY_FLAG
        if watch.meter is not None:
            watch.meter.count(request, answer, elapsed_s, self._kind(is_oneway))
        if not is_oneway:
            self.send(answer)

    def _kind(self, is_oneway: int) -> int:
        if is_oneway:
            return ONEWAY
        return 0 if self._transport is not None else UNSENT
