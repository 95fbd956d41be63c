"""On a standalone cluster, a master and two workers: nothing depends on one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from kourou.testing import Cluster
from support.spark import send

HOME = Path(pyspark.__file__).parent
TIMEOUT_S = 400  # a machine that does other things, too

pytestmark = pytest.mark.slow

PROGRAM = """
import json, os, sys
from pathlib import Path
from kourou.spark import read_store
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.inputs import read_archive
from support.spark import local_spark

master, namesrv, store, directory = sys.argv[1:]
with local_spark(Path(directory), master) as spark:
    def read(topic):
        return spark.read.format("rocketmq").option("namesrv", namesrv).option("topic", topic).load()

    daemons = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getppid()).distinct().count()
    query = (
        spark.readStream.format("rocketmq").option("namesrv", namesrv).option("topic", "in")
        .option("startingOffsets", "earliest").load().select("body")
        .writeStream.format("rocketmq").option("namesrv", namesrv).option("topic", "out")
        .option("delivery", "exactly-once").option("checkpointLocation", directory + "/checkpoint")
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    archive(spark, namesrv, directory + "/archive", topics=["in"])
    print(json.dumps({
        "executors": daemons,
        "broker": read("in").count(),
        "source": spark.read.format("rocketmq").load(store).where("topic = 'in'").count(),
        "store": read_store(spark, store, ["body"], ["in"]).count(),
        "stream": sorted(bytes(row.body).decode() for row in read("out").collect()),
        "archive": read_archive(spark, directory + "/archive").count(),
    }))
"""


@contextmanager
def server(directory, name, *arguments):
    """A server of Spark's; its log file."""
    log = directory / f"{name}.log"
    environment = {
        **os.environ, "SPARK_HOME": str(HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable, "SPARK_WORKER_DIR": str(directory / name),
    }  # fmt: skip
    with (
        open(log, "wb") as out,
        subprocess.Popen(
            [str(HOME / "bin" / "spark-class"), *arguments], stdout=out, stderr=out, env=environment
        ) as process,
    ):
        try:
            yield log
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def wait_for(log, pattern):
    deadline = time.monotonic() + TIMEOUT_S
    while not (found := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()[-2000:]
        time.sleep(0.2)
    return found


def test_a_master_and_two_workers(tmp_path):
    with ExitStack() as stack:
        package = "org.apache.spark.deploy"
        log = stack.enter_context(
            server(tmp_path, "master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0",
                   "--webui-port", "0")
        )  # fmt: skip
        master = wait_for(log, r"spark://127\.0\.0\.1:\d+")[0]
        for number in range(2):
            worker = stack.enter_context(
                server(tmp_path, f"worker{number}", f"{package}.worker.Worker", master, "-c", "1",
                       "-m", "700m", "--host", "127.0.0.1", "--webui-port", "0")
            )  # fmt: skip
            wait_for(worker, "Successfully registered with master")
        cluster = stack.enter_context(Cluster(directory=tmp_path / "cluster"))
        cluster.create_topic("in", queues=2)
        cluster.create_topic("out", queues=2)
        send(cluster, "in", (b"m%03d" % number for number in range(100)), queues=2)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, master, cluster.namesrv, str(tmp_path / "cluster" / "broker-a"),
             str(tmp_path)],
            env={
                **os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYSPARK_SUBMIT_ARGS": "--conf spark.executor.memory=600m pyspark-shell",
            },
            capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    answer = __import__("json").loads(done.stdout.splitlines()[-1])
    assert answer == {
        "executors": 2, "broker": 100, "source": 100, "store": 100, "archive": 100,
        "stream": [f"m{number:03d}" for number in range(100)],
    }  # fmt: skip
