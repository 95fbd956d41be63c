"""Fields of JSON bodies as columns: their names, their types, and how types of different days become one.

A body that is a JSON object gives a column for each of its fields. Types are boolean, long, double and
string; what is of two types becomes the wider one (long → double → string, all else → string). Objects and
arrays in fields stay JSON, as text. Names that the archive has already (`topic`, `keys`, …) get `json_`
before them, and letters that tables do not take in a name become `_`. Names that differ only in case are
one column, because Spark does not tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from kourou.errors import ConfigError
from kourou.spark.schema import ALL_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COLUMNS = 2000  # beyond it fields are values, not names

BOOLEAN, LONG, DOUBLE, STRING = "boolean", "long", "double", "string"
_SPARKS = {BOOLEAN: "boolean", LONG: "bigint", DOUBLE: "double", STRING: "string"}
_KINDS: dict[type, str] = {bool: BOOLEAN, int: LONG, float: DOUBLE, str: STRING, dict: STRING, list: STRING}
_TAKEN = frozenset(name.lower() for name in (*ALL_COLUMNS, "day"))
_NOT_IN_NAMES = re.compile(r"[\s,;{}()=.`\"\\\x00-\x1f]")
_LONG_MAX = (1 << 63) - 1


class Field(NamedTuple):
    """A column that comes from bodies."""

    name: str
    kind: str


Fields = dict[str, Field]  # by the name in small letters


def is_own(name: str) -> bool:
    """Whether a column is one of every archive, not of bodies."""
    return name.lower() in _TAKEN


def column_name(field: str) -> str:
    """The name of the column of a field."""
    name = _NOT_IN_NAMES.sub("_", field) or "_"
    return f"json_{name}" if name.lower() in _TAKEN else name


def wider(one: str, other: str) -> str:
    """The type that holds values of both."""
    if one == other:
        return one
    return DOUBLE if {one, other} == {LONG, DOUBLE} else STRING


def merge(fields: Mapping[str, Field], more: Iterable[Sequence[str]]) -> Fields:
    """Fields and others, (name, type) each; where both have one it gets the wider type."""
    merged = dict(fields)
    for name, kind in more:
        known = merged.get(name.lower())
        merged[name.lower()] = (
            Field(name, kind) if known is None else Field(known.name, wider(known.kind, kind))
        )
    if len(merged) > MAX_COLUMNS:
        raise ConfigError(
            f"the JSON bodies have more than {MAX_COLUMNS} different fields: these cannot be columns"
        )
    return merged


def arrow_type(kind: str) -> pa.DataType:
    """A type as Arrow has it."""
    import pyarrow as pa

    return {BOOLEAN: pa.bool_(), LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}[kind]


def kind_of(data_type: pa.DataType) -> str:
    """A type of Arrow's as it is called here."""
    import pyarrow as pa

    kinds = {pa.bool_(): BOOLEAN, pa.int64(): LONG, pa.float64(): DOUBLE}
    return kinds.get(data_type, STRING)


def ddl(fields: Iterable[Field]) -> str:
    """Fields as Spark reads a schema, with a comma before each."""
    return "".join(f", `{field.name}` {_SPARKS[field.kind]}" for field in fields)


def fields_of(schema: pa.Schema) -> list[Field]:
    """The columns of a file that come from bodies."""
    return [Field(column.name, kind_of(column.type)) for column in schema if not is_own(column.name)]


def read_objects(bodies: pa.Array) -> list[dict[str, Any] | None]:
    """The bodies that are JSON objects; None for the others."""
    return [None if body is None else _read_object(body) for body in bodies.to_pylist()]


def _read_object(body: bytes) -> dict[str, Any] | None:
    if body[:64].lstrip()[:1] != b"{":
        return None
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None


def to_columns(objects: Sequence[dict[str, Any] | None], known: Mapping[str, Field]) -> dict[Field, pa.Array]:
    """The fields of objects as columns, each at least as wide as it is known."""
    import pyarrow as pa

    names: dict[str, str] = {}
    values: dict[str, list[Any]] = {}
    for row, item in enumerate(objects):
        for field, value in (item or {}).items():
            if value is None:
                continue
            name = names.get(field) or names.setdefault(field, column_name(field))
            column = values.get(name.lower())
            if column is None:
                column = values[name.lower()] = [None] * len(objects)
            column[row] = value
    spelled = {name.lower(): name for name in reversed(names.values())}
    found: dict[Field, pa.Array] = {}
    for key, column in values.items():
        kind = _kind(column)
        if key in known:
            kind = wider(kind, known[key].kind)
        name = known[key].name if key in known else spelled[key]
        found[Field(name, kind)] = pa.array(_as(kind, column), arrow_type(kind))
    return found


def _kind(column: list[Any]) -> str:
    kind = ""
    for found in {type(value) for value in column if value is not None}:
        kind = wider(kind or _KINDS[found], _KINDS[found])
    if kind == LONG and any(value is not None and value > _LONG_MAX for value in column):
        return DOUBLE
    return kind


def _as(kind: str, column: list[Any]) -> list[Any]:
    if kind == DOUBLE:
        return [None if value is None else float(value) for value in column]
    if kind == STRING:
        return [
            value if value is None or isinstance(value, str) else orjson.dumps(value).decode()
            for value in column
        ]
    return column


def conform(table: pa.Table, fields: Sequence[Field]) -> pa.Table:
    """A table with these columns of bodies, in this order, each with its name and type here."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "bodyError" not in table.column_names:  # of an archive that was begun before there was one
        table = table.append_column("bodyError", pa.nulls(table.num_rows, pa.string()))
    own = [name for name in (*ALL_COLUMNS, "day") if name in table.column_names]
    there = {name.lower(): name for name in table.column_names if not is_own(name)}
    columns = [table[name] for name in own]
    for field in fields:
        wanted = arrow_type(field.kind)
        name = there.get(field.name.lower())
        if name is None:
            columns.append(pa.nulls(table.num_rows, wanted))
        elif table.schema.field(name).type == wanted:
            columns.append(table[name])
        else:
            columns.append(pc.cast(table[name], wanted, safe=False))  # a large long is no exact double
    return pa.table(columns, [*own, *(field.name for field in fields)])
