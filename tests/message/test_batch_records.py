"""The records of a batch: those that the compiled loop makes are those of the loop in Python."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import KourouError
from kourou.message import batch_records
from kourou.message.batch import encode_in_batch
from kourou.message.batch_records import Records, encode_in_python
from kourou.message.codec import HEADERS, decode, topic_field
from kourou.message.properties import decode_properties

HOST = b"\x7f\x00\x00\x01\x00\x00\x2a\x9f"
HEADER = HEADERS[0].pack(0, -626843481, 0, 3, 0, 0, 0, 0, 1700, HOST, 1800, HOST, 2, 0, 0)
FIELD = topic_field(b"orders", -626843481)

NAMES = st.sampled_from(
    [b"UNIQ_KEY", b"KEYS", b"TAGS", b"INNER_NUM", b"INNER_", b"XKEYS", b"KEYSX", b"a", b""]
)
VALUES = st.sampled_from(
    [b"", b" ", b"one", b"one two  three", "值".encode(), b"\xff\xfe", b"a\x01b"]
) | st.binary(max_size=20)
SEGMENTS = st.builds(lambda name, value: name + b"\x01" + value, NAMES, VALUES) | st.binary(max_size=8)
PROPERTIES = st.lists(SEGMENTS, max_size=6).map(b"\x02".join) | st.lists(SEGMENTS, max_size=6).map(
    lambda parts: b"".join(part + b"\x02" for part in parts)
)
MESSAGES = st.tuples(st.binary(max_size=40), PROPERTIES, st.integers(-(2**31), 2**31 - 1))
BATCHES = st.lists(MESSAGES, max_size=6).map(
    lambda messages: b"".join(encode_in_batch(body, raw, flag) for body, raw, flag in messages)
)


def outcome(encode: object, batch: bytes, crc_room: int, offset: int) -> Records | tuple[type, str]:
    """What becomes of a batch: its records, or the error."""
    try:
        return encode(memoryview(batch), HEADER, FIELD, crc_room, offset, 7, 1800, (11, 13))  # type: ignore[operator]
    except KourouError as error:
        return type(error), str(error)


@pytest.fixture(scope="module")
def compiled() -> object:
    if batch_records.encode_records is encode_in_python:
        pytest.skip("no C compiler when kourou was installed; apt-get install gcc python3-dev, make setup")
    return batch_records.encode_records


class TestBothLoops:
    @given(batch=BATCHES, crc_room=st.sampled_from([0, 20]), offset=st.integers(0, 2**62))
    def test_make_the_same_of_any_batch(
        self, compiled: object, batch: bytes, crc_room: int, offset: int
    ) -> None:
        assert outcome(compiled, batch, crc_room, offset) == outcome(
            encode_in_python, batch, crc_room, offset
        )

    @given(
        batch=BATCHES.filter(bool),
        at=st.integers(0),
        change=st.binary(min_size=1, max_size=4),
        cut=st.integers(0, 30),
    )
    def test_refuse_the_same_damage(
        self, compiled: object, batch: bytes, at: int, change: bytes, cut: int
    ) -> None:
        at %= len(batch)
        damaged = (batch[:at] + change + batch[at + len(change) :])[: len(batch) - cut]
        assert outcome(compiled, damaged, 0, 64) == outcome(encode_in_python, damaged, 0, 64)

    @pytest.mark.parametrize("length", [32767 - 21, 32767 - 20, 32766, 32767])
    def test_have_the_same_limit_of_properties(self, compiled: object, length: int) -> None:
        batch = encode_in_batch(b"x", b"a\x01" + b"v" * (length - 2))
        assert outcome(compiled, batch, 20, 0) == outcome(encode_in_python, batch, 20, 0)


@given(batch=BATCHES, offset=st.integers(0, 2**40))
def test_what_is_made_are_records(batch: bytes, offset: int) -> None:
    made = outcome(batch_records.encode_records, batch, 0, offset)
    if len(made) == 2:
        return  # refused, as the tests of the store say
    encoded, offsets, sizes, codes, keys = made
    at = 0
    for number, (physical_offset, size, code) in enumerate(zip(offsets, sizes, codes)):
        message = decode(encoded, at)
        assert (message.physical_offset, message.store_size) == (physical_offset, size)
        assert (message.queue_id, message.queue_offset, message.topic) == (3, 7 + number, "orders")
        assert message.tags_code == code
        own = decode_properties(message.properties_raw)
        texts = [keys[i + 1] for i in range(0, len(keys), 4) if keys[i + 2] == physical_offset]
        wanted = [own.get("UNIQ_KEY"), *own.get("KEYS", "").split(" "), own.get("TAGS")]
        assert texts == [text for text in wanted if text]
        at += size
    assert at == len(encoded)
