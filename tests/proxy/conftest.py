from __future__ import annotations

from collections.abc import Iterator

import pytest

from kourou.testing import Cluster

TOPICS = {
    "normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "halves": "TRANSACTION", "mixed": "MIXED",
    "ranks": "PRIORITY", "lite": "LITE",
}  # fmt: skip


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A broker with a topic for each type of message."""
    config = {
        "brokerName": "broker-a",
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
        "enableMixedMessageType": "true",
    }
    with Cluster(config=config) as running:
        for topic, kind in TOPICS.items():
            running.create_topic(topic, attributes=f"+message.type={kind}")
        yield running
