"""What a user sees of an error: one sentence, after the first words of Spark's, and at the end. To a stream's
Spark adds the state and the plan of the query, and nothing between."""

from __future__ import annotations

import itertools

import pytest

from kourou.spark.channel import close_channels
from kourou.testing import Cluster
from support.spark import send

NOBODY = "127.0.0.1:1"
AWAY = {"namesrv": NOBODY, "waitTimeout": "0s"}
tables = (f"table{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def cluster():
    with Cluster() as running:
        running.create_topic("t", queues=1)
        send(running, "t", [b"a", b"b"], queue=0)
        yield running
    close_channels()


def read(spark, cluster, **options):
    given = {"namesrv": cluster.namesrv, "topic": "t", **options}
    spark.read.format("rocketmq").options(**given).load().collect()


def write(spark, cluster, **options):
    given = {"namesrv": cluster.namesrv, "topic": "t", "body": "'x'", **options}
    frame = spark.range(1).selectExpr(f"{given.pop('body')} AS body")
    frame.write.format("rocketmq").mode("append").options(**given).save()


def stream(spark, cluster, **options):
    given = {"namesrv": cluster.namesrv, "topic": "t", "startingOffsets": "earliest", **options}
    spark.readStream.format("rocketmq").options(**given).load().writeStream.format(
        "noop"
    ).start().awaitTermination()


def table(spark, cluster, **options):
    name = next(tables)
    spark.sql(f"CREATE TABLE {name} USING rocketmq OPTIONS (namesrv '{cluster.namesrv}', topic 't')")
    spark.table(name).collect()


@pytest.mark.parametrize(
    ("work", "options", "sentence"),
    [
        (read, {"colour": "red"}, "OptionError: option colour: it is not known"),
        (read, {"topic": "none", "waitTimeout": "0s"}, "no name server knows topic none"),
        (read, AWAY, f"no name server answers: cannot connect to {NOBODY}"),
        (read, {"sql": "a ="}, "broker-a refused a pull of t-broker-a-0: parse the consumer's subscription"),
        (write, {"colour": "red"}, "OptionError: option colour: it is not known"),
        (write, {"body": "''"}, "row 0 has no body"),
        (write, AWAY, f"no name server answers: cannot connect to {NOBODY}"),
        (write, {**AWAY, "delivery": "exactly-once"}, "no name server answers"),
        (stream, {"colour": "red"}, "OptionError: option colour: it is not known"),
        (stream, {"topic": "none", "waitTimeout": "0s"}, "no name server knows topic none"),
        (table, {}, "instead of CREATE TABLE … USING rocketmq, use CREATE TEMPORARY VIEW"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_at_the_top(spark, cluster, work, options, sentence):
    with pytest.raises(Exception, match="kourou") as raised:
        work(spark, cluster, **options)
    text = str(raised.value)
    assert "Traceback" not in text
    assert text.count(sentence) == 1
    own = text.partition("=== Streaming Query ===")[0] if work is stream else text
    assert sentence in "\n".join(text.splitlines()[:2])
    assert sentence in "\n".join(own.splitlines()[-2:])
