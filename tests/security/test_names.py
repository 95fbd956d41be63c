"""Names that try to lead elsewhere: of topics, groups, users, clients, keys and namespaces, in every request
that a broker or a name server serves. None makes a file outside its place, or one with such a name."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.broker.handlers import make_handlers
from kourou.namesrv.handlers import HANDLERS as NAME_SERVER
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import Peer, running, send_request

TRICKS = (
    "..", ".", "../evil", "../../../../tmp/evil", "/tmp/evil", "a/../../evil", "a/b", "a\\..\\evil",
    "C:\\evil", "a\x00evil", "a\nevil", "\r\nrocketmqHome=/tmp/evil", "~root", "$(touch evil)", "`evil`",
    "a;evil",
    "evil.", "ev\u202eil", "\u540d\u524d", "\uff0e\uff0e\uff0fevil", "%RETRY%../evil", "%DLQ%../evil",
    "%LMQ%../evil",
    "nul.txt", "aux:evil", "evil*", " evil", "e" * 300, "%RETRY%" + "e" * 300,
)  # fmt: skip
NAMES = (
    "topic", "b", "defaultTopic", "c", "group", "consumerGroup", "producerGroup", "a", "groupName",
    "srcGroup", "destGroup", "compareGroup", "filterGroups", "originTopic", "clientID", "clientId",
    "username",
    "subject", "brokerName", "clusterName", "namespace", "key", "value", "topicList", "statsName", "statsKey",
    "resource", "brokerAddr", "haServerAddr", "n", "filter", "msgId", "originMsgId", "policyType",
)  # fmt: skip
GOOD = {
    "queueId": "0", "offset": "0", "timestamp": "0", "isForce": "true", "delayLevel": "0",
    "commitOffset": "1", "maxNum": "4", "beginTimestamp": "0", "endTimestamp": "9999999999999",
    "readQueueNums": "4",
    "writeQueueNums": "4", "perm": "6", "topicFilterType": "SINGLE_TAG", "isOrder": "false", "sysFlag": "0",
    "order": "false", "readable": "true", "bornTimestamp": "1", "defaultTopicQueueNums": "4", "index": "0",
    "count": "5", "queueOffset": "0", "maxMsgNums": "4", "suspendTimeoutMillis": "0", "subVersion": "0",
    "subscription": "*", "brokerId": "0", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0",
    "k": "false", "m": "false", "flag": "0", "cleanOffset": "true", "compressed": "false", "bodyCrc32": "0",
}  # fmt: skip
SILENT = RequestCode.END_TRANSACTION  # which may say nothing
AT_ONCE = 16
FILE_NAME = re.compile(r"[%|\w.@#-]{1,255}", re.ASCII)


def body_of(name: str) -> bytes:
    """A body that has a name wherever some body has one."""
    queue = {"topic": name, "brokerName": name, "queueId": 0}
    entry = {"resource": f"Topic:{name}", "actions": ["Pub"], "decision": "Deny"}
    return json.dumps(
        {
            "clientID": name, "clientId": name, "consumerGroup": name, "topic": name, "groupName": name,
            "consumerDataSet": [
                {
                    "groupName": name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                    "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
                    "subscriptionDataSet": [{"topic": name, "subString": "*"}],
                }
            ],
            "producerDataSet": [{"groupName": name}], "mqSet": [queue], "strategyName": "AVG",
            "topicConfigList": [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
            "groupConfigList": [{"groupName": name}], "mode": "PULL", "password": name, "username": name,
            "subject": f"User:{name}", "queueDatas": [{"brokerName": name}],
            "policies": [{"entries": [entry]}],
            "topicConfigSerializeWrapper": {"topicConfigTable": {name: {"topicName": name, "perm": 6}}},
        }
    ).encode()  # fmt: skip


def requests_with(name: str, codes: list[int]) -> Iterator[RemotingCommand]:
    fields = {**dict.fromkeys(NAMES, name), **GOOD, "resource": f"Topic:{name}", "subject": f"User:{name}"}
    for code in codes:
        if code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG):
            continue  # their bodies are keys and values
        yield RemotingCommand(code, fields, body_of(name))
        yield RemotingCommand(code, {**fields, "topic": "t", "b": "t"}, body_of(name))
        yield RemotingCommand(code, {**fields, "group": "g", "consumerGroup": "g"}, body_of(name))
    for key in (
        "INNER_MULTI_DISPATCH",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "__LITE_TOPIC",
        "REPLY_TO_CLIENT",
        "PGROUP",
    ):
        yield send_request(properties={"UNIQ_KEY": "u", key: name, "INNER_MULTI_QUEUE_OFFSET": "0"})
        yield send_request(properties={"UNIQ_KEY": "u", key: f"%LMQ%{name}"})


def send_all(port: int, requests: list[RemotingCommand]) -> list[RemotingCommand]:
    """The answers to all of them; what the broker asks meanwhile is refused."""
    waiting = {request.opaque for request in requests if request.code != SILENT}
    answers = []
    with contextlib.closing(Peer(port)) as peer:
        for at in range(0, len(requests), AT_ONCE):
            for request in requests[at : at + AT_ONCE]:
                peer.send(request)
            due = {request.opaque for request in requests[at : at + AT_ONCE]} & waiting
            while due:
                command = peer.receive()
                if command.is_response:
                    due.discard(command.opaque)
                    answers.append(command)
                else:
                    peer.send(command.response(ResponseCode.SYSTEM_ERROR))
    return answers


def tree(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def strange(found: set[Path]) -> list[Path]:
    """Files that no good name makes. A light queue may have any that a directory has, as in Java."""
    named = [path for path in found if not (path.parent.name == "consumequeue" and path.name[:5] == "%LMQ%")]
    return [path for path in named if not FILE_NAME.fullmatch(path.name) or "evil" in path.name]


@pytest.mark.parametrize("name", TRICKS, ids=ascii)
def test_no_request_makes_a_file_elsewhere(site, name_server, name):
    root = Path(site.broker.config.broker_config_path).parent
    site.make_topic("t")
    codes = sorted(int(code) for code in make_handlers(site.broker))
    send_all(site.port, list(requests_with(name, codes)))
    send_all(name_server.port, list(requests_with(name, sorted(map(int, NAME_SERVER)))))
    assert strange(tree(root)) == []
    home = Path(name_server.config.kv_config_path).parent
    known = {"namesrv.conf", "kvConfig.json", "users.json", "acls.json"}
    assert {path.name.removesuffix(".bak") for path in tree(home)} <= known
    assert not Path("/tmp/evil").exists()
    assert not (root.parent / "evil").exists()


@pytest.mark.parametrize("name", TRICKS, ids=ascii)
@pytest.mark.parametrize(
    ("code", "place"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, "topic"),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, ""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, ""),
        (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, ""),
        (RequestCode.SEND_MESSAGE_V2, "b"),
        (RequestCode.SEND_BATCH_MESSAGE, "b"),
        (RequestCode.SEND_MESSAGE, "topic"),
        (RequestCode.CONSUMER_SEND_MSG_BACK, "group"),
    ],
)
def test_nothing_of_such_a_name_is_made(site, code, place, name):
    site.make_topic("t")
    before = site.do(lambda: (set(site.broker.topics.topics), set(site.broker.groups.groups)))
    fields = {**dict.fromkeys(NAMES, "g"), **GOOD, "c": "TBW102", "defaultTopic": "TBW102"}
    if place:
        fields[place] = name
    (answer,) = send_all(site.port, [RemotingCommand(code, fields, body_of(name))])
    assert answer.code != ResponseCode.SUCCESS
    assert site.do(lambda: (set(site.broker.topics.topics), set(site.broker.groups.groups))) == before


def test_a_broker_that_was_tried_starts_again(tmp_path):
    with running(tmp_path, {"enableLmq": "true", "enableMultiDispatch": "true"}) as site:
        site.make_topic("t")
        codes = sorted(int(code) for code in make_handlers(site.broker))
        for name in TRICKS:
            send_all(site.port, list(requests_with(name, codes)))
    assert strange(tree(tmp_path)) == []
    with running(tmp_path, {"enableLmq": "true", "enableMultiDispatch": "true"}) as site:
        site.make_topic("t")
        (answer,) = send_all(site.port, [send_request()])
        assert answer.code == ResponseCode.SUCCESS
