"""A page as Chromium shows it."""

from __future__ import annotations

import shutil
import time

from playwright.sync_api import Error, sync_playwright

WAIT_MS = 60_000


def seen_in_browser(url: str, text: str) -> str:
    """All that is to be read on a page, once a text is among it. The server may be starting yet."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        deadline = time.monotonic() + WAIT_MS / 1000
        while True:
            try:
                page.goto(url)
                break
            except Error:
                assert time.monotonic() < deadline, f"{url} does not answer"
                time.sleep(0.2)
        page.get_by_text(text).first.wait_for(timeout=WAIT_MS)
        page.wait_for_load_state("networkidle", timeout=WAIT_MS)
        shown = page.inner_text("body")
        browser.close()
        return shown
