"""Routes: on which brokers a topic is, and with how many queues (TopicRouteData)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE

MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where a topic is."""

    topic: str
    write_queues: tuple[MessageQueue, ...] = ()
    read_queues: tuple[MessageQueue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)  # broker -> id -> ip:port

    @classmethod
    def decode(cls, topic: str, body: bytes | memoryview) -> TopicRoute:
        """The route in an answer of a name server."""
        value: dict[str, Any] = lenient_json.loads(body)
        addresses = {
            broker["brokerName"]: {int(number): str(text) for number, text in broker["brokerAddrs"].items()}
            for broker in value.get("brokerDatas") or ()
        }
        write: list[MessageQueue] = []
        read: list[MessageQueue] = []
        for data in sorted(value.get("queueDatas") or (), key=lambda item: str(item["brokerName"])):
            name, perm = data["brokerName"], int(data["perm"])
            # A broker without its master takes no messages.
            if perm & PERM_WRITE and MASTER_ID in addresses.get(name, ()):
                write += [MessageQueue(topic, name, number) for number in range(int(data["writeQueueNums"]))]
            if perm & PERM_READ:
                read += [MessageQueue(topic, name, number) for number in range(int(data["readQueueNums"]))]
        return cls(topic, tuple(write), tuple(read), addresses)

    def master(self, broker_name: str) -> str | None:
        """The address of a broker's master."""
        return self.addresses.get(broker_name, {}).get(MASTER_ID)
