"""BloomFilter: sizes, positions and bits as Java's. The numbers are those that Java 5.5.0 gave."""

from __future__ import annotations

import pytest

from kourou.broker.messages.bloom import BloomData, BloomFilter
from kourou.errors import ConfigError

LONG = "averyveryveryverylonggroupname#averyveryverylongtopicname"


@pytest.mark.parametrize(
    ("error_percent", "expected", "hash_count", "bit_num", "positions"),
    [
        (20, 32, 3, 112, [(77, 19, 27), (75, 11, 98), (0, 0, 0), (36, 80, 53)]),  # the defaults
        (20, 64, 3, 216, [(133, 115, 35), (43, 147, 122), (0, 0, 0), (108, 80, 85)]),
        (10, 128, 4, 616, [(133, 19, 139, 13), (523, 347, 602, 70), (0,) * 4, (92, 584, 333, 533)]),
        (1, 1, 7, 16, [(13, 3, 11, 5, 9, 7, 7), (11, 11, 2, 6, 0, 7, 1), (0,) * 7, (4, 0, 5, 5, 0, 4, 9)]),
        (50, 7, 1, 16, [(13,), (11,), (0,), (4,)]),
    ],
)
def test_sizes_and_positions(error_percent, expected, hash_count, bit_num, positions):
    bloom = BloomFilter(error_percent, expected)

    assert (bloom.hash_count, bloom.bit_num) == (hash_count, bit_num)
    assert [bloom.positions(text) for text in ("g1#topic1", "%RETRY%x#é中", "", LONG)] == positions
    assert bloom.data_of("g1", "topic1") == BloomData(bit_num, positions[0])


def test_a_bit_is_counted_from_the_lowest_of_its_byte():
    bloom = BloomFilter(20, 32)

    bitmap = bloom.bitmap(BloomData(112, (77, 19, 27)).mask)

    assert len(bitmap) == 14
    assert {at: byte for at, byte in enumerate(bitmap) if byte} == {2: 0x08, 3: 0x08, 9: 0x20}


def test_all_bits_make_a_hit_and_one_that_is_missing_none():
    bloom = BloomFilter(20, 32)
    one, other = bloom.data_of("g1", "topic1"), bloom.data_of("g2", "topic1")

    assert one.is_hit(bloom.bitmap(one.mask | other.mask))
    assert not one.is_hit(bloom.bitmap(other.mask))
    assert not one.is_hit(bloom.bitmap(one.mask & ~(1 << 19)))
    assert one.is_hit(b"")  # a message without a map: nothing is known
    assert one.is_hit(bytes(8))  # of another filter


def test_positions_of_another_filter_are_not_valid():
    bloom = BloomFilter(20, 32)

    assert bloom.is_valid(112, (77, 19, 27))
    assert not bloom.is_valid(216, (77, 19, 27))
    assert not bloom.is_valid(112, (77, 19))
    assert not bloom.is_valid(112, (77, 19, 112))


@pytest.mark.parametrize(("error_percent", "expected"), [(0, 32), (100, 32), (20, 0)])
def test_sizes_of_no_use_are_refused(error_percent, expected):
    with pytest.raises(ConfigError):
        BloomFilter(error_percent, expected)
