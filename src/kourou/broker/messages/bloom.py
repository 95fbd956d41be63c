"""BloomFilter: by a few bits, which consumers want a message (rocketmq-filter, BloomFilter and BitsArray).

Each consumer group of a topic has a few positions among the bits of a map, drawn from the hash of
`group#topic`. The map of a message has the bits of all groups that want it. Where one bit of a group is
missing, the group does not want the message; where all are there, it most likely does.

Layout of a map: bit p is bit p % 8, counted from the lowest, of byte p / 8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import mmh3

from kourou.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BloomData:
    """The positions of one group of a topic."""

    bit_num: int
    positions: tuple[int, ...]
    mask: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", _mask(self.positions))

    def is_hit(self, bitmap: bytes) -> bool:
        """Whether a message with this map may be wanted; True for a map of another length."""
        if len(bitmap) * 8 != self.bit_num:
            return True
        return int.from_bytes(bitmap, "little") & self.mask == self.mask


class BloomFilter:
    """How many bits there are, and how many of them a group gets.

    `error_percent` of the messages that a group does not want may look wanted, with `expected` groups.
    """

    def __init__(self, error_percent: int, expected: int) -> None:
        if not 1 <= error_percent < 100:
            raise ConfigError(f"maxErrorRateOfBloomFilter={error_percent}: expected 1 to 99")
        if expected < 1:
            raise ConfigError(f"expectConsumerNumUseFilter={expected}: expected at least 1")
        rate = error_percent / 100.0
        self.hash_count = math.ceil(_log(0.5, rate))
        # Rounded up twice, as in Java: to a bit, then to a byte
        bits = math.ceil(expected * _log(2, 1 / rate) * _log(2, math.e))
        self.bit_num = 8 * math.ceil(bits / 8)

    def data_of(self, group: str, topic: str) -> BloomData:
        """The positions of a group of a topic."""
        return BloomData(self.bit_num, self.positions(f"{group}#{topic}"))

    def positions(self, text: str) -> tuple[int, ...]:
        """The positions of a text, from two halves of one hash, in arithmetic of 32 bits."""
        hash64 = mmh3.hash64(text.encode("utf-8", "replace"), signed=False)[0]
        low, high = hash64 & 0xFFFFFFFF, hash64 >> 32
        found = []
        for number in range(1, self.hash_count + 1):
            combined = (low + number * high) & 0xFFFFFFFF
            if combined & 0x80000000:
                combined ^= 0xFFFFFFFF
            found.append(combined % self.bit_num)
        return tuple(found)

    def is_valid(self, bit_num: int, positions: Sequence[int]) -> bool:
        """Whether positions were drawn by a filter of this size."""
        return (
            bit_num == self.bit_num
            and len(positions) == self.hash_count
            and all(0 <= position < bit_num for position in positions)
        )

    def bitmap(self, mask: int) -> bytes:
        """The map with these bits."""
        return mask.to_bytes(self.bit_num // 8, "little")


def _mask(positions: Sequence[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def _log(base: float, value: float) -> float:
    return math.log(value) / math.log(base)
