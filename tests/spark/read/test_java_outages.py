"""Java's brokers that are killed and come back, under a stream and under an exactly-once commit."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from chaos.nodes import JavaNode, broker, name_server, started
from kourou.message import Message
from kourou.remoting.protocol.codes import RequestCode
from kourou.spark.channel import NetSettings, call, close_channels
from kourou.spark.cluster import ClusterView
from kourou.spark.write import once
from kourou.spark.write.once import Journal, Publisher, Stager
from support.java import java
from support.sites.broker import until
from support.spark import Stream, send

pytestmark = pytest.mark.interop

ROWS = 40


class JavaCluster:
    """A name server, a master and its slave."""

    def __init__(self, directory):
        self.names = name_server(directory, JavaNode)
        self.namesrv = f"127.0.0.1:{self.names.port}"
        role = {"brokerRole": "SLAVE", "brokerId": 1, "slaveReadEnable": "true"}
        self.master = broker(directory, "broker-a", self.namesrv, node=JavaNode)
        self.slave = broker(directory, "broker-a", self.namesrv, "slave", JavaNode, **role)
        self.broker_addresses = [f"127.0.0.1:{self.master.port}"]
        self.view = ClusterView(self.namesrv, NetSettings(), from_slaves="never")

    def call(self, address, code, fields, body=None):
        return call(address, NetSettings(), code, fields, "a message", body)

    def end_at(self, node, topic):
        fields = {"topic": topic, "queueId": "0"}
        return int(node.ask(RequestCode.GET_MAX_OFFSET, **fields).ext_fields.get("offset", "0"))


@pytest.fixture
def cluster(tmp_path):
    java()
    made = JavaCluster(tmp_path)
    with started(made.names, made.master):
        until(lambda: "broker-a" in made.view.masters(), "the master to register")
        for topic in ("in", "out"):
            made.master.create_topic(topic, queues=1)
        until(lambda: {"in", "out"} <= set(made.view.topics()), "its topics")
        # A slave refuses pulls until it has the table of topics, for which it asks after most of a minute.
        config = Path("store", "config")
        shutil.copytree(made.master.directory / config, made.slave.directory / config)
        with started(made.slave):
            yield made
    close_channels()


def bodies(first, last):
    return [b"m %03d" % number for number in range(first, last)]


def test_a_stream_and_a_commit_while_the_master_is_killed(cluster, tmp_path, monkeypatch):
    send(cluster, "in", bodies(0, 50), queue=0)
    until(lambda: cluster.end_at(cluster.slave, "in") == 50, "the slave to follow")
    reader = Stream(cluster, topic="in")
    planned = reader.plan()

    cluster.master.kill()  # what was planned, and a new stream, come from the slave
    assert sorted(reader.read(planned)) == bodies(0, 50)
    assert Stream(cluster, topic="in").until(50) == bodies(0, 50)
    assert reader.batch() == []
    cluster.master.start()
    send(cluster, "in", bodies(50, 60), queue=0)
    assert reader.until(10) == bodies(50, 60)

    journal = Journal(str(tmp_path / "checkpoint"))
    stager = Stager(journal.files(0), 0)
    for number in range(ROWS):
        stager.add(Message("out", b"%d" % number, {"UNIQ_KEY": f"{number:032X}"}))
    publisher = Publisher(cluster.view, "sink", batch_bytes=500)
    taken = once.BatchSender.add_encoded
    numbers = itertools.count()
    restart = threading.Thread(target=cluster.master.start)

    def interrupted(self, *arguments, **more):
        if next(numbers) == ROWS // 2:
            cluster.master.kill()
            restart.start()
        taken(self, *arguments, **more)

    monkeypatch.setattr(once.BatchSender, "add_encoded", interrupted)
    journal.commit(publisher, 0, [stager.close()])
    restart.join()
    assert Counter(Stream(cluster, topic="out").until(ROWS)) == Counter(b"%d" % n for n in range(ROWS))
    assert cluster.end_at(cluster.master, "out") == ROWS
