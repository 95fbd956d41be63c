"""Through Spark Connect: a client that has no JVM of its own reads, writes and streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from kourou.testing import Cluster
from support.spark import send

pytest.importorskip("grpc")
pytestmark = pytest.mark.slow

TIMEOUT_S = 400  # a machine that does other things, too

PROGRAM = """
import json, sys
import kourou.spark

namesrv, store, directory = sys.argv[1:]
spark = kourou.spark.session("connect", conf={"spark.ui.enabled": "false", "spark.driver.memory": "600m"})

def read(topic, **options):
    return spark.read.format("rocketmq").options(namesrv=namesrv, topic=topic, **options).load()

def copy():
    frame = spark.readStream.format("rocketmq").option("startingOffsets", "earliest")
    frame = frame.options(namesrv=namesrv, topic="in").load().select("body")
    writer = frame.writeStream.format("rocketmq").options(namesrv=namesrv, topic="out")
    writer = writer.option("delivery", "exactly-once").option("checkpointLocation", directory + "/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()

copy()
rows = spark.createDataFrame([("new",)], "body string")
rows.write.format("rocketmq").mode("append").options(namesrv=namesrv, topic="in").save()
copy()
try:
    read("in", colour="red").count()
except Exception as error:
    first_line = str(error).splitlines()[0]
print(json.dumps({
    "session": type(spark).__module__,
    "store": kourou.spark.read_store(spark, store, ["body"], ["in"]).count(),
    "out": sorted(bytes(row.body).decode() for row in read("out").select("body").collect()),
    "error": first_line,
}))
spark.stop()
"""


def test_a_client_reads_writes_and_streams(tmp_path):
    with Cluster(directory=tmp_path / "cluster") as cluster:
        for topic in ("in", "out"):
            cluster.create_topic(topic, queues=2)
        send(cluster, "in", (b"m%02d" % number for number in range(20)), queues=2)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, cluster.namesrv, tmp_path / "cluster" / "broker-a", tmp_path],
            env={**os.environ, "SPARK_REMOTE": "local[2]", "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False,
        )  # fmt: skip

    assert done.returncode == 0, done.stderr[-3000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    assert answer["session"] == "pyspark.sql.connect.session"
    assert answer["store"] == 21
    assert answer["out"] == [*(f"m{number:02d}" for number in range(20)), "new"]
    assert "kourou.spark.options.OptionError: option colour: it is not known" in answer["error"]
