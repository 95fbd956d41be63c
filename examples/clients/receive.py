"""Messages that are received and acknowledged one by one, by workers that share no queues (POP).

python examples/clients/receive.py [NAMESRV]
"""

from __future__ import annotations

from common import run

from kourou.client import Message, Producer, SimpleConsumer


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        for number in range(6):
            await producer.send(Message("orders", b"order %d" % number))

    async with SimpleConsumer(namesrv, group="packing", subscribe="orders", consume_from="first") as consumer:
        done: set[bytes] = set()
        while len(done) < 6:
            for message in await consumer.receive(max_messages=4, invisible_s=30):
                body = bytes(message.body)
                if body == b"order 3" and message.delivery_attempt == 1:
                    await consumer.change_invisible(message, 1)  # not now: in a second
                    continue
                print(f"{body.decode()} done, at attempt {message.delivery_attempt}")
                await consumer.ack(message)
                done.add(body)


if __name__ == "__main__":
    run(main)
