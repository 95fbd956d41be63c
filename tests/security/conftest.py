"""A broker and a name server of their own for the tests of attacks, with files to look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.namesrv import NameServer, NameServerConfig
from support.sites.broker import Site, running
from support.sites.name_server import started

SECRET = "of-the-broker"
BROKER_FILE = {
    "brokerClusterName": "DefaultCluster",
    "tls.server.mode": "permissive",
    "haTlsEnable": "false",
    "filterServerNums": "0",
    "authenticationMetadataProvider": "org.apache.rocketmq.Local",
    "myOwnKey": "1",
    "enableLmq": "true",
    "enableMultiDispatch": "true",
    "initAuthenticationUser": f'{{"username":"admin","password":"{SECRET}"}}',
}
NAME_SERVER_FILE = {
    "tls.server.mode": "permissive",
    "tls.config.file": "none",
    "myOwnKey": "1",
    "clusterName": "DefaultCluster",
}


def write(file: Path, properties: dict[str, str]) -> None:
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    file.chmod(0o600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker with light queues and a file of its own, in which there is a secret."""
    directory = tmp_path_factory.mktemp("broker")
    file = directory / "broker.conf"
    write(file, BROKER_FILE)
    with running(directory, {**BROKER_FILE, "brokerConfigPath": str(file)}) as made:
        yield made


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    directory = tmp_path_factory.mktemp("name-server")
    file = directory / "namesrv.conf"
    write(file, {**NAME_SERVER_FILE, "kvConfigPath": str(directory / "kvConfig.json")})
    config = NameServerConfig.load(file)
    config.bind_address, config.listen_port = "127.0.0.1", 0
    with started(config) as (server, _):
        yield server
