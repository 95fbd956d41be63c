"""Every verb of `kourou admin`, at our brokers and at Java's."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from kourou.cli import app
from support.scenes import CLIENT_ID, CLUSTER, COUNT, GROUP, PRODUCERS, QUEUES, TOPIC, Scene
from support.sites.clients import numbers


def admin(scene: Scene, *arguments: str, code: int = 0) -> str:
    """What a verb prints."""
    return scene.kourou("admin", *arguments, code=code)


def rows(scene: Scene, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    """The JSON lines that a verb prints."""
    return [json.loads(line) for line in admin(scene, *arguments, "--json", code=code).splitlines()]


def unique(name: str) -> str:
    return f"{name}-{next(numbers)}"


def test_topics(scene: Scene) -> None:
    topic = unique("topic")
    admin(scene, "topic", "create", topic, "-q", "3", "-c", CLUSTER)

    route = rows(scene, "topic", "route", topic)
    assert [(one["brokerName"], one["readQueueNums"], one["perm"]) for one in route] == [
        ("broker-a", 3, 6),
        ("broker-b", 3, 6),
    ]
    assert topic in admin(scene, "topic", "list").split()
    listed = {one["topic"] for one in rows(scene, "topic", "list", "--all", "-c", CLUSTER)}
    assert {topic, TOPIC, "TBW102"} <= listed
    status = rows(scene, "topic", "status", TOPIC)
    assert sum(one["maxOffset"] for one in status) >= COUNT
    assert len(status) == 2 * QUEUES
    config = json.loads(admin(scene, "topic", "config", topic))
    assert config["broker-b"]["writeQueueNums"] == 3
    assert admin(scene, "topic", "clusters", topic).split() == [CLUSTER]
    assert rows(scene, "topic", "clusters", topic) == [{"cluster": CLUSTER}]
    assert GROUP in admin(scene, "topic", "groups", TOPIC).split()
    (billing,) = [one for one in rows(scene, "topic", "consumers", TOPIC) if one["group"] == GROUP]
    assert billing["lag"] == 0
    shares = json.loads(admin(scene, "topic", "allocate", topic, "one", "two", "--json"))
    assert [len(shares[name]) for name in ("one", "two")] == [3, 3]


def test_a_topic_changes_and_goes(scene: Scene) -> None:
    topic = unique("topic")
    admin(scene, "topic", "create", topic, "-b", "broker-a", "--read-queues", "2", "--write-queues", "1")
    admin(scene, "topic", "create", topic, "-b", scene.target.brokers["broker-b"].address, "-q", "5")

    changed = rows(scene, "topic", "perm", topic, "r")
    assert {(one["oldPerm"], one["newPerm"]) for one in changed} == {(6, 4)}
    config = json.loads(admin(scene, "topic", "config", topic))
    assert [config[name]["perm"] for name in sorted(config)] == [4, 4]
    assert [config[name]["readQueueNums"] for name in sorted(config)] == [2, 5]

    (done,) = rows(scene, "topic", "update", topic, "--perm", "rw", "--write-queues", "2")
    assert sorted(done["addresses"]) == sorted(scene.addresses)
    config = json.loads(admin(scene, "topic", "config", topic))
    assert [(one["perm"], one["writeQueueNums"], one["readQueueNums"]) for one in config.values()] == [
        (6, 2, 2),
        (6, 2, 5),
    ]

    assert admin(scene, "topic", "order", topic, "broker-a:1;broker-b:5").strip() == "broker-a:1;broker-b:5"
    assert admin(scene, "topic", "order", topic).strip() == "broker-a:1;broker-b:5"
    admin(scene, "topic", "order", topic, "--remove")
    admin(scene, "topic", "order", topic, code=1)

    admin(scene, "topic", "delete", topic, "-c", CLUSTER, code=2)  # nobody said yes
    assert topic in admin(scene, "topic", "list").split()
    admin(scene, "topic", "delete", topic, "-c", CLUSTER, "--yes")
    assert topic not in admin(scene, "topic", "list").split()


def test_a_topic_in_order_is_noted_at_the_name_server(scene: Scene) -> None:
    topic = unique("ordered")
    admin(scene, "topic", "create", topic, "-q", "2", "--order", "--attributes", "+message.type=FIFO")
    assert admin(scene, "topic", "order", topic).strip() == "broker-a:2;broker-b:2"
    config = json.loads(admin(scene, "topic", "config", topic))
    assert config["broker-a"]["attributes"] == {"message.type": "FIFO"}
    assert config["broker-a"]["order"] is True


def test_groups(scene: Scene) -> None:
    group = unique("group")
    admin(scene, "group", "create", group, "--retry-times", "7", "--set", "brokerId=1", "-c", CLUSTER)
    assert {group, GROUP} <= set(admin(scene, "group", "list").split())
    assert "TOOLS_CONSUMER" in {one["group"] for one in rows(scene, "group", "list", "--all")}
    config = json.loads(admin(scene, "group", "config", group))
    assert [(one["retryMaxTimes"], one["brokerId"]) for one in config.values()] == [(7, 1), (7, 1)]

    admin(scene, "group", "mode", group, TOPIC, "PULL", "-b", "broker-a")
    admin(scene, "group", "mode", group, TOPIC, "SHOVE", code=2)

    admin(scene, "group", "delete", group, "--offsets", "--yes")
    assert group not in admin(scene, "group", "list").split()
    admin(scene, "group", "config", group, code=1)


def test_topics_and_groups_of_a_file(scene: Scene, tmp_path: Path) -> None:
    topic, group, file = unique("listed"), unique("listed"), tmp_path / "list.json"
    file.write_text(json.dumps([{"topicName": topic, "readQueueNums": 1, "writeQueueNums": 1}]))
    admin(scene, "topic", "create-many", str(file), "-b", "broker-a")
    assert topic in admin(scene, "topic", "list").split()
    file.write_text(json.dumps([{"groupName": group, "retryMaxTimes": 5}]))
    admin(scene, "group", "create-many", str(file))
    assert group in admin(scene, "group", "list").split()
    for text in ("{", '["no object"]'):
        file.write_text(text)
        admin(scene, "topic", "create-many", str(file), code=1)


def test_how_far_a_group_is(scene: Scene) -> None:
    progress = rows(scene, "group", "progress", GROUP, "-t", TOPIC, "--clients")
    assert {one["clientIp"] for one in progress if one["topic"] == TOPIC} == {"127.0.0.1"}
    assert sum(one["brokerOffset"] for one in progress if one["topic"] == TOPIC) >= COUNT
    assert all(one["lag"] >= 0 for one in progress)
    pops = rows(scene, "group", "pops", GROUP, "-t", TOPIC)  # test_pops.py has a group that pops
    assert {(one["brokerName"], one["mode"], one["inFlight"]) for one in pops} == {
        ("broker-a", "", 0),
        ("broker-b", "", 0),
    }
    (summary,) = [one for one in rows(scene, "group", "progress") if one["group"] == GROUP]
    assert (summary["clients"], summary["consumeType"], summary["messageModel"]) == (1, "PUSH", "CLUSTERING")
    assert summary["version"] == "V5_5_0"

    found = json.loads(admin(scene, "group", "connections", GROUP, "--json"))
    assert [(one["clientId"], one["language"]) for one in found["clients"]] == [(CLIENT_ID, "PYTHON")]
    assert {one["topic"] for one in found["subscriptions"]} == {TOPIC, f"%RETRY%{GROUP}"}
    assert CLIENT_ID in admin(scene, "group", "connections", GROUP)
    status = json.loads(admin(scene, "group", "status", GROUP, "--json"))
    assert list(status) == [CLIENT_ID]
    assert "broker-b" in admin(scene, "group", "status", GROUP, "-i", CLIENT_ID, "--stack")


def test_producers(scene: Scene) -> None:
    (found,) = rows(scene, "producer", "connections", PRODUCERS, TOPIC)
    assert found["language"] == "PYTHON"
    listed = rows(scene, "producer", "list", "broker-a")
    assert PRODUCERS in {one["group"] for one in listed}
    assert PRODUCERS in admin(scene, "producer", "list", scene.broker)
    admin(scene, "producer", "connections", "nobody", TOPIC, code=1)


@pytest.fixture
def pile(scene: Scene) -> tuple[str, str]:
    """A topic of two queues with six messages, and a group that has consumed none."""
    topic, group = unique("pile"), unique("sleeper")
    scene.target.create_topic(topic, queues=1)
    scene.kourou("admin", "group", "create", group)
    for broker in ("broker-a", "broker-b"):
        for number in range(3):
            scene.kourou("admin", "message", "send", topic, str(number), "-b", broker, "-q", "0")
    return topic, group


def test_offsets(scene: Scene, pile: tuple[str, str]) -> None:
    topic, group = pile

    def lag() -> int:
        return sum(one["lag"] for one in rows(scene, "group", "progress", group, "-t", topic))

    assert lag() == 6
    admin(scene, "offset", "skip", group, topic, code=2)  # nobody said yes
    skipped = rows(scene, "offset", "skip", group, topic, "-y")
    assert [one["offset"] for one in skipped] == [3, 3]
    assert lag() == 0
    reset = rows(scene, "offset", "reset", group, topic, "--to", "first", "-y")
    assert [one["offset"] for one in reset] == [0, 0]
    assert lag() == 6
    admin(scene, "offset", "reset", group, topic, "--to", "1h", "-y")
    assert lag() == 6
    admin(scene, "offset", "reset", group, topic, "--to", "yesterday", "-y", code=2)
    admin(scene, "offset", "set", group, topic, "-b", "broker-a", "-q", "0", "-o", "2", "-y")
    assert lag() == 4
    admin(scene, "offset", "set", group, topic, "-b", "broker-a", "-q", "0", "-o", "9", "-y", code=1)

    other = unique("copy")
    scene.kourou("admin", "group", "create", other)
    cloned = rows(scene, "offset", "clone", group, other, "-t", topic, "-y")
    assert {(one["brokerName"], one["offset"]) for one in cloned} == {("broker-a", 2), ("broker-b", 0)}
    assert sum(one["lag"] for one in rows(scene, "group", "progress", other, "-t", topic)) == 4


def test_messages_are_found(scene: Scene) -> None:
    receipt = scene.first()
    (by_key,) = rows(scene, "message", "key", TOPIC, "key-3")
    assert by_key["body"] == '{"number": 3}'
    assert by_key["tags"] == "odd"
    evens = rows(scene, "message", "key", TOPIC, "even", "--tag")
    assert {one["tags"] for one in evens} == {"even"}
    for message_id in (receipt.message_id, receipt.offset_message_id):
        (found,) = rows(scene, "message", "id", TOPIC, message_id)
        assert found["msgId"] == receipt.message_id
        assert [(one["group"], one["trackType"]) for one in found["tracks"]] == [(GROUP, "CONSUMED")]
    assert receipt.message_id in admin(scene, "message", "id", TOPIC, receipt.message_id)
    (found,) = rows(scene, "message", "unique-key", TOPIC, receipt.message_id)
    assert found["offsetMsgId"] == receipt.offset_message_id
    place = ["-b", "broker-a", "-q", str(receipt.queue.queue_id), "-o", str(receipt.queue_offset)]
    (found,) = rows(scene, "message", "offset", TOPIC, *place)
    assert found["msgId"] == receipt.message_id
    (entry,) = rows(
        scene, "message", "queue", TOPIC, "-q", place[3], "--from", place[5], "--count", "1", "-b", "broker-a"
    )
    assert entry["physicOffset"] == found["physicalOffset"]
    admin(scene, "message", "key", TOPIC, "no-such-key", code=1)
    admin(scene, "message", "id", TOPIC, "0" * 32, code=1)


def test_messages_are_printed(scene: Scene) -> None:
    printed = rows(scene, "message", "print", TOPIC, "--limit", "1000")
    assert {one["msgId"] for one in printed} >= {one.message_id for one in scene.receipts}
    receipt = next(one for number, one in enumerate(scene.receipts) if number % 2)
    place = ["-b", receipt.queue.broker_name, "-q", str(receipt.queue.queue_id)]
    odd = rows(scene, "message", "print", TOPIC, "--tags", "odd", *place)
    found = {(one["tags"], one["brokerName"], one["queueId"]) for one in odd}
    assert found == {("odd", receipt.queue.broker_name, receipt.queue.queue_id)}
    assert rows(scene, "message", "print", TOPIC, "--begin", "1h", "--end", "2h", code=1) == []


def test_a_message_is_sent_again_and_handed_out(scene: Scene) -> None:
    receipt = scene.first()
    (again,) = rows(scene, "message", "resend", TOPIC, receipt.message_id)
    assert again["msgId"] != receipt.message_id
    (copy,) = rows(scene, "message", "unique-key", TOPIC, again["msgId"])
    (original,) = rows(scene, "message", "unique-key", TOPIC, receipt.message_id)
    assert (copy["body"], copy["keys"], copy["tags"]) == (
        original["body"],
        original["keys"],
        original["tags"],
    )

    before = scene.seen.count(receipt.message_id)
    hand = ["message", "consume", TOPIC, receipt.message_id, "-g", GROUP]
    (result,) = rows(scene, *hand, "-i", CLIENT_ID)
    assert result["consumeResult"] == "CR_SUCCESS"
    assert scene.seen.count(receipt.message_id) == before + 1
    admin(scene, *hand, "-i", "nobody", code=1)


def test_traces(scene: Scene) -> None:
    (sent,) = rows(scene, "message", "send", TOPIC, "traced", "--trace", "--tags", "t", "-p", "color=red")
    traces = rows(scene, "message", "trace", sent["msgId"])
    assert [one["group"] for one in traces if one["type"] == "Pub"] == ["kourou-admin"]
    admin(scene, "message", "trace", "no-such-id", code=1)


def test_brokers(scene: Scene) -> None:
    status = json.loads(admin(scene, "broker", "status", "broker-a", "--json"))
    assert status["brokerVersionDesc"] == "V5_5_0"
    assert admin(scene, "broker", "status", scene.broker, "brokerActive").strip() == "true"
    assert admin(scene, "broker", "config", "broker-b", "brokerName").strip() == "broker-b"
    assert "fileReservedTime" in admin(scene, "broker", "config", "broker-b")
    admin(scene, "broker", "config", "broker-b", "no.such.key", code=1)
    admin(scene, "broker", "set", "fileReservedTime=48", "-b", "broker-b")
    assert admin(scene, "broker", "config", "broker-b", "fileReservedTime").strip() == "48"
    admin(scene, "broker", "set", "fileReservedTime", "-b", "broker-b", code=2)
    stats = rows(scene, "broker", "consume-stats", "broker-a")
    assert (GROUP, TOPIC) in {(one["group"], one["topic"]) for one in stats}
    for what in ("queues", "topics", "log"):
        admin(scene, "broker", "clean", what, "--yes")
    admin(scene, "broker", "clean", "everything", "--yes", code=2)
    admin(scene, "broker", "status", "broker-x", code=1)
    admin(scene, "broker", "timer-engine", "F", "-b", "broker-a")
    only_javas = 0 if scene.target.kind == "java" else 1
    admin(scene, "broker", "cold-limit", GROUP, "1000000", "-b", "broker-a", code=only_javas)
    admin(scene, "broker", "cold-limit-remove", GROUP, "-b", "broker-a", code=only_javas)
    admin(scene, "broker", "read-ahead", "broker-a", "0", code=only_javas)
    admin(scene, "broker", "read-ahead", "broker-a", "2", code=2)


def test_clusters(scene: Scene) -> None:
    states = rows(scene, "cluster", "list", "-c", CLUSTER)
    assert [(one["brokerName"], one["brokerId"]) for one in states] == [("broker-a", 0), ("broker-b", 0)]
    assert {one["version"] for one in states} == {"V5_5_0"}
    trips = rows(scene, "cluster", "round-trip", "--count", "3", "--size", "10")
    assert [(one["successes"], one["failures"]) for one in trips] == [(3, 0), (3, 0)]
    stats = rows(scene, "cluster", "stats", "-t", TOPIC)
    assert [(one["topic"], one["group"]) for one in stats] == [(TOPIC, GROUP)]
    admin(scene, "cluster", "list", "-c", "Nowhere", code=1)


def test_replication(scene: Scene) -> None:
    found = rows(scene, "ha", "status")
    assert [one["master"] for one in found] == [True, True]
    assert "master" in admin(scene, "ha", "status", "broker-a")
    admin(scene, "ha", "reset-master-flush", "broker-a", "0", "--yes")


def test_name_servers(scene: Scene) -> None:
    namespace = unique("space")
    admin(scene, "namesrv", "kv-put", namespace, "key", "a value")
    assert admin(scene, "namesrv", "kv-get", namespace, "key").strip() == "a value"
    assert rows(scene, "namesrv", "kv-list", namespace) == [{"key": "key", "value": "a value"}]
    admin(scene, "namesrv", "kv-delete", namespace, "key", "--yes")
    admin(scene, "namesrv", "kv-get", namespace, "key", code=1)

    (path,) = rows(scene, "namesrv", "config", "kvConfigPath")
    assert path["value"] == str(scene.target.directory / "kvConfig.json")
    admin(scene, "namesrv", "set", "orderMessageEnable=true")
    (changed,) = rows(scene, "namesrv", "config", "orderMessageEnable")
    assert changed["value"] == "true"
    admin(scene, "namesrv", "set", "kvConfigPath=elsewhere", code=1)

    (wiped,) = rows(scene, "namesrv", "wipe-write", "broker-b", "--yes")
    try:
        assert wiped["topics"] > 0
        perms = {one["brokerName"]: one["perm"] for one in rows(scene, "topic", "route", TOPIC)}
        assert perms == {"broker-a": 6, "broker-b": 4}
    finally:
        admin(scene, "namesrv", "add-write", "broker-b")
    perms = {one["brokerName"]: one["perm"] for one in rows(scene, "topic", "route", TOPIC)}
    assert perms == {"broker-a": 6, "broker-b": 6}


def test_export_and_import(scene: Scene, tmp_path: Path) -> None:
    topic, group, file = unique("moved"), unique("mover"), tmp_path / "export.json"
    admin(scene, "topic", "create", topic, "-q", "2", "--attributes", "+message.type=FIFO")
    admin(scene, "group", "create", group, "--retry-times", "3")
    admin(scene, "message", "send", topic, "m", "-b", "broker-a", "-q", "1")
    admin(scene, "offset", "skip", group, topic, "-y")
    admin(scene, "export", str(file))
    document = json.loads(file.read_text())
    kept = document["brokers"]["broker-a"]
    assert kept["groups"][group]["retryMaxTimes"] == 3
    assert kept["offsets"][topic][group]["1"] == 1
    assert kept["config"]["brokerName"] == "broker-a"
    assert "TBW102" not in kept["topics"]

    admin(scene, "topic", "delete", topic, "-c", CLUSTER, "-y")
    admin(scene, "group", "delete", group, "--offsets", "-y")
    for broker in document["brokers"].values():  # what this test made, and nothing of its neighbours
        broker["topics"] = {topic: broker["topics"][topic]}
        broker["groups"] = {group: broker["groups"][group]}
        broker["offsets"] = {topic: broker["offsets"].get(topic, {})}
    document["orderConfig"] = {}
    file.write_text(json.dumps(document))
    report = json.loads(admin(scene, "import", str(file), "--yes"))
    assert (report["topics"], report["groups"]) == (2, 2)
    assert report["offsets"] >= 2
    config = json.loads(admin(scene, "topic", "config", topic))
    assert config["broker-a"]["attributes"] == {"message.type": "FIFO"}
    assert json.loads(admin(scene, "group", "config", group))["broker-b"]["retryMaxTimes"] == 3
    file.write_text("{}")
    admin(scene, "import", str(file), "--yes", code=1)
    admin(scene, "export", "--part", "everything", code=2)


def test_a_mistake_says_what_to_do(scene: Scene) -> None:
    missing = scene.run("admin", "topic", "status", "no-such-topic")
    assert missing.exit_code == 1
    assert "create it" in missing.stderr
    assert "Traceback" not in missing.output
    unknown = scene.run("admin", "group", "connections", "no-such-group")
    assert unknown.exit_code == 1
    assert "there is no group no-such-group" in unknown.stderr
    admin(scene, "group", "create", "never-online")
    offline = scene.run("admin", "group", "connections", "never-online")
    assert offline.exit_code == 1
    assert "start a client" in offline.stderr
    nowhere = scene.run("admin", "topic", "list", "-n", "127.0.0.1:1")
    assert nowhere.exit_code == 1
    assert "no name server answers" in nowhere.stderr
    asked = scene.run("admin", "topic", "delete", "t", "-c", CLUSTER)
    assert asked.exit_code == 2
    assert "--yes" in asked.stderr


def test_every_verb_is_tested() -> None:
    """Each is named in a call of this module, or of that for users."""
    named = set()
    sources = [Path(__file__), Path(__file__).with_name("test_access.py")]
    for node in (one for source in sources for one in ast.walk(ast.parse(source.read_text("utf-8")))):
        words: list[ast.expr] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("admin", "rows")
        ):
            words = node.args[1:3]
        elif isinstance(node, ast.List):
            words = node.elts[:2]
        texts = [str(word.value) for word in words if isinstance(word, ast.Constant)]
        named |= {" ".join(texts), *texts[:1]}
    group: Any = get_command(app).commands["admin"]  # type: ignore[attr-defined]
    verbs = set()
    for name, command in group.commands.items():
        parts = getattr(command, "commands", None)
        verbs |= {name} if parts is None else {f"{name} {part}" for part in parts}
    assert verbs - named == set()
