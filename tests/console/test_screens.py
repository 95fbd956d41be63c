"""Every page in both themes, wide and narrow: nothing sticks out, and nothing failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.browser import expect

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
SIZES = {1280: 900, 390: 844}

CUT_TABLES = """[...document.querySelectorAll('.q-table__middle')].filter(
    (one) => one.offsetParent && one.scrollWidth > one.clientWidth + 1).map((one) => one.innerText)"""

PAGES = {
    "overview": ("/", "Overview", "broker-a"),
    "brokers": ("/cluster", "Cluster", "broker-b"),
    "broker": ("/brokers/{broker}", "broker-a", "putTps"),
    "topics": ("/topics", "Topics", "payments"),
    "topic": ("/topics/orders", "orders", "End offset"),
    "groups": ("/groups", "Consumer groups", "billing"),
    "group": ("/groups/billing", "billing", "broker-a"),
    "messages": ("/messages?topic=orders", "Messages", "o-"),
    "message": ("/messages/orders/{message}", "{message}", "rocket"),
    "dead-letters": ("/dlq", "Dead letters", "billing"),
    "dead-letters-of-a-group": ("/dlq/billing", "billing", "dead-1"),
    "waiting": ("/waiting", "Waiting messages", "by level"),
    "clients": ("/clients", "Clients", "shop"),
    "nowhere": ("/nowhere", "", "There is no such page"),
}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", SIZES)
def test_every_page_fits_the_screen(open_context, console, scene, width, theme):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    context = open_context(console.url, viewport={"width": width, "height": SIZES[width]})
    context.add_cookies([{"name": "kourou_theme", "value": theme, "url": console.url}])
    page = context.new_page()
    values = {
        "broker": scene.cluster.broker_addresses[0],
        "message": scene.receipts[3].offset_message_id,
    }
    for name, (path, heading, text) in PAGES.items():
        page.goto(path.format(**values))
        if heading:
            expect(page.get_by_role("heading", level=1)).to_have_text(heading.format(**values))
        expect(page.locator("main")).to_contain_text(text)
        expect(page.locator("body.body--dark")).to_have_count(int(theme == "dark"))
        page.screenshot(path=SCREENSHOTS / f"{name}-{width}-{theme}.png", full_page=True)
        too_wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert too_wide <= 0, f"{name} sticks out by {too_wide} px at {width}"
        if width > 1000:  # on a phone a table may be moved sideways, here all of it is seen
            assert page.evaluate(CUT_TABLES) == [], f"a table of {name} is cut at {width}"
