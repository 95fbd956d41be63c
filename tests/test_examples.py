"""Every example of the clients runs, on a cluster of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "clients"
SAYS = {
    "orders.py": "billing {'id': 9, 'amount': 90}",
    "handler.py": "order 3 done, at try 2",
    "in_order.py": "C created→paid→sent",
    "transaction.py": "shipped ['order-1', 'order-2']",
    "question.py": "42, to how many?",
    "columns.py": "3000 rows",
    "plain.py": "order 2",
    "receive.py": "order 3 done, at attempt 2",
}


def test_all_are_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SAYS, "common.py"}


@pytest.mark.parametrize("name", sorted(SAYS))
def test_it_runs(name: str):
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, encoding="utf-8", timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAYS[name] in done.stdout
