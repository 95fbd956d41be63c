"""Users and lists in the console, at a broker that wants to know who asks, and at one that does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kourou.admin import Admin
from kourou.console.pages.access import read_access
from kourou.remoting.signing import Credentials
from support.browser import expect
from support.sites.guarded import ADMIN, SECRET, guarded_broker

FITS = "document.documentElement.scrollWidth <= window.innerWidth"
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"


@pytest.fixture
def guarded_cluster(tmp_path):
    with guarded_broker("kourou", tmp_path) as (name_server, broker):
        yield name_server, broker


def test_users_and_lists_are_made_changed_and_deleted(
    open_context, start_console, guarded_cluster, make_loop, monkeypatch
):
    name_server, _ = guarded_cluster
    monkeypatch.setenv("KOUROU_ACCESS_KEY", ADMIN)
    monkeypatch.setenv("KOUROU_SECRET_KEY", SECRET)
    loop = make_loop()

    async def look():
        async with Admin(name_server.address, credentials=Credentials(ADMIN, SECRET)) as admin:
            return await read_access(admin)

    with start_console("-n", name_server.address) as console:
        page = open_context(console.url).new_page()
        page.goto("/access")
        users, lists = page.locator(".k-card").nth(0), page.locator(".k-card").nth(1)
        expect(users.get_by_role("cell", name=ADMIN, exact=True)).to_be_visible()
        assert SECRET not in page.content()
        expect(page.locator("main")).not_to_contain_text("Authentication is off")

        users.get_by_role("button", name="Create user").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Name").fill("app")
        dialog.get_by_label("Secret", exact=True).fill("app-secret")
        dialog.get_by_role("button", name="Save").click()
        expect(users.get_by_role("cell", name="app", exact=True)).to_be_visible()

        lists.get_by_role("button", name="Create entry").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User").fill("app")
        dialog.get_by_label("Resources").fill("Topic:orders, Group:billing*")
        dialog.get_by_role("combobox", name="Actions").click()
        for action in ("Pub", "Sub"):
            page.get_by_role("option", name=action).click()
            expect(dialog.locator(".q-chip").filter(has_text=action)).to_be_visible()  # the console knows it
        page.keyboard.press("Escape")
        dialog.get_by_label("Only from").fill("10.0.0.0/8")
        dialog.get_by_role("button", name="Save").click()
        expect(lists.get_by_role("cell", name="Group:billing*")).to_be_visible()
        found = loop.run(look())
        assert found.unguarded == []
        names = "subject", "resource", "actions", "from", "decision"
        assert {tuple(one[name] for name in names) for one in found.acls} == {
            ("User:app", "Topic:orders", "Pub, Sub", "10.0.0.0/8", "Allow"),
            ("User:app", "Group:billing*", "Pub, Sub", "10.0.0.0/8", "Allow"),
        }
        shoot(page)

        lists.get_by_role("row").filter(has_text="Topic:orders").get_by_label("Edit entry").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("combobox", name="Decision").click()
        page.get_by_role("option", name="Deny").click()
        dialog.get_by_role("button", name="Save").click()
        expect(lists.locator(".k-badge", has_text="Deny")).to_be_visible()
        lists.get_by_role("row").filter(has_text="Group:billing*").get_by_label("Delete entry").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(lists.get_by_role("cell", name="Group:billing*")).to_have_count(0)

        row = users.get_by_role("row").filter(has_text="app")
        row.get_by_label("Edit user").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_role("combobox", name="Status").click()
        page.get_by_role("option", name="disable").click()
        dialog.get_by_role("button", name="Save").click()
        expect(users.locator(".k-badge", has_text="disable")).to_be_visible()
        row.get_by_label("Delete user").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
        dialog.get_by_label("Name").fill("app")
        dialog.get_by_role("button", name="Delete").click()
        expect(users.get_by_role("cell", name="app", exact=True)).to_have_count(0)
        assert [one["user"] for one in loop.run(look()).users] == [ADMIN]


def test_without_a_signature_the_reason_is_told(open_context, start_console, guarded_cluster, monkeypatch):
    name_server, _ = guarded_cluster
    monkeypatch.delenv("KOUROU_ACCESS_KEY", raising=False)
    with start_console("-n", name_server.address) as console:
        page = open_context(console.url).new_page()
        page.goto("/access")
        expect(page.locator("main")).to_contain_text("This could not be loaded")


def test_a_cluster_that_checks_nobody_is_told(page):
    page.goto("/access")
    expect(page.get_by_role("alert").last).to_contain_text("Authentication is off")


def test_only_administrators_see_it(log_in):
    page = log_in("operator")
    page.goto("/access")
    expect(page.locator("main")).to_contain_text("This is for administrators")
    expect(page.get_by_role("button", name="Create user")).to_have_count(0)


def shoot(page):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        page.set_viewport_size({"width": 1280, "height": 900})
        page.goto("/access")
        expect(page.get_by_role("cell", name="Topic:orders")).to_be_visible()
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(FITS)  # once the navigation has moved aside
            page.screenshot(
                path=SCREENSHOTS / f"access-{width}-{theme}.png", full_page=True, animations="disabled"
            )
        page.get_by_label("Dark mode").click()
        expect(page.locator("body.body--dark")).to_have_count(int(theme == "light"))
