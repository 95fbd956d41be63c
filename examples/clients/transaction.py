"""A message that is seen only if the work behind it was done; the broker asks where nobody told it.

python examples/clients/transaction.py [NAMESRV]
"""

from __future__ import annotations

from common import run

from kourou.client import Consumer, Message, Producer, ReceivedMessage, TransactionState

database = {"order-2": "stored"}  # what a checker would look into


def store_order(message: Message) -> TransactionState:
    """The work: it commits, rolls back, or does not know."""
    number = bytes(message.body).decode()
    if number == "order-1":
        return TransactionState.COMMIT
    return TransactionState.UNKNOWN if number == "order-2" else TransactionState.ROLLBACK


def check_order(message: ReceivedMessage) -> TransactionState:
    """Asked by the broker, also after a crash of this program."""
    print("the broker asks for", bytes(message.body).decode())
    is_stored = bytes(message.body).decode() in database
    return TransactionState.COMMIT if is_stored else TransactionState.ROLLBACK


async def main(namesrv: str) -> None:
    async with (
        Producer(namesrv, group="shop-transactions", checker=check_order) as producer,
        Consumer(namesrv, group="shipping", subscribe="orders", consume_from="first") as consumer,
    ):
        for number in (1, 2, 3):
            await producer.send_in_transaction(Message("orders", b"order-%d" % number), store_order)
        shipped = sorted([bytes((await anext(consumer)).body).decode() for _ in range(2)])
        print("shipped", shipped)
        assert shipped == ["order-1", "order-2"]


if __name__ == "__main__":
    run(main)
