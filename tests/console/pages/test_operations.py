"""What an operator does in the console: topics, groups, brokers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kourou.admin import Admin
from kourou.client import Message
from support.browser import Page, expect


@pytest.fixture
def ask(scene) -> Callable[[Callable[[Admin], Awaitable[Any]]], Any]:
    """`ask(lambda admin: …)`: what the cluster says, without the console."""

    async def run(work: Callable[[Admin], Awaitable[Any]]) -> Any:
        async with Admin(scene.cluster.namesrv) as admin:
            return await work(admin)

    return lambda work: scene.run(run(work))


def heading(page: Page):
    return page.get_by_role("heading", level=1)


def dialog(page: Page):
    return page.get_by_role("dialog").last


def choose(page: Page, label: str, option: str) -> None:
    """Choose in a list."""
    dialog(page).get_by_role("combobox", name=label).click()
    page.get_by_role("option", name=option, exact=True).click()


def tell(page: Page, text: str) -> None:
    """Something was said at the bottom of the page."""
    expect(page.get_by_role("alert").filter(has_text=text).first).to_be_visible()


# Topics


def test_a_topic_is_created_changed_and_deleted(page, ask):
    page.goto("/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog(page).get_by_label("Name").fill("made-here")
    choose(page, "Message type", "FIFO")
    dialog(page).get_by_label("Queues on each broker").fill("3")
    dialog(page).get_by_role("button", name="Create").click()
    expect(heading(page)).to_have_text("made-here")
    expect(page.locator("[data-stat=queues]")).to_have_text("6")
    configs = ask(lambda admin: admin.topics.config("made-here"))
    assert {name: config.write_queue_nums for name, config in configs.items()} == {
        "broker-a": 3,
        "broker-b": 3,
    }
    assert configs["broker-a"].attributes["message.type"] == "FIFO"

    page.get_by_role("button", name="More").click()
    page.get_by_role("menu").get_by_text("Edit topic").click()
    dialog(page).get_by_label("Write queues").fill("5")
    choose(page, "Permission", "read")
    dialog(page).get_by_role("button", name="Save").click()
    expect(page.locator("[data-stat=queues]")).to_have_text("10")
    configs = ask(lambda admin: admin.topics.config("made-here"))
    assert {(one.write_queue_nums, one.read_queue_nums, one.perm) for one in configs.values()} == {(5, 3, 4)}
    assert configs["broker-a"].attributes["message.type"] == "FIFO"

    page.get_by_role("button", name="More").click()
    page.get_by_role("menu").get_by_text("Delete topic").click()
    delete = dialog(page).get_by_role("button", name="Delete")
    dialog(page).get_by_label("Name").fill("made-her")
    expect(delete).to_be_disabled()
    dialog(page).get_by_label("Name").fill("made-here")
    delete.click()
    expect(heading(page)).to_have_text("Topics")
    assert "made-here" not in ask(lambda admin: admin.topics.names())
    expect(page.get_by_role("link", name="made-here")).to_have_count(0)


def test_topics_are_listed_by_kind(page):
    page.goto("/topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="%RETRY%billing")).to_have_count(0)
    page.get_by_label("Kinds").click()
    for kind in ("retry", "dead letters", "system"):
        page.get_by_role("option", name=kind).click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("option")).to_have_count(0)  # or the next click would only close the list
    expect(page.get_by_role("link", name="%RETRY%billing")).to_be_visible()
    expect(page.get_by_role("link", name="SCHEDULE_TOPIC_XXXX")).to_be_visible()
    page.get_by_role("link", name="%DLQ%billing").click()
    expect(heading(page)).to_have_text("%DLQ%billing")
    page.wait_for_url("**/topics/~DLQ~billing")  # the address follows the page
    page.reload()
    expect(heading(page)).to_have_text("%DLQ%billing")


def test_a_topic_shows_its_queues_route_consumers_and_settings(page, scene):
    page.goto("/topics/orders")
    expect(page.locator("[data-stat=groups]")).to_have_text("1")
    expect(page.get_by_role("columnheader", name="End offset")).to_be_visible()
    page.get_by_role("tab", name="Route").click()
    expect(page.get_by_text(scene.cluster.slave_addresses[0])).to_be_visible()
    page.get_by_role("tab", name="Consumers").click()
    expect(page.get_by_role("link", name="billing")).to_be_visible()
    page.get_by_role("tab", name="Settings").click()
    expect(page.get_by_role("columnheader", name="Attributes")).to_be_visible()


def test_a_topic_that_is_not_there_says_what_to_do(page):
    page.goto("/topics/missing")
    expect(page.get_by_text("no name server knows topic missing").first).to_be_visible()
    expect(page.get_by_role("button", name="Try again").first).to_be_visible()


def test_a_message_is_sent(page):
    page.goto("/topics/payments")
    page.get_by_role("button", name="Send").click()
    dialog(page).get_by_label("Body").fill('{"sent": "here"}')
    dialog(page).get_by_label("Tag").fill("test")
    dialog(page).get_by_label("Keys, with spaces").fill("k-1")
    dialog(page).get_by_label("Properties, a NAME=VALUE a line").fill("no pair")
    dialog(page).get_by_role("button", name="Send").click()
    tell(page, "is no NAME=VALUE")
    dialog(page).get_by_label("Properties, a NAME=VALUE a line").fill("color=red")
    dialog(page).get_by_role("button", name="Send").click()
    expect(page.get_by_text('"sent": "here"')).to_be_visible()
    expect(page.get_by_text("color", exact=True)).to_be_visible()
    expect(page.get_by_text("k-1").first).to_be_visible()


# Groups


def test_a_group_shows_its_progress_clients_and_what_they_do(page):
    page.goto("/groups")
    expect(page.get_by_text("online", exact=True)).to_be_visible()
    page.get_by_role("link", name="billing", exact=True).click()
    expect(heading(page)).to_have_text("billing")
    expect(page.locator("[data-stat=clients]")).to_have_text("1")
    expect(page.get_by_role("columnheader", name="In flight")).to_be_visible()
    page.get_by_role("tab", name="POP").click()
    expect(page.get_by_role("columnheader", name="Waiting polls")).to_be_visible()
    page.get_by_role("tab", name="Clients").click()
    expect(page.get_by_text("CONSUME_PASSIVELY")).to_be_visible()
    page.get_by_role("button", name="Running info").click()
    expect(dialog(page).get_by_text("broker-a").first).to_be_visible()
    dialog(page).get_by_role("tab", name="Threads").click()
    expect(dialog(page).locator("pre")).to_contain_text("asyncio")
    dialog(page).get_by_role("tab", name="Speed").click()
    expect(dialog(page).get_by_text("orders")).to_be_visible()
    dialog(page).get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.fixture
def idle_group(ask, scene) -> str:
    """A group whose clients are not online, at the beginning of topic payments."""

    async def make(admin: Admin) -> None:
        await admin.groups.create("idle")
        async with admin.messages.producer() as producer:
            await producer.send(Message("payments", b"one more"))
        await admin.offsets.reset("idle", "payments", 0)

    ask(make)
    return "idle"


def lag(ask, group: str) -> int:
    return int(ask(lambda admin: admin.groups.progress(group)).lag)


def test_offsets_are_reset_skipped_and_cloned(page, ask, idle_group):
    assert lag(ask, idle_group) > 0
    page.goto(f"/groups/{idle_group}")
    page.get_by_role("button", name="Offsets").click()
    page.get_by_role("menu").get_by_text("Skip accumulated messages").click()
    dialog(page).get_by_role("button", name="Skip").click()
    tell(page, "behind the last message")
    expect(dialog(page).get_by_text("New offsets")).to_be_visible()
    dialog(page).get_by_role("button", name="Close").click()
    assert lag(ask, idle_group) == 0
    expect(page.locator("[data-stat=lag]")).to_have_text("0")

    page.get_by_role("button", name="Offsets").click()
    page.get_by_role("menu").get_by_text("Reset offsets by time").click()
    dialog(page).get_by_label("Time").fill("2020-01-01T00:00")
    dialog(page).get_by_role("button", name="Reset").click()
    tell(page, "The offsets are reset")
    dialog(page).get_by_role("button", name="Close").click()
    behind = lag(ask, idle_group)
    assert behind > 0

    ask(lambda admin: admin.groups.create("twin"))
    page.goto("/groups/twin")
    expect(heading(page)).to_have_text("twin")
    expect(page.get_by_text("It has consumed nothing yet")).to_be_visible()
    page.get_by_role("button", name="Offsets").click()
    page.get_by_role("menu").get_by_text("Clone offsets").click()
    dialog(page).get_by_label("Group to copy from").fill("idle")
    page.get_by_role("option", name="idle").click()
    dialog(page).get_by_role("button", name="Clone").click()
    tell(page, "The offsets are cloned")
    assert lag(ask, "twin") == behind


def test_a_group_is_created_changed_and_deleted(page, ask):
    page.goto("/groups")
    page.get_by_role("button", name="Create group").click()
    dialog(page).get_by_label("Name").fill("made-group")
    dialog(page).get_by_label("Retries before dead letter").fill("7")
    dialog(page).get_by_role("button", name="Save").click()
    expect(heading(page)).to_have_text("made-group")
    assert ask(lambda admin: admin.groups.config("made-group"))["broker-b"]["retryMaxTimes"] == 7

    page.get_by_role("tab", name="Settings").click()
    page.get_by_role("button", name="Edit group").click()
    dialog(page).get_by_text("It may consume").click()
    dialog(page).get_by_role("button", name="Save").click()
    # It closes when it is done; what was said when the group was created is still to be seen.
    expect(page.get_by_role("dialog")).to_have_count(0)
    config = ask(lambda admin: admin.groups.config("made-group"))["broker-a"]
    assert (config["retryMaxTimes"], config["consumeEnable"]) == (7, False)

    page.get_by_role("button", name="More").click()
    page.get_by_role("menu").get_by_text("Delete group").click()
    dialog(page).get_by_label("Name").fill("made-group")
    dialog(page).get_by_role("button", name="Delete").click()
    expect(heading(page)).to_have_text("Consumer groups")
    assert ask(lambda admin: admin.groups.config("made-group")) == {}


# Brokers


def test_a_broker_shows_its_figures_and_its_configuration_is_changed(page, ask, scene):
    address = scene.cluster.broker_addresses[0]
    page.goto("/cluster")
    expect(page.get_by_text(scene.cluster.namesrv)).to_be_visible()
    page.get_by_role("row").filter(has_text=address).get_by_role("link").click()
    expect(heading(page)).to_have_text("broker-a")
    expect(page.get_by_text("putTps", exact=True)).to_be_visible()
    page.get_by_role("tab", name="Configuration").click()
    page.get_by_role("tabpanel").get_by_label("Filter").fill("fileReservedTime")
    page.get_by_role("row").filter(has_text="fileReservedTime").get_by_role("button", name="Edit").click()
    dialog(page).get_by_label("Value").fill("25")
    dialog(page).get_by_role("button", name="Save").click()
    tell(page, "fileReservedTime is changed")
    assert ask(lambda admin: admin.brokers.config(address))["fileReservedTime"] == "25"


def test_a_key_that_cannot_be_changed_says_so(page, scene):
    page.goto(f"/brokers/{scene.cluster.broker_addresses[0]}")
    page.get_by_role("tab", name="Configuration").click()
    page.get_by_role("tabpanel").get_by_label("Filter").fill("maxMessageSize")
    page.get_by_role("row").filter(has_text="maxMessageSize").get_by_role("button", name="Edit").click()
    dialog(page).get_by_label("Value").fill("many")
    dialog(page).get_by_role("button", name="Save").click()
    tell(page, "maxMessageSize")
    expect(dialog(page)).to_be_visible()


def test_replication_and_maintenance(page, ask, scene):
    page.goto(f"/brokers/{scene.cluster.broker_addresses[0]}")
    page.get_by_role("tab", name="Replication").click()
    expect(page.get_by_text("Bytes behind")).to_be_visible()
    expect(page.get_by_text(re.compile("in sync|behind")).first).to_be_visible()
    page.get_by_role("button", name="Maintenance").click()
    page.get_by_role("menu").get_by_text("Remove empty queues").click()
    tell(page, "cleans up")
    page.goto(f"/brokers/{scene.cluster.slave_addresses[0]}")
    expect(page.get_by_text("slave 1")).to_be_visible()
    page.get_by_role("tab", name="Replication").click()
    expect(page.get_by_text("This slave")).to_be_visible()


def test_writes_are_stopped_before_a_broker_is_shut_down(page, ask, scene):
    def permissions() -> dict[str, int]:
        return {one.broker_name: one.perm for one in ask(lambda admin: admin.topics.route("transfers"))}

    page.goto(f"/brokers/{scene.cluster.broker_addresses[1]}")
    page.get_by_role("button", name="Maintenance").click()
    page.get_by_role("menu").get_by_text("Stop writes").click()
    tell(page, "Nothing new is sent")
    assert permissions() == {"broker-a": 6, "broker-b": 4}
    page.get_by_role("button", name="Maintenance").click()
    page.get_by_role("menu").get_by_text("Allow writes again").click()
    tell(page, "sent to again")
    assert permissions() == {"broker-a": 6, "broker-b": 6}
