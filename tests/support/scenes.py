"""A cluster with something in it for an operator to look at: a topic with messages, a group that consumed
them and is online, and a producer that is connected."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

from typer.main import get_command
from typer.testing import CliRunner

from kourou import sync
from kourou.cli import app
from kourou.client import Message, ReceivedMessage, SendReceipt
from support.sites.clients import LONG_S
from support.targets import Target

CLUSTER = "DefaultCluster"
TOPIC = "orders"
GROUP = "billing"
PRODUCERS = "shop"
CLIENT_ID = "127.0.0.1@operator-test"
COUNT = 20
QUEUES = 2  # on each broker


# A hundred verbs take a tenth of a second to be made into a command: that is done once, not for each run.
_whole_command = cache(get_command)


class Scene(NamedTuple):
    """What the tests of the operator's tools look at."""

    target: Target
    receipts: list[SendReceipt]
    seen: list[str]  # unique ids of what the group was handed

    @property
    def broker(self) -> str:
        """The address of broker-a."""
        return self.target.brokers["broker-a"].address

    @property
    def addresses(self) -> list[str]:
        """The addresses of all brokers."""
        return [server.address for server in self.target.brokers.values()]

    def kourou(self, *arguments: str, code: int = 0, stdin: str | None = None) -> str:
        """What the command prints, which must end so."""
        result = self.run(*arguments, stdin=stdin)
        assert result.exit_code == code, (arguments, result.exit_code, result.output, result.exception)
        return str(result.stdout)

    def run(self, *arguments: str, stdin: str | None = None) -> Any:
        """Run a command against the cluster, in this process."""
        environment = {"NAMESRV_ADDR": self.target.namesrv, "COLUMNS": "200"}
        with patch("typer.testing._get_command", _whole_command):
            return CliRunner(env=environment).invoke(app, list(arguments), input=stdin)

    def first(self, broker_name: str = "broker-a") -> SendReceipt:
        """The first message that went to a broker."""
        return next(one for one in self.receipts if one.queue.broker_name == broker_name)


def set_scene(target: Target, stack: ExitStack) -> Scene:
    """Send and consume; `stack` takes the clients off again."""
    target.create_topic(TOPIC, queues=QUEUES)
    seen: list[str] = []
    everything = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        seen.append(message.message_id)
        if len(set(seen)) >= COUNT:
            everything.set()

    producer = stack.enter_context(sync.Producer(target.namesrv, group=PRODUCERS, trace=True))
    consumer = stack.enter_context(
        sync.Consumer(
            target.namesrv, group=GROUP, subscribe=TOPIC, consume_from="first", ip="127.0.0.1",
            instance="operator-test", trace=True,
        )
    )  # fmt: skip
    consumer.handler(handle)
    receipts = [producer.send(message(number)) for number in range(COUNT)]
    assert everything.wait(LONG_S)
    consumer.commit()
    return Scene(target, receipts, seen)


def message(number: int) -> Message:
    """The messages of the topic."""
    body = b'{"number": %d}' % number
    tags = "even" if number % 2 == 0 else "odd"
    return Message(TOPIC, body, {"a": str(number)}, tags=tags, keys=[f"key-{number}"])
