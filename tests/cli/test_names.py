"""A name that a cluster does not have: `kourou admin` says so, with exit code 1."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from kourou.cli import app
from kourou.sync import Message, Producer, PullConsumer
from kourou.testing import Cluster

NO_GROUP = "there is no group nope: `kourou admin group list`"
NO_TOPIC = "no name server knows topic nope"
NO_BROKER = "no broker nope is known at the name server"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        with Producer(cluster.namesrv, group="PG") as producer:
            producer.send(Message("orders", b"x"))
        with PullConsumer(
            cluster.namesrv, group="real", subscribe="orders", consume_from="first"
        ) as consumer:
            consumer.poll()
            consumer.commit()
        yield cluster


def admin(cluster: Cluster, line: str) -> Result:
    return CliRunner().invoke(app, ["admin", *line.split(), "-n", cluster.namesrv])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("group progress nope", NO_GROUP),
        ("group progress nope -t orders", NO_GROUP),
        ("group progress nope --json", NO_GROUP),
        ("group connections nope", NO_GROUP),
        ("group status nope", NO_GROUP),
        ("group delete nope -y", NO_GROUP),
        ("group mode nope orders PULL", NO_GROUP),
        ("group config nope", "no broker has group nope"),
        ("offset reset nope orders --to first -y", NO_GROUP),
        ("offset skip nope orders -y", NO_GROUP),
        ("offset set nope orders -b broker-0 -q 0 -o 0 -y", NO_GROUP),
        ("offset clone nope real -y", NO_GROUP),
        ("topic delete nope -c DefaultCluster -y", NO_TOPIC),
        ("topic groups nope", NO_TOPIC),
        ("topic status nope", NO_TOPIC),
        ("topic order nope --remove", "No config item"),
        ("namesrv kv-delete nope nope -y", "No config item"),
        ("namesrv wipe-write nope -y", NO_BROKER),
        ("namesrv add-write nope", NO_BROKER),
        ("producer connections nope orders", "the producer group[nope] not exist"),
    ],
)
def test_what_is_not_there_is_said(cluster, line, why):
    done = admin(cluster, line)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_user_that_is_not_there_is_not_forgotten(cluster):
    done = admin(cluster, "user delete nope -y")
    assert (done.exit_code, "there is no user nope" in done.stderr) == (1, True), done.output


@pytest.mark.parametrize("group", ["real", "made"])
def test_a_group_that_never_had_a_retry_topic_is_there_all_the_same(cluster, group):
    assert admin(cluster, "group create made").exit_code == 0
    done = admin(cluster, f"group progress {group}")
    assert done.exit_code == 0, done.output
    assert f"{group}: 0 messages wait" in done.stdout
    assert admin(cluster, f"offset skip {group} orders -y").exit_code == 0
