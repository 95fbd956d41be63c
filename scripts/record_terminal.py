"""Record `kourou up`, `kourou send` and `kourou tail` as they run: docs/images/terminal.svg.

    python scripts/record_terminal.py [FILE]

The commands run in a directory of their own, on the usual ports. What they print, and when, becomes a picture
that plays by itself, without a script: a browser shows it, and so do most readers of Markdown.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "terminal.svg"
UP = "kourou up"
COMMANDS = (
    """kourou send orders '{"id": 1, "amount": 30}' '{"id": 2, "amount": 12}' --tags paid""",
    "kourou tail orders --from first --count 2",
)
UP_ENDS_WITH = "Ctrl-C"  # the last line that it prints, once everything runs
TYPED_A_SECOND = 30
MAX_WAIT_S = 2.0  # longer pauses are cut short
READ_S = 1.2  # after a command, before the next
HOLD_S = 5.0  # in the end, before it begins again
WIDTH, LINE, LEFT, CHAR = 900, 20, 18, 7.85
LETTERS = 3  # that are typed at once


class Line(NamedTuple):
    """A line on the screen; `typed` ones come letter by letter."""

    at_s: float
    text: str
    typed: bool = False


def lines_of(command: str, directory: str) -> Iterator[tuple[float, str, subprocess.Popen[str]]]:
    """What a command prints, with the seconds since it was started."""
    words = [sys.executable, "-m", *shlex.split(command)]
    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
        env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    assert process.stdout is not None
    for line in process.stdout:
        yield time.monotonic() - began, line.rstrip().replace(directory, "~"), process
    assert process.wait(30) == 0, f"{command} failed"


def record(directory: str) -> tuple[list[Line], list[Line]]:
    """The two terminals: the one that `up` has, and the one of the other commands."""
    with contextlib.ExitStack() as stack:
        upper, now = typed(UP, 0.5)
        for waited, text, process in lines_of(UP, directory):
            upper.append(Line(now + min(waited, MAX_WAIT_S), text))
            if text.startswith(UP_ENDS_WITH):
                stack.callback(process.wait, 60)
                stack.callback(process.send_signal, signal.SIGINT)
                break
        now, lower = upper[-1].at_s + READ_S, []
        for command in COMMANDS:
            more, now = typed(command, now)
            lower += more
            for waited, text, _ in lines_of(command, directory):
                lower.append(Line(now + min(waited, MAX_WAIT_S), text))
            now = lower[-1].at_s + READ_S
    return upper, lower


def typed(command: str, at_s: float) -> tuple[list[Line], float]:
    """A command that is typed, and when that is done."""
    return [Line(at_s, f"$ {command}", True)], at_s + len(command) / TYPED_A_SECOND + 0.3


class Screen:
    """A picture of terminals in which lines appear in their time."""

    def __init__(self, whole_s: float) -> None:
        self._whole_s = whole_s
        self._parts: list[str] = []
        self._y = 12.0

    def terminal(self, title: str, lines: list[Line]) -> None:
        height = 42 + LINE * len(lines)
        self._parts.append(
            f'<rect x="8" y="{self._y}" width="{WIDTH - 16}" height="{height}" rx="8" fill="#0d1b2a"/>'
            + "".join(
                f'<circle cx="{LEFT + 8 + 18 * number}" cy="{self._y + 16}" r="5" fill="{color}"/>'
                for number, color in enumerate(("#e76f51", "#e9c46a", "#2a9d8f"))
            )
            + f'<text x="{WIDTH / 2}" y="{self._y + 20}" fill="#8d99ae" text-anchor="middle">{title}</text>'
        )
        for number, line in enumerate(lines):
            self._line(line, self._y + 48 + LINE * number)
        self._y += height + 12

    def _line(self, line: Line, y: float) -> None:
        color = "#ffffff" if line.typed else "#b7e4c7"
        if not line.typed:
            self._text(line.text, LEFT, y, color, line.at_s)
            return
        for start in range(0, len(line.text), LETTERS):
            at_s = line.at_s + start / TYPED_A_SECOND
            self._text(line.text[start : start + LETTERS], LEFT + start * CHAR, y, color, at_s)

    def _text(self, text: str, x: float, y: float, color: str, at_s: float) -> None:
        if not text.strip():
            return
        when = at_s / self._whole_s
        length = f' textLength="{len(text) * CHAR:.1f}"' if len(text) > 1 else ""
        self._parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}"{length} xml:space="preserve">{escape(text)}'
            f'<animate attributeName="opacity" values="0;0;1;1" keyTimes="0;{when:.4f};{when:.4f};1"'
            f' dur="{self._whole_s:.1f}s" repeatCount="indefinite"/></text>'
        )

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self._y:.0f}" role="img"'
            ' font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13">'
            "<title>kourou up, send and tail</title>" + "\n".join(self._parts) + "</svg>\n"
        )


def main() -> None:
    """Record, and draw."""
    with tempfile.TemporaryDirectory() as directory:
        upper, lower = record(directory)
    screen = Screen(lower[-1].at_s + HOLD_S)
    screen.terminal("first terminal", upper)
    screen.terminal("second terminal", lower)
    Path(sys.argv[1] if len(sys.argv) > 1 else IMAGE).write_text(str(screen), encoding="utf-8")


if __name__ == "__main__":
    main()
