"""`kourou send`, `kourou tail`, `kourou bench`: at our brokers and at Java's."""

from __future__ import annotations

import json
from array import array
from pathlib import Path

import pytest

from kourou.admin.tools.bench import Latency, Tick
from kourou.cli.bench import chart, sparkline
from kourou.cli.tail import BodyForm, pretty_body
from support.scenes import TOPIC, Scene
from support.sites.clients import numbers


@pytest.fixture
def topic(scene: Scene) -> str:
    return scene.target.create_topic(f"everyday-{next(numbers)}", queues=1)


def tail(scene: Scene, topic: str, count: int, *options: str) -> list[dict[str, object]]:
    printed = scene.kourou("tail", topic, "--from", "first", "--count", str(count), "--json", *options)
    return [json.loads(line) for line in printed.splitlines()]


def test_what_is_sent_is_seen(scene: Scene, topic: str, tmp_path: Path) -> None:
    sent = scene.kourou(
        "send", topic, '{"id": 1}', "two", "--tags", "a", "--keys", "k1 k2", "-p", "n=5", "--json"
    )
    receipts = [json.loads(line) for line in sent.splitlines()]
    assert {one["status"] for one in receipts} == {"SEND_OK"}
    scene.kourou("send", topic, stdin="line 1\nline 2\r\n")
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff binary")
    scene.kourou("send", topic, "--file", str(file), "--count", "2", "--rate", "100", "--tags", "b")

    seen = tail(scene, topic, 6)
    assert sorted(str(one["body"]) for one in seen) == sorted(
        ['{"id": 1}', "two", "line 1", "line 2", "AP8gYmluYXJ5", "AP8gYmluYXJ5"]
    )
    (first,) = [one for one in seen if one["msgId"] == receipts[0]["msgId"]]
    assert (first["tags"], first["keys"], first["brokerName"]) == (
        "a",
        ["k1", "k2"],
        receipts[0]["brokerName"],
    )
    assert {one["tags"] for one in tail(scene, topic, 2, "--tags", "b || c")} == {"b"}
    assert {one["tags"] for one in tail(scene, topic, 2, "--sql", "n > 4")} == {"a"}


def test_tail_begins_at_a_time(scene: Scene) -> None:
    printed = scene.kourou("tail", TOPIC, "--from", "1h", "--count", "3")
    assert '"number"' in printed
    assert "keys=key-" in printed
    assert scene.run("tail").exit_code == 2
    assert scene.run("tail", TOPIC, "--tags", "a", "--sql", "b").exit_code == 2
    assert scene.run("tail", "no-such-topic", "--count", "1").exit_code == 1


def test_a_message_is_delivered_later(scene: Scene, topic: str) -> None:
    scene.kourou("send", topic, "later", "--delay", "1")
    scene.kourou("send", topic, "now")
    assert {one["body"] for one in tail(scene, topic, 2)} == {"now", "later"}


def test_sends_that_make_no_sense(scene: Scene) -> None:
    assert scene.run("send", TOPIC, "a", "--file", "b").exit_code == 2
    assert scene.run("send", TOPIC, "a", "-p", "no-value").exit_code == 2
    assert scene.run("send", TOPIC, "--count", "2", stdin="a\n").exit_code == 2
    assert scene.run("send", "bad name", "a").exit_code == 1


def test_bench(scene: Scene) -> None:
    options = ["--seconds", "0.5", "--rate", "200", "--size", "100", "--producers", "2", "--in-flight", "2"]
    topic = f"bench-{next(numbers)}"
    report = json.loads(scene.kourou("bench", "-t", topic, *options, "--json"))
    assert report["sent"] == report["received"] > 0
    assert report["failed"] == 0
    assert report["sendLatency"]["p50Ms"] <= report["sendLatency"]["p99Ms"] <= report["sendLatency"]["maxMs"]
    printed = scene.kourou("bench", "-t", topic, *options, "--consumers", "0")
    assert "send rate" in printed


def test_a_bench_of_nothing_fails(scene: Scene) -> None:
    assert scene.run("bench", "--seconds", "0.2", "-n", "127.0.0.1:1").exit_code == 1


def test_the_chart_of_a_bench() -> None:
    assert sparkline([0.0, 50.0, 100.0], 100.0) == " ▄█"
    panel = chart(Tick(3.0, 1000, 900, 1, 300.0, 200.0), [100.0, 300.0], [50.0, 200.0])
    assert "1,000 sent, 900 received, 1 failed" in str(panel.renderable)
    assert Latency.of(array("d", range(1, 101))) == Latency(51.0, 100.0, 100.0)


@pytest.mark.parametrize(
    ("body", "form", "shown"),
    [
        (b'{"a":1}', BodyForm.AUTO, '{\n  "a": 1\n}'),
        (b'{"a":1}', BodyForm.TEXT, '{"a":1}'),
        (b"{broken", BodyForm.AUTO, "{broken"),
        ("grün".encode(), BodyForm.AUTO, "grün"),
        (b"a\x1b[31m", BodyForm.TEXT, "a·[31m"),
        (b"\x00\x01", BodyForm.AUTO, "000000  00 01" + " " * 44 + "..".rjust(2)),
        (b"ab", BodyForm.HEX, "000000  61 62" + " " * 44 + "ab"),
    ],
)
def test_bodies_are_pretty(body: bytes, form: BodyForm, shown: str) -> None:
    assert pretty_body(body, form) == shown


def test_a_long_body_in_hex_is_cut() -> None:
    assert pretty_body(bytes(2000), BodyForm.HEX).endswith("… 2000 bytes")


def test_a_topic_that_a_message_has_just_made_is_followed(scene: Scene) -> None:
    topic = f"made-{next(numbers)}"
    scene.kourou("send", topic, "first of all")
    assert [one["body"] for one in tail(scene, topic, 1)] == ["first of all"]
