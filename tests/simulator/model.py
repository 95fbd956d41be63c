"""What was asked for and promised in a run, and whether a store keeps it."""

from __future__ import annotations

import shutil
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from kourou.inspect import StoreDirectory
from kourou.inspect.rebuild import rebuild_into
from kourou.store import MessageStore

SLOTS = 64  # of an index file
Found = dict[str, list[tuple[int, int, int]]]  # name -> queue, offset, when it was stored


def name_of(body: bytes | bytearray | memoryview) -> str:
    """A message says its name with the first word of its body."""
    return bytes(body).split(b" ")[0].decode()


@dataclass
class Model:
    """What was asked for, and what was promised."""

    bodies: dict[str, bytes] = field(default_factory=dict)  # of everything that was tried
    promised: dict[str, int] = field(default_factory=dict)  # name -> where its record is in the log
    acknowledged: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    queue_of: dict[str, int] = field(default_factory=dict)
    due_ms: dict[str, int] = field(default_factory=dict)  # of delayed ones: not before
    # When each came to its topic, by true time and by the clock of its broker
    arrivals: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    committed: set[str] = field(default_factory=set)
    rolled_back: set[str] = field(default_factory=set)
    lost_with_power: set[str] = field(default_factory=set)
    consumed: dict[str, int] = field(default_factory=dict)  # name -> when it was first seen
    consumed_places: set[tuple[int, int]] = field(default_factory=set)  # queue and offset
    open_calls: int = 0

    def look(self, store: MessageStore, topic: str) -> Found:
        """The messages of a store; their queues have no gaps, and nothing that nobody sent."""
        found: Found = defaultdict(list)
        for queue_id, queue in sorted((store.queues.table.get(topic) or {}).items()):
            expected = queue.min_offset
            for entry in queue.iterate(expected):
                message = store.look_message(entry.physical_offset)
                assert message is not None, f"queue {queue_id} has an entry without a record at {expected}"
                assert message.queue_offset == expected, f"queue {queue_id} has a gap at {expected}"
                name = name_of(message.body)
                assert self.bodies.get(name) == message.body, f"nobody sent {name} like this"
                if name in self.queue_of:
                    assert self.queue_of[name] == queue_id, f"{name} is in another queue"
                found[name].append((queue_id, message.queue_offset, message.store_timestamp))
                expected += 1
        return found

    def check(self, found: Found, now_ms: int) -> None:
        """Every promise is kept."""
        for name in self.promised:
            if name in self.lost_with_power or name in self.rolled_back:
                continue
            if name.startswith("timed-") and self.due_ms[name] > now_ms:
                continue  # for a time of a clock that was ahead
            assert name in found, f"{name} was acknowledged or committed and is not there"
        for name in self.rolled_back:
            assert name not in found, f"{name} was rolled back and is there"
        for name in self.committed:
            assert len(found.get(name, ())) <= 1, f"{name} was committed once and is there more often"
        for name, due_ms in self.due_ms.items():
            by_clock = name.startswith("timed-")  # a time of the day, and no duration
            for times in self.arrivals.get(name, ()):
                assert times[by_clock] >= due_ms - 1, f"{name} came {due_ms - times[by_clock]} ms early"
        for (who, queue_id), sent in self.acknowledged.items():
            places = [found[name][0][1] for name in sent if name in found]
            assert places == sorted(places), f"messages of {who} in queue {queue_id} are out of order"

    def check_seen(self, found: Found) -> None:
        """The consumer group has seen everything.

        A place whose message was seen, and lost with the power before it was flushed, is another's now: the
        group is behind it, as with Java.
        """
        unseen = [
            name
            for name, places in found.items()
            if name not in self.consumed and not {place[:2] for place in places} <= self.consumed_places
        ]
        assert not unseen, f"the group has not seen {sorted(unseen)[:5]} ({len(unseen)})"


def check_rebuilt(store: MessageStore) -> None:
    """Queues that are made from the log are those that the store has, byte by byte; no key is missing."""
    assert not store.index_catch_up.is_behind, "the index does not catch up"
    store.index.write_pending()
    root = Path(store.root)
    again = root.parent.parent / f"{root.parent.name}-again"
    try:
        with StoreDirectory.open(root, store.config) as directory:
            rebuild_into(directory, str(again))
        assert _content(again / "consumequeue") == _content(root / "consumequeue"), "a queue is another"
        assert _keys(again / "index") <= _keys(root / "index"), "the index lacks a key"
    finally:
        shutil.rmtree(again)


def _keys(folder: Path) -> set[bytes]:
    """Hashes and offsets in the files of an index."""
    keys = set()
    for file in folder.iterdir() if folder.exists() else ():
        data = file.read_bytes()
        (count,) = struct.unpack_from(">i", data, 36)
        for at in range(40 + SLOTS * 4 + 20, 40 + SLOTS * 4 + count * 20, 20):
            keys.add(data[at : at + 12])
    return keys


def _content(folder: Path) -> dict[str, bytes]:
    """The files of queues; a file that was made for an entry which found no room elsewhere has none."""
    files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    return {name: data for name, data in files.items() if any(data)}
