"""Soak of the pipeline: streams on Spark while brokers restart and its processes are killed, with a verdict.

    python -m chaos.spark_soak [--minutes N] [--seed N] [--java]    make soak-spark MINUTES=… SEED=… JAVA=1

A name server and two masters with a slave each, as processes, with --java those of Apache RocketMQ. A
producer sends all the time and notes what was acknowledged. A driver with two executors runs two streams over
it: one to Parquet, one exactly once to a topic. Every minute each server is killed or stopped and started
again, one after the other; between them drivers, executors and Python workers are killed, each when both
streams have done a micro-batch since the one before. In the end each acknowledged message must be once in
both, and no message twice. The exit code says so. A seed gives the same faults in the same order; moments are
the machine's.

A machine that is so busy that Spark gives up on a Python process (ten seconds) has ended a driver, and is
counted as that. It is no finding, unless it goes on for TRIES drivers in a row.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chaos.nodes import JavaNode, Node, broker, name_server, started
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.spark.channel import NetSettings, channel_to, close_channels
from kourou.spark.cluster import ClusterView
from support.sites.broker import until
from support.spark_driver import Driver, kill

ROUND_S = 60.0  # in which every server is restarted once
DOWN_S = (0.5, 5.0)
PAUSE_S = 0.01  # between two messages
END_S = 600.0
TRIES = 20  # on a machine that is too busy for Spark
TOO_SLOW = "driver ended: the machine is too busy"
VICTIMS = ("executor", "python worker", "driver")
STREAMS = ("files", "topic")

PROGRAM = """
import json, sys, time
from pathlib import Path
from support.spark import local_spark

namesrv, directory, trigger, master = sys.argv[1:]
with local_spark(Path(directory), master) as spark:
    def read():
        return (
            spark.readStream.format("rocketmq").option("namesrv", namesrv).option("topic", "in")
            .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "5000").load()
            .select("body")
        )
    def begin(writer, name):
        how = {"availableNow": True} if trigger == "once" else {"processingTime": "200 milliseconds"}
        return writer.option("checkpointLocation", f"{directory}/{name}-checkpoint").trigger(**how)
    files = begin(read().writeStream.format("parquet").option("path", f"{directory}/files"), "files")
    topic = begin(
        read().writeStream.format("rocketmq").option("namesrv", namesrv).option("topic", "out")
        .option("delivery", "exactly-once"), "topic",
    )
    if trigger == "on":
        # One after the other: Spark 4.3 cannot send a task of one while the source of another begins.
        for query in (writer.start() for writer in (files, topic)):
            while query.isActive and query.status["message"] == "Initializing sources":
                time.sleep(0.05)
        print("running", flush=True)
        spark.streams.awaitAnyTermination()
    for writer in (files, topic):
        writer.start().awaitTermination()
    rows = spark.read.parquet(f"{directory}/files").collect()
    Path(directory, "files.json").write_text(json.dumps([bytes(row.body).decode() for row in rows]))
"""


class Producer:
    """Sends all the time, each message once, and notes which were acknowledged."""

    def __init__(self, namesrv: str) -> None:
        self._cluster = ClusterView(namesrv, NetSettings(timeout_s=5))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.sent = 0

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            with suppress(KourouError):
                self._send(f"m {self.sent:07d}")
        close_channels()

    def _send(self, body: str) -> None:
        queues = self._cluster.route("in").write_queues
        if not queues:
            return
        queue = queues[self.sent % len(queues)]
        self.sent += 1
        fields = {
            "a": "soak", "b": "in", "c": "TBW102", "d": "2", "e": str(queue.queue_id), "f": "0", "h": "0",
            "g": str(time.time_ns() // 1_000_000), "i": "", "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        channel = channel_to(self._cluster.master(queue.broker_name), self._cluster.settings)
        answer = channel.call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, body.encode()))
        if answer.code == ResponseCode.SUCCESS:
            self.acknowledged.append(body)


class Soak:
    """One run."""

    def __init__(
        self, seconds: float, seed: int, directory: Path, say: Callable[[str], None], node: type[Node]
    ) -> None:
        self._node = node
        self._seconds = seconds
        self._chance = random.Random(seed)
        self._directory = directory
        self._say = say
        self._driver: Driver | None = None
        self._done_before = dict.fromkeys(STREAMS, 0)  # micro-batches, when something was killed last
        self.faults: Counter[str] = Counter()
        self.sent = self.acknowledged = 0

    def run(self) -> list[str]:
        """All of it; what went wrong."""
        names = name_server(self._directory, self._node)
        namesrv = f"127.0.0.1:{names.port}"
        nodes = [
            broker(self._directory, name, namesrv, folder, self._node, **role)
            for name in ("broker-a", "broker-b")
            for folder, role in (("", {}), (f"{name}-slave", {"brokerRole": "SLAVE", "brokerId": 1}))
        ]
        with started(names, *nodes):
            for node in (nodes[0], nodes[2]):
                until(node.answers, f"{node.name} to answer")
                for topic in ("in", "out"):
                    node.create_topic(topic)
            try:
                with Producer(namesrv) as producer:
                    self._break_things(nodes, namesrv)
                return self._judge(namesrv, producer, [nodes[0], nodes[2]])
            finally:
                if self._driver is not None:
                    self._driver.kill()
                close_channels()

    def _break_things(self, nodes: list[Node], namesrv: str) -> None:
        self._driver = self._started(namesrv)
        end = time.monotonic() + self._seconds
        while time.monotonic() < end:
            for node in nodes:
                pause_s = ROUND_S / len(nodes) / 2
                time.sleep(max(min(pause_s, end - time.monotonic()), 0))
                self._kill_one(namesrv)
                time.sleep(max(min(pause_s, end - time.monotonic()), 0))
                if time.monotonic() >= end:
                    break
                self._restart(node)
        self._driver.kill()
        self._driver = None

    def _restart(self, node: Node) -> None:
        in_order = self._chance.random() < 0.5
        down_s = self._chance.uniform(*DOWN_S)
        if in_order:
            node.stop()
        else:
            node.kill()
        time.sleep(down_s)
        node.start()
        self._note(f"{node.name} {'stopped' if in_order else 'killed'}, back after {down_s:.1f} s")

    def _kill_one(self, namesrv: str) -> None:
        assert self._driver is not None
        if not self._driver.is_alive:
            assert self._driver.was_too_slow, f"the streams have ended: {self._driver.log}"
            self._driver.kill()
            self._note(TOO_SLOW)
            self._driver = self._started(namesrv)
            return
        done = {name: self._done(name) for name in STREAMS}
        if any(done[name] <= self._done_before[name] for name in STREAMS):
            return
        self._done_before = done
        victim = self._chance.choice(VICTIMS)
        if victim == "driver":
            self._driver.kill()
            self._note("driver killed")
            self._driver = self._started(namesrv)
            return
        found = self._driver.executors() if victim == "executor" else self._driver.python_workers()
        if found and kill(self._chance.choice(sorted(found))):
            self._note(f"{victim} killed")

    def _started(self, namesrv: str) -> Driver:
        for tries_left in reversed(range(TRIES)):
            driver = self._new_driver(namesrv, "on", "local-cluster[2,1,1024]")
            try:
                driver.wait_until_it_runs()
                return driver
            except BaseException:
                was_too_slow = driver.was_too_slow
                driver.kill()
                if not was_too_slow or not tries_left:
                    raise
                self._note(TOO_SLOW)
        raise AssertionError

    def _new_driver(self, namesrv: str, trigger: str, master: str) -> Driver:
        return Driver(PROGRAM, [namesrv, str(self._directory), trigger, master], self._directory)

    def _note(self, what: str) -> None:
        self.faults[what.split(",")[0]] += 1
        self._say(what)

    def _judge(self, namesrv: str, producer: Producer, masters: list[Node]) -> list[str]:
        self.sent, self.acknowledged = producer.sent, len(producer.acknowledged)
        wrong = [f"{name}: not one micro-batch was done" for name in STREAMS if not self._done(name)]
        self._say(f"micro-batches meanwhile: { ({name: self._done(name) for name in STREAMS}) }")
        for tries_left in reversed(range(TRIES)):
            with self._new_driver(namesrv, "once", "local[2]") as last:
                if last.process.wait(END_S) == 0:
                    break
                if not last.was_too_slow or not tries_left:
                    return [*wrong, f"the last run failed: {last.log}"]
                self._note(TOO_SLOW)
        # The topic is read without Spark, and without what reads for Spark.
        topic = [body.decode() for node in masters for _, _, body, _ in node.read("out")]
        files = json.loads((self._directory / "files.json").read_text())
        return [
            *wrong,
            *self._compare("files", files, producer.acknowledged),
            *self._compare("topic", topic, producer.acknowledged),
        ]

    def _done(self, name: str) -> int:
        """How many micro-batches a stream has committed."""
        commits = (self._directory / f"{name}-checkpoint" / "commits").glob("[0-9]*")
        return max((int(path.name) + 1 for path in commits), default=0)

    def _compare(self, where: str, bodies: list[str], acknowledged: list[str]) -> list[str]:
        counts = Counter(bodies)
        missing = [body for body in acknowledged if body not in counts]
        twice = [body for body, count in counts.items() if count > 1]
        self._say(f"{where}: {len(bodies)} messages, {len(missing)} missing, {len(twice)} more than once")
        return [f"{where}: {body} is missing" for body in missing] + [
            f"{where}: {body} is there {counts[body]} times" for body in twice
        ]


def main() -> int:
    """Run it, and say what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--java", action="store_true", help="servers of Apache RocketMQ")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kourou-soak-") as directory:
        print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
        soak = Soak(
            given.minutes * 60, given.seed, Path(directory),
            lambda text: print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True),
            JavaNode if given.java else Node,
        )  # fmt: skip
        wrong = soak.run()
    print(f"{soak.sent} sent, {soak.acknowledged} acknowledged; {dict(soak.faults)}")
    for text in wrong[:20]:
        print(text)
    print("holds" if not wrong else f"{len(wrong)} faults, seed {given.seed}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
