"""What mkdocs does for the site beyond docs/: the repository's own pages, and the files that pages link to.

README, ARCHITECTURE, CONTRIBUTING and CHANGELOG are pages. Any other file outside docs/ that a page links
to becomes a page below source/, so that no link leads out of the site, wherever the site is served.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from check_links import CODE, HAS_SCHEME, INLINE_LINK

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
LANGUAGES = {".py": "python", ".java": "java", ".go": "go", ".json": "json", ".yaml": "yaml", ".yml": "yaml"}

_origins: dict[str, str] = {}  # page of the site -> file of the repository, where it is not of docs/


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are not in docs/, and whatever any page links to."""
    _origins.clear()
    waiting = [file.src_uri for file in files.documentation_pages()]
    for name, uri in PAGES.items():
        _add(files, config, uri, name, (ROOT / name).read_text(encoding="utf-8"))
        waiting.append(uri)
    while waiting:
        origin = _origin(waiting.pop())
        for link in INLINE_LINK.findall(CODE.sub("", (ROOT / origin).read_text(encoding="utf-8"))):
            target = _target(origin, link)
            if target is None or (uri := _page_of(target)) in files.src_uris:
                continue
            path = ROOT / target
            if target.startswith("docs/") or not path.exists():
                continue  # mkdocs has it, or says that it is not there
            _add(files, config, uri, target, _text(path))
            if path.suffix == ".md":
                waiting.append(uri)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links between files of the repository become links between pages of the site."""
    uri = page.file.src_uri
    origin = _origin(uri)

    def moved(link: str) -> str:
        target = _target(origin, link)
        if target is None:
            return link
        where = posixpath.relpath(_page_of(target), posixpath.dirname(uri) or ".")
        _, hash_mark, anchor = link.partition("#")
        return where + hash_mark + anchor

    return _outside_code(markdown, lambda text: INLINE_LINK.sub(lambda found: _replaced(found, moved), text))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """A bar in a table's code is written with a backslash; GitHub takes it away, Python-Markdown does not."""
    return CELL.sub(lambda found: found[0].replace(r"\|", "|"), html)


def _replaced(found: Any, moved: Callable[[str], str]) -> str:
    start, end = found.start(1) - found.start(), found.end(1) - found.start()
    whole = found[0]
    return str(whole[:start] + moved(found[1]) + whole[end:])


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    done: list[str] = []
    at = 0
    for code in CODE.finditer(text):
        # A link whose text is code is a link: the brackets are outside, the code is not touched.
        done += [text[at : code.start()], f"\0{len(done)}\0"]
        at = code.end()
    done.append(text[at:])
    kept = [code[0] for code in CODE.finditer(text)]
    changed = change("".join(done))
    for number, code_text in enumerate(kept):
        changed = changed.replace(f"\0{2 * number}\0", code_text, 1)
    return changed


def _origin(uri: str) -> str:
    """The file of the repository that a page is made of."""
    return _origins.get(uri, f"docs/{uri}")


def _target(origin: str, link: str) -> str | None:
    """The file of the repository that a link leads to; None where it leads elsewhere, or to its own page."""
    path = link.partition("#")[0]
    if not path or HAS_SCHEME.match(link):
        return None
    return posixpath.normpath(posixpath.join(posixpath.dirname(origin), path))


def _page_of(target: str) -> str:
    """Where a file of the repository is in the site."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        return f"{inside}/index.md" if os.path.isdir(ROOT / target) else inside
    if os.path.isdir(ROOT / target):
        return f"source/{target}/index.md"
    return f"source/{target}" if target.endswith(".md") else f"source/{target}.md"


def _add(files: Any, config: Any, uri: str, origin: str, text: str) -> None:
    _origins[uri] = origin
    files.append(File.generated(config, uri, content=text))


def _text(path: Path) -> str:
    """A file, or a directory, as a page."""
    name = str(path.relative_to(ROOT))
    if path.is_dir():
        listed = "\n".join(
            f"- `{entry.name}`" for entry in sorted(path.iterdir()) if entry.name[0] not in "._"
        )
        return f"# {name}\n\n{listed}\n"
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {name}\n\n~~~~{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n~~~~\n"
