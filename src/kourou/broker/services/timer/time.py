"""WheelTime: the time of a timer wheel, and when messages are due by it.

The wheel has a time of its own, which never goes back: that of the day and, after a clock was set back, ahead
of it by as much (`lead_ms`). So slots that are over are not filled again, and what waits comes no earlier. A
time that a user names (TIMER_DELIVER_MS) means the time of day; TIMER_DELAY_SEC and TIMER_DELAY_MS are
durations, which a clock that is set does not change (`store.clock_steps`).
"""

from __future__ import annotations

from kourou.message import properties as names
from kourou.message.codec import StoredMessage
from kourou.store import MessageStore

SKEW_MS = 60_000  # clocks of a master and its slave differ: less is no master that is ahead of its clock
_MAX_LONG = (1 << 63) - 1


class WheelTime:
    """The time of the wheel of a store, which has delivered everything before `read_ms`."""

    def __init__(self, store: MessageStore, precision_ms: int, read_ms: int) -> None:
        self._store = store
        self._precision_ms = precision_ms
        self._difference_ms = store.clock_steps.difference_ms  # another one is a clock that was set
        self.lead_ms = max(read_ms - store.clock_steps.now_ms, 0)  # how far it is ahead of the time of day

    def now_ms(self) -> int:
        """The time of the wheel."""
        steps = self._store.look_at_clock()
        set_by_ms, self._difference_ms = steps.difference_ms - self._difference_ms, steps.difference_ms
        self.lead_ms = max(self.lead_ms - set_by_ms, 0)
        return steps.now_ms + self.lead_ms

    def follow(self, read_ms: int) -> None:
        """A master has delivered everything before this: its slots are those of its time."""
        ahead_ms = read_ms - self.now_ms()
        if ahead_ms > SKEW_MS:
            self.lead_ms += ahead_ms

    def out_ms(self, found: StoredMessage) -> int | None:
        """The second with whose end a message is due, by the clock of today; None if it says none."""
        out_ms, delay_ms = (
            read_long(found.properties.get(names.TIMER_OUT_MS, "")),
            _delay_ms(found.properties),
        )
        if out_ms is None or delay_ms is None:
            return out_ms
        steps, precision_ms = self._store.clock_steps, self._precision_ms
        left_ms = steps.left_ms(out_ms + precision_ms, found.physical_offset, delay_ms)
        return -(-(steps.now_ms + left_ms) // precision_ms) * precision_ms - precision_ms

    def slot_ms(self, out_ms: int) -> int:
        """The slot of a second of the day."""
        return -(-(out_ms + self.lead_ms) // self._precision_ms) * self._precision_ms


def deliver_ms(properties: dict[str, str], now_ms: int) -> int | None:
    """When a message wants to be delivered; None if that cannot be told."""
    if names.TIMER_DELAY_SEC in properties or names.TIMER_DELAY_MS in properties:
        delay_ms = _delay_ms(properties)
        return None if delay_ms is None else now_ms + delay_ms
    return read_long(properties[names.TIMER_DELIVER_MS])


def _delay_ms(properties: dict[str, str]) -> int | None:
    """How long a message wants to wait; None if it names a time of day instead, or no number."""
    if names.TIMER_DELAY_SEC in properties:
        delay_s = read_long(properties[names.TIMER_DELAY_SEC])
        return None if delay_s is None else delay_s * 1000
    return read_long(properties.get(names.TIMER_DELAY_MS, ""))


def read_long(text: str) -> int | None:
    """A number as Java's parseLong takes it."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal() and len(digits) < 20):
        return None
    number = int(text)
    return number if -_MAX_LONG - 1 <= number <= _MAX_LONG else None
