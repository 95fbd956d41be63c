"""The body of a batch."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import Message, decode_batch, encode_batch
from kourou.message.batch import iter_batch
from support.stores.records import decode_all, int32, text

clean = text.filter(lambda value: value and not set("\x01\x02") & set(value))
messages = st.builds(
    Message, st.just("TopicTest"), st.binary(max_size=40), st.dictionaries(clean, clean, max_size=3), int32
)
batches = st.lists(messages, max_size=5)


@given(batches)
def test_a_batch_decodes_to_the_messages_it_was_encoded_from(batch):
    assert decode_batch(encode_batch(batch), "TopicTest") == batch


def test_the_parts_of_a_batch_are_slices_of_it():
    body = bytearray(encode_batch([Message("TopicTest", b"abc")]))
    ((_, part, _),) = iter_batch(memoryview(body))
    body[body.index(b"abc")] = ord("X")
    assert bytes(part) == b"Xbc"


@given(batches.filter(bool), st.data())
def test_a_cut_batch_gives_the_messages_before_the_cut_or_is_corrupt(batch, data):
    body = encode_batch(batch)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    try:
        decoded = decode_batch(cut, "TopicTest")
    except CorruptRecordError:
        return
    assert decoded == batch[: len(decoded)]
    assert len(decoded) < len(batch)


@given(batches.filter(bool), st.data())
def test_changed_bytes_give_messages_or_a_corrupt_batch_and_no_other_error(batch, data):
    body = bytearray(encode_batch(batch))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecordError):
        decode_batch(bytes(body), "TopicTest")


def test_properties_that_do_not_fit_are_refused():
    with pytest.raises(BadMessageError, match="32767"):
        encode_batch([Message("TopicTest", b"", {"a": "v" * 32767})])


def test_inner_batches_of_java_hold_what_java_reads_in_them(golden_store):
    path, expected = golden_store("batchcq")
    (file,) = (path / "commitlog").iterdir()
    found, _ = decode_all(file.read_bytes())
    batches_found = [message for message in found if message.is_inner_batch]
    expected_batches = [record["inner"] for record in expected["commitlog"]["records"] if "inner" in record]
    assert len(batches_found) == len(expected_batches) > 0
    for message, inner in zip(batches_found, expected_batches):
        assert [
            (message.queue_offset + index, b64encode(part.body).decode(), part.properties)
            for index, part in enumerate(message.inner_messages())
        ] == [(part["queueOffset"], part["body"], part["properties"]) for part in inner]
