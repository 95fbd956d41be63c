"""The same without an event loop: kourou.sync.

python examples/clients/plain.py [NAMESRV]
"""

from __future__ import annotations

import asyncio

from common import run

from kourou.sync import Consumer, Message, Producer


def work(namesrv: str) -> None:
    with Producer(namesrv, group="shop") as producer:
        for number in range(3):
            print(producer.send(Message("orders", b"order %d" % number)).message_id)
    with Consumer(namesrv, group="plain", subscribe="orders", consume_from="first") as consumer:
        for seen, message in enumerate(consumer, 1):
            print(bytes(message.body).decode())
            if seen == 3:
                break


async def main(namesrv: str) -> None:
    await asyncio.to_thread(work, namesrv)


if __name__ == "__main__":
    run(main)
