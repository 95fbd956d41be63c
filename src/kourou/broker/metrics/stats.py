"""BrokerStats: what was put and got, by topic, group and queue, over minutes, hours and days
(BrokerStatsManager, StatsItem, BrokerStats).

Counting is hot, so that only queues are counted, by plain additions to an object that the caller holds:

    puts = stats.topic("orders").queue(3)        # once
    puts.messages += 1; puts.calls += 1; puts.size_bytes += 812

What Java counts for topics, groups and the broker are sums of these, taken when they are sampled and shown.
A window holds samples of totals: seven of a minute, one every 10 s; seven of an hour, one every 10 minutes;
25 of a day, one an hour. What it shows is the last sample less the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from kourou.broker.config import BrokerConfig
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.store.queue.queue_store import LMQ_PREFIX, is_lmq


class _Span(NamedTuple):
    """How often a window is sampled, and how many samples it holds."""

    interval_ms: int
    samples: int


MINUTE, HOUR, DAY = _Span(10_000, 7), _Span(600_000, 7), _Span(3_600_000, 25)
SPANS = {"statsMinute": MINUTE, "statsHour": HOUR, "statsDay": DAY}

MAX_DEAD_LETTERS = 10_000
OTHERS = ("", "")

Row = tuple[int, ...]  # totals of counters; the columns:
_MESSAGES, _CALLS, _SIZE, _LATENCY = 0, 1, 2, 3
_SEND_BACKS, _ACKS, _ACK_CALLS, _CHECK_POINTS, _CHECK_POINT_CALLS = 4, 5, 6, 7, 8
_NO_TIMES = -1  # Java counts no times for the broker as a whole

# Name -> columns of value and times
_TOPIC_STATS = {"TOPIC_PUT_NUMS": (_MESSAGES, _CALLS), "TOPIC_PUT_SIZE": (_SIZE, _CALLS)}
_QUEUE_PUT_STATS = {"QUEUE_PUT_NUMS": (_MESSAGES, _CALLS), "QUEUE_PUT_SIZE": (_SIZE, _CALLS)}
_QUEUE_GET_STATS = {"QUEUE_GET_NUMS": (_MESSAGES, _CALLS), "QUEUE_GET_SIZE": (_SIZE, _CALLS)}
_GROUP_STATS = {
    "GROUP_GET_NUMS": (_MESSAGES, _CALLS),
    "GROUP_GET_SIZE": (_SIZE, _CALLS),
    "SNDBCK_PUT_NUMS": (_SEND_BACKS, _SEND_BACKS),
    "GROUP_ACK_NUMS": (_ACKS, _ACK_CALLS),
    "GROUP_CK_NUMS": (_CHECK_POINTS, _CHECK_POINT_CALLS),
}
_BROKER_STATS = {
    name: (place, _NO_TIMES)
    for place, name in enumerate(
        (
            "BROKER_PUT_NUMS",
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
            "BROKER_GET_NUMS",
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
            "BROKER_ACK_NUMS",
            "BROKER_CK_NUMS",
        )
    )
}


class StatsSnapshot(NamedTuple):
    """What a window shows."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0  # per call
    times: int = 0


class Windows:
    """The samples of one thing that is counted."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[_Span, deque[tuple[int, Row]]] = {}

    def sample(self, span: _Span, now_ms: int, row: Row) -> None:
        """Note the totals. What is sampled first was nothing an interval ago."""
        samples = self._samples.get(span)
        if samples is None:
            samples = self._samples[span] = deque(maxlen=span.samples)
            samples.append((now_ms - span.interval_ms, (0,) * len(row)))
        samples.append((now_ms, row))

    def snapshot(self, span: _Span, value: int, times: int) -> StatsSnapshot:
        """What the window shows of two columns."""
        samples = self._samples.get(span)
        if not samples:
            return StatsSnapshot()
        (first_ms, first), (last_ms, last) = samples[0], samples[-1]
        total = last[value] - first[value]
        calls = 0 if times == _NO_TIMES else last[times] - first[times]
        elapsed_ms = last_ms - first_ms
        return StatsSnapshot(
            total,
            total * 1000.0 / elapsed_ms if elapsed_ms > 0 else 0.0,
            total / calls if calls > 0 else 0.0,
            calls,
        )

    def has_changed(self, span: _Span) -> bool:
        """Whether something was counted within the window."""
        samples = self._samples.get(span)
        return samples is not None and samples[0][1] != samples[-1][1]

    def view(self, value: int, times: int) -> dict[str, Any]:
        """All windows as BrokerStatsData."""
        found = {}
        for name, span in SPANS.items():
            shown = self.snapshot(span, value, times)
            found[name] = {"avgpt": shown.avgpt, "sum": shown.sum, "tps": shown.tps}
        return found


class QueuePuts:
    """What was put into one queue. Hot."""

    __slots__ = ("calls", "latency_ms", "messages", "size_bytes", "windows")

    def __init__(self) -> None:
        self.messages = 0
        self.calls = 0
        self.size_bytes = 0
        self.latency_ms = 0
        self.windows = Windows()

    def row(self) -> Row:
        """The totals."""
        return (self.messages, self.calls, self.size_bytes, self.latency_ms)


class QueueGets(QueuePuts):
    """What a group got from one queue, and how far it is behind. Hot."""

    __slots__ = ("fall_behind_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.fall_behind_bytes = 0  # when it last got something


class TopicStats:
    """What was put into a topic."""

    __slots__ = ("is_system", "queues", "windows")

    def __init__(self, is_system: bool) -> None:
        self.is_system = is_system
        self.queues: dict[int, QueuePuts] = {}
        self.windows = Windows()

    def queue(self, queue_id: int) -> QueuePuts:
        """The counters of a queue. Hot."""
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueuePuts()
        return found

    def row(self) -> Row:
        """The totals."""
        return _sum_rows(self.queues.values())


class GroupStats:
    """What a group got from a topic, and what it sent back."""

    __slots__ = (
        "ack_calls", "acks", "check_point_calls", "check_points", "hours", "is_system", "queues",
        "send_backs", "windows",
    )  # fmt: skip

    def __init__(self, is_system: bool) -> None:
        self.is_system = is_system
        self.queues: dict[int, QueueGets] = {}
        self.hours = 0  # that it has been there
        self.send_backs = 0
        self.acks = self.ack_calls = 0
        self.check_points = self.check_point_calls = 0
        self.windows = Windows()

    def queue(self, queue_id: int) -> QueueGets:
        """The counters of a queue. Hot."""
        found = self.queues.get(queue_id)
        if found is None:
            found = self.queues[queue_id] = QueueGets()
        return found

    def row(self) -> Row:
        """The totals."""
        others = (self.send_backs, self.acks, self.ack_calls, self.check_points, self.check_point_calls)
        return _sum_rows(self.queues.values()) + others

    def note_hour(self) -> bool:
        """An hour has passed; whether nothing was counted for a day."""
        self.hours += 1
        return self.hours > DAY.samples and not self.windows.has_changed(DAY)


class Counter:
    """A thing that is counted seldom, under a name and a key of its own."""

    __slots__ = ("times", "value", "windows")

    def __init__(self) -> None:
        self.value = 0
        self.times = 0
        self.windows = Windows()

    def row(self) -> Row:
        """The totals."""
        return (self.value, self.times)


class BrokerStats:
    """All counters of a broker. `tick` must be called every 10 s or more often."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        is_system_topic: Callable[[str], bool],
        *,
        bound: Bound = UNBOUND,
    ) -> None:
        self._config = config
        self._clock = clock
        self._is_system_topic = is_system_topic
        self._bound = bound
        self.topics: dict[str, TopicStats] = {}
        self.groups: dict[tuple[str, str], GroupStats] = {}  # topic, group
        self._counters: dict[tuple[str, str], Counter] = {}  # name, key
        self.dead_letters: dict[tuple[str, str], int] = {}  # group, topic -> messages that were given up
        self._forgotten = [0] * len(_BROKER_STATS)  # what topics and groups counted that are no more
        self._windows = Windows()
        self._due_ms = dict.fromkeys(SPANS.values(), clock.elapsed_ms())
        self._morning_ms = _next_morning_ms(clock.now_ms())
        self.put_total_yesterday_morning = self.put_total_today_morning = 0
        self.get_total_yesterday_morning = self.get_total_today_morning = 0

    # Counters. Hold on to what these give, until the topic or the group is deleted.

    def topic(self, topic: str) -> TopicStats:
        """The counters of a topic."""
        found = self.topics.get(topic)
        if found is None:
            found = self.topics[topic] = TopicStats(self._is_system_topic(topic))
        return found

    def group(self, topic: str, group: str) -> GroupStats:
        """The counters of a group in a topic; light queues share theirs, for there may be millions, and so do
        pairs that there is no room for."""
        key = self._key_of(topic, group)
        found = self.groups.get(key)
        if found is None:
            if not self._bound.fits(len(self.groups) + 1):
                key = OTHERS
            found = self.groups.setdefault(key, GroupStats(self._is_system_topic(topic)))
        return found

    def _key_of(self, topic: str, group: str) -> tuple[str, str]:
        if self._config.store.enable_lmq and not self._config.enable_lmq_stats:
            topic = LMQ_PREFIX if is_lmq(topic) else topic
            group = LMQ_PREFIX if is_lmq(group) else group
        return topic, group

    def count(self, name: str, key: str, value: int = 1, times: int = 1) -> None:
        """Count what is seldom: CHANNEL_ACTIVITY, SNDBCK2DLQ_TIMES and the like."""
        counter = self._counters.get((name, key))
        if counter is None:
            counter = self._counters[name, key] = Counter()
        counter.value += value
        counter.times += times

    def count_dead_letter(self, group: str, topic: str) -> None:
        """A group gives up a message of a topic. Both are names from outside: further ones count as one."""
        key = (group, topic)
        if key not in self.dead_letters and len(self.dead_letters) >= MAX_DEAD_LETTERS:
            key = OTHERS
        self.dead_letters[key] = self.dead_letters.get(key, 0) + 1

    def forget_topic(self, topic: str) -> None:
        """Drop the counters of a deleted topic; the totals keep what they counted."""
        if topic in self.topics:
            self._keep(_put_columns(self.topics.pop(topic)))
        self._forget_groups(lambda key: key[0] == topic)

    def forget_group(self, group: str) -> None:
        """Drop the counters of a deleted group; the totals keep what they counted."""
        self._forget_groups(lambda key: key[1] == group)

    def _forget_groups(self, matches: Callable[[tuple[str, str]], bool]) -> None:
        for group, topic in [key for key in self.dead_letters if matches(key[::-1])]:
            del self.dead_letters[group, topic]
        for key in [key for key in self.groups if matches(key)]:
            self._keep(_get_columns(self.groups.pop(key)))

    def _keep(self, columns: Row) -> None:
        self._forgotten = [kept + count for kept, count in zip(self._forgotten, columns)]

    # Time

    def tick(self) -> bool:
        """Sample what is due, and note the totals of the morning. True if groups that got nothing for a day
        were dropped: nobody may hold on to their counters."""
        now_ms, elapsed_ms = self._clock.now_ms(), self._clock.elapsed_ms()
        idle: list[tuple[str, str]] = []
        for span, due_ms in self._due_ms.items():
            if elapsed_ms >= due_ms:
                missed = (elapsed_ms - due_ms) // span.interval_ms  # while the process did not run
                self._due_ms[span] = due_ms + (missed + 1) * span.interval_ms
                for windows, row in self._rows():
                    if any(row):  # what never counted has no window yet
                        windows.sample(span, elapsed_ms, row)
                if span is DAY:
                    idle = [key for key, group in self.groups.items() if group.note_hour()]
        if now_ms >= self._morning_ms:
            self._morning_ms = _next_morning_ms(now_ms)
            self.record_morning()
        for key in idle:
            self._keep(_get_columns(self.groups.pop(key)))
        return bool(idle)

    def _rows(self) -> Iterator[tuple[Windows, Row]]:
        """All that counts, with its totals. Every 10 s, some 2 µs each."""
        yield self._windows, self._broker_row()
        for topic in self.topics.values():
            yield topic.windows, topic.row()
            for queue in topic.queues.values():
                yield queue.windows, queue.row()
        for group in self.groups.values():
            yield group.windows, group.row()
            for queue in group.queues.values():
                yield queue.windows, queue.row()
        for counter in self._counters.values():
            yield counter.windows, counter.row()

    def _broker_row(self) -> Row:
        rows = [_put_columns(topic) for topic in self.topics.values()]
        rows += [_get_columns(group) for group in self.groups.values()]
        return tuple(map(sum, zip(self._forgotten, *rows)))

    def record_morning(self) -> None:
        """A day begins: what was today's is yesterday's."""
        self.put_total_yesterday_morning = self.put_total_today_morning
        self.get_total_yesterday_morning = self.get_total_today_morning
        self.put_total_today_morning = self.put_total
        self.get_total_today_morning = self.get_total

    # Answers

    @property
    def put_total(self) -> int:
        """Messages put since the start, but for those of the broker's own topics."""
        return self._broker_row()[1]

    @property
    def get_total(self) -> int:
        """Messages got since the start, but for those of the broker's own topics."""
        return self._broker_row()[3]

    def runtime_info(self) -> dict[str, str]:
        """The totals under Java's names, for the answer to GET_BROKER_RUNTIME_INFO (28)."""
        row = self._broker_row()
        return {
            "msgPutTotalYesterdayMorning": str(self.put_total_yesterday_morning),
            "msgPutTotalTodayMorning": str(self.put_total_today_morning),
            "msgPutTotalTodayNow": str(row[1]),
            "msgGetTotalYesterdayMorning": str(self.get_total_yesterday_morning),
            "msgGetTotalTodayMorning": str(self.get_total_today_morning),
            "msgGetTotalTodayNow": str(row[3]),
        }

    def topic_put_tps(self, topic: str) -> float:
        """Messages a second that were put into a topic in the last minute."""
        found = self.topics.get(topic)
        return 0.0 if found is None else found.windows.snapshot(MINUTE, _MESSAGES, _CALLS).tps

    def group_get_tps(self, topic: str, group: str) -> float:
        """Messages a second that a group got from a topic in the last minute."""
        found = self.groups.get(self._key_of(topic, group))
        return 0.0 if found is None else found.windows.snapshot(MINUTE, _MESSAGES, _CALLS).tps

    def groups_behind(self, threshold_bytes: int) -> set[str]:
        """The groups that are more bytes behind in some queue."""
        return {
            group
            for (_, group), stats in self.groups.items()
            if any(queue.fall_behind_bytes > threshold_bytes for queue in stats.queues.values())
        }

    def view(self, name: str, key: str) -> dict[str, Any] | None:
        """The answer to VIEW_BROKER_STATS_DATA (315); None for what was never counted."""
        windows, row, value, times = self._find(name, key)
        counted = windows is not None and (row[value] or (times != _NO_TIMES and row[times]))
        return windows.view(value, times) if windows is not None and counted else None

    def _find(self, name: str, key: str) -> tuple[Windows | None, Row, int, int]:
        """What Java keeps under a name and a key: its windows, its totals, and two columns of them."""
        if name in _BROKER_STATS:
            found = self._windows if key == self._config.broker_cluster_name else None
            return (found, self._broker_row(), *_BROKER_STATS[name])
        parts = key.split("@")
        counted: TopicStats | GroupStats | QueuePuts | Counter | None
        if name in _TOPIC_STATS:
            counted, columns = self.topics.get(key), _TOPIC_STATS[name]
        elif name in _GROUP_STATS:
            counted, columns = self._group_of(parts), _GROUP_STATS[name]
        elif name == "TOPIC_PUT_LATENCY":
            counted, columns = self._queue_puts(parts[::-1]), (_LATENCY, _CALLS)
        elif name == "GROUP_GET_LATENCY":
            counted, columns = self._latency_of(parts), (_LATENCY, _CALLS)
        elif name in _QUEUE_PUT_STATS:
            counted = self._queue_puts(parts) if self._config.enable_detail_stat else None
            columns = _QUEUE_PUT_STATS[name]
        elif name in _QUEUE_GET_STATS:
            in_order = [parts[0], *parts[:0:-1]]  # topic@queue@group
            counted = self._queue_gets(in_order) if self._config.enable_detail_stat else None
            columns = _QUEUE_GET_STATS[name]
        else:
            counted, columns = self._counters.get((name, key)), (0, 1)
        return (None, (), 0, 0) if counted is None else (counted.windows, counted.row(), *columns)

    def _group_of(self, parts: list[str]) -> GroupStats | None:
        return self.groups.get((parts[0], parts[1])) if len(parts) == 2 else None

    def _latency_of(self, parts: list[str]) -> QueueGets | GroupStats | None:
        """queue@topic@group, or topic@group where queues are not told apart."""
        if not self._config.enable_detail_stat:
            return self._group_of(parts)
        return self._queue_gets([*parts[1:], parts[0]])

    def _queue_puts(self, parts: list[str]) -> QueuePuts | None:
        """The queue of [topic, queue]."""
        if len(parts) != 2 or parts[0] not in self.topics:
            return None
        return self.topics[parts[0]].queues.get(_queue_id(parts[1]))

    def _queue_gets(self, parts: list[str]) -> QueueGets | None:
        """The queue of [topic, group, queue]."""
        group = self._group_of(parts[:2]) if len(parts) == 3 else None
        return None if group is None else group.queues.get(_queue_id(parts[2]))


def _queue_id(text: str) -> int:
    return int(text) if text.isdecimal() else -1


def _put_columns(topic: TopicStats) -> Row:
    """What a topic adds to the broker's totals."""
    messages = sum(queue.messages for queue in topic.queues.values())
    return (messages, 0 if topic.is_system else messages, 0, 0, 0, 0)


def _get_columns(group: GroupStats) -> Row:
    """What a group adds to the broker's totals."""
    messages = sum(queue.messages for queue in group.queues.values())
    return (0, 0, messages, 0 if group.is_system else messages, group.acks, group.check_points)


def _sum_rows(queues: Iterable[QueuePuts]) -> Row:
    messages = calls = size_bytes = latency_ms = 0
    for queue in queues:
        messages += queue.messages
        calls += queue.calls
        size_bytes += queue.size_bytes
        latency_ms += queue.latency_ms
    return (messages, calls, size_bytes, latency_ms)


def _next_morning_ms(now_ms: int) -> int:
    """Midnight, by the clock on the wall."""
    tomorrow = datetime.fromtimestamp(now_ms / 1000) + timedelta(days=1)
    return int(tomorrow.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)
