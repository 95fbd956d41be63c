"""The frame of all pages: navigation, search, theme, language, tables."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from kourou.console.views.table import to_csv
from support.browser import expect


def heading(page):
    return page.get_by_role("heading", level=1)


def test_the_overview_tells_how_the_cluster_does(page, scene):
    page.goto("/")
    expect(page.locator("[data-stat=brokers]")).to_have_text("4 / 4")
    expect(page.locator("[data-stat=disk]")).to_have_text(re.compile(r"\d+%"))
    expect(page.locator("canvas")).to_have_count(2)
    for name in ("orders", "billing", "broker-a", "broker-b", *scene.cluster.broker_addresses):
        expect(page.get_by_text(name).first).to_be_visible()
    expect(page.get_by_text("DefaultCluster")).to_be_visible()
    expect(page.get_by_text("No login: for this machine only")).to_be_visible()


def test_navigation_leads_to_pages_without_loading_them_anew(page):
    page.goto("/")
    expect(heading(page)).to_have_text("Overview")
    page.evaluate("window.isSame = true")
    drawer = page.locator(".q-drawer")
    for name in ("Topics", "Consumer groups", "Messages", "Dead letters", "Waiting messages", "Clients"):
        drawer.get_by_role("link", name=name, exact=True).click()
        expect(heading(page)).to_have_text(name)
        expect(drawer.locator(".k-current")).to_have_text(re.compile(name))
    assert page.evaluate("window.isSame")
    page.go_back()
    expect(heading(page)).to_have_text("Waiting messages")
    assert page.url.endswith("/waiting")


def test_on_a_phone_the_navigation_is_behind_a_button(open_context, console):
    page = open_context(console.url, viewport={"width": 390, "height": 844}).new_page()
    page.goto("/topics")
    expect(heading(page)).to_have_text("Topics")
    link = page.locator(".q-drawer").get_by_role("link", name="Consumer groups")
    expect(link).not_to_be_in_viewport()
    page.get_by_role("button", name="Menu").click()
    expect(link).to_be_in_viewport()
    link.click()
    expect(heading(page)).to_have_text("Consumer groups")


def test_search_opens_by_keys_and_finds_everything(page, scene):
    page.goto("/")
    expect(heading(page)).to_have_text("Overview")
    page.keyboard.press("/")
    box = page.get_by_role("dialog").get_by_label("Search")
    expect(box).to_be_focused()
    box.fill("paym")
    expect(page.get_by_role("dialog").get_by_role("link")).to_have_count(1)
    box.press("Enter")
    expect(heading(page)).to_have_text("payments")
    for wanted, found in (("billing", "billing"), ("broker-b", "broker-b"), ("dead l", "Dead letters")):
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.keyboard.press("Control+k")
        box.fill(wanted)
        results = page.get_by_role("dialog").get_by_role("link")
        expect(results.first).to_have_text(re.compile(wanted, re.IGNORECASE))
        results.first.click()
        expect(heading(page)).to_have_text(found)
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("/")
    box.fill("no such thing")
    expect(page.get_by_text("Nothing found")).to_be_visible()


def test_the_theme_stays_chosen(page):
    page.goto("/topics")
    expect(heading(page)).to_have_text("Topics")
    expect(page.locator("body.body--dark")).to_have_count(0)
    page.get_by_role("button", name="Dark mode").click()
    expect(page.locator("body.body--dark")).to_have_count(1)
    page.wait_for_function("document.cookie.includes('kourou_theme=dark')")
    page.reload()
    expect(heading(page)).to_have_text("Topics")
    expect(page.locator("body.body--dark")).to_have_count(1)


def test_the_language_stays_chosen(page):
    page.goto("/topics")
    page.get_by_role("button", name="Language").click()
    page.get_by_text("中文").click()
    expect(heading(page)).to_have_text("主题")
    page.goto("/groups")
    expect(heading(page)).to_have_text("消费组")
    expect(page.get_by_text("在线", exact=True)).to_be_visible()
    screenshots = Path(__file__).resolve().parents[2] / "build" / "screenshots"
    screenshots.mkdir(parents=True, exist_ok=True)
    page.goto("/")
    expect(page.get_by_text("broker-a").first).to_be_visible()
    page.screenshot(path=screenshots / "overview-1280-chinese.png", full_page=True)


def test_a_browser_that_prefers_chinese_is_answered_in_chinese(open_context, console):
    page = open_context(console.url, locale="zh-CN").new_page()
    page.goto("/topics")
    expect(heading(page)).to_have_text("主题")


def test_a_table_is_sorted_filtered_and_exported(page):
    page.goto("/topics")
    names = page.locator(".k-table tbody tr td:first-child")
    expect(names.first).to_have_text("later")
    page.get_by_role("columnheader", name="Topic").click()
    expect(names.first).to_have_text("transfers")
    page.get_by_label("Filter").fill("pay")
    expect(names).to_have_text(["payments"])
    with page.expect_download() as download:
        page.get_by_role("button", name="Export CSV").click()
    assert download.value.suggested_filename == "topics.csv"
    text = Path(download.value.path()).read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [(row["Topic"], row["Kind"]) for row in rows] == [("payments", "FIFO")]


def test_what_a_spreadsheet_would_run_is_exported_as_text():
    text = to_csv(["a", "b"], [["=1+1", 5], ["@x", None], ["-3", -3], ["plain", "+1"]])
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b"], ["'=1+1", "5"], ["'@x", ""], ["'-3", "-3"], ["plain", "'+1"],
    ]  # fmt: skip


def test_a_page_that_is_not_there_says_so(page):
    for path in ("/nowhere", "/topics/orders/more"):
        page.goto(path)
        expect(page.get_by_text("There is no such page")).to_be_visible()
