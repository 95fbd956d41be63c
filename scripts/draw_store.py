"""Draw the files of a real store: docs/images/store-*.svg.

    python scripts/draw_store.py [DIRECTORY]

A small store is written by Kourou, closed, read again by the offline tools, and drawn to scale from what
they find. Clock and messages are always the same, so that the pictures are.
"""

from __future__ import annotations

import sys
import tempfile
from html import escape
from pathlib import Path
from typing import NamedTuple

from kourou.inspect import StoreDirectory
from kourou.inspect.log_scan import Blank, Stretch, walk
from kourou.message.codec import HEADERS, StoredMessage, decode
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig
from kourou.store.index.index_file import key_hash

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
LOG_FILE_BYTES = 4096  # 1 GiB by default
QUEUE_FILE_BYTES = 20 * 16
SLOTS, ENTRIES = 10, 40  # 5 and 20 million by default
FIRST_MS = 1_794_700_800_000  # 2026-11-15
WIDTH, MARGIN = 960, 20
ROOM = WIDTH - 2 * MARGIN
FIXED_FIELDS = [
    (4, "size"), (4, "magic"), (4, "CRC of the body"), (4, "queue id"), (4, "flag"), (8, "queue offset"),
    (8, "physical offset"), (4, "system flag"), (8, "born timestamp"), (8, "born host"),
    (8, "store timestamp"),
    (8, "store host"), (4, "reconsume times"), (8, "prepared transaction offset"), (4, "length of the body"),
]  # fmt: skip
FIELD_COLORS = {"body": "#8ecae6", "topic": "#b7e4c7", "properties": "#ffd6a5"}
COLORS = {("orders", 0): "#8ecae6", ("orders", 1): "#a8dadc", ("invoices", 0): "#ffd6a5"}
SENT = [("orders", number % 2, f"order-{number}") for number in range(16)]
SENT[3:3] = [("invoices", 0, "order-1")]
SENT[9:9] = [("invoices", 0, "order-5"), ("orders", 0, "order-0")]


class SteadyClock:
    """A clock that goes on by a second when it is told to."""

    def __init__(self) -> None:
        self._now_ms = FIRST_MS

    def tick(self) -> None:
        """A second goes by."""
        self._now_ms += 1000

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._now_ms

    def elapsed_ms(self) -> int:
        """The same: nobody sets this clock."""
        return self._now_ms

    def boot_id(self) -> str:
        """Not known."""
        return ""


class Svg:
    """A picture that grows downwards."""

    def __init__(self, title: str) -> None:
        self.parts: list[str] = []
        self.height = 0.0
        self.title = title

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = "", hint: str = ""
    ) -> None:
        """A rectangle, a text in its middle, and one that is shown where the mouse is."""
        self.height = max(self.height, y + height)
        tip = f"<title>{escape(hint)}</title>" if hint else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
            f' stroke="#33415c" stroke-width="0.8">{tip}</rect>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + 4, text, anchor="middle")

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "start", size: int = 12, bold: bool = False
    ) -> None:
        """A line of text."""
        self.height = max(self.height, y + 4)
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def line(self, x: float, y1: float, y2: float) -> None:
        """A thin line downwards."""
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y1:.1f}" x2="{x:.1f}" y2="{y2:.1f}" stroke="#888" stroke-width="0.6"/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, bend: float = 0) -> None:
        """A curve from one place to another."""
        middle_x, middle_y = (x1 + x2) / 2, (y1 + y2) / 2 + bend
        self.parts.append(
            f'<path d="M{x1:.1f},{y1:.1f} Q{middle_x:.1f},{middle_y:.1f} {x2:.1f},{y2:.1f}" fill="none"'
            ' stroke="#e63946" stroke-width="1.2" marker-end="url(#head)"/>'
        )

    def __str__(self) -> str:
        height = self.height + MARGIN
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img"'
            ' font-family="system-ui, sans-serif" fill="#1d3557">'
            f"<title>{escape(self.title)}</title>"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            ' orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#e63946"/></marker></defs>'
            f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="#fdfdfb"/>'
            + "\n".join(self.parts)
            + "</svg>\n"
        )


class Placed(NamedTuple):
    """A record and its bytes in the log."""

    offset: int
    size: int
    message: StoredMessage


def write_store(directory: str) -> MessageStoreConfig:
    """The store that is drawn."""
    config = MessageStoreConfig(
        store_path_root_dir=directory,
        mapped_file_size_commit_log=LOG_FILE_BYTES,
        mapped_file_size_consume_queue=QUEUE_FILE_BYTES,
        max_hash_slot_num=SLOTS,
        max_index_num=ENTRIES,
    )
    clock = SteadyClock()
    with MessageStore(config, clock=clock) as store:
        for number, (topic, queue, key) in enumerate(SENT):
            clock.tick()
            body = b"x" * (60 + 37 * number % 150)
            properties = {"KEYS": key, "TAGS": "paid"}
            store.put_message(InnerMessage.of(topic, queue, body, properties, born_timestamp=FIRST_MS))
    return config


def records(store: StoreDirectory) -> tuple[list[Placed], list[Blank]]:
    """All records of the log, and the blanks at the ends of its files."""
    found, blanks = [], []
    for part in walk(store):
        if isinstance(part, Stretch):
            for offset in part.offsets.tolist():
                record = store.record(offset)
                assert record is not None
                found.append(Placed(offset, len(record), decode(record)))
        elif isinstance(part, Blank):
            blanks.append(part)
    return found, blanks


def draw_log(store: StoreDirectory) -> tuple[Svg, dict[int, tuple[float, float]]]:
    """The files of the log to scale, one record in detail; and where each record was drawn."""
    svg = Svg("The commit log of a small store, to scale")
    places: dict[int, tuple[float, float]] = {}
    found, blanks = records(store)
    y = MARGIN + 12
    for file in store.log_files:
        svg.text(MARGIN, y, f"commitlog/{file.base:020}  ({file.size} bytes)", bold=True)
        y += 8
        scale = ROOM / file.size
        svg.box(MARGIN, y, ROOM, 44, "#f1f1ee", hint="not written yet")
        for one in (one for one in found if file.base <= one.offset < file.base + file.size):
            x, message = MARGIN + (one.offset - file.base) * scale, one.message
            hint = f"{message.topic}, queue {message.queue_id}, {one.size} bytes at {one.offset}"
            svg.box(
                x,
                y,
                one.size * scale,
                44,
                COLORS[message.topic, message.queue_id],
                str(message.queue_offset),
                hint,
            )
            places[one.offset] = (x + one.size * scale / 2, y)
        for blank in (blank for blank in blanks if blank.file == file):
            x, width = MARGIN + blank.position * scale, blank.size * scale
            svg.box(x, y, width, 44, "#cccccc", "blank" if width > 40 else "", f"{blank.size} bytes")
        y += 74
    x = float(MARGIN)
    for (topic, queue), color in COLORS.items():
        svg.box(x, y - 12, 14, 14, color)
        svg.text(x + 20, y, f"{topic}, queue {queue}")
        x += 150
    svg.text(x, y, "The number in a record is its queue offset.")
    return draw_record(svg, found[0], y + 40), places


def draw_record(svg: Svg, one: Placed, y: float) -> Svg:
    """The bytes of a record, to scale."""
    message = one.message
    svg.text(MARGIN, y, f"The record at {one.offset}: {one.size} bytes", bold=True)
    body, topic = len(message.body), len(message.topic.encode())
    rest = one.size - HEADERS[0].size - body - 1 - topic - 2
    parts = [
        *FIXED_FIELDS, (body, "body"), (1, "length of the topic"), (topic, "topic"),
        (2, "length of the properties"), (rest, "properties"),
    ]  # fmt: skip
    scale, x, at = ROOM / one.size, float(MARGIN), 0
    assert sum(size for size, _ in parts) == one.size
    for number, (size, name) in enumerate(parts):
        color = FIELD_COLORS.get(name) or ("#f4a261" if number % 2 else "#e9c46a")
        wide = size * scale > 60
        svg.box(x, y + 8, size * scale, 40, color, name if wide else "", f"{name}: {size} bytes at {at}")
        if not wide:
            depth = y + 62 + 15 * (number % 10)
            x_middle = x + size * scale / 2
            svg.line(x_middle, y + 48, depth - 4)
            svg.text(x_middle + 3, depth, f"{name} ({size})", size=10)
        x, at = x + size * scale, at + size
    return svg


def draw_queue(store: StoreDirectory) -> Svg:
    """A queue's entries, and the records they lead to."""
    log, places = draw_log(store)
    svg = Svg("A consume queue: 20 bytes for each message, in order")
    rows = 2 * 74 + MARGIN
    svg.parts = log.parts[
        : next(i for i, part in enumerate(log.parts) if "rect" in part and 'height="14.0"' in part)
    ]
    queue = store.queue("orders", 0)
    assert queue is not None
    entries = list(queue.iterate())
    y, width = rows + 70.0, ROOM / 10
    svg.text(MARGIN, y - 10, f"consumequeue/orders/0: {len(entries)} entries of 20 bytes", bold=True)
    for number, entry in enumerate(entries):
        x = MARGIN + number * width
        svg.box(x, y, width, 64, COLORS["orders", 0])
        for line, text in enumerate(
            (
                f"entry {number}",
                f"offset {entry.physical_offset}",
                f"size {entry.size}",
                f"tag {entry.tags_code}",
            )
        ):
            svg.text(x + width / 2, y + 15 + 15 * line, text, anchor="middle", size=11, bold=line == 0)
        to_x, to_y = places[entry.physical_offset]
        svg.arrow(x + width / 2, y, to_x, to_y + 44)
    svg.text(
        MARGIN,
        y + 86,
        "offset (8 bytes): where the record lies in the log. size (4): of the record."
        " tag (8): hash code of the tag, to filter by.",
    )
    return svg


def draw_index(store: StoreDirectory) -> Svg:
    """The slots and entries of an index file, and the chains between them."""
    svg = Svg("An index file: slots, entries, chains")
    file = store.index_file(store.index_paths[0])
    assert file is not None
    slots, entries = file.slots.tolist(), file.entries.tolist()
    y, width = MARGIN + 34.0, ROOM / SLOTS
    used = sum(number > 0 for number in slots)
    svg.text(
        MARGIN,
        y - 14,
        f"header (40 bytes), then {SLOTS} slots of 4 bytes: {used} in use,"
        " each with the number of its newest entry",
        bold=True,
    )
    slot_x = {}
    for slot, newest in enumerate(slots):
        slot_x[slot] = MARGIN + slot * width + width / 2
        svg.box(
            MARGIN + slot * width,
            y,
            width,
            40,
            "#b7e4c7" if newest else "#f1f1ee",
            f"{slot} → {newest or '–'}",
        )
    count = file.count - 1
    below, columns = y + 130, 13
    svg.text(
        MARGIN,
        below - 14,
        f"entries of 20 bytes, {count} of {file.max_entries - 1} in use:"
        " key hash, offset in the log, seconds, previous entry",
        bold=True,
    )
    width = ROOM / columns
    places = {}
    for number in range(1, count + 1):
        hashed, offset, seconds, previous = entries[number]
        x, row = MARGIN + (number - 1) % columns * width, (number - 1) // columns
        at = below + row * 110
        places[number] = (x + width / 2, at)
        svg.box(x, at, width, 66, "#ffe8d6", hint=f"entry {number}: hash {hashed}, slot {hashed % SLOTS}")
        for line, text in enumerate(
            (
                f"entry {number}",
                f"slot {hashed % SLOTS}",
                f"at {offset}",
                f"+{seconds} s, ← {previous or '–'}",
            )
        ):
            svg.text(x + width / 2, at + 14 + 15 * line, text, anchor="middle", size=10, bold=line == 0)
    wanted = key_hash("orders#order-0") % SLOTS
    x, at = slot_x[wanted], y + 40
    number = slots[wanted]
    while number:
        to_x, to_y = places[number]
        svg.arrow(x, at, to_x, to_y, bend=0 if at < to_y else -34)
        x, at, number = to_x, to_y, entries[number][3]
    svg.text(
        MARGIN,
        svg.height + 26,
        f"The arrows are the chain of slot {wanted}, where orders#order-0 is looked up:"
        " newest first, each entry names the one before it.",
    )
    return svg


def draw_checkpoint(store: StoreDirectory) -> Svg:
    """The words of the checkpoint."""
    svg = Svg("The checkpoint: six words of 8 bytes in a page of 4096")
    checkpoint = store.checkpoint
    assert checkpoint is not None
    words = {
        "physicMsgTimestamp": checkpoint.physic_msg_timestamp,
        "logicsMsgTimestamp": checkpoint.logics_msg_timestamp,
        "indexMsgTimestamp": checkpoint.index_msg_timestamp,
        "masterFlushedOffset": checkpoint.master_flushed_offset,
        "confirmPhyOffset": checkpoint.confirm_phy_offset,
        "logicsPhysicalOffset": checkpoint.logics_physical_offset,
    }  # fmt: skip
    svg.text(MARGIN, MARGIN + 12, "checkpoint: the first 48 of 4096 bytes", bold=True)
    width = ROOM / len(words)
    for number, (name, value) in enumerate(words.items()):
        x = MARGIN + number * width
        svg.box(x, MARGIN + 22, width, 50, "#d7c0ea")
        svg.text(x + width / 2, MARGIN + 42, name, anchor="middle", size=11, bold=True)
        svg.text(x + width / 2, MARGIN + 60, str(value), anchor="middle", size=11)
    return svg


def main() -> None:
    """Draw."""
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        config = write_store(directory)
        with StoreDirectory.open(directory, config) as store:
            pictures = {
                "commitlog": draw_log(store)[0],
                "consumequeue": draw_queue(store),
                "index": draw_index(store),
                "checkpoint": draw_checkpoint(store),
            }
    for name, svg in pictures.items():
        (images / f"store-{name}.svg").write_text(str(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
