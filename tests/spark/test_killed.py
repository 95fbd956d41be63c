"""Drivers that are killed at any moment: nothing is lost, and exactly once is exactly once.

KOUROU_KILL_ROUNDS sets how often (3 by default: each is a start of Spark).
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kourou.spark.channel import close_channels
from kourou.testing import Cluster
from support.spark import send

ROUNDS = int(os.environ.get("KOUROU_KILL_ROUNDS", "3"))
SEED = int(os.environ.get("KOUROU_KILL_SEED", random.randrange(1 << 30)))
START_TIMEOUT_S = 90
END_TIMEOUT_S = 240
STEP_TIMEOUT_S = 30

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
from support.spark import local_spark

namesrv, directory, delivery, trigger = sys.argv[1:]
with local_spark(Path(directory)) as spark:
    frame = (
        spark.readStream.format("rocketmq").option("namesrv", namesrv).option("topic", "in")
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
    )
    writer = (
        frame.select("body").writeStream.format("rocketmq").option("namesrv", namesrv).option("topic", "out")
        .option("delivery", delivery).option("checkpointLocation", directory + "/checkpoint")
    )
    how = {"availableNow": True} if trigger == "once" else {"processingTime": "0 seconds"}
    query = writer.trigger(**how).start()
    print("running", flush=True)
    query.awaitTermination()
"""


def start(cluster, directory, delivery, trigger):
    tests = Path(__file__).resolve().parent.parent
    environment = {**os.environ, "PYTHONPATH": f"{tests}:{os.environ.get('PYTHONPATH', '')}"}
    with open(directory / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, cluster.namesrv, str(directory), delivery, trigger],
            stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
        )  # fmt: skip


def wait_for_steps(directory, count, process):
    """Wait until the query has done some more steps: a batch planned, decided, shown, committed."""

    def steps():
        folders = ("offsets", "rocketmq", "commits")
        return sum(len(list((directory / "checkpoint" / folder).glob("[0-9]*"))) for folder in folders)

    deadline, before = time.monotonic() + STEP_TIMEOUT_S, steps()
    while steps() < before + count and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)  # the JVM is in the same group
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_killed_drivers_lose_nothing(spark, tmp_path, delivery):
    chance = random.Random(SEED)
    with Cluster() as cluster:
        cluster.create_topic("in", queues=2)
        cluster.create_topic("out", queues=2)
        sent = 0
        for _ in range(ROUNDS if delivery == "exactly-once" else 1):
            send(cluster, "in", (b"m %06d" % n for n in range(sent, sent + 150)), queues=2)
            sent += 150
            process = start(cluster, tmp_path, delivery, "on")
            try:
                watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
                watchdog.start()
                assert process.stdout.readline() == b"running\n", (tmp_path / "log").read_text()[-2000:]
                watchdog.cancel()
                wait_for_steps(tmp_path, chance.randrange(4), process)
                time.sleep(chance.uniform(0.0, 0.3))
            finally:
                kill(process)
        last = start(cluster, tmp_path, delivery, "once")
        try:
            assert last.wait(END_TIMEOUT_S) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            last.stdout.close()

        frame = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", "out").load()
        rows = [(row.uniqKey, bytes(row.body)) for row in frame.select("uniqKey", "body").collect()]

    close_channels()
    expected = [b"m %06d" % n for n in range(sent)]
    if delivery == "exactly-once":
        assert sorted(body for _, body in rows) == expected, f"KOUROU_KILL_SEED={SEED}"
    else:
        assert sorted({body for _, body in rows}) == expected, f"KOUROU_KILL_SEED={SEED}"
        assert len(set(rows)) == sent  # a repeat has the id of the first
