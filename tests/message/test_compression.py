"""Compression of bodies."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import BadMessageError, CorruptRecordError
from kourou.message import CompressionType, compress, decompress, sysflag
from support.stores.records import decode_all

kinds = pytest.mark.parametrize("kind", list(CompressionType))
SAMPLE = b"".join(b"row %d of a body that compresses; " % number for number in range(100))


@kinds
@given(
    body=st.one_of(st.binary(max_size=200), st.binary(max_size=20).map(lambda part: part * 50)),
    level=st.integers(0, 9),
)
def test_a_body_decompresses_to_what_was_compressed(kind, body, level):
    assert decompress(compress(body, kind, level), kind) == body


@kinds
def test_a_slice_decompresses_as_well_as_bytes(kind):
    assert decompress(memoryview(compress(SAMPLE, kind)), kind) == SAMPLE


@kinds
def test_a_body_cut_short_is_corrupt(kind):
    compressed = compress(SAMPLE, kind)
    for cut in range(len(compressed)):
        with pytest.raises(CorruptRecordError):
            decompress(compressed[:cut], kind)


@kinds
@given(noise=st.binary(min_size=1, max_size=40))
def test_bytes_that_were_never_compressed_are_corrupt(kind, noise):
    with pytest.raises(CorruptRecordError):
        decompress(noise, kind)


@kinds
@given(data=st.data())
def test_changed_bytes_give_a_body_or_a_corrupt_record_and_no_other_error(kind, data):
    compressed = bytearray(compress(SAMPLE, kind))
    compressed[data.draw(st.integers(0, len(compressed) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(CorruptRecordError):
        decompress(bytes(compressed), kind)


@kinds
def test_the_system_flag_names_the_type(kind):
    assert kind.sys_flag & sysflag.COMPRESSED
    assert CompressionType.of_sys_flag(kind.sys_flag) is kind


def test_no_type_in_the_system_flag_means_zlib():
    assert CompressionType.of_sys_flag(sysflag.COMPRESSED) is CompressionType.ZLIB


def test_an_unknown_type_in_the_system_flag_is_corrupt():
    with pytest.raises(CorruptRecordError, match="unknown compression type 7"):
        CompressionType.of_sys_flag(sysflag.COMPRESSED | 7 << sysflag.COMPRESSION_SHIFT)


@pytest.mark.parametrize("level", [-1, 10])
def test_a_level_out_of_range_is_refused(level):
    with pytest.raises(BadMessageError, match="level"):
        compress(b"", CompressionType.ZLIB, level)


def test_bodies_that_java_compressed_decompress_to_what_java_reads(golden_store):
    path, expected = golden_store("batch")
    digests = {
        record["physicalOffset"]: record["decompressedSha256"]
        for record in expected["commitlog"]["records"]
        if "compression" in record
    }
    assert digests
    for file in sorted((path / "commitlog").iterdir()):
        for message in decode_all(file.read_bytes())[0]:
            if message.compression:
                digest = hashlib.sha256(message.decompressed_body).hexdigest()
                assert digest == digests.pop(message.physical_offset)
    assert not digests
