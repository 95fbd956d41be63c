"""The main pages against a cluster of Java's own servers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from kourou.client import Consumer, Message, Producer
from support.browser import expect
from support.java import java
from support.sites.servers import java_broker, java_name_server

pytestmark = pytest.mark.interop

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


class Clients:
    """A producer and a consumer."""

    def __init__(self, namesrv: str) -> None:
        self.producer = Producer(namesrv, group="shop")
        self.consumer = Consumer(namesrv, group="billing", subscribe="orders", consume_from="first")

    async def start(self) -> str:
        await self.producer.__aenter__()
        message = Message("orders", b'{"order": 1}', tags="paid", keys=["o-1"])
        receipt = await self.producer.send(message)
        await self.producer.send(Message("orders", b"later", delay_level=18))
        await self.consumer.__aenter__()
        await anext(aiter(self.consumer))
        await self.consumer.acknowledge()
        await self.consumer.commit()
        return str(receipt.offset_message_id)

    async def stop(self) -> None:
        await self.consumer.close()
        await self.producer.__aexit__()


def test_the_main_pages_show_a_cluster_of_java(open_context, start_console, make_loop, tmp_path):
    java()
    with ExitStack() as stack:
        name_server = stack.enter_context(java_name_server(tmp_path))
        broker = stack.enter_context(java_broker(tmp_path, name_server.port))
        loop = make_loop()
        clients = Clients(name_server.address)
        stack.callback(lambda: loop.run(clients.stop()))
        message = loop.run(clients.start())
        console = stack.enter_context(start_console("-n", name_server.address))
        page = open_context(console.url).new_page()

        page.goto("/")
        expect(page.locator("[data-stat=brokers]")).to_have_text("1 / 1")
        expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / "java-overview.png", full_page=True)

        page.goto(f"/brokers/{broker.address}")
        expect(page.get_by_text("putTps", exact=True)).to_be_visible()
        page.get_by_role("tab", name="Configuration").click()
        expect(page.get_by_text("brokerClusterName", exact=True)).to_be_visible()

        page.goto("/topics/orders")
        expect(page.get_by_role("columnheader", name="End offset")).to_be_visible()
        expect(page.locator("[data-stat=messages]")).to_have_text("1")

        page.goto("/groups/billing")
        expect(page.locator("[data-stat=clients]")).to_have_text("1")
        page.get_by_role("tab", name="Clients").click()
        expect(page.get_by_text("CONSUME_PASSIVELY")).to_be_visible()

        page.goto("/messages?topic=orders&key=o-1")
        expect(page.locator(".k-table tbody tr")).to_have_count(1)
        page.goto(f"/messages/orders/{message}")
        expect(page.locator("pre").first).to_contain_text('"order": 1')
        expect(page.get_by_text("Who has consumed it")).to_be_visible()

        page.goto("/waiting")
        expect(page.locator(".k-table tbody").last).to_contain_text("orders")
        page.goto("/clients")
        expect(page.get_by_text("shop", exact=True)).to_be_visible()

        page.goto("/topics")
        page.get_by_role("button", name="Create topic").click()
        page.get_by_role("dialog").get_by_label("Name").fill("made-here")
        page.get_by_role("dialog").get_by_role("button", name="Create").click()
        expect(page.locator("[data-stat=queues]")).to_have_text("8")
        page.get_by_role("button", name="Send").click()
        page.get_by_role("dialog").get_by_label("Body").fill("from the console")
        page.get_by_role("dialog").get_by_role("button", name="Send").click()
        expect(page.locator("pre").first).to_contain_text("from the console")
