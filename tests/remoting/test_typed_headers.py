"""Headers that are read at once with their fields say what they say when they are read field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand, decode, typed_readers
from kourou.remoting.protocol.header import BadRequestError, Header, plan_of
from kourou.remoting.protocol.headers import EndTransaction, PullMessage, SendMessage, SendMessageV2

TYPED: dict[RequestCode, type[Header]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
    RequestCode.END_TRANSACTION: EndTransaction,
}
VALID = {"str": "text", "Int": "7", "Long": "8", "bool": "false"}
ODD: list[Any] = [
    "", " ", "0", "007", "-1", "+1", "1.0", "1e3", "0x1", "1_0", " 1", "1 ", "１", "𝟓", "true", "TRUE", "yes",
    "1", "2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "9" * 5000,
    "nan", "inf", "é", "\u0001", '"', "\\", 5, -5, 0, 1.0, 1.5, 2**31, 2**63, True, False, None,
    {"a": 1}, [1, "x"],
]  # fmt: skip


def frame(code: int, fields: dict[str, Any]) -> bytes:
    """A JSON header that begins with its code, as Java's and Go's clients write it."""
    given = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": 9, "version": 500}
    header = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
    return len(header).to_bytes(4, "big") + header


def read(header: type[Header], command: RemotingCommand, *, by_field: bool) -> object:
    try:
        found = header._read_fields(command) if by_field else header.read(command)
    except BadRequestError as refused:
        return str(refused)
    return [getattr(found, name) for name, *_ in plan_of(header)]


def valid_of(header: type[Header]) -> dict[str, str]:
    """Fields that are right."""
    allowed = {name: str(values[-1]) for name, values in header._allowed.items()}
    return {wire: allowed.get(name, VALID[kind]) for name, wire, kind, *_ in plan_of(header)}


def test_the_requests_of_a_busy_broker_are_typed():
    assert len(typed_readers) == len(TYPED)
    for code, header in TYPED.items():
        valid = valid_of(header)
        command = decode(frame(code, {**valid, "more": "x"}))
        assert isinstance(command.header, header)
        assert (command.code, command.opaque, command.language, command.version) == (code, 9, "JAVA", 500)
        assert command.ext_fields == {**valid, "more": "x"}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd)[:20])
@pytest.mark.parametrize("code", TYPED, ids=lambda code: code.name)
def test_an_odd_value_in_any_field_is_read_the_same(code, odd):
    header = TYPED[code]
    valid = valid_of(header)
    for wire in valid:
        command = decode(frame(code, {**valid, wire: odd}))
        alone = RemotingCommand(code, dict(decode(frame(code, {**valid, wire: odd})).ext_fields))
        assert read(header, command, by_field=False) == read(header, alone, by_field=True), wire


@pytest.mark.parametrize("code", TYPED, ids=lambda code: code.name)
def test_a_field_that_is_missing_is_read_the_same(code):
    header = TYPED[code]
    valid = valid_of(header)
    for missing in valid:
        fields = {wire: value for wire, value in valid.items() if wire != missing}
        command = decode(frame(code, fields))
        alone = RemotingCommand(code, fields)
        assert read(header, command, by_field=False) == read(header, alone, by_field=True), missing


def test_a_code_that_is_said_twice_gets_no_header_of_another_code():
    """Rights are checked by the fields of the code that counts, the last: the header must be of it too."""
    fields = {
        wire: VALID[kind] for header in (SendMessage, SendMessageV2) for _, wire, kind, *_ in plan_of(header)
    }
    fields |= {"topic": "theirs", "b": "mine"}
    header = b'{"code":10,"extFields":%b,"opaque":9,"code":310}' % json.dumps(fields).encode()
    command = decode(len(header).to_bytes(4, "big") + header)
    assert (command.code, command.header) == (RequestCode.SEND_MESSAGE_V2, None)
    assert SendMessageV2.read(command).topic == command.ext_fields["b"] == "mine"
