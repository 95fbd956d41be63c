"""What docs/clients.md shows works as it stands there, from the first block to the last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.walkthrough import Reader

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"


@pytest.mark.slow
def test_the_page_of_the_clients(tmp_path):
    with Reader(tmp_path) as reader:
        printed = [*reader.follow(PAGE)]
    assert not [text for text in printed if re.search("Traceback|never retrieved|WARNING", text)]


def test_every_python_block_is_a_program():
    blocks = re.findall(
        r"^```python.*?\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) >= 6
    for block in blocks:
        compile(block, str(PAGE), "exec")
        assert re.search(r"^from kourou\.(client|sync) import ", block, re.MULTILINE)
