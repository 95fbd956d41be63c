"""A request of every code that a broker or a name server serves, about one topic and one group."""

from __future__ import annotations

import json
from typing import Any

from kourou.broker.handlers import SERVED as BROKER
from kourou.namesrv.handlers import HANDLERS as NAME_SERVER
from kourou.remoting.protocol.command import RemotingCommand

SERVED = sorted(BROKER | {int(code) for code in NAME_SERVER})
FIELDS = {
    "topic": "T", "b": "T", "consumerGroup": "G", "group": "G", "groupName": "G", "compareGroup": "G",
    "filterGroups": "G", "srcGroup": "G", "destGroup": "G", "username": "somebody",
}  # fmt: skip
BODY: dict[str, Any] = {
    "clientID": "c",
    "consumerGroup": "G",
    "group": "G",
    "topic": "T",
    "groupName": "G",
    "mqSet": [{"topic": "T", "brokerName": "b", "queueId": 0}],
    "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]}],
    "subscriptionData": {"topic": "T"},
    "acks": [{"t": "T", "c": "G"}],
    "topicConfigList": [{"topicName": "T"}],
    "groupConfigList": [{"groupName": "G"}],
}


def request_of(code: int, **fields: str) -> RemotingCommand:
    """A request of a code about topic T and group G, with other fields."""
    return RemotingCommand(code, {**FIELDS, **fields}, json.dumps(BODY).encode())
