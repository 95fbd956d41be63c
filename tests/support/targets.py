"""A cluster to be judged by: ours, or Java's own name server and brokers, with the same configuration."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.protocol.topic_config import PERM_READ, PERM_WRITE
from support.java import java
from support.recorded.wire import Caller
from support.sites.servers import (
    HOST,
    Server,
    java_broker,
    java_name_server,
    kourou_broker,
    kourou_name_server,
)

BROKERS = ("broker-a", "broker-b")

# Everything that a test would otherwise wait for, soon.
QUICK = {
    "messageDelayLevel": " ".join(["1s"] * 18),
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "notifyConsumerIdsChangedEnable": "true",
    "waitTimeMillsInSendQueue": 20_000,
    "osPageCacheBusyTimeOutMills": 20_000,
    "diskMaxUsedSpaceRatio": 99,
    "recallMessageEnable": "true",
    "maxMessageSize": 4 * 1024 * 1024,
}


class Target(NamedTuple):
    """A cluster of two brokers: a name server, and each broker by its name."""

    kind: str  # kourou or java
    directory: Path
    name_server: Server
    brokers: Mapping[str, Server]

    @property
    def namesrv(self) -> str:
        return self.name_server.address

    def create_topic(
        self, topic: str, *, queues: int = 4, attributes: str = "", brokers: tuple[str, ...] = BROKERS
    ) -> str:
        """Make a topic on the brokers; its name. The name server knows it when this returns."""
        header = CreateTopic(
            topic, "TBW102", queues, queues, PERM_READ | PERM_WRITE, "SINGLE_TAG",
            attributes=attributes or None,
        )  # fmt: skip
        for broker in brokers:
            self.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields())
        return topic

    def call(
        self, broker: str, code: int, fields: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> RemotingCommand:
        """The answer of a broker, which must be a success."""
        with Caller(self.brokers[broker].port) as caller:
            answer = caller.call(RemotingCommand(code, dict(fields or {}), body))
        assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
        return answer


def start_target(kind: str, directory: Path, stack: ExitStack) -> Target:
    """A name server and two brokers, all Java's or all ours; `stack` stops them."""
    if kind == "java":
        java()
    name_server, broker = (
        (java_name_server, java_broker) if kind == "java" else (kourou_name_server, kourou_broker)
    )
    server = stack.enter_context(name_server(directory))
    brokers = {}
    for name in BROKERS:
        home = directory / name
        home.mkdir()
        more: dict[str, object] = {**QUICK, "brokerName": name}
        if kind == "kourou":
            more["bindAddress"] = HOST
        brokers[name] = stack.enter_context(broker(home, server.port, more))
    return Target(kind, directory, server, brokers)
