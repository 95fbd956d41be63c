"""The table of budgets in docs/reliability.md has every key, with its default."""

from __future__ import annotations

import re
from pathlib import Path

from kourou.java_config import java_keys
from kourou.remoting.budgets import MIB, Budgets

TABLE = Path(__file__).parents[1] / "docs/reliability.md"


def test_the_table_of_budgets_is_that_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `(max\w+)` \| ([^|]+?) \|", TABLE.read_text(encoding="utf-8"), re.MULTILINE))
    defaults = {key: getattr(Budgets(), name) for key, name in java_keys(Budgets).items()}
    expected = {
        key: f"{value // MIB} MiB" if "Bytes" in key else f"{value:,}" for key, value in defaults.items()
    }
    assert rows == expected
