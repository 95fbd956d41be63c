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
from kourou.cli.mqadmin import brokers as mqadmin_brokers
from kourou.cli.mqadmin.commands import verbs
from kourou.cli.mqadmin.verbs import NOT_THERE, Verb
from kourou.cli.mqadmin.words import file_name, line
from kourou.message import Message
from support.java import java
from support.scenes import CLIENT_ID, CLUSTER, COUNT, GROUP, TOPIC, Scene
from support.sites.clients import numbers, run
from support.sites.servers import mqadmin, mqadmin_at_once

NAME = "by-operator"  # of what the verbs below make


class Step(NamedTuple):
    """A verb with its flags, and what its output must match."""

    arguments: list[str]
    pattern: str
    same: bool  # whether both tools must print the same

    @property
    def verb(self) -> str:
        return self.arguments[0]


# All verbs, in an order in which each finds what it needs, and a pattern of what they print; with == Java's
# tool prints the same
PLAN = r"""
updateTopic -c <cluster> -t <name> -r 1 -w 1 == TopicConfig \[topicName=
updateTopicList -b <broker> -f <topics> == success
topicList => (?m)^<name>$
topicRoute -t <name> => "readQueueNums":1
topicStatus -t orders => #Broker Name +#QID +#Min Offset +#Max Offset +#Last Updated
topicClusterList -t <name> == <cluster>
allocateMQ -t <name> -i one,two => "one":\[\{.*"two":\[\{
updateOrderConf -t <name> -m put -v broker-a:1 == orderConf=\[broker-a:1\]
updateTopicPerm -b <broker> -t <name> -p 4 => from 6 to 4 in
updateSubGroup -c <cluster> -g <name> -r 7 => retryMaxTimes=7
updateSubGroupList -b <broker> -f <groups> == success
getConsumerConfig -g <name> => retryMaxTimes +=  7
setConsumeMode -b <broker> -t orders -g <name> -m PULL == consume mode\[PULL\]
consumerProgress -g billing -t orders -s true => Consume Diff Total: 0
consumerStatus -g billing => 127\.0\.0\.1@operator\-test
consumerConnection -g billing == 127\.0\.0\.1@operator\-test .*PYTHON
producerConnection -g shop -t orders => PYTHON
producer -b <broker> => producer group \(shop\) instance
cloneGroupOffset -s billing -d <name> -t orders == clone group offset success
resetOffsetByTime -g <name> -t orders -s 0 => broker-b +1 +0
skipAccumulatedMessage -g <name> -t orders => #brokerName +#queueId +#offset
queryMsgById -t orders -i <offset-id> => <offset-id>
queryMsgByKey -t orders -k key-3 == <id3> +\d
queryMsgByUniqueKey -t orders -i <id> => <id>
queryMsgByOffset -t orders -b broker-a -i <queue> -o <at> => <id>
queryMsgTraceById -i <id> => Pub +shop
printMsg -t orders -s odd => MSGID: <id1> MessageExt
printMsgByQueue -t orders -a broker-a -i <queue> -p true -d true -f true => (?s)MSGID: <id> .*Tag: .*Count: \d
consumeMessage -t orders -b broker-a -i <queue> -o <at> -c 1 => <id>
queryCq -t orders -q <queue> -i <at> -c 1 -b <broker> == max: \d+, min: 0(?s:.*)physicOffset=\d
dumpCompactionLog -f <log> => MessageExt \[brokerName=
sendMessage -t <name>-listed -p body -k k => broker-a +0 +SEND_OK
checkMsgSendRT -t <name>-listed -a 3 => Avg RT: \d
sendMsgStatus -b broker-a -c 2 => rt=\d+ms, SendResult=SendResult \[sendStatus=SEND_OK
clusterList => broker-a +0 +<broker> +V5_5_0 (?s:.*)true
clusterRT -a 3 => broker-b +\d+\.\d\d +3 +0
statsAll -t orders => orders +billing +0\b
updateBrokerConfig -b <broker> -k fileReservedTime -v 49 == success
getBrokerConfig -b <broker> => fileReservedTime +=  49
brokerStatus -b <broker> => brokerVersionDesc +: V5_5_0
brokerConsumeStats -b <broker> => orders +billing +broker-a
cleanExpiredCQ -b <broker> == success
deleteExpiredCommitLog -b <broker> == success
cleanUnusedTopic -b <broker> == success
resetMasterFlushOffset -b <broker> -o 0 == reset master flush offset to 0 success
haStatus -c <cluster> => #SlaveAddr +#SlaveAckOffset +#Diff
getColdDataFlowCtrInfo -b <broker> => "runtimeTable"
switchTimerEngine -b <broker> -e F == switchTimerEngine to .* success
getNamesrvConfig => kvConfigPath +=  \S+kvConfig.json
updateNamesrvConfig -k orderMessageEnable -v false => orderMessageEnable : false
updateKvConfig -s space -k k -v v == success
deleteKvConfig -s space -k k == success
wipeWritePerm -b broker-b == OK, \d+
addWritePerm -b broker-b == OK, \d+
exportMetadata -c <cluster> -f <dir> == success
exportConfigs -c <cluster> -f <dir> == success
exportMetrics -c <cluster> -f <dir> == success
deleteSubGroup -c <cluster> -g <name> -r true == success
deleteTopic -c <cluster> -t <name> == from NameServer success
"""


def steps(scene: Scene, directory: Path, suffix: str) -> list[Step]:
    """The plan, for a scene."""
    name, receipt = f"{NAME}-{suffix}", scene.first()
    topics, groups, log = directory / "topics.json", directory / "groups.json", directory / "log"
    topics.write_text(json.dumps([{"topicName": f"{name}-listed", "readQueueNums": 1, "writeQueueNums": 1}]))
    groups.write_text(json.dumps([{"groupName": f"{name}-listed", "retryMaxTimes": 5}]))
    files = sorted((scene.target.directory / "broker-a" / "store" / "commitlog").iterdir())
    log.write_bytes(files[0].read_bytes()[: 64 * 1024])
    words = {
        "name": name, "broker": scene.broker, "cluster": CLUSTER, "topics": topics, "groups": groups,
        "log": log, "dir": directory, "id": receipt.message_id, "id1": scene.receipts[1].message_id,
        "id3": scene.receipts[3].message_id, "offset-id": receipt.offset_message_id,
        "queue": receipt.queue.queue_id, "at": receipt.queue_offset,
    }  # fmt: skip
    plan = re.sub(r"<([\w-]+)>", lambda found: str(words[found[1]]), PLAN)
    found = re.findall(r"^(\w.*?) (==|=>) (.*)$", plan, re.MULTILINE)
    return [Step(arguments.split(), pattern, how == "==") for arguments, how, pattern in found]


# Verbs that our broker cannot serve, with what Java's says
ONLY_JAVAS_BROKER = {
    "updateColdDataFlowCtrGroupConfig": (("-g", GROUP, "-v", "1000000"), "success, "),
    "removeColdDataFlowCtrGroupConfig": (("-g", GROUP), "remove broker cold read threshold success, "),
    "setCommitLogReadAheadMode": (("-m", "0"), "commitLog set readAhead mode rstStr"),
}


@pytest.mark.parametrize("verb", ONLY_JAVAS_BROKER)
def test_what_only_javas_broker_serves(scene: Scene, verb: str) -> None:
    flags, pattern = ONLY_JAVAS_BROKER[verb]
    done = scene.run("mqadmin", verb, "-b", scene.broker, *flags)
    if scene.target.kind == "java":
        assert (done.exit_code, bool(re.search(pattern, done.stdout))) == (0, True), done.output
    else:
        assert (done.exit_code, "does not know such a request" in done.stderr) == (1, True), done.output


def test_what_is_not_there_says_why(scene: Scene) -> None:
    assert not set(NOT_THERE) & set(verbs())
    for verb in ("electMaster", "ADDBROKER"):
        done = scene.run("mqadmin", verb, "-b", "x")
        assert (done.exit_code, "is a verb of Java's that is not there" in done.stderr) == (2, True)


@pytest.mark.interop
def test_every_verb_of_javas_is_there_or_is_told_of(tmp_path: Path) -> None:
    java()
    (listed,) = mqadmin(tmp_path, [])  # alone it lists them
    names = {line.split()[0] for line in listed.splitlines() if re.match(r"   \w", line)}
    assert names == {*verbs(), *NOT_THERE}
    assert len(names) == 96


def access_verbs() -> set[str]:
    """The verbs of test_access.py."""
    return {name for name, verb in verbs().items() if verb.run.__module__ == "kourou.cli.mqadmin.access"}


def test_every_verb(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # consumerStatus writes where it is
    plan = steps(scene, tmp_path, str(next(numbers)))
    elsewhere = {"startMonitoring", *ONLY_JAVAS_BROKER, *access_verbs()}
    assert {step.verb for step in plan} | elsewhere == set(verbs())
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

    async def start(verb: Verb, admin: Admin) -> None:
        await verb(admin, verb.parse([]))

    async def watch() -> None:
        async with Admin(scene.target.namesrv) as admin:
            for _ in range(8):
                await admin.messages.send(Message(topic, b"m"))
            await admin.offsets.reset(group, topic, 0)
            watching = asyncio.ensure_future(start(verbs()["startMonitoring"], admin))
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
    clock = verbs()["resetOffsetByTime"].parse(["-gG", "-tT", "-s", "2026-11-15#08:30:00:123"]).time("s")
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
