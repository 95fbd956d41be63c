"""docs/admin.md tells of the commands as they are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from kourou.cli import app

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "docs" / "admin.md").read_text(encoding="utf-8")


def test_every_command_of_the_page_exists() -> None:
    root: Any = get_command(app)
    told = re.findall(r"`(kourou [^`]+)`", PAGE) + re.findall(
        r"^    (kourou .*?)(?:  +#.*)?$", PAGE, re.MULTILINE
    )
    assert len(told) > 80
    for text in told:
        words = shlex.split(text.replace("|", " "))[1:]
        command, rest = root, words
        while rest and getattr(command, "commands", None) and not rest[0].startswith("-"):
            assert rest[0] in command.commands, text
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        options = {word for word in rest if re.fullmatch(r"--?[a-z-]+", word)}
        if command.name not in ("mqadmin", "kourou"):
            assert options <= known, (text, options - known)
