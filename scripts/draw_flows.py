"""Draw a message that fails, a transaction, and the queues of a group: docs/images/flow-*.svg.

    python scripts/draw_flows.py [DIRECTORY]

A cluster runs in this process, real clients fail and commit, and what the broker has stored is drawn in the
order of its log. The shares of a group come from the strategy that consumers use.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from draw_store import IMAGES, MARGIN, ROOM, Placed, Svg, records
from kourou.client import Consumer, Message, Producer, ReceivedMessage, TransactionState
from kourou.client.consume.strategies import AVERAGE
from kourou.inspect import StoreDirectory
from kourou.message.model import MessageQueue
from kourou.message.topics import SCHEDULE_TOPIC, TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from kourou.testing import Cluster

LANE_LABEL = 230
LANE, BOX, GAP = 74, 44, 12
RETRY, DEAD = "%RETRY%billing", "%DLQ%billing"
PEOPLE = ["#8ecae6", "#ffd6a5", "#b7e4c7"]
QUEUES = [MessageQueue("orders", f"broker-{name}", number) for name in "ab" for number in range(4)]


async def fail_and_retry(namesrv: str) -> None:
    """Two orders; the handler of the second always fails, and is tried twice more."""
    consumer = Consumer(
        namesrv, group="billing", subscribe="orders", consume_from="first", max_reconsume_times=2
    )
    failed = 0

    @consumer.handler
    async def bill(message: ReceivedMessage) -> None:
        nonlocal failed
        if bytes(message.body) == b"order-2":
            failed += 1
            raise ValueError("no such customer")

    async with Producer(namesrv, group="shop") as producer, consumer:
        for number in (1, 2):
            await producer.send(Message("orders", b"order-%d" % number), select=lambda queues: queues[0])
        while failed < 3:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)  # the last one is sent back


async def three_transactions(namesrv: str) -> None:
    """One that is committed, one that is rolled back, and one that the broker has to ask for."""
    outcomes = {
        b"order-1": TransactionState.COMMIT,
        b"order-2": TransactionState.ROLLBACK,
        b"order-3": TransactionState.UNKNOWN,
    }
    asked = asyncio.Event()

    def check(message: ReceivedMessage) -> TransactionState:
        asked.set()
        return TransactionState.COMMIT

    async with Producer(namesrv, group="shop-transactions", checker=check) as producer:
        for body in outcomes:
            await producer.send_in_transaction(
                Message("orders", body), lambda message: outcomes[bytes(message.body)]
            )
            await asyncio.sleep(0.5)  # each outcome is noted by itself
        await asked.wait()
        await asyncio.sleep(0.5)


def stored(config: Mapping[str, str], work: Callable[[str], Coroutine[Any, Any, None]]) -> list[Placed]:
    """The records of a broker after some work, in the order of its log."""
    with tempfile.TemporaryDirectory() as directory:
        with Cluster(config=config, directory=directory) as cluster:
            cluster.create_topic("orders", queues=1)
            asyncio.run(work(cluster.namesrv))
        with StoreDirectory.open(Path(directory) / "broker-a") as store:
            return records(store)[0]


class Lanes:
    """A picture with a lane for each topic, in which records lie from left to right, as in the log."""

    def __init__(self, title: str, lanes: Mapping[str, tuple[str, str]], found: list[Placed]) -> None:
        self.svg = Svg(title)
        self.found = [one for one in found if one.message.topic in lanes]
        self._tops: dict[str, float] = {}
        self._width = (ROOM - LANE_LABEL) / len(self.found)
        y = float(MARGIN)
        for topic, (color, what) in lanes.items():
            self._tops[topic] = y
            self.svg.box(MARGIN, y, ROOM, BOX, "#f6f6f3")
            self.svg.text(MARGIN + 8, y + 19, topic, size=11, bold=True)
            self.svg.text(MARGIN + 8, y + 35, what, size=11)
            for number, one in enumerate(self.found):
                if one.message.topic == topic:
                    self.svg.box(self._left(number), y, self._width - GAP, BOX, color)
            y += LANE

    def _left(self, number: int) -> float:
        return MARGIN + LANE_LABEL + number * self._width + 6

    def write(self, number: int, *lines: str) -> None:
        """Text in the box of a record."""
        x, y = self._left(number) + (self._width - GAP) / 2, self._tops[self.found[number].message.topic]
        for line, text in enumerate(lines):
            self.svg.text(x, y + 19 + 16 * line, text, anchor="middle", size=11, bold=line == 0)

    def lead(self, start: int, end: int) -> None:
        """An arrow from one record to another."""
        first, second = (self._tops[self.found[number].message.topic] for number in (start, end))
        down = second > first
        self.svg.arrow(
            self._left(start) + (self._width - GAP) / 2,
            first + (BOX if down else 0),
            self._left(end) + (self._width - GAP) / 2 - (8 if end - start > 1 else 0),
            second + (0 if down else BOX),
        )

    def say(self, *lines: str) -> Svg:
        """Text below the lanes; the picture is done."""
        y = self.svg.height + 26
        for line, text in enumerate(lines):
            self.svg.text(MARGIN, y + 18 * line, text)
        return self.svg


def draw_retry() -> Svg:
    """A message that fails three times."""
    lanes = {
        "orders": ("#8ecae6", "what was sent"),
        SCHEDULE_TOPIC: ("#e9c46a", "waits until its time has come"),
        RETRY: ("#ffd6a5", "comes to the group again"),
        DEAD: ("#f4a6a6", "nobody consumes it"),
    }
    config = {"messageDelayLevel": "1s 1s 1s 1s 1s"}  # 10 s, 30 s, 1 min … by default
    title = "A message whose handler fails: retries and the dead letter"
    picture = Lanes(title, lanes, stored(config, fail_and_retry))
    failing = [number for number, one in enumerate(picture.found) if bytes(one.message.body) == b"order-2"]
    for number, one in enumerate(picture.found):
        message, name = one.message, bytes(one.message.body).decode()
        kind = {
            "orders": "is consumed" if number not in failing else "fails",
            SCHEDULE_TOPIC: f"level {message.properties.get('DELAY')}",
            RETRY: f"retry {message.reconsume_times}: fails",
            DEAD: f"after {message.reconsume_times - 1} retries",
        }[message.topic]
        picture.write(number, name, kind)
    for start, end in pairwise(failing):
        picture.lead(start, end)
    return picture.say(
        "From left to right as in the broker's log. Each retry waits a level longer (10 s, 30 s, 1 min …),",
        "16 times by default. The last two topics are those of the group: others see nothing of it.",
    )


def draw_transaction() -> Svg:
    """Half messages, what became of them, and the notes about it."""
    lanes = {
        "orders": ("#8ecae6", "what consumers see"),
        TRANS_HALF_TOPIC: ("#ffd6a5", "halves: seen by nobody"),
        TRANS_OP_HALF_TOPIC: ("#b7e4c7", "notes: this half is decided"),
    }
    config = {
        "transactionTimeOut": "1000", "transactionCheckInterval": "1000", "transactionOpBatchInterval": "50",
    }  # fmt: skip
    title = "Three transactions: committed, rolled back, and asked for"
    picture = Lanes(title, lanes, stored(config, three_transactions))
    halves: dict[int, int] = {}  # by their offset in the queue
    at: dict[int, int] = {}  # by their place in the log
    for number, one in enumerate(picture.found):
        message, body = one.message, bytes(one.message.body)
        if message.topic == TRANS_HALF_TOPIC:
            halves[message.queue_offset], at[one.offset] = number, number
            again = "TRANSACTION_CHECK_TIMES" in message.properties
            picture.write(number, body.decode(), "asked for" if again else "half")
        elif message.topic == TRANS_OP_HALF_TOPIC:
            offsets = [int(offset) for offset in body.decode().strip(",").split(",")]
            picture.write(number, "half " + ", ".join(map(str, offsets)))
            for offset in offsets:
                picture.lead(halves[offset], number)
        else:
            picture.write(number, body.decode(), "committed")
            picture.lead(at[message.prepared_transaction_offset], number)
    return picture.say(
        "order-1 is committed: it is stored again under its own topic.",
        "order-2 is rolled back: a note, and no consumer ever sees it.",
        "Of order-3 the broker heard nothing. After a while it stores the half anew and asks the producer.",
    )


def draw_group() -> Svg:
    """The queues of a topic, shared by one, two and three consumers."""
    svg = Svg("The queues of a topic, shared by the consumers of a group")
    y, width = MARGIN + 30.0, (ROOM - LANE_LABEL) / len(QUEUES)
    for number, queue in enumerate(QUEUES):
        x = MARGIN + LANE_LABEL + number * width + width / 2
        svg.text(x, y - 22, queue.broker_name, anchor="middle", size=11)
        svg.text(x, y - 8, f"queue {queue.queue_id}", anchor="middle", size=11)
    for count, label in ((1, "one consumer has all"), (2, "a second one joins"), (3, "and a third")):
        names = [f"consumer {number}" for number in range(1, count + 1)]
        svg.text(MARGIN, y + 26, label, bold=True)
        for person, name in enumerate(names):
            for queue in AVERAGE("billing", name, QUEUES, names):
                x = MARGIN + LANE_LABEL + QUEUES.index(queue) * width
                svg.box(x, y, width - 4, BOX, PEOPLE[person], name)
        y += LANE - 14
    for line, text in enumerate(
        (
            "Each consumer works out its own share from the same list: nobody hands out queues.",
            "A queue has one consumer of a group at a time, so its messages keep their order.",
            "More consumers than queues leave some idle.",
            "Another group has its own offsets, and shares the same queues in its own way.",
        )
    ):
        svg.text(MARGIN, y + 14 + 18 * line, text)
    return svg


def main() -> None:
    """Draw."""
    logging.disable()  # handlers fail here on purpose
    images = Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES
    images.mkdir(parents=True, exist_ok=True)
    pictures = {"retry": draw_retry(), "transaction": draw_transaction(), "group": draw_group()}
    for name, svg in pictures.items():
        (images / f"flow-{name}.svg").write_text(str(svg), encoding="utf-8")


if __name__ == "__main__":
    main()
