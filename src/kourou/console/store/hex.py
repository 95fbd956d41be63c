"""Bytes of a record as HTML: in hex and as text, each field in the colour of its kind.

What belongs together has one class, so that style alone lights it up everywhere when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from kourou.console.texts import later, t
from kourou.inspect.look.fields import Field

ROW_BYTES = 16
HEAD_BYTES, TAIL_BYTES = 512, 64  # of a long field
MANY_BYTES = 32 * 1024  # of a long field, where all is asked for
MAX_CLASSES = 96  # fields that light up; those behind them only have their colour


# What a field means, by its name.
MEANINGS = {
    "TOTALSIZE": later("Bytes of the whole record"),
    "MAGICCODE": later("Tells a record from blank space, and its version"),
    "BODYCRC": later("Checksum of the stored body"),
    "QUEUEID": later("The queue of the topic"),
    "FLAG": later("The sender's own"),
    "QUEUEOFFSET": later("Place in the consume queue"),
    "PHYSICALOFFSET": later("Place in the log: of the first byte of this record"),
    "SYSFLAG": later("Compression, transaction, kind of addresses"),
    "BORNTIMESTAMP": later("When it was sent, by the sender's clock"),
    "BORNHOST": later("Who sent it"),
    "STORETIMESTAMP": later("When it was stored, by the broker's clock"),
    "STOREHOST": later("The broker that stored it"),
    "RECONSUMETIMES": later("How often it was consumed again"),
    "PREPARED TX OFFSET": later("Where the half message of its transaction lies"),
    "BODY LENGTH": later("Bytes of the body"),
    "BODY": later("The message itself"),
    "TOPIC LENGTH": later("Bytes of the topic: two of them in V2"),
    "TOPIC": later("The topic, in UTF-8"),
    "PROPERTIES LENGTH": later("Bytes of the properties"),
    "PROPERTY": later("A property: name, 01, value, 02"),
    "WORD": later("A number of eight bytes"),
    "REST": later("Bytes that belong to no field"),
}


def hex_html(record: bytes, fields: Sequence[Field], offset: int, *, show_all: bool = False) -> str:
    """The bytes, in rows of sixteen. Of long fields the middle is left out."""
    owner = [number for number, field in enumerate(fields) for _ in range(field.start, field.end)]
    head = MANY_BYTES if show_all else HEAD_BYTES
    hidden = [
        (field.start + head, field.end - TAIL_BYTES)
        for field in fields
        if field.end - field.start > head + 2 * TAIL_BYTES
    ]
    width = max(len(f"{offset + len(record):x}"), 6)
    lines = []
    skipped = 0
    for start in range(0, len(record), ROW_BYTES):
        end = min(start + ROW_BYTES, len(record))
        if any(first <= start and end <= last for first, last in hidden):
            skipped += end - start
            continue
        if skipped:
            lines.append(f"<div class='k-hex-gap'>⋯ {escape(t('{count} more bytes', count=skipped))} ⋯</div>")
            skipped = 0
        lines.append(_row(record, fields, owner, start, end, f"{offset + start:0{width}x}"))
    return f"<div class='k-hex' role='img' aria-label='{escape(t('Bytes'))}'>{''.join(lines)}</div>"


def _row(
    record: bytes, fields: Sequence[Field], owner: Sequence[int], start: int, end: int, label: str
) -> str:
    numbers, texts = [], []
    for number, first, last in _runs(owner, start, end):
        data = record[first:last]
        title = escape(f"{fields[number].name}: {fields[number].value}", quote=True)
        look = f"class='{look_of(fields[number], number)}' title='{title}'"
        numbers.append(f"<span {look}>{data.hex(' ')}</span>")
        shown = escape("".join(chr(byte) if 32 <= byte < 127 else "·" for byte in data))
        texts.append(f"<span {look}>{shown}</span>")
    return (
        f"<div class='k-hex-row'><span class='k-hex-at'>{label}</span>"
        f"<span class='k-hex-bytes'>{''.join(numbers)}</span>"
        f"<span class='k-hex-text'>{''.join(texts)}</span></div>"
    )


def _runs(owner: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Stretches of one field: its number, first byte, byte behind the last."""
    first = start
    for at in range(start + 1, end + 1):
        if at == end or owner[at] != owner[first]:
            yield owner[first], first, at
            first = at


def fields_html(fields: Sequence[Field]) -> str:
    """The fields, a line each: bytes, name, value, and what it means."""
    lines = []
    for number, field in enumerate(fields):
        mark = ""
        meaning = escape(t(MEANINGS[field.kind]), quote=True)
        if field.verdict is not None:
            color, sign = ("good", "✓") if field.verdict else ("bad", "✗")
            mark = f" <span class='k-badge k-{color}'>{sign}</span>"
        lines.append(
            f"<div class='k-field {_light(number)}'><span class='k-swatch kg-{field.group}'></span>"
            f"<span class='k-field-at'>{field.start}<span>+{field.end - field.start}</span></span>"
            f"<span class='k-field-text'><span class='k-field-name' title='{meaning}'>"
            f"{escape(field.name)}</span>"
            f"<span class='k-field-value'>{escape(field.value)}{mark}</span></span></div>"
        )
    return f"<div class='k-fields'>{''.join(lines)}</div>"


def look_of(field: Field, number: int) -> str:
    """The classes of the bytes of a field."""
    return f"kb kg-{field.group} {_light(number)}".strip()


def _light(number: int) -> str:
    return f"kf{number}" if number < MAX_CLASSES else ""


def light_css() -> str:
    """Style that lights up all of a field where one part of it is pointed at."""
    return "\n".join(
        f".k-record:has(.kf{number}:hover) .kf{number} {{ --lit: 1; }}" for number in range(MAX_CLASSES)
    )
