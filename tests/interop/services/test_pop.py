"""POP by the real Java client: a push consumer in that mode, the calls, and stores that change hands."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from support.java import RUN, Java
from support.sites.servers import (
    Server,
    interop,
    java_broker,
    java_environment,
    kourou_broker,
    kourou_name_server,
    report_of,
)

BROKERS = {"kourou": kourou_broker, "java": java_broker}
TIMEOUT_S = 180
COUNT = 30


def pop(directory: Path, name_server: Server, *arguments: object) -> dict[str, Any]:
    """What the program reports of one step, which must succeed."""
    what, *others = map(str, arguments)
    done = subprocess.run(
        [RUN, "Pop", what, "--namesrv", name_server.address, "--topic", "T", "--group", "G", *others],
        capture_output=True, encoding="utf-8", errors="replace", env=java_environment(directory),
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-15:]
    return report_of(done)


def calls(directory: Path, kind: str, more: dict[str, object] | None = None) -> dict[str, Any]:
    """What came of all calls of POP at a broker."""
    directory.mkdir()
    more = {
        "enablePropertyFilter": "true",
        "timerWheelEnable": "true",
        "useServerSideResetOffset": "true",
        **(more or {}),
    }
    with kourou_name_server(directory) as server, BROKERS[kind](directory, server.port, more):
        done = subprocess.run(
            [RUN, "PopCalls", "--namesrv", server.address],
            capture_output=True, encoding="utf-8", errors="replace", env=java_environment(directory),
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-15:]
    return report_of(done)


def test_each_call_is_answered_as_by_javas_broker(java: Java, tmp_path: Path) -> None:
    """Given Java's client, then Kourou's broker answers it as Java's does, with the buffer and without."""
    expected = calls(tmp_path / "java", "java")
    assert len(expected["many"]) == 40
    assert calls(tmp_path / "kourou", "kourou") == expected
    assert calls(tmp_path / "buffered", "kourou", {"enablePopBufferMerge": "true"}) == expected


def raw(directory: Path, name_server: Server, *arguments: object) -> dict[str, dict[str, Any]]:
    """The messages of one pop, by their bodies."""
    found = pop(directory, name_server, "raw", *arguments)
    return {message["body"]: message for message in found["messages"]}


def produce(directory: Path, name_server: Server, count: int = COUNT) -> None:
    interop(directory, name_server.address, "topic", "--topic", "T")
    sent = directory / "sent.json"
    interop(
        directory, name_server.address, "produce", "--topic", "T", "--count", str(count), "--out", str(sent)
    )


def test_a_push_consumer_in_mode_pop_gets_each_message_and_what_failed_again(
    java: Java, tmp_path: Path
) -> None:
    with kourou_name_server(tmp_path) as server, kourou_broker(tmp_path, server.port):
        produce(tmp_path, server)
        report = pop(tmp_path, server, "push", "--count", COUNT, "--fail", 3, "--timeout", 90, "--linger", 3)
    assert report["done"] == COUNT
    again = {body for body, times in report["seen"].items() if times > 1}
    assert again
    assert {body for body, times in report["times"].items() if times > 0} == again
    assert max(report["seen"].values()) == 2


def test_order_blocks_until_it_is_acknowledged(java: Java, tmp_path: Path) -> None:
    with kourou_name_server(tmp_path) as server, kourou_broker(tmp_path, server.port):
        produce(tmp_path, server, 4)
        first = raw(tmp_path, server, "--order", "true", "--ack", "none", "--invisible", 60_000)
        assert len(first) == 4
        assert raw(tmp_path, server, "--order", "true") == {}
        handle = next(iter(first.values()))["handle"]
        assert handle.split(" ")[3] == "999"


@pytest.mark.parametrize(("first", "second"), [("kourou", "java"), ("java", "kourou")])
def test_what_is_in_flight_goes_on_under_the_other_broker(
    java: Java, tmp_path: Path, first: str, second: str
) -> None:
    with kourou_name_server(tmp_path) as server:
        with BROKERS[first](tmp_path, server.port):
            produce(tmp_path, server, 6)
            given = raw(tmp_path, server, "--ack", "first", "--invisible", 15_000)
            assert len(given) == 6
            done = next(iter(given))
        with BROKERS[second](tmp_path, server.port):
            again: dict[str, dict[str, Any]] = {}
            until = time.monotonic() + TIMEOUT_S / 2
            while len(again) < 5 and time.monotonic() < until:
                again |= raw(tmp_path, server, "--poll", 5000, "--ack", "all")
            assert set(again) == set(given) - {done}
            assert {message["times"] for message in again.values()} == {1}
            assert raw(tmp_path, server, "--poll", 4000) == {}
