"""Take docs/images/console.png: the console's overview of a small cluster that works.

    python scripts/make_screenshot.py [FILE]

A cluster with two brokers runs in this process, producers send and groups consume, and Chromium looks at
the console once its charts have something to show. It needs the extras `console` and `dev`, and Chromium.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.async_api import async_playwright

from kourou.client import Consumer, Message, Producer
from kourou.testing import Cluster

IMAGE = Path(__file__).resolve().parent.parent / "docs" / "images" / "console.png"
TOPICS = {"orders": 120, "payments": 80, "shipments": 40, "invoices": 25}  # messages a second
WORK_S = 75  # the console asks every few seconds: its charts need some
START_S = 60


async def produce(producer: Producer, topic: str, rate: int) -> None:
    """Send at a rate, in small bursts."""
    number = 0
    while True:
        for _ in range(max(rate // 10, 1)):
            await producer.send(Message(topic, b"x" * 200, tags="paid", keys=[f"{topic}-{number}"]))
            number += 1
        await asyncio.sleep(0.1)


async def consume(consumer: Consumer, pause_s: float) -> None:
    """Consume, some of it slower than it comes."""
    async for _ in consumer:
        if pause_s:
            await asyncio.sleep(pause_s)


async def work(namesrv: str, url: str, image: Path) -> None:
    """Producers and consumers, and a look at the console."""
    async with asyncio.TaskGroup() as tasks:
        producer = Producer(namesrv, group="shop")
        groups = [
            Consumer(namesrv, group="billing", subscribe="orders", consume_from="first"),
            Consumer(namesrv, group="accounting", subscribe="payments", consume_from="first"),
            Consumer(namesrv, group="reports", subscribe="orders", consume_from="first"),
        ]
        async with producer, groups[0], groups[1], groups[2]:
            running = [tasks.create_task(produce(producer, *one)) for one in TOPICS.items()]
            running += [
                tasks.create_task(consume(group, pause)) for group, pause in zip(groups, (0, 0, 0.02))
            ]
            await asyncio.sleep(WORK_S)
            await look(url, image)
            for task in running:
                task.cancel()


async def look(url: str, image: Path) -> None:
    """The screenshot."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = await browser.new_page(viewport={"width": 1280, "height": 860})
        await page.goto(url)
        await page.get_by_text("orders").first.wait_for()
        await page.wait_for_timeout(6000)  # one more round of the console's questions
        await page.screenshot(path=image)
        await browser.close()


def main() -> None:
    """Run everything."""
    image = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGE
    with Cluster(brokers=2) as cluster:
        for topic in TOPICS:
            cluster.create_topic(topic)
        command = [sys.executable, "-m", "kourou", "console", "-n", cluster.namesrv, "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as console:
            try:
                assert console.stdout is not None
                found = re.search(r"http://\S+", console.stdout.readline())
                assert found, "the console did not start"
                asyncio.run(work(cluster.namesrv, found[0], image))
            finally:
                console.terminate()
                console.wait(START_S)


if __name__ == "__main__":
    main()
