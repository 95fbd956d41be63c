"""`make demo`: what it says is so, and it leaves files and nothing else. Without Java the broker is shown."""

from __future__ import annotations

import json
import os
import re
import shutil
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


def without_java(directory: Path) -> dict[str, str]:
    directory.mkdir()
    return {"PATH": str(directory), "JAVA_HOME": ""}


def processes_that_name(text: str) -> list[str]:
    lines = subprocess.run(["ps", "axww", "-o", "args="], capture_output=True, text=True, check=True).stdout
    return [line for line in lines.splitlines() if text in line]


@pytest.mark.slow
def test_the_first_minute(tmp_path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or later")
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


def test_without_java_the_broker_is_shown(tmp_path):
    done = run(tmp_path / "demo", **without_java(tmp_path / "empty"))

    assert done.returncode == 0, done.stderr
    assert f"{ORDERS} orders sent" in done.stdout
    assert "refunded: {" in done.stdout
    assert "it needs Java 17 or later, and there is none: install a JRE" in done.stdout
    assert (tmp_path / "demo" / "cluster" / "broker-a" / "commitlog").is_dir()


def test_a_java_that_is_too_old_is_named(tmp_path):
    environment = without_java(tmp_path / "bin")
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    done = run(tmp_path / "demo", **environment)

    assert done.returncode == 0, done.stderr
    assert f"it needs Java 17 or later, {java} is 11" in done.stdout


def test_only_a_directory_of_its_own_is_made_anew(tmp_path):
    (tmp_path / "precious").touch()
    refused = run(tmp_path, **without_java(tmp_path / "empty"))
    assert refused.returncode == 1
    assert "not of an earlier demonstration" in refused.stderr
    assert (tmp_path / "precious").exists()

    own = tmp_path / "demo"
    own.mkdir()
    (own / ".kourou-demo").touch()
    (own / "old").touch()
    assert run(own, PATH=str(tmp_path / "empty"), JAVA_HOME="").returncode == 0
    assert not (own / "old").exists()
