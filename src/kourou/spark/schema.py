"""The columns of a message in Spark, and the columns of `kourou.message.scan.columns` that they are made of.

The names are Java's (MessageExt). A schema that the reader is given (`.schema("topic string, body
binary")`) is its projection: only these columns are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from kourou.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """A column: its type in Spark, and where it comes from; None for what is not in the record."""

    kind: str
    source: str | None


COLUMNS = {
    "topic": Column("string", "topic"),
    "brokerName": Column("string", None),
    "queueId": Column("int", "queue_id"),
    "queueOffset": Column("bigint", "queue_offset"),
    "physicalOffset": Column("bigint", "physical_offset"),
    "msgId": Column("string", "message_id"),
    "uniqKey": Column("string", "uniq_key"),
    "tags": Column("string", "tags"),
    "keys": Column("array<string>", "keys"),
    "body": Column("binary", "body"),
    "properties": Column("map<string,string>", "properties"),
    "bornTimestamp": Column("timestamp", "born_timestamp"),
    "storeTimestamp": Column("timestamp", "store_timestamp"),
    "bornHost": Column("string", "born_host"),
    "storeHost": Column("string", "store_host"),
    "sysFlag": Column("int", "sys_flag"),
    "flag": Column("int", "flag"),
    "reconsumeTimes": Column("int", "reconsume_times"),
    "transactionOffset": Column("bigint", "prepared_transaction_offset"),
    "bodyError": Column("string", "body_error"),
}

ALL_COLUMNS = tuple(COLUMNS)


def ddl(columns: Sequence[str] | None = None) -> str:
    """The schema of these columns as Spark reads it; all of them by default."""
    return ", ".join(f"{name} {COLUMNS[name].kind}" for name in check_columns(columns or ALL_COLUMNS))


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """The columns, if there are such; ConfigError names the one that is not."""
    for name in columns:
        if name not in COLUMNS:
            raise ConfigError(f"there is no column {name!r}: choose from {', '.join(COLUMNS)}")
    return tuple(columns)


def columns_of(schema: StructType) -> tuple[str, ...]:
    """The columns of a schema that a reader was given."""
    names = check_columns([field.name for field in schema.fields])
    for field in schema.fields:
        wanted, given = COLUMNS[field.name].kind, field.dataType.simpleString()
        if given != wanted:
            raise ConfigError(f"column {field.name} is {wanted}, the schema says {given}")
    return names
