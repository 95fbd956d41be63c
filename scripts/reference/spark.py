"""The options of Spark's source and sink: what each is for by the code, what it means by docs/spark.md."""

from __future__ import annotations

import re
from pathlib import Path

from kourou.spark.read.broker_road import BATCH_ONLY, READ_OPTIONS, STREAM_ONLY
from kourou.spark.source import STORE_OPTIONS
from kourou.spark.write.sink import SINK_OPTIONS
from reference.text import MADE, table

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "spark.md"

ROADS = {
    "batch": READ_OPTIONS | BATCH_ONLY,
    "stream": READ_OPTIONS | STREAM_ONLY,
    "store": STORE_OPTIONS,
    "sink": SINK_OPTIONS,
}

HEAD = f"""# Options of the Spark source and sink

{MADE}
`batch` and `stream` read from brokers (`namesrv`), `store` reads a directory (`load("…")`), `sink` writes
to brokers. An option where there is no mark is refused by name. How they work together:
[Spark](../spark.md#options).

"""


def meanings() -> dict[str, tuple[str, str]]:
    """Option -> meaning and default, of the tables in docs/spark.md."""
    section = GUIDE.read_text(encoding="utf-8").partition("\n## Options\n")[2].partition("\n## ")[0]
    found = {}
    for names, meaning, default in re.findall(r"^\| (`.*?) \| (.*?) \| ?(.*?) ?\|$", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            found[name] = (meaning, default)
    return found


def page() -> str:
    """The whole page."""
    told = meanings()
    rows = []
    for name in sorted(frozenset().union(*ROADS.values())):
        marks = ("✓" if name in names else "" for names in ROADS.values())
        rows.append((f"`{name}`", *marks, *told[name]))
    return HEAD + table(("option", *ROADS, "meaning", "default"), rows) + "\n"
