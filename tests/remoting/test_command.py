"""Frames: what Java 5.5.0 sent is read, and written again byte for byte."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, LANGUAGES, ROCKETMQ, BadFrameError, RemotingCommand, decode
from support.recorded.golden import FIXTURES


def recorded(form: str) -> list[dict[str, Any]]:
    """The frames that Java exchanged with headers of a form."""
    with gzip.open(FIXTURES / "wire" / f"remoting-{form}.jsonl.gz") as file:
        return [json.loads(line) for line in file]


def header_and_body(frame: bytes) -> tuple[Any, bytes]:
    end = 8 + int.from_bytes(frame[5:8], "big")
    return json.loads(frame[8:end]), frame[end:]


@pytest.mark.parametrize("form", ["json", "rocketmq"])
def test_recorded_frames_are_read_as_java_reads_them(form):
    for record in recorded(form):
        command = decode(base64.b64decode(record["frame"])[4:])
        header = record["header"]
        for name in ("code", "language", "version", "opaque", "flag", "remark"):
            assert getattr(command, name) == header[name], record["seq"]
        # Java reads an empty string of a binary header as null.
        assert command.ext_fields == {
            name: value or "" for name, value in (header["extFields"] or {}).items()
        }
        body = None if record["body"] is None else base64.b64decode(record["body"])
        assert (None if command.body is None else bytes(command.body)) == body


def test_recorded_binary_frames_are_written_byte_for_byte():
    frames = [base64.b64decode(record["frame"]) for record in recorded("rocketmq")]
    assert len(frames) > 300
    for frame in frames:
        assert decode(frame[4:]).encode() == frame


def test_recorded_json_frames_are_written_the_same_up_to_the_order_of_keys():
    frames = [base64.b64decode(record["frame"]) for record in recorded("json")]
    assert len(frames) > 300
    for frame in frames:
        written = decode(frame[4:]).encode()
        assert header_and_body(written) == header_and_body(frame)
        assert len(written) == len(frame)


def test_every_recorded_code_has_its_name():
    for form in ("json", "rocketmq"):
        for record in recorded(form):
            if record.get("requestName"):
                name = str(record["requestName"])
                if name in RequestCode.__members__:
                    assert RequestCode[name] == record["requestCode"]
            if record.get("responseName") in ResponseCode.__members__:
                assert ResponseCode[record["responseName"]] == record["code"]


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@given(
    code=st.integers(-1000, 32767),
    fields=st.none() | st.dictionaries(texts, texts, min_size=1, max_size=6),
    body=st.none() | st.binary(min_size=1, max_size=200),
    remark=st.none() | texts,
    opaque=st.integers(0, 2**31 - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(LANGUAGES),
    form=st.sampled_from([JSON, ROCKETMQ]),
)
def test_a_command_comes_back_as_it_went(code, fields, body, remark, opaque, flag, language, form):
    command = RemotingCommand(
        code, fields, body, remark=remark, opaque=opaque, flag=flag, language=language, serialize_type=form
    )
    back = decode(command.encode()[4:])
    assert (back.code, back.ext_fields, back.remark) == (code, fields or {}, remark)
    assert (back.opaque, back.flag, back.language, back.serialize_type) == (opaque, flag, language, form)
    assert (None if back.body is None else bytes(back.body)) == body


@given(st.binary(max_size=300))
def test_any_bytes_are_a_frame_or_a_bad_frame(data):
    with contextlib.suppress(BadFrameError):
        decode(data)


@given(st.data())
def test_a_damaged_frame_is_a_frame_or_a_bad_frame(data):
    form = data.draw(st.sampled_from([JSON, ROCKETMQ]))
    command = RemotingCommand(310, {"a": "topic", "e": "1"}, b"body", opaque=1, serialize_type=form)
    frame = bytearray(command.encode()[4:])
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFrameError):
        decode(bytes(frame))


def test_numbers_in_json_fields_become_the_strings_that_java_has():
    header = b'{"code":34,"opaque":1,"extFields":{"n":5,"left out":null},"language":"GO","version":1}'
    frame = (len(header)).to_bytes(4, "big") + header
    assert decode(frame).ext_fields == {"n": "5"}
    assert decode(frame).flag == 0
