"""A real Java broker and the real Java client find each other through `kourou namesrv`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.java import Java
from support.sites.servers import Server, broker_names, interop, java_broker, kourou_name_server, stop


class Cluster(NamedTuple):
    """A name server of ours and a broker of Java's."""

    name_server: Server
    broker: Server
    directory: Path

    def interop(self, *arguments: str) -> None:
        interop(self.directory, self.name_server.address, *arguments)


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    with kourou_name_server(directory) as server, java_broker(directory, server.port) as broker:
        yield Cluster(server, broker, directory)


def test_the_java_client_sends_and_consumes(cluster, tmp_path):
    sent = str(tmp_path / "sent.json")
    cluster.interop("topic", "--topic", "T")
    cluster.interop("produce", "--topic", "T", "--mode", "sync", "--count", "20", "--out", sent)
    cluster.interop("consume", "--topic", "T", "--group", "G", "--mode", "concurrent", "--expect", sent)


def test_the_java_admin_client_finds_what_it_asks_for(cluster):
    cluster.interop("topic", "--topic", "A")
    cluster.interop("admin", "--topic", "A")


def test_a_broker_that_stops_is_gone_from_the_cluster(cluster):
    stop(cluster.broker.process)
    assert broker_names(cluster.name_server.port) == []
