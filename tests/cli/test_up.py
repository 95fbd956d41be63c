"""`kourou up`: what its brokers are set to, what its console is given, and what it says of itself."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import grpc
import pytest

from kourou.admin import Admin
from kourou.proxy.protocol import pb
from kourou.sync import Consumer, Message, Producer, Sql
from support.sites.clients import run
from support.sites.proxy import Client, message

READY_S = 60


def up(*options: str | Path) -> list[str]:
    free = ["--port", "0", "--broker-port", "0", "--console-port", "0", "--proxy-port", "0"]
    return [sys.executable, "-m", "kourou", "up", *free, *map(str, options)]


@contextmanager
def running(*options: str | Path) -> Iterator[dict[str, str]]:
    """`kourou up`: the addresses that it prints, by what they are of."""
    with subprocess.Popen(up(*options), stdout=subprocess.PIPE, encoding="utf-8") as process:
        assert process.stdout is not None
        found: dict[str, str] = {}
        while not (line := process.stdout.readline()).startswith("Ctrl-C stops it"):
            assert line, "it ended before it was up"
            if match := re.match(r"  (name server|broker|slave|console|proxy)\s+(\S+)", line):
                found[match[1]] = match[2]
        yield found
        process.send_signal(signal.SIGINT)
        assert process.wait(READY_S) == 0


def refused(*options: str) -> str:
    done = subprocess.run(
        up("--no-console", *options), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    return done.stderr


async def config_of(namesrv: str, address: str) -> dict[str, str]:
    async with Admin(namesrv) as admin:
        return await admin.brokers.config(address)


def test_filters_and_recall_work_as_the_docs_show_them(tmp_path):
    with (
        running("--dir", tmp_path, "--no-console") as at,
        Producer(at["name server"], group="PG") as producer,
    ):
        producer.send(Message("orders", b"little", {"amount": "3"}))
        producer.send(Message("orders", b"much", {"amount": "30"}))
        with Consumer(
            at["name server"], group="G", subscribe={"orders": Sql("amount > 10")}, consume_from="first"
        ) as consumer:
            assert bytes(next(iter(consumer)).body) == b"much"
        later = producer.send(Message("orders", b"x", delay_s=60))
        assert producer.recall("orders", later.recall_handle or "") == later.message_id


def test_keys_of_brokers_are_set(tmp_path):
    one = ("--set", "maxMessageSize=65536", "--set", "recallMessageEnable=false")
    with running("--dir", tmp_path / "one", "--no-console", *one) as at:
        config = run(config_of(at["name server"], at["broker"]))
    assert (config["maxMessageSize"], config["recallMessageEnable"]) == ("65536", "false")
    assert config["enablePropertyFilter"] == "true"
    pair = ("--slaves", "1", "--set", "brokerRole=SYNC_MASTER", "--set", "fileReservedTime=5")
    with running("--dir", tmp_path / "pair", "--no-console", *pair) as at:
        configs = [run(config_of(at["name server"], at[kind])) for kind in ("broker", "slave")]
    assert [config["brokerRole"] for config in configs] == ["SYNC_MASTER", "SLAVE"]
    assert [config["fileReservedTime"] for config in configs] == ["5", "5"]


def test_it_runs_where_the_port_of_the_proxy_is_taken(tmp_path):
    with running("--dir", tmp_path / "a", "--no-console") as first:
        taken = first["proxy"].rpartition(":")[2]
        with running("--dir", tmp_path / "b", "--no-console", "--proxy-port", taken) as second:
            assert "proxy" not in second
            assert run(addresses_at(second["name server"])) == {second["broker"]}


def test_the_access_control_of_the_brokers_is_that_of_the_proxy(tmp_path):
    admin = '{"username":"admin","password":"12345678"}'
    keys = ("--set", "authenticationEnabled=true", "--set", f"initAuthenticationUser={admin}")
    with running("--dir", tmp_path, "--no-console", *keys) as at:
        answer = run(sent_through(at["proxy"]))
        assert answer.status.code == pb.Code.UNAUTHORIZED


async def sent_through(proxy: str) -> Any:
    async with grpc.aio.insecure_channel(proxy) as channel:
        return await Client(channel, int(proxy.rpartition(":")[2])).send(message("orders"))


async def addresses_at(namesrv: str) -> set[str]:
    async with Admin(namesrv) as admin:
        found = await admin.clusters.brokers()
        return {address for broker in found for address in broker.addresses.values()}


def test_what_is_up_is_known_at_the_name_server(tmp_path):
    """A topic that is made at once is made at all brokers."""
    with running("--dir", tmp_path, "--no-console", "--brokers", "2", "--slaves", "1") as at:
        assert len(run(addresses_at(at["name server"]))) == 4


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("enablePropertyFiler=true", "no broker has this key; is it enablePropertyFilter?"),
        ("listenPort=5", "--set listenPort: give --broker-port"),
        ("enablePropertyFilter=maybe", "enablePropertyFilter=maybe"),
        ("noValue", "'noValue' is no key=value"),
    ],
)
def test_a_wrong_key_is_refused(tmp_path, setting, why):
    assert why in refused("--dir", str(tmp_path / "mq"), "--set", setting)
    assert not (tmp_path / "mq").exists()


def test_the_console_is_given_the_stores_and_a_place_for_jobs(tmp_path):
    pytest.importorskip("nicegui")
    with running("--dir", tmp_path) as at:
        url = at["console"]
        assert str(tmp_path / "broker-0") in page(f"{url}store")
        assert "--jobs" not in page(f"{url}pipeline")  # what it says where no place is given


def page(url: str) -> str:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urlopen(url, timeout=10) as answer:
                return str(answer.read().decode())
        except (URLError, OSError):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_the_help_has_groups_and_examples():
    done = subprocess.run(
        [*up()[:4], "--help"], capture_output=True, text=True, timeout=60, check=True
    )  # fmt: skip
    for part in ("The cluster", "Addresses and ports", "The web console", "--set", "kourou up --brokers 2"):
        assert part in done.stdout
