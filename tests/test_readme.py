"""What the README shows works as it stands there, from the first block to the last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.walkthrough import Reader

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TEXT = README.read_text(encoding="utf-8")


@pytest.mark.spark
def test_the_readme(tmp_path: Path) -> None:
    with Reader(tmp_path) as reader:
        printed = [*reader.follow(README)]
    up, sent, consumed, asked, looked = printed
    assert "RocketMQ is up" in up
    assert "2 messages sent to orders" in sent
    assert re.match(r"SEND_OK \w+\npaid b'{", consumed)
    assert re.search(r"\|\s+50\.0\|", asked)
    assert "3 messages" in asked
    assert "no faults" in looked


def test_it_begins_with_a_clone_and_two_commands() -> None:
    block = re.search(r"^```\w+\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert block is not None
    clone, demo, test = (line.partition("#")[0].strip() for line in block[1].splitlines())
    assert clone.startswith("git clone ")
    assert (demo, test) == ("make demo", "make test")
    assert TEXT.index("![") > block.end()


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) < 150


def test_every_target_of_make_that_it_names_is_there() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`make ([a-z-]+)`", TEXT)
    assert {"demo", "up", "test", "test-all", "setup"} <= set(named)
    assert set(named) <= set(targets)
