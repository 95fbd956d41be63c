"""ARCHITECTURE.md: each file that it names is there, and its twenty questions have one answer each."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
FILE = re.compile(r"(?<![\w./<-])((?:\w+/)+\w+\.py)")


def test_every_file_that_is_named_is_there() -> None:
    named = set(FILE.findall(TEXT))
    assert len(named) > 30
    missing = [
        file for file in named if not any((base / file).exists() for base in (ROOT, ROOT / "src/kourou"))
    ]
    assert missing == []


def test_twenty_questions_are_answered_by_one_file_each() -> None:
    table = TEXT.split("## Twenty questions")[1]
    answers = re.findall(r"^\| (.+?) \| (\S+\.py) \|$", table, re.MULTILINE)
    assert len(answers) == 20
    assert len({question for question, _ in answers}) == len({file for _, file in answers}) == 20


def test_every_room_is_drawn() -> None:
    drawn = TEXT.split("## The house")[1].split("## ")[0]
    package = ROOT / "src/kourou"
    rooms = {init.parent.relative_to(package).parts for init in package.rglob("__init__.py")} - {()}
    missing = ["/".join(room) for room in rooms if len(room) <= 2 and f"{room[-1]}/" not in drawn]
    assert missing == []
