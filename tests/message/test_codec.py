"""One record: bytes to message and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.message import MAGIC_V1, MAGIC_V2, decode, sysflag
from kourou.message.codec import PROPERTY_CRC_LENGTH, encode, property_crc
from support.recorded import golden
from support.stores.records import blank, decode_all, encode_raw, raw_records, simple_message, stored_messages


@given(stored_messages())
def test_a_record_decodes_to_the_message_it_was_encoded_from(message):
    assert decode(encode(message)) == message


@given(stored_messages())
def test_a_record_is_laid_out_field_by_field(message):
    expected = encode_raw(message, message.topic.encode(), message.properties_raw.encode(), message.magic)
    assert encode(message) == expected


@given(stored_messages(), st.binary(max_size=30), st.binary(max_size=30))
def test_what_lies_around_a_record_does_not_matter(message, before, after):
    assert decode(before + encode(message) + after, len(before)) == message


def test_a_body_can_stay_a_slice_of_the_buffer():
    buffer = bytearray(encode(simple_message(b"abc")))
    message = decode(buffer, copy_body=False)
    buffer[buffer.index(b"abc")] = ord("X")
    assert bytes(message.body) == b"Xbc"


@pytest.mark.parametrize(("length", "magic"), [(127, MAGIC_V1), (128, MAGIC_V2), (32767, MAGIC_V2)])
def test_the_version_follows_from_the_length_of_the_topic(length, magic):
    message = decode(encode(simple_message(topic="t" * length)))
    assert (message.magic, len(message.topic)) == (magic, length)


def test_properties_are_decoded_when_asked_for():
    message = decode(encode(simple_message(properties="TAGS\x01TagA\x02UNIQ_KEY\x01id\x02")))
    assert message.properties == {"TAGS": "TagA", "UNIQ_KEY": "id"}
    assert (message.tags_code, message.message_id) == (2598919, "id")


def test_without_a_unique_key_the_message_id_says_where_the_record_lies():
    message = simple_message(physical_offset=0x1234)
    assert message.message_id == message.offset_message_id == "0A00000200002A9F0000000000001234"


def test_a_property_crc_closes_the_property_string():
    record = encode(simple_message(properties="a\x01b"), append_property_crc=True)
    crc = property_crc(record[:-PROPERTY_CRC_LENGTH])
    assert record.endswith(b"a\x01b\x02" + crc)
    assert set(decode(record).properties) == {"a", "__CRC32#"}


def test_a_damaged_body_is_noticed_unless_the_crc_is_not_asked_for():
    record = bytearray(encode(simple_message(b"abc")))
    record[record.index(b"abc")] ^= 1
    with pytest.raises(CorruptRecordError, match="CRC"):
        decode(record)
    assert decode(record, check_crc=False).body == b"`bc"


def test_a_blank_record_is_no_message():
    with pytest.raises(CorruptRecordError, match="unknown magic cbd43194"):
        decode(blank(200))


@given(raw_records(), st.data())
def test_a_cut_record_is_corrupt(record, data):
    cut = data.draw(st.integers(0, len(record) - 1))
    with pytest.raises(CorruptRecordError):
        decode(record[:cut])


@given(raw_records(), st.data())
def test_changed_bytes_give_a_message_or_a_corrupt_record_and_no_other_error(record, data):
    changed = bytearray(record)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = decode(changed, check_crc=data.draw(st.booleans()))
    except CorruptRecordError:
        return
    assert message.store_size == len(record)
    assert isinstance(message.properties, dict)
    try:
        assert len(message.decompressed_body) >= 0
    except CorruptRecordError:
        assert message.sys_flag & sysflag.COMPRESSED


@given(st.binary(max_size=300))
def test_any_bytes_are_a_corrupt_record(noise):
    with pytest.raises(CorruptRecordError):
        decode(noise)


@pytest.mark.parametrize("name", golden.GOLDEN_STORES)
def test_records_of_java_are_encoded_to_the_same_bytes(golden_store, name):
    for file in sorted((golden_store(name).path / "commitlog").iterdir()):
        log = file.read_bytes()
        messages, end = decode_all(log, check_crc=True)
        assert b"".join(encode(message) for message in messages) == log[:end]
