"""Checks that every relative link in the Markdown files leads to a file, and every #anchor to a heading.

Links to other hosts are not followed: the check must give the same answer with no network.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {"target", "node_modules", "build", "dist"}

CODE = re.compile(r"^(```|~~~).*?^\1[^\n]*$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
INLINE_LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
REFERENCE_LINK = re.compile(r"^\[[^\]]+\]:\s*<?(\S+?)>?\s*$", re.MULTILINE)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
HAS_SCHEME = re.compile(r"^([a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def main() -> int:
    files = sorted(markdown_files(ROOT))
    faults = [fault for file in files for fault in broken_links(file)]
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"links: {len(files)} files checked, {len(faults)} broken")
    return 1 if faults else 0


def markdown_files(directory: Path) -> Iterator[Path]:
    for entry in directory.iterdir():
        if entry.name.startswith(".") or entry.name in NOT_OURS:
            continue
        if entry.is_dir():
            yield from markdown_files(entry)
        elif entry.suffix == ".md":
            yield entry


def broken_links(file: Path) -> Iterator[str]:
    text = CODE.sub("", file.read_text(encoding="utf-8"))
    for link in INLINE_LINK.findall(text) + REFERENCE_LINK.findall(text):
        if HAS_SCHEME.match(link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (file.parent / path) if path else file
        if not target.exists():
            yield f"{file.relative_to(ROOT)}: no such file: {link}"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{file.relative_to(ROOT)}: no such heading: {link}"


def anchors(file: Path) -> set[str]:
    """The anchors of a file's headings, by GitHub's rule: lower case, no punctuation, dashes for spaces."""
    found: set[str] = set()
    for heading in HEADING.findall(file.read_text(encoding="utf-8")):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        unique, count = slug, 0
        while unique in found:
            count += 1
            unique = f"{slug}-{count}"
        found.add(unique)
    return found


if __name__ == "__main__":
    sys.exit(main())
