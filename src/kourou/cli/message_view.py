"""A message as `cat` shows it: fields for JSON, a row of a table, or everything on a page."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

from kourou.cli.output import print_table, printable, show_time
from kourou.errors import CorruptRecordError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage
from kourou.message.host import format_host

_PREVIEW_CHARACTERS = 60


def fields(message: StoredMessage) -> dict[str, Any]:
    """The message for JSON. The body is decompressed; one that is no UTF-8 is given in base64."""
    values: dict[str, Any] = {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "storeSize": message.store_size,
        "storeTimestamp": message.store_timestamp,
        "bornTimestamp": message.born_timestamp,
        "storeHost": format_host(message.store_host),
        "bornHost": format_host(message.born_host),
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "tags": message.properties.get(names.TAGS),
        "keys": message.properties.get(names.KEYS, "").split(),
        "flag": message.flag,
        "sysFlag": message.sys_flag,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": message.properties,
    }
    try:
        values |= _body(message.decompressed_body)
        if message.is_inner_batch:
            values["inner"] = [
                {
                    "queueOffset": message.queue_offset + number,
                    "properties": part.properties,
                    **_body(part.body),
                }
                for number, part in enumerate(message.inner_messages())
            ]
    except CorruptRecordError as error:
        values |= _body(message.body)
        values["bodyError"] = str(error)
    return values


def _body(body: bytes | bytearray | memoryview) -> dict[str, str]:
    try:
        return {"body": str(body, "utf-8"), "bodyEncoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": b64encode(body).decode(), "bodyEncoding": "base64"}


def print_messages(messages: Iterable[StoredMessage]) -> None:
    """A table, a line each."""
    columns = ("stored", "topic", ">queue", ">offset", ">physical", ">size", "tags", "keys", "body")
    print_table(columns, map(_row, messages))


def _row(message: StoredMessage) -> tuple[object, ...]:
    return (
        show_time(message.store_timestamp),
        message.topic,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.store_size,
        message.properties.get(names.TAGS, ""),
        message.properties.get(names.KEYS, ""),
        _preview(message),
    )


def _preview(message: StoredMessage) -> str:
    try:
        if message.is_inner_batch:
            return f"batch of {len(message.inner_messages())} messages"
        body = message.decompressed_body
    except CorruptRecordError as error:
        return f"({error})"
    try:
        text = str(body[: _PREVIEW_CHARACTERS * 4], "utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(body[: _PREVIEW_CHARACTERS * 4]) - 3:
            shown = bytes(body[: _PREVIEW_CHARACTERS // 2]).hex()
            return f"{shown}… ({len(body)} bytes)" if len(body) > _PREVIEW_CHARACTERS // 2 else shown
        text = str(body[: error.start], "utf-8")  # cut within a character
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}… ({len(body)} bytes)"


def print_whole(message: StoredMessage) -> None:
    """Everything of one message, one line a field."""
    print_table(("field", "value"), _lines(fields(message)))


def _lines(values: dict[str, Any]) -> Iterator[tuple[str, str]]:
    body = values.pop("body")
    encoding = values.pop("bodyEncoding")
    properties = values.pop("properties")
    inner = values.pop("inner", [])
    for name, value in values.items():
        text = " ".join(value) if isinstance(value, list) else str("" if value is None else value)
        yield name, f"{value} ({show_time(value)})" if name.endswith("Timestamp") else printable(text)
    for name in sorted(properties):
        yield f"property {name}", properties[name]
    for part in inner:
        yield f"message {part['queueOffset']} ({part['bodyEncoding']})", part["body"]
    if not inner:
        yield f"body ({encoding})", body
