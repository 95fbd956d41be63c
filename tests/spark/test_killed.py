"""Drivers, executors and Python workers that are killed at any moment: nothing is lost, offsets never skip,
and exactly once is exactly once.

The query runs on a driver with two executors in processes of their own.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter

import pytest

from kourou.spark.channel import close_channels
from kourou.testing import Cluster
from support.spark import send
from support.spark_driver import Driver, kill

ROUNDS = 3  # one of each kind of victim
SEED = 7
END_TIMEOUT_S = 300
STEP_TIMEOUT_S = 120
MESSAGES = 150  # for each round
VICTIMS = ("executor", "python worker", "driver", "python worker", "executor")  # in turn

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path
from queue import Queue
from support.spark import local_spark

namesrv, directory, delivery, trigger, master = sys.argv[1:]
with local_spark(Path(directory), master) as spark:
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


def driver_of(cluster, directory, delivery, trigger="on", master="local-cluster[2,1,1024]"):
    return Driver(PROGRAM, [cluster.namesrv, str(directory), delivery, trigger, master], directory)


def steps(directory):
    """How many steps the query has done: a batch planned, decided, committed."""
    folders = (directory / "checkpoint" / name for name in ("offsets", "rocketmq", "commits"))
    return sum(
        max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=-1)
        for folder in folders
    )


def wait_for_steps(directory, goal, driver):
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while steps(directory) < goal and time.monotonic() < deadline and driver.is_alive:
        time.sleep(0.01)


def kill_one(driver, victim, chance):
    """Kill one process of a kind; whether there was one."""
    if victim == "driver":
        driver.kill()
        return True
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while time.monotonic() < deadline:
        found = driver.executors() if victim == "executor" else driver.python_workers()
        if found and kill(chance.choice(sorted(found))):
            return True
        time.sleep(0.05)
    return False


def offsets_of_batches(directory):
    """The offsets at which the micro-batches of a checkpoint end, as {queue: offset}, in order."""
    folder = directory / "checkpoint" / "offsets"
    for number in sorted(int(path.name) for path in folder.glob("[0-9]*")):
        brokers = json.loads((folder / str(number)).read_text().splitlines()[2])["in"]
        yield {(name, queue): at for name, queues in brokers.items() for queue, at in queues.items()}


def started(cluster, directory, delivery):
    driver = driver_of(cluster, directory, delivery)
    try:
        driver.wait_until_it_runs()
    except BaseException:
        driver.kill()
        raise
    return driver


def run_rounds(cluster, directory, delivery, ROUNDS, chance):
    """Kill something in each round; how many messages were sent, and who was killed how often."""
    sent = 0
    killed: Counter[str] = Counter()
    driver = None
    try:
        for number in range(ROUNDS):
            goal = steps(directory) + chance.randrange(4)
            send(cluster, "in", (b"m %06d" % n for n in range(sent, sent + MESSAGES)), queues=2)
            sent += MESSAGES
            victim = VICTIMS[number % len(VICTIMS)]
            driver = driver or started(cluster, directory, delivery)
            wait_for_steps(directory, goal, driver)
            time.sleep(chance.uniform(0.0, 0.3))
            if not driver.is_alive:  # it goes on when executors and workers die
                assert driver.was_too_slow, driver.log
                killed["too slow"] += 1
                driver.kill()
                driver = started(cluster, directory, delivery)
            assert kill_one(driver, victim, chance), victim
            killed[victim] += 1
            if victim == "driver":
                driver = None
    finally:
        if driver is not None:
            driver.kill()
    return sent, killed


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_whatever_is_killed_nothing_is_lost(spark, tmp_path, delivery):
    chance = random.Random(SEED)
    with Cluster() as cluster:
        cluster.create_topic("in", queues=2)
        cluster.create_topic("out", queues=2)
        sent, killed = run_rounds(cluster, tmp_path, delivery, ROUNDS, chance)
        with driver_of(cluster, tmp_path, delivery, "once", "local[2]") as last:
            assert last.process.wait(END_TIMEOUT_S) == 0, last.log

        frame = spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", "out").load()
        rows = [(row.uniqKey, bytes(row.body)) for row in frame.select("uniqKey", "body").collect()]

    close_channels()
    print(f"{delivery}: {ROUNDS} rounds, killed {dict(killed)}, {sent} messages in, {len(rows)} out")
    expected = [b"m %06d" % n for n in range(sent)]
    if delivery == "exactly-once":
        assert sorted(body for _, body in rows) == expected
    else:
        assert sorted({body for _, body in rows}) == expected
        assert len(set(rows)) == sent  # a repeat has the id of the first
    ends = list(offsets_of_batches(tmp_path))
    for before, after in itertools.pairwise(ends):
        assert all(before[queue] <= after[queue] for queue in before)
    assert sum(ends[-1].values()) == sent
