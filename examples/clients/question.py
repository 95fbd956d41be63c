"""A question and its answer through the broker, and a reminder that is taken back.

python examples/clients/question.py [NAMESRV]
"""

from __future__ import annotations

import asyncio

from common import run

from kourou.client import Consumer, Message, Producer, make_reply


async def main(namesrv: str) -> None:
    async with (
        Producer(namesrv, group="askers") as producer,
        Consumer(namesrv, group="knowers", subscribe="orders", consume_from="first") as consumer,
    ):

        async def answer() -> None:
            async for message in consumer:
                await producer.send(make_reply(message, b"42, to " + bytes(message.body)))

        answering = asyncio.create_task(answer())
        reply = await producer.request(Message("orders", b"how many?"), timeout_s=10.0)
        print(bytes(reply.body).decode())
        answering.cancel()

        later = await producer.send(Message("orders", b"reminder", delay_s=60))
        print("a reminder in a minute has the status", later.status)


if __name__ == "__main__":
    run(main)
