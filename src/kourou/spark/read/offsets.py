"""Where a query begins and ends: the options for it, and the offsets that follow from them.

An end of a query is one of: `earliest`, `latest`, an offset for each queue, a time for all queues, a time
for each queue. In JSON it is {"topic": {"broker": {"0": offset, …}}}, where -2 is the earliest and -1 the
latest offset. Queues that are not named there begin with the earliest and end with the latest.

Offsets of a stream have the same form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kourou.errors import ConfigError, KourouError
from kourou.message.model import MessageQueue
from kourou.spark.channel import ChannelError
from kourou.spark.cluster import Bounds, ClusterView, UnknownTopicError
from kourou.spark.options import OptionError, Options
from kourou.spark.read.pull import OffsetsGoneError

log = logging.getLogger(__name__)

EARLIEST, LATEST = -2, -1

QueueOffsets = dict[MessageQueue, int]
Which = Literal["starting", "ending"]


@dataclass(frozen=True, slots=True)
class OffsetSpec:
    """One end of a query, as it was asked for."""

    option: str
    default: int  # of queues that are not named: EARLIEST or LATEST
    by_queue: Mapping[MessageQueue, int] = field(default_factory=dict)
    time_ms: int | None = None
    times_ms: Mapping[MessageQueue, int] = field(default_factory=dict)
    none_is_error: bool = True  # a time without a message at or after it

    @classmethod
    def read(cls, options: Options, which: Which, *, default: int) -> OffsetSpec:
        """The spec in the options `<which>Offsets`, `<which>Timestamp` or `<which>OffsetsByTimestamp`."""
        names = f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp"
        given = options.only_one_of(*names)
        rest = EARLIEST if which == "starting" else LATEST
        strategy = "startingOffsetsByTimestampStrategy"
        if which == "starting" and strategy in options and given in (None, names[0]):
            raise OptionError(strategy, f"it needs {names[1]} or {names[2]}")
        is_error = which == "starting" and options.choice(strategy, ("error", "latest"), "error") == "error"
        if given is None:
            return cls(names[0], default)
        if given == names[1]:
            return cls(given, rest, time_ms=options.number(given, least=0), none_is_error=is_error)
        if given == names[2]:
            times = read_json(given, options.json(given), least=0)
            return cls(given, rest, times_ms=times, none_is_error=is_error)
        text = (options.text(given) or "").strip()
        words = {"earliest": EARLIEST, "latest": LATEST}
        if text.lower() in words:
            if which == "ending" and text.lower() == "earliest":
                raise OptionError(given, "a query cannot end with the earliest offset")
            return cls(given, words[text.lower()])
        if not text.startswith("{"):
            raise OptionError(given, f"{text!r} is neither earliest nor latest nor a JSON object")
        offsets = read_json(given, options.json(given), least=EARLIEST)
        if which == "ending" and EARLIEST in offsets.values():
            raise OptionError(given, "a query cannot end with the earliest offset (-2)")
        return cls(given, rest, by_queue=offsets)

    def resolve(self, cluster: ClusterView, bounds: Mapping[MessageQueue, Bounds]) -> QueueOffsets:
        """The offset of each queue; it may lie outside what the queue has now."""
        for queue in (*self.by_queue, *self.times_ms):
            if queue not in bounds:
                raise OptionError(self.option, f"{show(queue)} is no queue of the topics that are read")
        times = dict(self.times_ms)
        if self.time_ms is not None:
            times = dict.fromkeys(bounds, self.time_ms)
        by_time = cluster.offsets_by_time(times) if times else {}
        found: QueueOffsets = {}
        for queue, (low, high) in bounds.items():
            if queue in by_time:
                found[queue] = min(by_time[queue], high)
                # An empty queue has nothing before the time either.
                if by_time[queue] >= high > low and self.none_is_error:
                    raise OptionError(
                        self.option,
                        f"{show(queue)} has no message at {times[queue]} or later; with"
                        " startingOffsetsByTimestampStrategy=latest it would begin at its end",
                    )
                continue
            offset = self.by_queue.get(queue, self.default)
            found[queue] = low if offset == EARLIEST else high if offset == LATEST else offset
        return found


def read_json(option: str, value: Any, *, least: int) -> QueueOffsets:
    """The numbers by queue in {"topic": {"broker": {"0": number}}}."""
    found: QueueOffsets = {}
    try:
        for topic, brokers in value.items():
            for broker_name, queues in brokers.items():
                for queue_id, number in queues.items():
                    if not isinstance(number, int) or number < least:
                        raise OptionError(
                            option, f"{topic}/{broker_name}/{queue_id}: {number!r} is no such number"
                        )
                    found[MessageQueue(topic, broker_name, int(queue_id))] = number
    except (AttributeError, ValueError):
        raise OptionError(option, 'its form is {"topic": {"broker": {"0": number}}}') from None
    return found


def to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Offsets as a stream's own offset."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def show(queue: MessageQueue) -> str:
    """A queue as messages name it."""
    return f"{queue.topic}-{queue.broker_name}-{queue.queue_id}"


def within_bounds(
    start: QueueOffsets, end: QueueOffsets, bounds: Mapping[MessageQueue, Bounds], *, fail_on_data_loss: bool
) -> dict[MessageQueue, Bounds]:
    """What of each queue can be read; data loss where that is less than was asked for."""
    found = {}
    for queue, last in end.items():
        first = start[queue]
        if first == last:
            continue
        if first > last:
            # The queue was made anew, or somebody asked for it.
            lost(f"{show(queue)} begins at {first}, behind its end {last}", fail_on_data_loss)
            continue
        here = bounds.get(queue)
        if here is None:
            lost(
                f"{show(queue)} does not exist any more: offsets {first} to {last - 1} are gone",
                fail_on_data_loss,
            )
            continue
        if first < here.low:
            gone = f"offsets {first} to {min(here.low, last) - 1} are gone, it begins at {here.low} now"
            lost(f"{show(queue)}: {gone}", fail_on_data_loss)
        if last > here.high:
            lost(f"{show(queue)} ends at {here.high}, before {last}", fail_on_data_loss)
        low, high = max(first, here.low), min(last, here.high)
        if low < high:
            found[queue] = Bounds(low, high)
    return found


def lost(text: str, fail: bool) -> None:
    """Data loss: an error, or a warning."""
    if fail:
        raise OffsetsGoneError(f"{text}; failOnDataLoss=false reads what is left")
    log.warning("%s: the rest is read", text)


class Subscription:
    """Which queues are read: of one topic, of a list, of those that match a pattern, or named one by one."""

    NAMES = ("topic", "topics", "pattern", "assign")

    def __init__(self, options: Options) -> None:
        self.option = options.only_one_of(*self.NAMES)
        if self.option is None:
            raise OptionError("topic", f"name what to read with one of {', '.join(self.NAMES)}")
        self._topics: Collection[str] = ()
        self._pattern: str | None = None
        self._assigned: Collection[MessageQueue] = ()
        if self.option in ("topic", "topics"):
            self._topics = options.names(self.option) or ()
        elif self.option == "pattern":
            self._pattern = options.text("pattern")
            _check_pattern(self._pattern or "")
        else:
            self._assigned = _assigned(options.json("assign"))
            self._topics = sorted({queue.topic for queue in self._assigned})

    def queues(
        self,
        cluster: ClusterView,
        wanted: Callable[[str], bool] = lambda topic: True,
        away: dict[str, KourouError] | None = None,
    ) -> set[MessageQueue]:
        """The queues as they are now, of topics that are wanted. With `away`, what is not there is noted."""
        topics = self._topics if self._pattern is None else cluster.topics(self._pattern)
        found: set[MessageQueue] = set()
        for topic in filter(wanted, topics):
            try:
                found.update(cluster.route(topic).read_queues)
            except UnknownTopicError as error:
                if away is None:
                    raise
                away[f"topic {topic}"] = error
        if not self._assigned:
            return found
        for queue in sorted(queue for queue in self._assigned if wanted(queue.topic) and queue not in found):
            if queue.broker_name in cluster.masters():
                raise OptionError("assign", f"{show(queue)} does not exist")
            gone = ChannelError(f"{show(queue)}: no name server knows broker {queue.broker_name}")
            if away is None:
                raise gone
            away[f"broker {queue.broker_name}"] = gone
        return found.intersection(self._assigned)


def _check_pattern(pattern: str) -> None:
    import re

    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError("pattern", f"{pattern!r} is no regular expression: {error}") from None


def _assigned(value: Any) -> list[MessageQueue]:
    try:
        found = [
            MessageQueue(topic, broker_name, int(queue_id))
            for topic, brokers in value.items()
            for broker_name, queues in brokers.items()
            for queue_id in queues
        ]
    except (AttributeError, ValueError, TypeError):
        raise OptionError("assign", 'its form is {"topic": {"broker": [0, 1]}}') from None
    if not found:
        raise ConfigError("option assign: it names no queue")
    return found
