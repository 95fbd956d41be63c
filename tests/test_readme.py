"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        assert "/tmp/orders-store" in example
        exec(example.replace("/tmp/orders-store", str(tmp_path / "store")), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        "[b'order 0', b'order 1', b'order 2'] 32",
        "[42]",
        "100 ['topic', 'queue_offset', 'keys', 'body']",
    ]
