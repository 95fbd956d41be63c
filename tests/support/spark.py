"""A real Spark for tests: small, local, one for all tests of a process."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kourou.message import encode_properties
from kourou.remoting.protocol.codes import RequestCode

STEP_S = 60


@contextmanager
def local_spark(directory: Path, master: str = "local[2]") -> Iterator[Any]:
    """A session with the settings of kourou.spark.session, whose files are below `directory`."""
    from kourou.spark import session

    conf = {
        "spark.driver.memory": "600m",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory} -XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what pyspark itself imports
        spark = session("kourou tests", master=master, conf=conf, push_filters=True)
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


def send(
    cluster: Any,
    topic: str,
    bodies: Iterable[bytes],
    *,
    queue: int | None = None,
    queues: int = 4,
    properties: Callable[[int], dict[str, str]] = lambda number: {},
    sys_flag: Callable[[int], int] = lambda number: 0,
    brokers: Sequence[int] = (0,),
) -> None:
    """Send messages to the brokers of a kourou.testing.Cluster in turn, queue after queue."""
    for number, body in enumerate(bodies):
        fields = {
            "a": "tests", "b": topic, "c": "TBW102", "d": "4",
            "e": str(number // len(brokers) % queues if queue is None else queue), "f": str(sys_flag(number)),
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": encode_properties(properties(number)),
            "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        address = cluster.broker_addresses[brokers[number % len(brokers)]]
        cluster.call(address, RequestCode.SEND_MESSAGE_V2, fields, body)


def bodies_of(frame: Any) -> list[bytes]:
    """The bodies of a DataFrame's rows, sorted."""
    return sorted(bytes(row.body) for row in frame.select("body").collect())


class Stream:
    """A stream without Spark: micro-batch after micro-batch, with a checkpoint that is one offset."""

    def __init__(self, cluster: Any, **options: str) -> None:
        from kourou.spark.read.stream import RocketmqStreamReader

        self._make = RocketmqStreamReader
        self.options = {"namesrv": cluster.namesrv, "startingoffsets": "earliest", **options}
        self.source = self._make(self.options, ("body",))
        self.at = self.end = self.source.initialOffset()

    def restart(self, **options: str) -> None:
        """Another process, with the same checkpoint."""
        self.source = self._make({**self.options, **options}, ("body",))

    def decide(self) -> None:
        """Where the next micro-batch ends."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable

        self.end = self.source.latestOffset(self.at, ReadAllAvailable())

    def plan(self) -> Sequence[Any]:
        """The next micro-batch."""
        self.decide()
        return self.source.partitions(self.at, self.end) if self.end != self.at else []

    def read(self, parts: Sequence[Any]) -> list[bytes]:
        """What is in a micro-batch that was planned."""
        found = [
            body for part in parts for rows in self.source.read(part) for body in rows["body"].to_pylist()
        ]
        self.at = self.end
        return found

    def batch(self) -> list[bytes]:
        """A micro-batch."""
        return self.read(self.plan())

    def until(self, count: int) -> list[bytes]:
        """Micro-batches, until so many messages have come."""
        found: list[bytes] = []
        deadline = time.monotonic() + STEP_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += self.batch()
        return sorted(found)

    def waiting(self) -> Any:
        """What it says it waits for."""
        from kourou.spark.read.stream import WAITING

        return (self.source.reportLatestOffset() or {}).get(WAITING)
