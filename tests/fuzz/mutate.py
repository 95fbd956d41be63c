"""Mutations: bytes and texts that are nearly right, the same for the same chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

# Numbers that lengths, offsets and counts go wrong at
EDGES = (0, 1, 2, 7, 8, 127, 128, 255, 256, 32767, 32768, 65535, 2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1,
         2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
MOST_CHANGES = 4

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutate(chance: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Some bytes with one change or a few; `others` are what may be spliced in."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, MOST_CHANGES + 1)):
        _MUTATIONS[int(chance.random() * len(_MUTATIONS))](chance, changed, others)
    return bytes(changed)


def overwrite(chance: random.Random, data: bytes) -> bytes:
    """Some bytes with changes that leave their number as it is: what a disk does to a file."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, MOST_CHANGES + 1)):
        _OVERWRITES[int(chance.random() * len(_OVERWRITES))](chance, changed, ())
    return bytes(changed)


def mutate_text(chance: random.Random, text: str, words: Sequence[str]) -> str:
    """A text with words put in, left out, doubled or exchanged, or with other characters."""
    for _ in range(chance.randrange(1, MOST_CHANGES + 1)):
        at, to = _range(chance, len(text))
        kind = chance.randrange(6)
        if kind == 0:
            text = text[:at] + chance.choice(words) + text[to:]
        elif kind == 1:
            text = f"{text[:at]} {chance.choice(words)} {text[at:]}"
        elif kind == 2:
            text = text[:at] + text[to:]
        elif kind == 3:
            text = text[:to] + text[at:to] * chance.choice((1, 2, 50)) + text[to:]
        elif kind == 4:
            text = (
                text[:at] + chr(chance.choice((chance.randrange(128), chance.randrange(0xD800)))) + text[to:]
            )
        else:
            text = text[:at] + str(chance.choice(EDGES) * chance.choice((1, -1))) + text[at:]
    return text


def _range(chance: random.Random, size: int) -> tuple[int, int]:
    """A stretch, short ones more often than long ones."""
    at = int(chance.random() * (size + 1))
    length = int(chance.random() * (size - at + 1)) if chance.random() < 0.2 else int(chance.random() * 8)
    return at, min(at + length, size)


def _flip(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[int(chance.random() * len(data))] ^= 1 << int(chance.random() * 8)


def _byte(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    if data:
        data[int(chance.random() * len(data))] = int(chance.random() * 256)


def _number(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    width = chance.choice((2, 4, 8))
    if len(data) >= width:
        at = int(chance.random() * (len(data) - width + 1))
        value = chance.choice(EDGES) + chance.choice((-1, 0, 1))
        data[at : at + width] = (value & (1 << 8 * width) - 1).to_bytes(width, "big")


def _add(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """A number that is a little more or less than it was: lengths that nearly fit."""
    if len(data) >= 4:
        at = int(chance.random() * (len(data) - 3))
        value = int.from_bytes(data[at : at + 4], "big") + chance.randrange(-8, 9)
        data[at : at + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")


def _zero(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, to = _range(chance, len(data))
    data[at:to] = bytes(to - at)


def _noise(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, to = _range(chance, len(data))
    data[at:to] = chance.randbytes(to - at)


def _copy_within(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    """What lies at one place lies at another one too: a sector that is stale."""
    at, to = _range(chance, len(data))
    target = int(chance.random() * (len(data) - (to - at) + 1))
    data[target : target + to - at] = data[at:to]


def _remove(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, to = _range(chance, len(data))
    del data[at:to]


def _double(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    at, to = _range(chance, len(data))
    data[to:to] = data[at:to]


def _cut(chance: random.Random, data: bytearray, _: Sequence[bytes]) -> None:
    del data[int(chance.random() * (len(data) + 1)) :]


def _splice(chance: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if others:
        other = chance.choice(others)
        at, to = _range(chance, len(data))
        start, end = _range(chance, len(other))
        data[at:to] = other[start:end]


_OVERWRITES: tuple[Mutation, ...] = (_flip, _flip, _byte, _number, _number, _add, _zero, _noise, _copy_within)
_MUTATIONS: tuple[Mutation, ...] = (*_OVERWRITES, _remove, _double, _cut, _splice)
