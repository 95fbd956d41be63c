"""Write the tables of verbs in docs/admin.md from the commands themselves. --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from kourou.cli import app
from kourou.cli.mqadmin import verbs

END = "<!-- end -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "admin.md"


def admin_rows() -> Iterator[tuple[str, str]]:
    """Each verb of `kourou admin`, and what it does."""
    root: Any = get_command(app)
    for name, command in root.commands["admin"].commands.items():
        parts: dict[str, Any] = getattr(command, "commands", None) or {"": command}
        for part, verb in parts.items():
            words = [f"kourou admin {name} {part}".strip()]
            words += [one.metavar for one in verb.params if one.param_type_name == "argument"]
            first = (verb.help or "").strip().split("\n\n")[0]
            yield " ".join(words).replace("|", r"\|"), " ".join(first.split())


def table(head: str, rows: Iterator[tuple[str, str]]) -> str:
    """A table of verbs."""
    return "\n".join(
        [f"| {head} | what it does |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in rows)]
    )


def page(text: str) -> str:
    """The page with its tables made anew."""
    made = {
        "admin": table("verb", admin_rows()),
        "mqadmin": table("verb", ((name, verb.help) for name, verb in verbs().items())),
    }
    for name, rows in made.items():
        head, mark, rest = text.partition(f"<!-- {name} verbs -->\n")
        text = head + mark + rows + "\n" + rest[rest.index(END) :]
    return text


def main() -> None:
    """Write or compare."""
    before = PAGE.read_text(encoding="utf-8")
    after = page(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            sys.exit("docs/admin.md is out of date: run scripts/make_admin.py")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
