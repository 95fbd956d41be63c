"""Send orders, and bill those that are paid: a producer, and a consumer that filters by tag.

python examples/clients/orders.py [NAMESRV]
"""

from __future__ import annotations

import json

from common import run

from kourou.client import Consumer, Message, Producer


async def main(namesrv: str) -> None:
    async with Producer(namesrv, group="shop") as producer:
        for number in range(10):
            order = {"id": number, "amount": number * 10}
            message = Message(
                "orders",
                json.dumps(order).encode(),
                tags="paid" if number % 2 else "open",
                keys=[f"order-{number}"],
            )
            receipt = await producer.send(message)
            print(f"order {number} is in {receipt.queue.broker_name}, queue {receipt.queue.queue_id}")

    async with Consumer(
        namesrv, group="billing", subscribe={"orders": "paid"}, consume_from="first"
    ) as consumer:
        billed = 0
        async for order_message in consumer:  # consumed when the next one is asked for
            print("billing", json.loads(bytes(order_message.body)))
            billed += 1
            if billed == 5:
                await consumer.acknowledge()  # the last one too
                break


if __name__ == "__main__":
    run(main)
