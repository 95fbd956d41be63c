"""The documentation site: no warning, nothing loaded from elsewhere, and pictures of real files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from support.browser import expect, running_browser

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
LOADED = re.compile(
    r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//"
)
RECT, TEXT = "{http://www.w3.org/2000/svg}rect", "{http://www.w3.org/2000/svg}text"


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
        },  # an advertisement of the theme, not about these pages
        capture_output=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


pytestmark = pytest.mark.slow  # mkdocs is in `make setup` alone


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    said = run(sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory)
    assert "WARNING" not in said
    return directory


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {
        str(path.relative_to(ROOT / "docs").with_suffix(".html")) for path in (ROOT / "docs").rglob("*.md")
    }
    assert len(pages) > 30
    assert [page for page in sorted(pages) if not (site / page).is_file()] == []
    assert (site / "search" / "search_index.json").is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = [path for path in site.rglob("*.html") if LOADED.search(path.read_text(encoding="utf-8"))]
    assert pages == []
    styles = [path for path in site.rglob("*.css") if "url(http" in path.read_text(encoding="utf-8")]
    assert styles == []


def test_links_to_files_of_the_repository_stay_in_the_site(site: Path) -> None:
    page = (site / "clients.html").read_text(encoding="utf-8")
    assert 'href="source/examples/clients/transaction.py.html"' in page
    assert "send_in_transaction" in (site / "source/examples/clients/transaction.py.html").read_text(
        encoding="utf-8"
    )


@pytest.mark.browser
def test_the_search_works_from_the_disk(site: Path) -> None:
    with running_browser() as browser:
        page = browser.new_page()
        page.goto((site / "guides" / "pair.html").as_uri())
        page.locator(".md-search__input").click()
        page.keyboard.type("SCHEDULE_TOPIC_XXXX", delay=20)
        page.locator(".md-search-result__item a").first.click()
        expect(page.locator(".md-content")).to_contain_text("SCHEDULE_TOPIC_XXXX")
        assert page.url.startswith(site.as_uri())


@pytest.mark.parametrize(
    ("script", "pictures", "count"), [("draw_store", "store", 4), ("draw_flows", "flow", 3)]
)
def test_the_pictures_are_drawn_from_a_store_as_it_is_now(
    tmp_path: Path, script: str, pictures: str, count: int
) -> None:
    run(sys.executable, ROOT / "scripts" / f"{script}.py", tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in IMAGES.glob(f"{pictures}-*.svg")}
    assert drawn == kept
    assert len(drawn) == count


def test_the_recording_is_of_the_commands_that_the_readme_shows() -> None:
    root = ElementTree.fromstring((IMAGES / "terminal.svg").read_text(encoding="utf-8"))
    shown = "".join(text.text or "" for text in root.iter(TEXT))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^kourou (?:up|send|tail)[^#\n]*", readme, re.MULTILINE)
    assert len(commands) == 3
    assert [
        command
        for command in commands
        if f"$ {command.strip()}".replace(" ", "") not in shown.replace(" ", "")
    ] == []


def test_a_picture_is_to_scale() -> None:
    root = ElementTree.fromstring((IMAGES / "store-commitlog.svg").read_text(encoding="utf-8"))
    widths = {}
    for box in root.iter(RECT):
        if found := re.search(r"(\d+) bytes at \d{2,}", "".join(box.itertext())):
            widths[int(found[1])] = float(box.attrib["width"])
    assert len(widths) > 10
    for size_bytes, width in widths.items():
        if size_bytes > 100:  # of the log: 4096 bytes over the whole width
            assert size_bytes / width == pytest.approx(4096 / 920, rel=0.01)


def test_each_difference_from_java_has_its_reason() -> None:
    rows = re.findall(
        r"^\| .* \|$", (ROOT / "docs" / "differences.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(rows) > 60
    assert [row for row in rows if "" in (cell.strip() for cell in row.strip("|").split(" | "))] == []
