"""Write docs/reference and the tables in docs/admin.md from the code. --check only compares."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from reference import cli, config, errors, metrics, protocol, spark

DOCS = Path(__file__).resolve().parent.parent / "docs"
END = "<!-- end -->"

PAGES: dict[str, Callable[[], str]] = {
    "configuration": config.page,
    "spark-options": spark.page,
    "protocol": protocol.page,
    "metrics": metrics.page,
    "errors": errors.page,
}


def with_tables(text: str) -> str:
    """docs/admin.md with its tables of verbs made anew."""
    made = {
        "admin": cli.admin_table(),
        "mqadmin": cli.mqadmin_table(),
        "missing": cli.missing_table(),
    }
    for name, rows in made.items():
        head, mark, rest = text.partition(f"<!-- {name} verbs -->\n")
        text = head + mark + rows + "\n" + rest[rest.index(END) :]
    return text


def wanted() -> Iterable[tuple[Path, str]]:
    """Each file and what it should say."""
    for name, page in PAGES.items():
        yield DOCS / "reference" / f"{name}.md", page()
    for name, text in cli.pages().items():
        yield DOCS / "reference" / "cli" / f"{name}.md", text
    admin = DOCS / "admin.md"
    yield admin, with_tables(admin.read_text(encoding="utf-8"))


def main() -> None:
    """Write, or compare."""
    stale = []
    pages = dict(wanted())
    for path in (DOCS / "reference" / "cli").glob("*.md"):
        if path not in pages:
            stale.append(f"{path.relative_to(DOCS.parent)} (nothing makes it)")
    for path, text in pages.items():
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(str(path.relative_to(DOCS.parent)))
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run scripts/make_reference.py")


if __name__ == "__main__":
    main()
