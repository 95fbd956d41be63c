"""A handler that fails now and then: its messages come again; those that never succeed become dead letters.

python examples/clients/handler.py [NAMESRV]
"""

from __future__ import annotations

import asyncio

from common import run

from kourou.client import ConsumeEvent, Consumer, Message, Producer, ReceivedMessage, ReconsumeLater


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        for number in range(6):
            await producer.send(Message("orders", b"order %d" % number))

    settled = asyncio.Event()
    done: set[bytes] = set()

    def measure(event: ConsumeEvent) -> None:  # for your metrics
        print(f"  {event.count} of {event.queue.topic} in {event.seconds * 1000:.1f} ms: {event.is_success}")

    consumer = Consumer(
        namesrv, group="workers", subscribe="orders", consume_from="first", concurrency=4, on_consume=measure
    )

    @consumer.handler
    async def handle(message: ReceivedMessage) -> None:
        body = bytes(message.body)
        if body == b"order 3" and message.reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)  # or any other exception
        print(f"{body.decode()} done, at try {message.reconsume_times + 1}")
        done.add(body)
        if len(done) == 6:
            settled.set()

    async with consumer:
        await settled.wait()


if __name__ == "__main__":
    run(main)
