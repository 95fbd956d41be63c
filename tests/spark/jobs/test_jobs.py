"""The jobs of `kourou spark`, by their functions and by the command."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from kourou.cli import app
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import UpdateConsumerOffset
from kourou.spark.channel import close_channels
from kourou.spark.jobs.audit import audit
from kourou.spark.jobs.inputs import Input
from kourou.spark.jobs.lag import lag
from kourou.spark.jobs.progress import TaskWatch
from kourou.spark.jobs.replay import replay
from kourou.sync import Consumer, ReconsumeLater
from kourou.testing import Cluster
from support.sites.broker import until
from support.spark import bodies_of, send

names = (f"job{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running
    close_channels()


@pytest.fixture
def topic(cluster):
    name = next(names)
    cluster.create_topic(name, queues=4)
    return name


def run(*arguments, code=0):
    done = CliRunner().invoke(app, ["spark", *map(str, arguments)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def read(spark, cluster, topic):
    return spark.read.format("rocketmq").option("namesrv", cluster.namesrv).option("topic", topic).load()


# sql


def test_a_question_from_the_shell(spark, golden_store):
    store = golden_store("plain")
    records = store.expected["commitlog"]["records"]
    query = "SELECT topic, count(*) AS n FROM messages GROUP BY topic ORDER BY topic"

    lines = [json.loads(line) for line in run("sql", query, store.path, "--json").splitlines()]
    topics = [record["topic"] for record in records]
    assert lines == [{"topic": topic, "n": topics.count(topic)} for topic in sorted(set(topics))]
    table = run("sql", query, store.path)
    plot = run("sql", query, store.path, "--plot")
    for topic in set(topics):
        assert topic in table
        assert f"{topic}" in plot
    assert "█" in plot


def test_a_question_to_a_cluster(spark, cluster, topic):
    send(cluster, topic, [b"a", b"b"])
    out = run(
        "sql", "SELECT string(body) AS b FROM messages ORDER BY b", cluster.namesrv, "-t", topic, "--json"
    )
    assert [json.loads(line)["b"] for line in out.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["SELECT colour FROM messages"], "colour"),
        (["SELECT 1", "--option", "minPartitions=many", "--topic", "t"], "option minPartitions"),
        (["SELECT 1", "--option", "nothing"], "is no KEY=VALUE"),
    ],
)
def test_mistakes_are_one_line(spark, cluster, arguments, said):
    query, *options = arguments
    query = query.replace("SELECT 1", "SELECT count(*) FROM messages")
    out = run("sql", query, cluster.namesrv, *options, code=2)
    assert said in out
    assert "Traceback" not in out


# archive


def test_archive_by_the_command(spark, golden_store, tmp_path):
    store = golden_store("plain")
    count = len(store.expected["commitlog"]["records"])
    assert f"{count} messages" in run("archive", store.path, tmp_path / "archive")
    assert "no messages" in run("archive", store.path, tmp_path / "archive")
    lines = run("sql", "SELECT count(*) AS n FROM messages", tmp_path / "archive", "--json")
    assert json.loads(lines) == {"n": count}


def test_archive_as_a_table_by_the_command(spark, cluster, topic, tmp_path):
    send(cluster, topic, [b'{"price": %d}' % number for number in range(5)])
    arguments = ["archive", cluster.namesrv, tmp_path / "lake", "-t", topic, "--format", "delta"]
    assert "5 messages" in run(*arguments, "--json-columns", "--drop-body")
    query = "SELECT sum(price) AS total, count(body) AS bodies FROM messages"
    assert json.loads(run("sql", query, tmp_path / "lake", "--json")) == {"total": 10, "bodies": 0}
    assert "it is one of parquet, delta, iceberg" in run(*arguments[:-1], "csv", code=2)


def test_options_that_a_source_does_not_know_are_refused(spark, golden_store, tmp_path):
    store = golden_store("plain").path
    for verb in (["sql", "SELECT count(*) FROM messages", store], ["archive", store, tmp_path / "archive"]):
        out = run(*verb, "-o", "brokerNames=a", code=2)
        assert "option brokerNames: it is not known; did you mean brokerName?" in out
        assert "option topic" in run(*verb, "-o", "topic=GoldenAlpha", code=2)
    run("archive", store, tmp_path / "archive", "-o", "brokername=known-by-any-case")
    query = "SELECT DISTINCT brokerName AS name FROM messages"
    assert json.loads(run("sql", query, tmp_path / "archive", "--json")) == {"name": "known-by-any-case"}
    assert "option brokerName" in run("sql", query, tmp_path / "archive", "-o", "brokerName=a", code=2)


# Progress


def test_tasks_are_counted_while_they_run(spark):
    watch = TaskWatch(spark)
    assert watch.look() == (0, 0)
    seen: list[tuple[int, int]] = []
    ended = threading.Event()

    def follow():
        while not ended.wait(0.05):
            seen.append(watch.look())

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        spark.sparkContext.parallelize(range(6), 6).map(lambda _: time.sleep(0.3)).collect()
    finally:
        ended.set()
        thread.join()

    assert {tasks for _, tasks in seen} <= {0, 6}
    assert sorted(seen) == seen
    assert any(0 < done < 6 for done, _ in seen)
    until(lambda: watch.look() == (6, 6))  # Spark tells of its tasks a little later


@pytest.mark.slow
def test_a_terminal_gets_a_bar_and_a_file_none(golden_store, tmp_path):
    store = golden_store("plain").path
    command = [sys.executable, "-m", "kourou", "spark", "archive", str(store)]
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [*command, str(tmp_path / "a")], stdout=subprocess.PIPE, stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 65536):
                shown += data
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(ours)

    assert process.returncode == 0
    assert b"tasks" in shown
    assert b"tasks" not in out
    assert b"messages of" in out


# audit


def test_a_sound_store_has_no_faults(spark, golden_store, tmp_path):
    store = golden_store("plain")
    out = run("audit", store.path, "--out", tmp_path)

    assert "no faults" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["messages"] == len(store.expected["commitlog"]["records"])
    assert sum(row["messages"] for row in report["tables"]["queues"]) == report["messages"]
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert "http" not in page  # nothing from elsewhere


def test_gaps_repeats_and_damage_are_found(spark, golden_store, tmp_path):
    store = golden_store("plain")
    victim = store.expected["commitlog"]["records"][100]
    path = next(
        path
        for path in sorted((store.path / "commitlog").iterdir(), reverse=True)
        if int(path.name) <= victim["physicalOffset"]
    )
    data = bytearray(path.read_bytes())
    at = victim["physicalOffset"] - int(path.name)
    data[at + 4 : at + 8] = b"\0\0\0\0"
    path.write_bytes(data)

    report = audit(spark, str(store.path))

    assert report.faults >= 2
    assert any(finding["severity"] == "fault" for finding in report.findings)
    gaps = report.tables["gaps"]
    assert [(gap["topic"], gap["queue"], gap["first"], gap["last"]) for gap in gaps] == [
        (victim["topic"], victim["queueId"], victim["queueOffset"], victim["queueOffset"])
    ]
    assert run("audit", store.path, "--out", tmp_path, code=1)


def test_an_audit_of_a_topic_names_repeats_and_keys(spark, cluster, topic):
    send(cluster, topic, [b"x"] * 6, properties=lambda n: {"UNIQ_KEY": f"U{n // 2}", "KEYS": "often"})
    report = audit(spark, cluster.namesrv, topics=[topic])

    assert [(row["uniqKey"], row["times"]) for row in report.tables["repeats"]] == [
        ("U0", 2),
        ("U1", 2),
        ("U2", 2),
    ]
    assert report.tables["keys"] == [{"topic": topic, "key": "often", "messages": 6}]
    assert report.tables["latency"][0]["messages"] == 6
    assert report.faults == 0


# rebuild


def test_rebuild_by_the_command(spark, golden_store, tmp_path):
    store = golden_store("crash_torn")
    out = run("rebuild", store.path, "--out", tmp_path / "out")

    assert f"from {len(store.expected['commitlog']['records'])} records" in out
    assert "with a torn tail" in out
    assert (tmp_path / "out" / "crash_torn" / "consumequeue").is_dir()
    assert "not empty" in run("rebuild", store.path, "--out", tmp_path / "out", code=2)


# replay


def test_messages_are_chosen_changed_and_sent_again(spark, cluster, topic):
    send(
        cluster,
        topic,
        (b"m%02d" % n for n in range(20)),
        properties=lambda n: {"TAGS": "odd" if n % 2 else "even"},
    )
    target = next(names)
    cluster.create_topic(target, queues=1)
    arguments = ["replay", cluster.namesrv, "-t", topic, "--to", cluster.namesrv, "--into", target,
                 "--where", "tags = 'odd'", "--transform",
                 "SELECT upper(string(body)) AS body, 'again' AS tags FROM messages"]  # fmt: skip

    assert "10 messages would be sent" in run(*arguments, "--dry-run")
    assert bodies_of(read(spark, cluster, target)) == []
    assert "10 messages sent" in run(*arguments)
    rows = read(spark, cluster, target).collect()
    assert sorted(bytes(row.body) for row in rows) == [b"M%02d" % n for n in range(1, 20, 2)]
    assert {row.tags for row in rows} == {"again"}


def test_a_replay_keeps_to_its_rate(spark, cluster, topic):
    send(cluster, topic, (b"m%02d" % n for n in range(20)))
    target = next(names)
    cluster.create_topic(target, queues=1)
    started = time.monotonic()
    replay(spark, str(cluster.directory / "broker-a"), cluster.namesrv, target, topics=[topic], per_second=10)

    assert len(bodies_of(read(spark, cluster, target))) == 20
    assert time.monotonic() - started >= 1.9


def test_dead_letters_go_back_to_their_topic(spark, cluster, topic, golden_store):
    store = golden_store("retry_dlq")
    dead = [r for r in store.expected["commitlog"]["records"] if r["topic"].startswith("%DLQ%")]
    groups = {record["topic"].removeprefix("%DLQ%") for record in dead}
    group = sorted(groups)[0]
    report = replay(spark, str(store.path), cluster.namesrv, dlq=group, dry_run=True)

    own = [r for r in dead if r["topic"] == f"%DLQ%{group}"]
    assert report.messages == len(own) > 0
    assert set(report.by_topic) == {
        r["properties"].get("DLQ_ORIGIN_TOPIC") or r["properties"]["RETRY_TOPIC"] for r in own
    }


def test_a_message_that_a_consumer_failed_on_comes_back(spark, cluster, topic):
    """It fails, is tried again, ends as a dead letter, and a replay brings it to its topic: all for real."""
    group = f"group-{topic}"
    send(cluster, topic, [b"bad", b"good"], properties=lambda n: {"TAGS": "paid", "KEYS": f"k{n}"})
    consumer = Consumer(
        cluster.namesrv, group=group, subscribe=topic, consume_from="first", max_reconsume_times=1
    )

    @consumer.handler
    def handle(message):
        if message.body == b"bad":
            raise ReconsumeLater(delay_level=1)

    dead = Input.parse(cluster.namesrv, {"pattern": "%DLQ%.*"})
    with consumer:
        deadline = time.monotonic() + 60
        while dead.frame(spark, columns=["body"]).where(f"topic = '%DLQ%{group}'").count() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.3)

    before = read(spark, cluster, topic).count()
    arguments = ["replay", cluster.namesrv, "--dlq", group, "--to", cluster.namesrv]
    assert "1 message would be sent" in run(*arguments, "--dry-run")
    assert read(spark, cluster, topic).count() == before
    out = run(*arguments)

    assert "1 message sent" in out
    assert topic in out
    rows = read(spark, cluster, topic).where("body = cast('bad' AS binary)").collect()
    assert len(rows) == 2
    assert {(row.tags, tuple(row.keys)) for row in rows} == {("paid", ("k0",))}
    assert read(spark, cluster, topic).count() == before + 1


# lag and stats


def test_lag_by_files_and_by_brokers(spark, cluster, topic):
    send(cluster, topic, (b"m%02d" % n for n in range(20)), queue=1)
    cluster.call(
        cluster.broker_addresses[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {},
        json.dumps({"groupName": "slow"}).encode(),
    )  # fmt: skip
    cluster.call(
        cluster.broker_addresses[0],
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateConsumerOffset("slow", topic, 1, 5).fields(),
    )

    (row,) = lag(spark, cluster.namesrv, group="slow").where(f"topic = '{topic}'").collect()
    assert (row.queueId, row.committed, row.end, row.lag) == (1, 5, 20, 15)
    out = run("lag", cluster.namesrv, "-g", "slow", "--samples", "2", "--every", "0.1", "--json")
    assert [json.loads(line)["lag"] for line in out.splitlines()] == [15, 15]
    deadline = time.monotonic() + 30
    while not (rows := lag(spark, str(cluster.directory / "broker-a"), group="slow").collect()):
        assert time.monotonic() < deadline  # the broker writes its table every five seconds
        time.sleep(0.5)
    assert rows[0].lag == 15


def test_stats_count_by_time(spark, cluster, topic):
    send(cluster, topic, [b"four"] * 10)
    out = run("stats", cluster.namesrv, "-t", topic, "--every", "day", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert sum(row["messages"] for row in rows) == 10
    assert sum(row["bytes"] for row in rows) == 40


def test_a_job_through_spark_connect_is_refused_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_REMOTE", "sc://127.0.0.1:1")
    (tmp_path / "commitlog").mkdir()
    assert "a job needs a driver of its own" in run("stats", tmp_path, code=2)


def test_help_does_not_load_spark():
    program = "import sys; from kourou.cli import app; assert 'pyspark' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
