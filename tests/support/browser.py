"""Chromium for tests, and what they ask of Playwright; without it they are skipped (support.tools)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from support.tools import chromium

if TYPE_CHECKING or find_spec("playwright"):
    from playwright.sync_api import Browser, BrowserContext, Error, Page, expect, sync_playwright
else:
    Browser = BrowserContext = Error = Page = expect = sync_playwright = None

__all__ = ["WAIT_MS", "Browser", "BrowserContext", "Page", "expect", "running_browser", "seen_in_browser"]

WAIT_MS = 120_000
ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip

if expect is not None:
    expect.set_options(timeout=WAIT_MS)


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS)
        try:
            yield found
        finally:
            found.close()


def seen_in_browser(url: str, text: str) -> str:
    """All that is to be read on a page, once a text is among it. The server may be starting yet."""
    with running_browser() as browser:
        page = browser.new_page()
        deadline = time.monotonic() + WAIT_MS / 1000
        while True:
            try:
                page.goto(url)
                break
            except Error:
                assert time.monotonic() < deadline, f"{url} does not answer"
                time.sleep(0.2)
        page.get_by_text(text).first.wait_for(timeout=2 * WAIT_MS)
        page.wait_for_load_state("networkidle", timeout=2 * WAIT_MS)
        return page.inner_text("body")
