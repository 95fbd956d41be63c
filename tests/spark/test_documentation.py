"""docs/spark.md names every option, and what it shows works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import kourou.spark
from kourou.cli import app
from kourou.spark.channel import close_channels
from kourou.spark.read.broker_road import ALL_READ_OPTIONS
from kourou.spark.schema import COLUMNS
from kourou.spark.session import PUSH_DOWN, SETTINGS
from kourou.spark.source import STORE_OPTIONS
from kourou.spark.write.sink import SINK_OPTIONS
from kourou.testing import Cluster
from support.spark import send

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
ORDERS = 20


def section(name: str) -> str:
    return TEXT.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def first_cells(text: str) -> list[str]:
    """The names in the first column of all tables."""
    return [
        name for cell in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", cell)
    ]


def test_every_option_is_there_and_no_other():
    named = first_cells(section("Options"))

    assert sorted(named) == sorted({*ALL_READ_OPTIONS, *STORE_OPTIONS, *SINK_OPTIONS})


def test_every_column_and_setting_is_there():
    assert sorted(first_cells(section("Read from brokers"))) == sorted(COLUMNS)
    assert [name for name in SETTINGS if f"`{name}`" not in section("Tuning")] == []


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as cluster:
        for topic in ("orders", "orders-test", "invoices"):
            cluster.create_topic(topic)
        send(cluster, "orders", (b"%d" % n for n in range(ORDERS)), properties=lambda n: {"TAGS": "paid"})
        yield cluster
    close_channels()


@pytest.fixture
def here(cluster, tmp_path):
    """A text of the documentation with the addresses and paths of this test."""

    def replaced(text: str) -> str:
        text = text.replace("127.0.0.1:9876", cluster.namesrv)
        text = text.replace("/data/rocketmq/store", str(cluster.directory / "broker-a"))
        return text.replace("/data/", f"{tmp_path}/")

    return replaced


@pytest.mark.slow
def test_the_python_of_the_documentation_runs(spark, here, tmp_path, capsys):
    names = {"kourou": kourou, "spark": spark}
    examples = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(examples) == 8
    try:
        for example in examples:
            exec(here(example), names)
    finally:
        spark.conf.set(PUSH_DOWN, "true")  # the first example gets this session again, and turns it off
    spark.streams.removeListener(names["listener"])

    printed = capsys.readouterr().out
    assert "|queueId|queueOffset|" in printed
    assert printed.splitlines()[-3:] == ["['topic', 'body']", str(ORDERS), str(ORDERS)]
    assert spark.read.parquet(str(tmp_path / "orders")).count() == ORDERS


@pytest.mark.slow
def test_the_jobs_of_the_documentation_run(spark, here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    commands = re.findall(r"^    kourou (spark .*?)(?:  +#.*)?$", section("Jobs"), re.MULTILINE)
    assert {command.split()[1] for command in commands} == {
        command.name or command.callback.__name__ for command in kourou_spark_commands()
    }
    for command in commands:
        result = CliRunner().invoke(app, shlex.split(here(command)))
        assert result.exit_code == 0, f"{command}: {result.output}"
    assert (tmp_path / "report" / "report.html").exists()
    assert (tmp_path / "archive" / "topic=orders").is_dir()


def kourou_spark_commands():
    from kourou.cli.spark import app as verbs

    return verbs.registered_commands
