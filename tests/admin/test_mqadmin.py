"""The verbs of `kourou mqadmin`: ours at our brokers and at Java's, and Java's own at ours. Those of users
and lists are in test_access.py, at brokers that have some."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from kourou.admin import Admin
from kourou.cli.mqadmin import access as mqadmin_access
from kourou.cli.mqadmin import brokers as mqadmin_brokers
from kourou.cli.mqadmin.commands import verbs
from kourou.cli.mqadmin.verbs import Flags, file_name, line
from kourou.message import Message
from support.java import java
from support.scenes import CLIENT_ID, CLUSTER, COUNT, GROUP, PRODUCERS, TOPIC, Scene
from support.sites.clients import numbers, run
from support.sites.servers import mqadmin_at_once

NAME = "by-operator"  # of what the verbs below make


class Step(NamedTuple):
    """A verb with its flags, and what its output must match."""

    verb: str
    flags: tuple[str, ...]
    pattern: str
    same: bool = False  # whether both tools must print the same

    @property
    def arguments(self) -> list[str]:
        return [self.verb, *self.flags]


def steps(scene: Scene, directory: Path, suffix: str) -> list[Step]:
    """All verbs, in an order in which each finds what it needs."""
    name, receipt = f"{NAME}-{suffix}", scene.first()
    broker, cluster = ("-b", scene.broker), ("-c", CLUSTER)
    topics, groups, log = directory / "topics.json", directory / "groups.json", directory / "log"
    topics.write_text(json.dumps([{"topicName": f"{name}-listed", "readQueueNums": 1, "writeQueueNums": 1}]))
    groups.write_text(json.dumps([{"groupName": f"{name}-listed", "retryMaxTimes": 5}]))
    files = sorted((scene.target.directory / "broker-a" / "store" / "commitlog").iterdir())
    log.write_bytes(files[0].read_bytes()[: 64 * 1024])
    place = ("-b", "broker-a", "-i", str(receipt.queue.queue_id), "-o", str(receipt.queue_offset))
    cq = ("-q", str(receipt.queue.queue_id), "-i", str(receipt.queue_offset), "-c", "1")
    success = "success"
    return [
        Step("updateTopic", (*cluster, "-t", name, "-r", "1", "-w", "1"), r"TopicConfig \[topicName=", True),
        Step("updateTopicList", (*broker, "-f", str(topics)), success, True),
        Step("topicList", (), rf"(?m)^{name}$"),
        Step("topicRoute", ("-t", name), r'"readQueueNums":1'),
        Step("topicStatus", ("-t", TOPIC), r"#Broker Name +#QID +#Min Offset +#Max Offset +#Last Updated"),
        Step("topicClusterList", ("-t", name), CLUSTER, True),
        Step("allocateMQ", ("-t", name, "-i", "one,two"), r'"one":\[\{.*"two":\[\{'),
        Step(
            "updateOrderConf",
            ("-t", name, "-m", "put", "-v", "broker-a:1"),
            r"orderConf=\[broker-a:1\]",
            True,
        ),
        Step("updateTopicPerm", (*broker, "-t", name, "-p", "4"), "from 6 to 4 in"),
        Step("updateSubGroup", (*cluster, "-g", name, "-r", "7"), "retryMaxTimes=7"),
        Step("updateSubGroupList", (*broker, "-f", str(groups)), success, True),
        Step("getConsumerConfig", ("-g", name), r"retryMaxTimes +=  7"),
        Step(
            "setConsumeMode", (*broker, "-t", TOPIC, "-g", name, "-m", "PULL"), r"consume mode\[PULL\]", True
        ),
        Step("consumerProgress", ("-g", GROUP, "-t", TOPIC, "-s", "true"), "Consume Diff Total: 0"),
        Step("consumerStatus", ("-g", GROUP), re.escape(CLIENT_ID)),
        Step("consumerConnection", ("-g", GROUP), rf"{re.escape(CLIENT_ID)} .*PYTHON", True),
        Step("producerConnection", ("-g", PRODUCERS, "-t", TOPIC), "PYTHON"),
        Step("producer", broker, rf"producer group \({PRODUCERS}\) instance"),
        Step("cloneGroupOffset", ("-s", GROUP, "-d", name, "-t", TOPIC), "clone group offset success", True),
        Step("resetOffsetByTime", ("-g", name, "-t", TOPIC, "-s", "0"), r"broker-b +1 +0"),
        Step("skipAccumulatedMessage", ("-g", name, "-t", TOPIC), r"#brokerName +#queueId +#offset"),
        Step("queryMsgById", ("-t", TOPIC, "-i", receipt.offset_message_id), receipt.offset_message_id),
        Step("queryMsgByKey", ("-t", TOPIC, "-k", "key-3"), rf"{scene.receipts[3].message_id} +\d", True),
        Step("queryMsgByUniqueKey", ("-t", TOPIC, "-i", receipt.message_id), receipt.message_id),
        Step("queryMsgByOffset", ("-t", TOPIC, *place), receipt.message_id),
        Step("queryMsgTraceById", ("-i", receipt.message_id), rf"Pub +{PRODUCERS}"),
        Step("printMsg", ("-t", TOPIC, "-s", "odd"), rf"MSGID: {scene.receipts[1].message_id} MessageExt"),
        Step(
            "printMsgByQueue",
            ("-t", TOPIC, "-a", "broker-a", "-i", place[3], "-p", "true", "-d", "true", "-f", "true"),
            rf"MSGID: {receipt.message_id} (?s:.*)Tag: .*Count: \d",
        ),
        Step("consumeMessage", ("-t", TOPIC, *place, "-c", "1"), receipt.message_id),
        Step("queryCq", ("-t", TOPIC, *cq, *broker), r"max: \d+, min: 0(?s:.*)physicOffset=\d", True),
        Step("dumpCompactionLog", ("-f", str(log)), r"MessageExt \[brokerName="),
        Step("sendMessage", ("-t", name + "-listed", "-p", "body", "-k", "k"), r"broker-a +0 +SEND_OK"),
        Step("checkMsgSendRT", ("-t", name + "-listed", "-a", "3"), r"Avg RT: \d"),
        Step(
            "sendMsgStatus",
            ("-b", "broker-a", "-c", "2"),
            r"rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK",
        ),
        Step("clusterList", (), rf"broker-a +0 +{re.escape(scene.broker)} +V5_5_0 (?s:.*)true"),
        Step("clusterRT", ("-a", "3"), r"broker-b +\d+\.\d\d +3 +0"),
        Step("statsAll", ("-t", TOPIC), rf"{TOPIC} +{GROUP} +0 "),
        Step("updateBrokerConfig", (*broker, "-k", "fileReservedTime", "-v", "49"), success, True),
        Step("getBrokerConfig", broker, r"fileReservedTime +=  49"),
        Step("brokerStatus", broker, r"brokerVersionDesc +: V5_5_0"),
        Step("brokerConsumeStats", broker, rf"{TOPIC} +{GROUP} +broker-a"),
        Step("cleanExpiredCQ", broker, success, True),
        Step("deleteExpiredCommitLog", broker, success, True),
        Step("cleanUnusedTopic", broker, success, True),
        Step("resetMasterFlushOffset", (*broker, "-o", "0"), "reset master flush offset to 0 success", True),
        Step("haStatus", cluster, r"#SlaveAddr +#SlaveAckOffset +#Diff"),
        Step("getColdDataFlowCtrInfo", broker, r'"runtimeTable"'),
        Step("switchTimerEngine", (*broker, "-e", "F"), "switchTimerEngine to .* success", True),
        Step("getNamesrvConfig", (), r"kvConfigPath +=  \S+kvConfig.json"),
        Step(
            "updateNamesrvConfig", ("-k", "orderMessageEnable", "-v", "false"), "orderMessageEnable : false"
        ),
        Step("updateKvConfig", ("-s", "space", "-k", "k", "-v", "v"), success, True),
        Step("deleteKvConfig", ("-s", "space", "-k", "k"), success, True),
        Step("wipeWritePerm", ("-b", "broker-b"), r"OK, \d+", True),
        Step("addWritePerm", ("-b", "broker-b"), r"OK, \d+", True),
        Step("exportMetadata", (*cluster, "-f", str(directory)), success, True),
        Step("exportConfigs", (*cluster, "-f", str(directory)), success, True),
        Step("exportMetrics", (*cluster, "-f", str(directory)), success, True),
        Step("deleteSubGroup", (*cluster, "-g", name, "-r", "true"), success, True),
        Step("deleteTopic", (*cluster, "-t", name), "from NameServer success", True),
    ]


def test_every_verb(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # consumerStatus writes where it is
    plan = steps(scene, tmp_path, str(next(numbers)))
    elsewhere = {"startMonitoring", *(verb.name for verb in mqadmin_access.VERBS)}
    assert {step.verb for step in plan} | elsewhere == set(verbs())
    assert len(verbs()) == 72
    for step in plan:
        printed = scene.kourou("mqadmin", *step.arguments)
        assert re.search(step.pattern, printed), (step, printed)
    assert json.loads((tmp_path / "metadata.json").read_text())["topicConfigTable"][TOPIC]["perm"] == 6
    assert set(json.loads((tmp_path / "configs.json").read_text())["brokerConfigs"]) == {
        "broker-a",
        "broker-b",
    }
    report = json.loads((tmp_path / "metrics.json").read_text())["evaluateReport"]["broker-a"]
    assert report["runtimeVersion"]["clientInfo"] == ["PYTHON%V5_5_0"]


@pytest.mark.interop
def test_javas_own_works_at_our_brokers(
    our_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each verb; and where time does not change what is printed, both tools print the same."""
    java()
    monkeypatch.chdir(tmp_path)
    plan = steps(our_scene, tmp_path, "java")
    flags = ["-n", our_scene.target.namesrv]
    batches = [[step for step in plan if wave(step.verb) == number] for number in range(5)]
    plan = [step for batch in batches for step in batch]
    asked = [
        [
            [*(["--seconds", "5"] if step.verb == "clusterRT" else []), *step.arguments, *flags]
            for step in batch
        ]
        for batch in batches
    ]
    asked.append([["--seconds", "2", "startMonitoring", *flags]])
    theirs = mqadmin_at_once(tmp_path, *asked)
    for step, printed in zip(plan, theirs):
        assert re.search(step.pattern, printed), (step, printed)
    different = {}
    for step, printed in zip(plan, theirs):
        ours = our_scene.kourou("mqadmin", *step.arguments, *flags)
        compared = normal if step.same else headings
        if compared(ours) != compared(printed):
            different[step.verb] = compared(ours), compared(printed)
    assert different == {}


def wave(verb: str) -> int:
    """What must be there before others, or would be in their way, has a wave of its own."""
    if verb in (
        "updateTopic",
        "updateTopicList",
        "updateSubGroup",
        "updateSubGroupList",
        "updateBrokerConfig",
    ):
        return 0
    if verb in ("deleteSubGroup", "deleteTopic", "deleteKvConfig"):
        return 4
    return {"wipeWritePerm": 2, "addWritePerm": 3}.get(verb, 1)


def normal(text: str) -> list[str]:
    """Lines whose order and blanks do not matter, nor ports of clients and numbers that count up."""
    found = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return sorted(re.sub(r"(?<=OK, )\d+$|(?<=\d:)\d{4,5}\b", "…", line) for line in found if line)


def headings(text: str) -> list[str]:
    """The words of headings and of fields: what a runbook looks for."""
    found = re.findall(r"(?:^|\s)(#[A-Z][\w()/&]*(?: [A-Z]\w*)*)|^([A-Z][\w ]*:)(?=\s|$)", text, re.MULTILINE)
    return sorted({left or right for left, right in found})


def test_a_message_is_sent_again_or_handed_out(scene: Scene) -> None:
    receipt = scene.first()
    for verb in ("queryMsgById", "queryMsgByUniqueKey"):
        before = scene.seen.count(receipt.message_id)
        printed = scene.kourou(
            "mqadmin", verb, "-t", TOPIC, "-i", receipt.message_id, "-g", GROUP, "-d", CLIENT_ID
        )
        assert "consumeResult=CR_SUCCESS" in printed
        assert scene.seen.count(receipt.message_id) == before + 1
    printed = scene.kourou("mqadmin", "queryMsgById", "-t", TOPIC, "-i", receipt.message_id, "-s", "true")
    assert re.search(r"prepare resend msg.*\n?.*sendStatus=SEND_OK", printed)


def test_a_place_of_one_queue_is_set(scene: Scene) -> None:
    group = f"{NAME}-{next(numbers)}"
    scene.kourou("mqadmin", "updateSubGroup", "-b", scene.broker, "-g", group)
    where = ["-g", group, "-t", TOPIC, "-b", scene.broker, "-q", "0", "-s", "0"]
    printed = scene.kourou("mqadmin", "resetOffsetByTime", *where, "-o", "1")
    assert "reset consumer offset to 1" in printed
    progress = scene.kourou("mqadmin", "consumerProgress", "-g", group, "-t", TOPIC)
    assert re.search(r"orders +broker-a +0 +\d+ +1 ", progress)


def test_what_our_broker_has_one_way_of(our_scene: Scene) -> None:
    scene = our_scene  # Java's broker has the others too
    place = ["-b", scene.broker]
    mode = scene.run("mqadmin", "setConsumeMode", *place, "-t", TOPIC, "-g", GROUP, "-m", "POP")
    assert (mode.exit_code, "PULL only" in mode.stderr) == (1, True)
    for topic, group in (("no-such-topic", GROUP), (f"%RETRY%{GROUP}", GROUP)):
        refused = scene.run("mqadmin", "setConsumeMode", *place, "-t", topic, "-g", group, "-m", "PULL")
        assert refused.exit_code == 1
    engine = scene.run("mqadmin", "switchTimerEngine", *place, "-e", "R")
    assert (engine.exit_code, "engine F only" in engine.stderr) == (1, True)


def test_monitoring_tells_of_groups_that_fall_behind(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mqadmin_brokers, "UNDONE_LIMIT", 2)
    topic, group = f"undone-{next(numbers)}", f"late-{next(numbers)}"
    scene.target.create_topic(topic, queues=1)
    scene.target.create_topic(f"%RETRY%{group}", queues=1)
    scene.kourou("mqadmin", "updateSubGroup", "-c", CLUSTER, "-g", group)

    async def watch() -> None:
        async with Admin(scene.target.namesrv) as admin:
            for _ in range(8):
                await admin.messages.send(Message(topic, b"m"))
            await admin.offsets.reset(group, topic, 0)
            watching = asyncio.ensure_future(verbs()["startMonitoring"].run(admin, Flags({})))
            printed = ""
            while f"undone: {group}, 8 messages wait, 0 clients" not in printed:
                await asyncio.sleep(0.05)
                printed += capsys.readouterr().out
                assert not watching.done()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    run(watch())


def test_what_others_named_leads_nowhere_else(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    """Ids of messages are what a producer makes them; a body may try to steer the terminal."""
    assert file_name("../../etc/pass wd") == "__.._etc_pass_wd"
    assert file_name("..") == "_"
    line("%s", "a\x1b[31mb\nc\td")
    assert capsys.readouterr().out == "a·[31mb·c·d\n"


def test_how_flags_are_read() -> None:
    parse = verbs()["topicStatus"].parse
    for arguments in (["-t", "a"], ["-ta"], ["--topic", "a"], ["--topic=a"], ["-topic", " a "]):
        assert parse(arguments).get("t") == "a"
    assert verbs()["resetOffsetByTime"].parse(["-gG", "-tT", "-s", "-1"]).time("s") == -1
    clock = Flags({"s": "2026-11-15#08:30:00:123"}).time("s")
    assert clock is not None
    assert clock % 1000 == 123


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["topicStatus"], "Missing required option: t"),
        (["topicStatus", "-t"], "Missing argument for option: t"),
        (["topicStatus", "-z", "1"], "Unrecognized option: -z"),
        (["topicStatus", "orders"], "orders"),
        (["updateTopic", "-t", "a"], "one of -b, -c"),
        (["printMsg", "-t", TOPIC, "-b", "soon"], "is no time"),
        (["topicStats"], "topicStatus"),
        (["help", "topicStats"], "topicStatus"),
    ],
)
def test_a_mistake_is_explained(scene: Scene, arguments: list[str], word: str) -> None:
    result = scene.run("mqadmin", *arguments)
    assert result.exit_code == 2
    assert word in result.stderr


def test_a_refusal_is_exit_code_1(scene: Scene) -> None:
    result = scene.run("mqadmin", "topicStatus", "-t", "no-such-topic")
    assert result.exit_code == 1
    assert "no-such-topic" in result.stderr


def test_help(scene: Scene) -> None:
    listed = scene.kourou("mqadmin")
    assert {line.split()[0] for line in listed.splitlines() if line.startswith("   ")} == set(verbs())
    for usage in (("help", "topicStatus"), ("topicStatus", "-h")):
        assert "-t,--topic <arg>  (required)" in scene.kourou("mqadmin", *usage)


def test_case_does_not_matter(scene: Scene) -> None:
    assert scene.kourou("mqadmin", "TOPICLIST", "-n", scene.target.namesrv).split().count(TOPIC) == 1


def test_the_messages_of_the_scene_are_all_there(scene: Scene) -> None:
    printed: Callable[..., str] = scene.kourou
    assert printed("mqadmin", "printMsg", "-t", TOPIC, "-d", "false").count("MSGID: ") >= COUNT
