"""How an answer of an operation is printed, for a person or as JSON for a script: a function for each kind of
`Shown`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import typer

from kourou.admin.operations.declare import (
    Column,
    Document,
    Done,
    Either,
    Messages,
    Names,
    Operation,
    Shown,
    Table,
    Values,
)
from kourou.cli.output import as_plain, camel_case, echo, print_json, print_json_lines, print_table, show_time

Given = Mapping[str, Any]


def show(operation: Operation, values: Given, found: Any, *, as_json: bool) -> None:
    """Print what an operation has answered; typer.Exit(1) where that is a failure."""
    shown = operation.shown
    if isinstance(shown, Either):
        shown = shown.absent if values[shown.parameter] is None else shown.given
    (_JSON if as_json else _TEXT)[type(shown)](shown, values, found)
    if shown.nothing and not found:
        echo(shown.nothing, err=True)
        raise typer.Exit(1)
    if shown.fails is not None and shown.fails(found):
        raise typer.Exit(1)


def show_perm(perm: int) -> str:
    """RW-, R-- or -W-, as Java writes it."""
    return ("R" if perm & 4 else "-") + ("W" if perm & 2 else "-") + ("X" if perm & 1 else "-")


def _sentence(shown: Done, values: Given, found: Any) -> str:
    texts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in values.items()}
    return shown.text.format(**texts, found=", ".join(found) if isinstance(found, list) else found)


def _wanted(values: Given, found: Mapping[str, str]) -> Mapping[str, str]:
    from kourou.admin import AdminError

    key = values["key"]
    if key is not None and key not in found:
        raise AdminError(f"there is no {key}: leave the key out to see all of them")
    return found if key is None else {key: found[key]}


# For a person


def _text_table(shown: Table, values: Given, found: Any) -> None:
    rows = list(shown.rows(found))
    if shown.title:
        echo(shown.title.format(**values, found=found))  # beside the table: it may be wider than that
    if rows or not shown.nothing:
        heads = [f"{'>' * (one.kind in ('number', 'percent'))}{one.label.lower()}" for one in shown.columns]
        print_table(heads, ([_cell(column, row) for column in shown.columns] for row in rows))
    if shown.notes is not None:
        echo(*shown.notes(found))
    if shown.below is not None:
        _text_table(shown.below, values, found)


def _cell(column: Column, row: Any) -> object:
    value = column.of(row)
    if value is None:
        return ""
    if column.kind == "time":
        return show_time(int(value))
    if column.kind == "percent":
        return f"{value:.1%}"
    if column.kind == "perm":
        return show_perm(value)
    if column.kind == "yes":
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else value


def _text_names(shown: Names, values: Given, found: Any) -> None:
    echo(*found)


def _text_done(shown: Done, values: Given, found: Any) -> None:
    echo(_sentence(shown, values, found), err=True)


def _text_values(shown: Values, values: Given, found: Any) -> None:
    wanted = _wanted(values, found)
    if values["key"] is not None:
        echo(*wanted.values())
    else:
        print_table(("key", "value"), wanted.items())


def _text_messages(shown: Messages, values: Given, found: Any) -> None:
    from kourou.cli import message_view

    messages, tracks = ([found[0]], found[1]) if shown.tracks else (found, [])
    if not shown.whole and messages:
        message_view.print_messages(messages)
    for message in messages if shown.whole else ():
        message_view.print_whole(message)
    if tracks:
        rows = ((one.group, one.track_type, one.reason or "") for one in tracks)
        print_table(("group", "consumed", ""), rows)


# For a script


def _json_document(shown: Shown, values: Given, found: Any) -> None:
    print_json(as_plain(found))


def _json_table(shown: Table, values: Given, found: Any) -> None:
    if shown.whole and not isinstance(found, list):
        print_json(as_plain(found))
    else:
        print_json_lines(_object(shown, row) for row in (found if shown.whole else shown.rows(found)))


def _object(shown: Table, row: Any) -> dict[str, Any]:
    """A row: all that is in it, and what its columns name beside that."""
    if isinstance(row, Mapping):
        return dict(row)
    named = [one.source for one in shown.columns if isinstance(one.source, str)]
    return {**as_plain(row), **{camel_case(name): as_plain(getattr(row, name)) for name in named}}


def _json_names(shown: Names, values: Given, found: Any) -> None:
    print_json_lines({shown.key: name} for name in found)


def _json_done(shown: Done, values: Given, found: Any) -> None:
    addresses = {"addresses": found} if isinstance(found, list) else {}
    print_json_lines([{"done": _sentence(shown, values, found), **addresses}])


def _json_values(shown: Values, values: Given, found: Any) -> None:
    print_json(_wanted(values, found))


def _json_messages(shown: Messages, values: Given, found: Any) -> None:
    from kourou.cli.message_view import fields

    if shown.tracks:
        print_json_lines([{**fields(found[0]), "tracks": as_plain(found[1])}])
    else:
        print_json_lines({**fields(message), "brokerName": message.broker_name} for message in found)


_TEXT: dict[type, Callable[..., None]] = {
    Table: _text_table, Names: _text_names, Done: _text_done, Values: _text_values, Messages: _text_messages,
    Document: _json_document,
}  # fmt: skip
_JSON: dict[type, Callable[..., None]] = {
    Table: _json_table, Names: _json_names, Done: _json_done, Values: _json_values, Messages: _json_messages,
    Document: _json_document,
}  # fmt: skip
