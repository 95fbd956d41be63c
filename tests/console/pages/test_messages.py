"""Messages are found, looked at, sent and consumed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kourou.client import Message, Producer
from kourou.console.reading import body_forms, preview
from support.browser import Page, expect


def heading(page: Page):
    return page.get_by_role("heading", level=1)


def dialog(page: Page):
    return page.get_by_role("dialog").last


def panel(page: Page):
    return page.get_by_role("tabpanel")


def rows(page: Page):
    return page.locator(".k-table tbody tr")


def test_messages_are_found_by_time_and_filter(page):
    page.goto("/messages?topic=orders")
    expect(rows(page)).not_to_have_count(0)
    assert rows(page).count() >= 13
    panel(page).get_by_label("Filter expression").fill("paid")
    panel(page).get_by_role("button", name="Search").click()
    expect(rows(page)).to_have_count(6)
    panel(page).get_by_text("Tag", exact=True).click()
    page.get_by_role("option", name="SQL").click()
    panel(page).get_by_label("Filter expression").fill("amount BETWEEN 30 AND 50")
    panel(page).get_by_role("button", name="Search").click()
    expect(rows(page)).to_have_count(3)
    panel(page).get_by_label("Filter expression").fill("amount BETWEEN")
    panel(page).get_by_role("button", name="Search").click()
    expect(page.get_by_text("This could not be loaded")).to_be_visible()
    panel(page).get_by_label("From").fill("2020-01-01T00:00")
    panel(page).get_by_label("To", exact=True).fill("2020-01-02T00:00")
    panel(page).get_by_label("Filter expression").fill("")
    panel(page).get_by_role("button", name="Search").click()
    expect(page.get_by_text("No messages")).to_be_visible()


def test_a_message_is_found_by_key_and_by_id(page, scene):
    receipt = scene.receipts[5]
    page.goto("/messages?topic=orders&key=o-5")
    expect(rows(page)).to_have_count(1)
    expect(rows(page)).to_contain_text(receipt.message_id)
    page.get_by_role("tab", name="By key").click()
    panel(page).get_by_label("Key").fill("none such")
    panel(page).get_by_role("button", name="Search").click()
    expect(page.get_by_text("No messages")).to_be_visible()
    page.get_by_role("tab", name="By id").click()
    for number in (receipt.message_id, receipt.offset_message_id):
        panel(page).get_by_label("Message id, or unique key").fill(number)
        panel(page).get_by_role("button", name="Search").click()
        expect(rows(page)).to_contain_text(receipt.message_id)
        panel(page).get_by_label("Message id, or unique key").fill("0" * 32)
        panel(page).get_by_role("button", name="Search").click()
        expect(page.get_by_text("there is no message")).to_be_visible()


def test_a_message_is_shown_with_its_body_groups_and_trace(page, scene):
    receipt = scene.receipts[7]
    page.goto(f"/messages/orders/{receipt.message_id}")  # by its unique id as well
    expect(page.locator("pre").first).to_contain_text('"amount": 70')
    page.get_by_role("tab", name="Hex").click()
    expect(page.locator("pre").first).to_contain_text("00000000  7b 22 6f 72")
    expect(page.get_by_text("o-7").first).to_be_visible()
    expect(page.get_by_text("consumed", exact=True).first).to_be_visible()


def test_a_trace_is_drawn_as_a_timeline(page, scene):
    """Clients tell what they traced some seconds later."""
    for _ in range(20):
        page.goto(f"/messages/orders/{scene.receipts[7].offset_message_id}")
        expect(page.get_by_text("No trace of it").or_(page.locator("[data-timeline]"))).to_be_visible()
        if page.locator("[data-timeline] .k-subscribed").count():
            break
        page.wait_for_timeout(500)
    timeline = page.locator("[data-timeline]")
    expect(timeline).to_contain_text("sent")
    expect(timeline).to_contain_text("shop")
    expect(timeline).to_contain_text("billing")
    expect(timeline.locator(".k-span")).to_have_count(3)


def test_a_compressed_body_is_shown_as_it_was_sent(page, scene):
    async def send() -> str:
        async with Producer(scene.cluster.namesrv, group="big") as producer:
            receipt = await producer.send(Message("later", b"many words " * 10_000))
            return str(receipt.offset_message_id)

    page.goto(f"/messages/later/{scene.run(send())}")
    expect(page.locator("pre").first).to_contain_text("many words many words")
    expect(page.get_by_text("107.4 KiB")).to_be_visible()
    expect(page.get_by_text("The first 64.0 KiB")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download").click()
    assert Path(download.value.path()).read_bytes() == b"many words " * 10_000


def test_a_message_is_sent_again(page, scene):
    receipt = scene.receipts[0]
    page.goto(f"/messages/orders/{receipt.offset_message_id}")
    page.get_by_role("button", name="Send again").click()
    dialog(page).get_by_role("button", name="Send").click()
    expect(heading(page)).not_to_have_text(receipt.offset_message_id)
    expect(page.locator("pre").first).to_contain_text('"amount": 0')


def test_a_message_is_consumed_directly(page, scene):
    page.goto(f"/messages/orders/{scene.receipts[2].offset_message_id}")
    page.get_by_role("button", name="Consume directly").click()
    dialog(page).get_by_role("button", name="Consume directly").click()
    expect(dialog(page).get_by_text("CR_SUCCESS")).to_be_visible()


def test_dead_letters_are_looked_at_exported_and_sent_again(page):
    page.goto("/dlq")
    page.get_by_role("link", name="billing").click()
    expect(heading(page)).to_have_text("billing")
    letters = rows(page).filter(has_text="dead-1")
    expect(letters.first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export JSON").click()
    lines = Path(download.value.path()).read_text().splitlines()
    assert json.loads(lines[0])["properties"]["KEYS"] == "dead-1"
    assert bytes.fromhex(json.loads(lines[0])["bodyHex"]) == b"\x00\x01\xff binary"

    before = len(lines)
    letters.first.get_by_role("checkbox").click()
    page.get_by_role("button", name="Send again").click()
    expect(dialog(page).get_by_text("1 messages go to group billing again")).to_be_visible()
    dialog(page).get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert").filter(has_text="1 messages are sent").first).to_be_visible()
    for _ in range(200):  # the consumer refuses it again
        page.reload()
        expect(letters.first).to_be_visible()
        if letters.count() > before:
            break
        page.wait_for_timeout(250)
    assert letters.count() == before + 1


@pytest.mark.parametrize(
    ("tab", "topic", "body"),
    [
        ("Delayed by level", "later", "by level"),
        ("Timers", "later", "by timer"),
        ("Half messages", "transfers", "half"),
    ],
)
def test_what_waits_is_shown(page, tab, topic, body):
    page.goto("/waiting")
    page.get_by_role("tab", name=tab).click()
    row = page.locator(".k-table tbody tr").filter(has_text=body)
    expect(row).to_contain_text(topic)
    row.get_by_role("link").click()
    expect(page.locator("pre").first).to_contain_text(body)


def test_producers_and_consumers_are_shown(page):
    page.goto("/clients")
    shop = rows(page).filter(has=page.get_by_text("shop", exact=True))
    expect(shop).to_contain_text("broker-a, broker-b")
    page.get_by_role("tab", name="Consumers").click()
    expect(rows(page).filter(has_text="billing")).to_contain_text("orders")


# Bodies


def test_a_body_is_shown_in_the_forms_that_it_has():
    assert list(body_forms(b'{"a": [1, 2]}')) == ["json", "text", "hex"]
    assert body_forms(b'{"a":1}')["json"] == '{\n  "a": 1\n}'
    assert list(body_forms("héllo, 世界".encode())) == ["text", "hex"]
    assert list(body_forms(b"\x00\xff")) == ["hex"]
    assert list(body_forms(b"5")) == ["text", "hex"]
    assert body_forms(b"AB\x00")["hex"] == f"00000000  {'41 42 00':<47}  AB."


def test_the_beginning_of_a_body_is_one_line():
    assert preview(b"one\ntwo") == "one two"
    assert preview(b"\x00\x01\x02") == "00 01 02"
    assert preview("世".encode() * 100).endswith("…")
    assert preview(b"") == ""
