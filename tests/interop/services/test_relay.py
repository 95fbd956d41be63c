"""Java's classic client through `kourou proxy`: behind it are Kourou's broker and Java's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.java import Java
from support.sites.servers import interop, java_broker, kourou_broker, kourou_name_server, kourou_proxy

QUICK = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}
SLOWER = {"transactionTimeOut": 6000, "transactionCheckInterval": 4000}  # Java notes the end after 3 s


@pytest.fixture(scope="module")
def places(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of the name server, and that of the proxy."""
    directory = tmp_path_factory.mktemp("relay")
    for name in ("a", "b"):
        (directory / name).mkdir()
    with (
        kourou_name_server(directory) as server,
        kourou_broker(directory / "a", server.port, QUICK),
        java_broker(directory / "b", server.port, {"brokerName": "broker-b", **SLOWER}),
        kourou_proxy(server.address, remoting_port=0) as proxy,
    ):
        assert proxy.process.stdout is not None
        yield server.address, proxy.process.stdout.readline().split()[-1]


@pytest.mark.parametrize(
    ("produced", "consumed"),
    [("sync", "concurrent"), ("batch", "concurrent"), ("ordered", "orderly"), ("transaction", "concurrent")],
)
def test_messages_go_through_to_both_brokers(
    places: tuple[str, str], tmp_path: Path, produced: str, consumed: str
) -> None:
    namesrv, proxy = places
    topic, sent = f"T_{produced}", tmp_path / "sent.json"
    interop(tmp_path, namesrv, "topic", "--topic", topic, "--queues", "2")
    report = interop(
        tmp_path, proxy, "produce", "--topic", topic, "--mode", produced, "--count", "12", "--group", "PG",
        "--out", str(sent),
    )  # fmt: skip
    assert report["ok"]
    report = interop(
        tmp_path, proxy, "consume", "--topic", topic, "--mode", consumed, "--group", f"G_{produced}",
        "--expect", str(sent), "--timeout", "60",
    )  # fmt: skip
    assert report["ok"], report
    told = interop(tmp_path, namesrv, "offsets", "--topic", topic)
    assert told["ok"]


def test_what_failed_comes_again(places: tuple[str, str], tmp_path: Path) -> None:
    namesrv, proxy = places
    sent = tmp_path / "sent.json"
    interop(tmp_path, namesrv, "topic", "--topic", "T_again", "--queues", "2")
    interop(tmp_path, proxy, "produce", "--topic", "T_again", "--count", "4", "--out", str(sent))
    report = interop(
        tmp_path, proxy, "consume", "--topic", "T_again", "--group", "G_again", "--fail-first",
        "--expect", str(sent), "--timeout", "90",
    )  # fmt: skip
    assert report["ok"], report
