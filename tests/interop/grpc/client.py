"""RocketMQ 5's official Python client: each kind of message, sent and received. Prints one line of JSON.

python client.py host:port step [access-key secret-key]
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

COUNT = 20
DEADLINE_S = 120
INVISIBLE_S = 10


def configuration() -> ClientConfiguration:
    return ClientConfiguration(sys.argv[1], Credentials(*sys.argv[3:5]), "")


def message(topic: str, number: int, **attributes: object) -> Message:
    made = Message()
    made.topic = topic
    made.body = f"{topic} {number}".encode()
    made.tag = "odd" if number % 2 else "even"
    made.keys = f"key-{number}"
    made.add_property("number", str(number))
    made.add_property("名", "值")
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def receive(consumer: SimpleConsumer, count: int, act=None) -> list[Message]:
    """This many messages, each acknowledged unless `act` does something else with it."""
    found: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(found) < count and time.monotonic() < deadline:
        for one in consumer.receive(32, INVISIBLE_S) or []:
            found.append(one)
            (act or consumer.ack)(one)
    return found


def simple(topic: str, group: str, expression: str = "*") -> SimpleConsumer:
    consumer = SimpleConsumer(configuration(), group)
    consumer.startup()
    consumer.subscribe(topic, FilterExpression(expression))
    consumer.receive(1, INVISIBLE_S)  # the group has offsets from here
    return consumer


class Listener(MessageListener):
    def __init__(self, fails: int = 0) -> None:
        self.lock = threading.Lock()
        self.seen: Counter[str] = Counter()
        self.order: list[str] = []
        self.attempts: dict[str, int] = {}
        self.fails = fails

    def consume(self, message: Message) -> ConsumeResult:
        with self.lock:
            text = message.body.decode()
            self.seen[text] += 1
            self.order.append(text)
            self.attempts[text] = message.delivery_attempt
            return ConsumeResult.FAILURE if self.seen[text] <= self.fails else ConsumeResult.SUCCESS


def wait(condition) -> bool:
    deadline = time.monotonic() + DEADLINE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(condition())


def normal() -> dict:
    consumer = simple("normal", "g-normal", "odd")
    with_producer("normal", lambda producer: [producer.send(message("normal", n)) for n in range(COUNT)])
    found = receive(consumer, COUNT // 2)
    consumer.shutdown()
    first = min(found, key=lambda one: int(one.properties["number"]))
    return {
        "bodies": sorted(one.body.decode() for one in found),
        "properties": dict(first.properties),
        "keys": list(first.keys),
        "tag": first.tag,
        "attempt": first.delivery_attempt,
    }


def fifo() -> dict:
    listener = Listener()
    consumer = PushConsumer(configuration(), "g-fifo", listener, {"fifo": FilterExpression()})
    consumer.startup()
    with_producer(
        "fifo",
        lambda producer: [
            producer.send(message("fifo", n, message_group=f"group-{n % 2}")) for n in range(COUNT)
        ],
    )
    wait(lambda: len(listener.seen) == COUNT)
    consumer.shutdown()
    numbers = [int(text.split()[1]) for text in listener.order]
    return {"even": [n for n in numbers if n % 2 == 0], "odd": [n for n in numbers if n % 2]}


def delay() -> dict:
    consumer = simple("delay", "g-delay")
    due = int(time.time()) + 5
    handles = []

    def send(producer: Producer) -> None:
        producer.send(message("delay", 0, delivery_timestamp=due))
        late = producer.send(message("delay", 1, delivery_timestamp=due + 20))
        handles.append(late.recall_handle)
        producer.recall_message("delay", late.recall_handle)

    with_producer("delay", send)
    found = receive(consumer, 1)
    came = time.time()
    consumer.shutdown()
    return {
        "bodies": [one.body.decode() for one in found],
        "in_time": came >= due - 1,
        "has_handle": bool(handles[0]),
    }


class Checker(TransactionChecker):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def check(self, message: Message) -> int:
        self.asked.append(message.body.decode())
        return TransactionResolution.COMMIT


def transaction() -> dict:
    consumer = simple("txn", "g-txn")
    checker = Checker()
    producer = Producer(configuration(), ("txn",), checker)
    producer.startup()
    for number in range(3):
        begun = producer.begin_transaction()
        producer.send(message("txn", number), begun)
        if number == 0:
            begun.commit()
        elif number == 1:
            begun.rollback()  # the third is not ended: the broker asks
    found = receive(consumer, 2)
    producer.shutdown()
    consumer.shutdown()
    return {"bodies": sorted(one.body.decode() for one in found), "asked": sorted(set(checker.asked))}


def push() -> dict:
    listener = Listener(fails=1)
    consumer = PushConsumer(configuration(), "g-push", listener, {"push": FilterExpression()})
    consumer.startup()
    with_producer("push", lambda producer: [producer.send(message("push", n)) for n in range(3)])
    wait(lambda: len(listener.seen) == 3 and all(times >= 2 for times in listener.seen.values()))
    consumer.shutdown()
    return {"times": dict(sorted(listener.seen.items())), "attempts": sorted(listener.attempts.values())}


def invisible() -> dict:
    consumer = simple("invisible", "g-invisible")
    with_producer("invisible", lambda producer: producer.send(message("invisible", 0)))
    first = receive(consumer, 1, lambda one: consumer.change_invisible_duration(one, INVISIBLE_S))
    second = receive(consumer, 1)
    consumer.shutdown()
    return {"attempts": [first[0].delivery_attempt, second[0].delivery_attempt]}


def priority() -> dict:
    consumer = simple("ranks", "g-ranks")
    with_producer(
        "ranks", lambda producer: [producer.send(message("ranks", n, priority=n)) for n in (0, 3, 1)]
    )
    found = receive(consumer, 3)
    consumer.shutdown()
    return {"order": [(one.body.decode(), one.priority) for one in found]}


def refused() -> dict:
    errors = {}
    producer = Producer(configuration(), ("normal",))
    try:
        producer.startup()
    except Exception as error:
        return {"start": str(error)}
    for name, made in (
        ("type", message("normal", 0, message_group="g")),
        ("topic", message("nowhere", 0)),
    ):
        try:
            producer.send(made)
            errors[name] = "taken"
        except Exception as error:
            errors[name] = str(error)
    producer.shutdown()
    return errors


def with_producer(topic: str, work) -> None:
    producer = Producer(configuration(), (topic,))
    producer.startup()
    work(producer)
    producer.shutdown()


if __name__ == "__main__":
    every = (normal, fifo, delay, transaction, push, invisible, priority, refused)
    steps = {one.__name__: one for one in every}
    print(json.dumps(steps[sys.argv[2]](), ensure_ascii=True))
