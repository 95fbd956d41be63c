"""The archive: what is new goes in once, whatever happens in between; and three roads say the same."""

from __future__ import annotations

import json

import pytest

from kourou.errors import StoreLockedError
from kourou.spark.channel import close_channels
from kourou.spark.jobs import archive_place
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.inputs import Input, read_archive
from kourou.spark.schema import ALL_COLUMNS
from kourou.store.log.disk import OsDisk
from kourou.testing import Cluster
from support.spark import bodies_of, send
from support.stores.store import message, open_store, put, small_config


def sorted_rows(frame):
    return sorted(map(str, frame.select(*ALL_COLUMNS).collect()))


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        yield running
    close_channels()


def test_a_store_becomes_an_archive(spark, golden_store, tmp_path):
    store = golden_store("retry_dlq")  # topics with percent signs
    report = archive(spark, str(store.path), tmp_path / "archive")
    frame = read_archive(spark, str(tmp_path / "archive"))

    assert report.rows == len(store.expected["commitlog"]["records"])
    assert sorted_rows(frame) == sorted_rows(Input.parse(str(store.path)).frame(spark))
    assert {path.name.split("=")[0] for path in (tmp_path / "archive").iterdir()} == {"topic", "_kourou"}


def test_a_second_run_takes_only_what_is_new(spark, cluster, tmp_path):
    cluster.create_topic("grows", queues=2)
    store = str(cluster.directory / "broker-a")
    for number in range(3):
        send(cluster, "grows", [b"m %d" % number, b"n %d" % number], queues=2)
        by_store = archive(spark, store, tmp_path / "a", topics=["grows"], compact=False)
        by_broker = archive(spark, cluster.namesrv, tmp_path / "b", topics=["grows"], compact=False)
        assert by_store.rows == by_broker.rows == 2
        assert archive(spark, store, tmp_path / "a", topics=["grows"], compact=False).rows == 0
        assert archive(spark, cluster.namesrv, tmp_path / "b", topics=["grows"], compact=False).rows == 0
    expected = sorted([b"m 0", b"m 1", b"m 2", b"n 0", b"n 1", b"n 2"])
    assert bodies_of(read_archive(spark, str(tmp_path / "a"))) == expected
    assert bodies_of(read_archive(spark, str(tmp_path / "b"))) == expected

    files = list((tmp_path / "a").glob("topic=*/day=*/*.parquet"))
    report = archive(spark, store, tmp_path / "a", topics=["grows"])
    assert report.compacted_files == len(files) >= 3
    assert len(list((tmp_path / "a").glob("topic=*/day=*/*.parquet"))) < len(files)
    assert bodies_of(read_archive(spark, str(tmp_path / "a"))) == expected


def test_each_choice_of_topics_goes_on_where_it_was(spark, tmp_path):
    """A second run with other topics does not miss what lay before the end of the first, nor repeat it."""
    config = small_config(tmp_path)
    store = config.store_path_root_dir
    archived = tmp_path / "archive"

    def run(*topics):
        return archive(spark, store, archived, topics=topics or None, compact=False).by_topic

    def fill(number):
        with open_store(config) as opened:
            put(opened, *(message(topic, 0, b"%s %d" % (topic.encode(), number)) for topic in "abc"))

    fill(0)
    assert run("a") == {"a": 1}
    fill(1)
    assert run("a", "b") == {"a": 1, "b": 2}
    assert run("b") == {}
    fill(2)
    assert run() == {"a": 1, "b": 1, "c": 3}
    assert run("c") == run("a", "c") == run() == {}
    fill(3)
    assert run("c") == {"c": 1}
    assert run() == {"a": 1, "b": 1}
    assert bodies_of(read_archive(spark, str(archived))) == [
        b"%c %d" % (t, n) for t in b"abc" for n in range(4)
    ]


def test_one_run_at_a_time(spark, golden_store, tmp_path):
    lock = OsDisk()
    (tmp_path / "archive" / "_kourou").mkdir(parents=True)
    held = lock.lock(str(tmp_path / "archive" / "_kourou" / "lock"))
    try:
        with pytest.raises(StoreLockedError):
            archive(spark, str(golden_store("plain").path), tmp_path / "archive")
    finally:
        held.release()


@pytest.mark.parametrize("step", range(6))
def test_a_run_that_is_interrupted_is_finished_by_the_next(spark, golden_store, tmp_path, monkeypatch, step):
    store = golden_store("plain")
    calls = iter(range(100))

    def failing(function):
        def call(*arguments):
            if next(calls) == step:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    monkeypatch.setattr(archive_place.os, "replace", failing(archive_place.os.replace))
    monkeypatch.setattr(archive_place, "write_atomically", failing(archive_place.write_atomically))
    with pytest.raises(KeyboardInterrupt):
        archive(spark, str(store.path), tmp_path / "archive")
    monkeypatch.undo()
    archive(spark, str(store.path), tmp_path / "archive")

    assert read_archive(spark, str(tmp_path / "archive")).count() == len(
        store.expected["commitlog"]["records"]
    )


def test_an_archive_belongs_to_one_kind_of_source(spark, golden_store, cluster, tmp_path):
    archive(spark, str(golden_store("plain").path), tmp_path / "archive")
    with pytest.raises(Exception, match="is the archive of a store"):
        archive(spark, cluster.namesrv, tmp_path / "archive")
    with pytest.raises(Exception, match="neither a directory nor name servers"):
        archive(spark, str(tmp_path / "nothing"), tmp_path / "other")


QUERIES = [
    "SELECT count(*) FROM m",
    "SELECT topic, count(*), sum(length(body)) FROM m GROUP BY topic ORDER BY topic",
    "SELECT topic, queueId, min(queueOffset), max(queueOffset) FROM m GROUP BY ALL ORDER BY ALL",
    "SELECT tags, count(*) FROM m GROUP BY tags ORDER BY tags",
    "SELECT body FROM m WHERE topic = 'roads' AND queueId = 1 AND queueOffset = 3",
    "SELECT count(*) FROM m WHERE queueOffset BETWEEN 3 AND 7",
    "SELECT uniqKey FROM m WHERE tags = 'odd' ORDER BY uniqKey LIMIT 7",
    "SELECT key, count(*) FROM (SELECT explode(keys) key FROM m) GROUP BY key ORDER BY key",
    "SELECT properties['n'] FROM m WHERE array_contains(keys, 'k-3') ORDER BY 1",
    "SELECT map_keys(properties) FROM m WHERE uniqKey = '00000000000000000000000000000005'",
    "SELECT msgId, body FROM m WHERE tags IS NULL ORDER BY msgId",
    "SELECT count(DISTINCT storeHost), count(DISTINCT bornHost) FROM m",
    "SELECT date_trunc('hour', storeTimestamp), count(*) FROM m GROUP BY 1 ORDER BY 1",
    "SELECT max(storeTimestamp), min(bornTimestamp) FROM m",
    "SELECT count(*) FROM m WHERE storeTimestamp BETWEEN timestamp'2020-01-01' AND timestamp'2100-01-01'",
    "SELECT count(*) FROM m WHERE storeTimestamp < timestamp'2020-01-01'",
    "SELECT sysFlag, flag, reconsumeTimes, transactionOffset, count(*) FROM m GROUP BY ALL ORDER BY ALL",
    "SELECT a.body FROM m a JOIN m b ON a.physicalOffset = b.physicalOffset AND b.tags = 'even' ORDER BY 1",
    "SELECT queueId, max_by(body, queueOffset) FROM m GROUP BY queueId ORDER BY 1",
    "SELECT count(*) FROM m WHERE topic IN ('roads', 'other') AND tags LIKE 'o%' OR queueId = 0",
]  # fmt: skip


@pytest.fixture(scope="module")
def three_roads(spark, cluster, tmp_path_factory):
    cluster.create_topic("roads", queues=3)
    send(
        cluster, "roads", (b"body %02d" % n for n in range(60)), queues=3,
        properties=lambda n: {"UNIQ_KEY": f"{n:032X}", "KEYS": f"k-{n % 10} all", "n": str(n)}
        | ({"TAGS": "odd" if n % 2 else "even"} if n % 7 else {}),
    )  # fmt: skip
    target = tmp_path_factory.mktemp("roads") / "archive"
    archive(spark, cluster.namesrv, target, topics=["roads"])
    return {
        "broker": Input.parse(cluster.namesrv),
        "store": Input.parse(str(cluster.directory / "broker-a")),
        "archive": Input.parse(str(target)),
    }


@pytest.mark.parametrize("query", QUERIES)
def test_three_roads_lead_to_the_same_answer(spark, three_roads, query):
    answers = {}
    for name, source in three_roads.items():
        source.frame(spark, topics=["roads"]).createOrReplaceTempView("m")
        answers[name] = [
            json.dumps(row.asDict(), default=str, sort_keys=True) for row in spark.sql(query).collect()
        ]

    assert answers["broker"] == answers["store"] == answers["archive"]
    assert answers["broker"] != []
