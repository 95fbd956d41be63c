"""The steps of each order, one after the other: a sharding key, and a consumer that keeps the order.

python examples/clients/in_order.py [NAMESRV]
"""

from __future__ import annotations

import asyncio

from common import run

from kourou.client import Consumer, Message, Producer, ReceivedMessage

STEPS = ("created", "paid", "sent")


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        for step in STEPS:
            for order in ("A", "B", "C"):
                await producer.send(Message("orders", f"{order} {step}".encode(), sharding_key=order))

    seen: dict[str, list[str]] = {}
    everything = asyncio.Event()
    consumer = Consumer(namesrv, group="states", subscribe="orders", consume_from="first", orderly=True)

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        order, step = bytes(message.body).decode().split()
        seen.setdefault(order, []).append(step)
        if sum(map(len, seen.values())) == 9:
            everything.set()

    async with consumer:
        await everything.wait()
    for order, steps in sorted(seen.items()):
        print(order, "→".join(steps))
        assert tuple(steps) == STEPS


if __name__ == "__main__":
    run(main)
