"""What the commands that serve have in common: the event loop, signals, logs."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import signal
import traceback
from collections.abc import Coroutine, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kourou.cli.output import escaped

if TYPE_CHECKING:
    import asyncio

    from kourou.remoting.tls import TlsConfig

LOG_FILE_BYTES = 64 * 1024 * 1024
LOG_FILES = 10


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server's main coroutine, on uvloop where it exists."""
    import asyncio

    loop_factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)


def settle_memory() -> None:
    """Tell the collector that what is there now stays, and to come seldom: requests leave no cycles behind.

    With its default of 700 new objects it took a sixth of the time of small sends.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


TlsOption = Annotated[
    Path | None,
    typer.Option(
        "--tls",
        metavar="FILE",
        help="A tls.properties with Java's keys, before /etc/rocketmq/tls.properties and tls.* keys of the"
        " configuration file.",
    ),
]


MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        help="Serve /metrics, /health and /ready there, as metricsExporterType=PROM does; 0: a free port.",
        min=0,
        max=65535,
        show_default=False,
    ),
]


def load_tls(file: Path | None, properties: Mapping[str, str]) -> TlsConfig:
    """What is configured of TLS, in a file or beside other keys; the defaults if nothing is."""
    from kourou.remoting.tls import DEFAULT_FILE, TlsConfig

    if file is not None or Path(DEFAULT_FILE).exists():
        return TlsConfig.load(file)
    return TlsConfig.from_properties(properties)


def stop_event() -> asyncio.Event:
    """An event that Ctrl-C and SIGTERM set."""
    import asyncio

    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def set_up_logging(file: Path | None) -> None:
    """Warnings to the terminal; with a file, everything of note to it, one JSON object a line."""
    root = logging.getLogger()
    logging.raiseExceptions = False  # a log file without room must not fill the terminal with tracebacks
    terminal = logging.StreamHandler()
    terminal.setLevel(logging.WARNING)
    terminal.setFormatter(OneLineEach("%(asctime)s %(levelname)s %(name)s %(message)s"))
    root.addHandler(terminal)
    if file is None:
        return
    from logging.handlers import RotatingFileHandler

    file.parent.mkdir(parents=True, exist_ok=True)
    rotating = RotatingFileHandler(
        file, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8", delay=True
    )
    rotating.setFormatter(_JsonLines())
    root.addHandler(rotating)
    root.setLevel(logging.INFO)


class OneLineEach(logging.Formatter):
    """A record on one line, whatever peers have in their names and remarks: no text of theirs begins a line,
    or steers the terminal. Tracebacks have lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback where there is one, made anew: others leave theirs in the record."""
        record = copy.copy(record)
        record.exc_text = None
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without what follows it."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        """A traceback, with the texts of errors on one line each."""
        found = traceback.TracebackException(*ei)
        _escape_texts(found)
        return "".join(found.format()).rstrip("\n")


class _EscapedTexts(traceback.TracebackException):
    def format_exception_only(self, **options: Any) -> Generator[str, None, None]:
        for part in super().format_exception_only(**options):
            yield escaped(part.rstrip("\n")) + "\n"


def _escape_texts(found: traceback.TracebackException | None) -> None:
    """Those of an error, its causes and its parts: TracebackException makes these of its own class."""
    if found is None:
        return
    found.__class__ = _EscapedTexts
    for other in (found.__cause__, found.__context__, *(found.exceptions or ())):
        _escape_texts(other)


class _JsonLines(logging.Formatter):
    """A record as a JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        import orjson

        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        text = orjson.dumps(entry, default=str).decode()
        return text if text.isprintable() else "".join(map(_json_escape, text))


def _json_escape(character: str) -> str:
    """A character as JSON has it that is read in a terminal: orjson leaves those above 0x7e as they are."""
    if character.isprintable():
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
