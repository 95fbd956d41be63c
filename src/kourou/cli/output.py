"""How verbs print: JSON, tables, times, bodies, and progress on a terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

# Tables that do not go to a terminal are as wide as it takes to be read, not as some terminal is.
_FILE_WIDTH = 180
_TIMES = ("timestamp_ms", "last_update_ms", "last_consumed_ms")  # others in ms are durations


def print_json(value: Any) -> None:
    """One JSON document, on lines of its own."""
    import orjson

    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def print_json_lines(values: Iterable[Any]) -> None:
    """One JSON document a line."""
    import orjson

    for value in values:
        sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.buffer.flush()


def as_plain(value: Any) -> Any:
    """A value as JSON takes it: records become objects with keys in camel case, as RocketMQ writes them."""
    if hasattr(value, "to_json"):
        return as_plain(value.to_json())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            camel_case(item.name): as_plain(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_plain(item) for item in value]
    return value


def camel_case(name: str) -> str:
    """max_offset -> maxOffset; a time in milliseconds is a Timestamp, as in RocketMQ."""
    if name in _TIMES:
        name = "timestamp" if name == "timestamp_ms" else name.removesuffix("_ms") + "_timestamp"
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def console() -> Console:
    """Where tables go."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _FILE_WIDTH)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None
) -> None:
    """A table; columns whose name begins with `>` are numbers and stand to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    console().print(table)


def echo(*lines: str, err: bool = False) -> None:
    """Lines for a person. What servers and other peers say in one of them stays in it."""
    for line in lines:
        typer.echo(printable(line), err=err)


def printable(text: str) -> str:
    """A text that cannot steer a terminal: what is no printable character becomes a dot."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "·" for c in text)


def escaped(text: str) -> str:
    """A text on one line, that cannot steer a terminal either, with all that was in it: `\\n`, `\\x1b`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def show_time(milliseconds: int) -> str:
    """A time as a person reads it, in the zone of the machine."""
    if milliseconds <= 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(sep=" ", timespec="milliseconds")


def show_size(size: int) -> str:
    """A number of bytes as a person reads it."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int, what: str) -> str:
    """A number of things: `no faults`, `1 entry`, `2 entries`."""
    several = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number or 'no'} {what if number == 1 else several}"


def parse_time(text: str) -> int:
    """Milliseconds since 1970, of such a number, of a date and time, or of `10m` for ten minutes ago."""
    from kourou.admin.operations.parameters import BadInputError, read_time

    try:
        return read_time(text)
    except BadInputError as error:
        raise typer.BadParameter(str(error)) from None


@contextlib.contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on standard error, if that is a terminal; what it yields takes the bytes done since last time."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), SpeedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)


@contextlib.contextmanager
def quiet_log(name: str) -> Iterator[None]:
    """No log lines of a package for a while."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
