"""What the pages of the reference share: how a docstring becomes a line, and rows become a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

MADE = "<!-- Made by scripts/make_reference.py from the code; a test fails when it is out of date. -->\n"


def first_paragraph(thing: Any) -> str:
    """What a docstring says first, as one line."""
    text = thing if isinstance(thing, str) else (thing.__doc__ or "")
    return " ".join(text.strip().split("\n\n")[0].split())


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows in Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(text) for text in row) + " |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    """A text that does not end its cell."""
    return text.replace("\n", " ").replace(r"\|", "|").replace("|", r"\|")
