"""Java's ways to print: printf, toString, fastjson."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from kourou.cli.output import printable
from kourou.message.host import format_host

if TYPE_CHECKING:
    from kourou.client.consume.received import ReceivedMessage
    from kourou.client.produce.receipts import SendReceipt
    from kourou.message.model import MessageQueue


def line(form: str, *values: object) -> None:
    """A line as printf makes it, or several that are made already. What could steer a terminal becomes a dot,
    and so does the end of a line in a value."""
    text = form % tuple(printable(v) if isinstance(v, str) else v for v in values) if values else form
    if not text.isprintable():
        text = "".join(c if c.isprintable() or c in "\n\t" else "·" for c in text)
    typer.echo(text)


def table(form: str, heads: str, found: Iterable[Any], cells: str = "", *, row_form: str = "") -> None:
    """Headings, joined by `|`, and rows, as printf makes them. `cells` are attributes or keys of a row, with
    how Java prints them: `last_ms:human`; without cells a row is its values."""
    line(form, *heads.split("|"))
    for row in found:
        line(row_form or form, *([_cell(row, cell) for cell in cells.split()] if cells else row))


def _cell(row: Any, cell: str) -> object:
    name, _, kind = cell.partition(":")
    value: Any = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
    if kind == "human":
        return human_time(value) if value > 0 else ""
    if kind == "plain":
        return plain_time(value) if value > 0 else "N/A"
    if kind == "ip":
        return value or "N/A"
    return java_value(value) if kind == "java" else value


def human_time(when_ms: int) -> str:
    """2026-11-15 08:30:00,123."""
    return f"{datetime.fromtimestamp(when_ms // 1000):%Y-%m-%d %H:%M:%S},{when_ms % 1000:03d}"


def plain_time(when_ms: int) -> str:
    """2026-11-15 08:30:00."""
    return f"{datetime.fromtimestamp(when_ms // 1000):%Y-%m-%d %H:%M:%S}"


def java_value(value: object) -> str:
    """A value as Java's toString has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={java_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(java_value, value)) + "]"
    return str(value)


def java_queue(queue: MessageQueue) -> str:
    """A queue as Java's toString has it."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def java_receipt(receipt: SendReceipt) -> str:
    """A SendResult as Java's toString has it."""
    return (
        f"SendResult [sendStatus={receipt.status}, msgId={receipt.message_id}, "
        f"offsetMsgId={receipt.offset_message_id}, messageQueue={java_queue(receipt.queue)}, "
        f"queueOffset={receipt.queue_offset}, recallHandle={java_value(receipt.recall_handle)}]"
    )


def java_message(message: ReceivedMessage) -> str:
    """A MessageExt as Java's toString has it."""
    body = ", ".join(str(byte - 256 if byte > 127 else byte) for byte in bytes(message.body))
    return (
        f"MessageExt [brokerName={message.broker_name}, queueId={message.queue_id}, "
        f"storeSize={message.store_size}, queueOffset={message.queue_offset}, sysFlag={message.sys_flag}, "
        f"bornTimestamp={message.born_timestamp}, bornHost=/{format_host(message.born_host)}, "
        f"storeTimestamp={message.store_timestamp}, storeHost=/{format_host(message.store_host)}, "
        f"msgId={message.offset_message_id}, commitLogOffset={message.physical_offset}, "
        f"bodyCRC={message.body_crc}, reconsumeTimes={message.reconsume_times}, "
        f"preparedTransactionOffset={message.prepared_transaction_offset}, "
        f"toString()=Message{{topic='{message.topic}', flag={message.flag}, "
        f"properties={java_value(message.properties)}, body=[{body}], transactionId='null'}}]"
    )


def pretty_json(value: Any) -> str:
    """JSON for people, as fastjson indents it."""
    import json

    return json.dumps(value, indent="\t", ensure_ascii=False, separators=(",", ":"))


def file_name(text: str) -> str:
    """A name that others chose, an id of a message or a client, as that of a file: it leads nowhere else."""
    return re.sub(r"^\.+", "_", re.sub(r"[^\w.@#-]", "_", text)) or "_"


def temporary(*parts: str) -> Path:
    """A place in the system's directory for temporary files, below `rocketmq`."""
    return Path(tempfile.gettempdir(), "rocketmq", *parts)
