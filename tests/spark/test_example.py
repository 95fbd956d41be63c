"""The example pipeline: killed and started again, it counts every order once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

from kourou.spark.channel import close_channels
from kourou.testing import Cluster
from support.spark import send

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders_pipeline.py"
TIMEOUT_S = 600
ORDERS = 300
COUNTRIES = ["FR", "DE", "BR", "JP", "GF"]

pytestmark = pytest.mark.slow


def orders(first, last):
    for number in range(first, last):
        order = {
            "order": number, "customer": f"c-{number % 100}", "amount": 1.5,
            "time": f"2026-11-15T08:{number % 3:02d}:30Z",
        }  # fmt: skip
        yield json.dumps(order).encode()


def closing_order():
    """So much later that nothing before it is waited for."""
    return json.dumps(
        {"order": ORDERS, "customer": "c-0", "amount": 0.0, "time": "2026-11-15T10:00:00Z"}
    ).encode()


def start(cluster, directory, *options):
    with open(directory / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, EXAMPLE, "--namesrv", cluster.namesrv, "--directory", directory, *options],
            stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--master local[2] --driver-memory 600m pyspark-shell"},
        )  # fmt: skip


def test_orders_are_counted_once_through_kills(spark, tmp_path):
    with Cluster() as cluster:
        cluster.create_topic("orders", queues=2)
        cluster.create_topic("order-totals", queues=2)
        for part in range(2):
            send(cluster, "orders", orders(part * 100, part * 100 + 100), queues=2)
            process = start(cluster, tmp_path)
            try:
                assert process.stdout.readline() == b"running\n", (tmp_path / "log").read_text()[-2000:]
                time.sleep(3 * part)  # once at once, once in the middle
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                process.stdout.close()
        send(cluster, "orders", [*orders(200, ORDERS), closing_order()], queues=2)
        last = start(cluster, tmp_path, "--once")
        try:
            assert last.wait(TIMEOUT_S) == 0, (tmp_path / "log").read_text()[-3000:]
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(last.pid, signal.SIGKILL)
            last.wait()
            last.stdout.close()

        written = spark.read.parquet(str(tmp_path / "orders")).select("order", "country").collect()
        frame = (
            spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", "order-totals")
        )
        rows = frame.load().orderBy("queueId", "queueOffset").collect()
    close_channels()

    assert sorted(row.order for row in written) == list(range(ORDERS + 1))
    assert all(row.country == COUNTRIES[row.order % 100 % 5] for row in written if row.order < ORDERS)
    assert len({row.uniqKey for row in rows}) == len(rows)
    totals = [json.loads(bytes(row.body)) for row in rows]
    expected: dict[tuple[str, int], int] = defaultdict(int)
    for number in range(ORDERS):
        expected[COUNTRIES[number % 100 % 5], number % 3] += 1
    found = [(total["country"], int(total["minute"][14:16]), total["orders"]) for total in totals]
    assert sorted(found) == sorted((country, minute, count) for (country, minute), count in expected.items())
