"""Write docs/reference/*.md and the tables in docs/admin.md from the code. --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import reference_cli
import reference_config
import reference_errors
import reference_metrics
import reference_protocol
import reference_spark

DOCS = Path(__file__).resolve().parent.parent / "docs"
END = "<!-- end -->"

PAGES: dict[str, Callable[[], str]] = {
    "configuration": reference_config.page,
    "cli": reference_cli.page,
    "spark-options": reference_spark.page,
    "protocol": reference_protocol.page,
    "metrics": reference_metrics.page,
    "errors": reference_errors.page,
}


def with_tables(text: str) -> str:
    """docs/admin.md with its tables of verbs made anew."""
    made = {"admin": reference_cli.admin_table(), "mqadmin": reference_cli.mqadmin_table()}
    for name, rows in made.items():
        head, mark, rest = text.partition(f"<!-- {name} verbs -->\n")
        text = head + mark + rows + "\n" + rest[rest.index(END) :]
    return text


def wanted() -> Iterable[tuple[Path, str]]:
    """Each file and what it should say."""
    for name, page in PAGES.items():
        yield DOCS / "reference" / f"{name}.md", page()
    admin = DOCS / "admin.md"
    yield admin, with_tables(admin.read_text(encoding="utf-8"))


def main() -> None:
    """Write, or compare."""
    stale = []
    for path, text in wanted():
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(DOCS.parent)))
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run scripts/make_reference.py")


if __name__ == "__main__":
    main()
