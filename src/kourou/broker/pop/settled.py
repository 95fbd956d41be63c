"""Settled: check points whose messages were all acknowledged before they are due.

Nobody needs to read them: neither they nor their acknowledgements come to the revive topic, which is two of
three records less to write, and as many less to read. Both are in the log and in the timer's wheel all the
same. What is known here is gone with the broker: the next one has both come, or the acknowledgements alone,
which lie in later slots.
"""

from __future__ import annotations

from kourou.broker.pop.checkpoints import Ack, CheckPoint, CheckPointKey

# Beyond these, check points are read by revive
MAX_OPEN = 100_000
MAX_NEEDLESS = 500_000  # records that are still on their way


class Settled:
    """What is on its way to the revive topic, as far as it is known that nobody needs it."""

    def __init__(self) -> None:
        # Check points that are not all acknowledged; the places of their record and of acknowledgements
        self._open: dict[CheckPointKey, tuple[CheckPoint, list[int]]] = {}
        self._keys: dict[int, CheckPointKey] = {}  # of open ones, by the place of their record
        self._needless: dict[int, bool] = {}  # places, and whether each is of a check point

    def add(self, point: CheckPoint, place: int) -> None:
        """A check point waits in the timer."""
        is_full = len(self._open) >= MAX_OPEN or len(self._needless) >= MAX_NEEDLESS
        if self._open.pop(point.key, None) is not None or is_full:
            return  # of two with one key nobody knows which an acknowledgement is for
        self._open[point.key] = point, [place]
        self._keys[place] = point.key

    def ack(self, done: Ack, invisible_ms: int, place: int) -> None:
        """An acknowledgement waits in the timer; a time that is not that of its check point is a mistake."""
        found = self._open.get(done.key)
        if found is None or found[0].invisible_ms != invisible_ms:
            return
        point, places = found
        places.append(place)
        for offset in done.offsets:
            point.ack(offset)
        if point.is_acked:
            del self._open[done.key], self._keys[places[0]]
            self._needless.update(dict.fromkeys(places, False))
            self._needless[places[0]] = True

    def is_needless(self, place: int, *, rolls: bool = False) -> bool:
        """Whether a record whose slot has come need not go on. Otherwise it does, and what follows it must.

        An acknowledgement that rolls goes on: its check point may come after that.
        """
        is_point = self._needless.pop(place, None)
        if is_point is not None:
            return is_point or not rolls
        key = self._keys.pop(place, None)
        if key is not None:
            self._open.pop(key, None)
        return False
