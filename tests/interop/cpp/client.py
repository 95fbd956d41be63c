"""What the C++ client (librocketmq, in the wheel `rocketmq`) does with a cluster, as one program.

    python client.py NAMESRV STEP

It runs with the Python of its own environment, and prints what it saw as JSON on the last line. No client is
shut down: that of a consumer ends in an abort now and then (boost::thread_interrupted), at any broker.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from rocketmq.client import Message, MessageModel, Producer, PullConsumer, PushConsumer, RecvMessage

COUNT = 30
TIMEOUT_S = 60
SUCCESS, LATER = 0, 1  # of a consumer's callback
STARTED: list[Any] = []  # to be collected means to be shut down


class Received:
    """Messages as they come to a consumer, and a wait for them."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._changed = threading.Condition()

    def add(self, message: Any) -> dict[str, Any]:
        found = {
            "body": message.body.decode(),
            "tags": (message.tags or b"").decode(),
            "keys": (message.keys or b"").decode(),
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "retries": message.reconsume_times,
            "after_ms": int(time.time() * 1000) - message.born_timestamp,
        }
        with self._changed:
            self.messages.append(found)
            self._changed.notify_all()
        return found

    def wait(self, count: int, unless: str = "") -> list[dict[str, Any]]:
        """All messages, when there are so many with another body."""
        with self._changed:
            self._changed.wait_for(
                lambda: sum(one["body"] != unless for one in self.messages) >= count, TIMEOUT_S
            )
        return self.messages

    def queues(self) -> set[int]:
        return {one["queue"] for one in self.messages}


def producer(namesrv: str, group: str) -> Producer:
    made = Producer(group, timeout=10_000)
    made.set_namesrv_addr(namesrv)
    made.start()
    STARTED.append(made)
    return made


def message(topic: str, body: str, tags: str = "A", delay_level: int = 0) -> Message:
    made = Message(topic)
    made.set_tags(tags)
    made.set_keys(f"key-{body}")
    made.set_body(body)
    if delay_level:
        made.set_delay_time_level(delay_level)
    return made


def push(
    namesrv: str,
    group: str,
    topic: str,
    expression: str = "*",
    instance: str = "one",
    orderly: bool = False,
    model: Any = MessageModel.CLUSTERING,
    answer: Callable[[dict[str, Any]], int] = lambda found: SUCCESS,
) -> Received:
    received = Received()
    consumer = PushConsumer(group, orderly=orderly, message_model=model)
    consumer.set_namesrv_addr(namesrv)
    consumer.set_instance_name(instance)
    consumer.set_message_batch_max_size(1)
    consumer.subscribe(topic, received.add, expression)
    # In place of the wrapper's callback, which cannot ask for a message again: what it raises is a success.
    consumer._register_callback(lambda _, handle: answer(received.add(RecvMessage(handle))))
    consumer.start()
    STARTED.append(consumer)
    return received


def tags(namesrv: str) -> dict[str, Any]:
    """Sends of each kind, of three tags; a consumer of two of them."""
    sender, topic = producer(namesrv, "cpp-tags-p"), "cpp-tags"
    done, failed = threading.Semaphore(0), list[Any]()
    statuses = []
    for at in range(COUNT):
        statuses.append(sender.send_sync(message(topic, f"sync-{at}", "ABC"[at % 3])).status)
    for at in range(COUNT):
        sender.send_oneway(message(topic, f"oneway-{at}", "ABC"[at % 3]))
    for at in range(COUNT):
        sender.send_async(
            message(topic, f"async-{at}", "ABC"[at % 3]), lambda _: done.release(), failed.append
        )
    answered = sum(done.acquire(timeout=TIMEOUT_S) for _ in range(COUNT))
    received = push(namesrv, "cpp-tags-c", topic, "A || B")
    received.wait(3 * COUNT * 2 // 3)
    statuses.append(sender.send_sync(message(topic, "live", "B")).status)
    found = received.wait(3 * COUNT * 2 // 3 + 1)
    return {"statuses": statuses, "async": answered, "failed": len(failed), "received": found}


def orderly(namesrv: str) -> dict[str, Any]:
    """Sends to a queue of choice, answered and one-way; a consumer that locks its queues."""
    sender, topic = producer(namesrv, "cpp-order-p"), "cpp-order"
    sender.send_orderly(message(topic, "3-0"), 3)
    for at in range(1, COUNT):
        sender.send_orderly(message(topic, f"{at % 4}-{at}"), at % 4)
    sender.send_oneway_orderly(message(topic, f"1-{COUNT}"), 1)
    received = push(namesrv, "cpp-order-c", topic, orderly=True)
    found = received.wait(COUNT + 1)
    return {"received": found}


def delay(namesrv: str) -> dict[str, Any]:
    """A message of level 2, and one without."""
    sender, topic = producer(namesrv, "cpp-delay-p"), "cpp-delay"
    sender.send_sync(message(topic, "now"))
    sender.send_sync(message(topic, "later", delay_level=2))
    received = push(namesrv, "cpp-delay-c", topic)
    found = received.wait(2)
    return {"received": found}


def retry(namesrv: str) -> dict[str, Any]:
    """A consumer that takes a message the third time. One: the client sends back its neighbours too."""
    sender, topic = producer(namesrv, "cpp-retry-p"), "cpp-retry"
    sender.send_sync(message(topic, "again"))
    received = push(
        namesrv, "cpp-retry-c", topic, answer=lambda found: SUCCESS if found["retries"] == 2 else LATER
    )
    found = received.wait(3)
    return {"received": found}


def broadcast(namesrv: str) -> dict[str, Any]:
    """Two consumers of one group that both take everything."""
    sender, topic = producer(namesrv, "cpp-all-p"), "cpp-all"
    sender.send_sync(message(topic, "begun?"))
    consumers = [
        push(namesrv, "cpp-all-c", topic, instance=name, model=MessageModel.BROADCASTING)
        for name in ("one", "two")
    ]
    while not all(len(received.queues()) == 4 for received in consumers):
        sender.send_sync(message(topic, "begun?"))  # they read from where the queues end when they begin
        time.sleep(0.05)
    for at in range(COUNT):
        sender.send_sync(message(topic, f"{at}"))
    found = [received.wait(COUNT, unless="begun?") for received in consumers]
    return {"received": found}


def pull(namesrv: str) -> dict[str, Any]:
    """Every queue from its start, with and without a tag."""
    sender, topic = producer(namesrv, "cpp-pull-p"), "cpp-pull"
    for at in range(COUNT):
        sender.send_sync(message(topic, f"{at}", "ABC"[at % 3]))
    found = {}
    for expression in ("*", "B"):
        consumer, received = PullConsumer(f"cpp-pull-{ord(expression)}"), Received()
        consumer.set_namesrv_addr(namesrv)
        consumer.start()
        STARTED.append(consumer)
        consumer.offset_table = {}
        for one in consumer.pull(topic, expression):
            received.add(one)
        found[expression] = received.messages
    return {"received": found}


def main() -> None:
    namesrv, name = sys.argv[1:]
    steps = {step.__name__: step for step in (tags, orderly, delay, retry, broadcast, pull)}
    print(json.dumps(steps[name](namesrv)), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
