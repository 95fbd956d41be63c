"""Masters and slaves as processes, ours and Java's, that can be killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.recorded.wire import Caller
from support.sites import broker
from support.sites.servers import START_TIMEOUT_S, Mortal, write_broker_conf

ENTRY = 20


class Process(Mortal):
    """A broker: started, killed, stopped, started again."""

    def __init__(self, kind: str, directory: Path, namesrv_port: int, more: Mapping[str, object]) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        super().__init__(kind, "broker", write_broker_conf(directory, namesrv_port, more))

    # Questions

    def ask(self, code: RequestCode, **fields: str) -> RemotingCommand:
        with Caller(self.port) as caller:
            return caller.call(RemotingCommand(code, fields))

    def json(self, code: RequestCode, **fields: str) -> dict[str, Any]:
        answer = self.ask(code, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        return dict(lenient_json.loads(bytes(answer.body or b"{}")))

    def end(self) -> int:
        """Where its log ends."""
        table = self.json(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
        return int(table["commitLogMaxOffset"])

    def has_topic(self, topic: str) -> bool:
        return self.ask(RequestCode.GET_TOPIC_CONFIG, topic=topic).code == ResponseCode.SUCCESS

    def by_key(self, topic: str, key: str) -> bytes:
        """The messages that its index finds."""
        answer = self.ask(
            RequestCode.QUERY_MESSAGE, topic=topic, key=key, maxNum="64", beginTimestamp="0",
            endTimestamp=str(1 << 62),
        )  # fmt: skip
        return bytes(answer.body or b"")

    def pull(self, topic: str, queue_id: int, offset: int) -> RemotingCommand:
        """What a consumer gets."""
        return self.ask(
            RequestCode.PULL_MESSAGE, consumerGroup="CHECK", topic=topic, queueId=str(queue_id),
            queueOffset=str(offset), maxMsgNums="32", sysFlag="4", commitOffset="0",
            suspendTimeoutMillis="0", subscription="*", subVersion="0", expressionType="TAG",
        )  # fmt: skip

    # Files

    def log_bytes(self) -> tuple[int, bytes]:
        """Where its log begins, and all its files."""
        files = sorted(file for file in (self.directory / "store" / "commitlog").iterdir())
        return int(files[0].name), b"".join(file.read_bytes() for file in files)

    def queues(self) -> dict[str, bytes]:
        """The entries of each queue, by topic and queue."""
        root, found = self.directory / "store" / "consumequeue", {}
        for queue in sorted(path for path in root.glob("*/*") if path.is_dir()):
            data = b"".join(file.read_bytes() for file in sorted(queue.iterdir()))
            used = np.flatnonzero(np.frombuffer(data, np.uint8))
            entries = -(-(int(used[-1]) + 1) // ENTRY) if len(used) else 0
            found[str(queue.relative_to(root))] = data[: entries * ENTRY]
        return {name: data for name, data in found.items() if data}


def until(condition: Callable[[], object], what: str, timeout_s: float = START_TIMEOUT_S) -> None:
    """Wait for something to become true; Java's servers take longer."""
    broker.until(condition, what, timeout_s)


def replicated(master: Process, slave: Process) -> None:
    """Wait until a slave has the master's whole log and its own queues know it."""

    def same() -> bool:
        end = master.end()
        status = master.json(RequestCode.GET_BROKER_HA_STATUS)
        acknowledged = any(one["slaveAckOffset"] == end for one in status["haConnectionInfo"])
        return acknowledged and slave.end() == end == master.end()

    until(same, "the slave to have the log")
    until(
        lambda: slave.json(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]["dispatchBehindBytes"] == "0",
        "the slave to dispatch",
    )


def assert_same_logs(master: Process, slave: Process, end: int) -> None:
    """The slave's log is the master's, byte for byte, up to an offset."""
    begin, mine = slave.log_bytes()
    first, theirs = master.log_bytes()
    assert mine[: end - begin] == theirs[begin - first : end - first]
