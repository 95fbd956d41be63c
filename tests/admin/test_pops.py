"""What an operator sees of POP: modes, messages in flight, requests that wait, retries; at both brokers."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kourou import sync
from kourou.admin.tools import doctor
from kourou.admin.tools.doctor import OK, WARN
from kourou.client import Message
from support.scenes import Scene
from support.sites.clients import LONG_S, numbers


def rows(scene: Scene, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in scene.kourou("admin", *arguments, "--json").splitlines()]


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_what_a_group_pops(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, group = (f"{name}-{next(numbers)}" for name in ("popped", "popper"))
    scene.target.create_topic(topic, queues=1, brokers=("broker-a",))
    with sync.Producer(scene.target.namesrv) as producer:
        for number in range(4):
            producer.send(Message(topic, b"%d" % number))
    options: dict[str, Any] = {"group": group, "subscribe": topic, "consume_from": "first"}
    with sync.SimpleConsumer(scene.target.namesrv, **options) as consumer:
        (late,) = consumer.receive(1, invisible_s=1)
        first = consumer.receive(3, invisible_s=600)
        consumer.ack(first[0])
        scene.kourou("admin", "group", "mode", group, topic, "POP", "--pop-queues", "2", "-b", "broker-a")

        def state() -> dict[str, Any]:
            return next(one for one in rows(scene, "group", "pops", group) if one["brokerName"] == "broker-a")

        wait_for(lambda: state()["retries"] == 1)
        found = state()
        assert (found["topic"], found["mode"], found["sharedQueues"]) == (topic, "POP", 2)
        assert (found["inFlight"], found["lag"], found["waitingPolls"]) == (2, 0, 0)
        assert [one["topic"] for one in rows(scene, "group", "pops", group, "-t", "other")] == []

        (again,) = consumer.receive()
        assert again.body == late.body
        waiting = threading.Thread(target=lambda: consumer.receive(await_s=LONG_S))
        waiting.start()
        wait_for(lambda: state()["waitingPolls"] == 1)
        assert (state()["inFlight"], state()["retries"]) == (3, 0)
        connections = json.loads(scene.kourou("admin", "group", "connections", group, "--json"))
        assert connections["consumeType"] == "CONSUME_POP"
        summaries = {one["group"]: one["consumeType"] for one in rows(scene, "group", "progress")}
        assert summaries[group] == "POP"
        assert f"{group}_{topic}" not in summaries  # the retry topic of pops is not that of a group

        def check() -> dict[str, str]:
            printed = scene.run("doctor", "-d", str(tmp_path), "--json").stdout.splitlines()
            return next(one for one in map(json.loads, printed) if one["name"] == "pop at broker-a")

        assert check()["state"] == OK
        monkeypatch.setattr(doctor, "REVIVE_BEHIND", -1)
        assert check()["state"] == WARN
        assert "come again late" in check()["advice"]
        consumer.stop()
        waiting.join()
    assert state()["inFlight"] == 0  # nobody is online to say
