"""Recorded requests to Java's name server, sent over a socket: our answers are Java's, field by field.

Compared: code, remark, extFields (with or without) and the body as JSON. The recording keeps one frame of
each form, so that the broker's later registrations are not in it: a registration with the topics and the data
version that Java's answers show stands for them. Not compared: the order of names in lists, which is that of
a hash in Java; in GET_NAMESRV_CONFIG the keys that name files, address and port of the recording's machine.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import zlib
from contextlib import ExitStack
from typing import Any

import pytest

from kourou.namesrv import NameServerConfig
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, decode
from support.recorded.golden import FIXTURES
from support.recorded.wire import Caller
from support.sites.name_server import name_server

LINKS = ("client-namesrv", "broker-namesrv")
OF_THE_MACHINE = {"bindAddress", "configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"}

Row = dict[str, Any]


@pytest.fixture(params=["json", "rocketmq"])
def rows(request) -> list[Row]:
    with gzip.open(FIXTURES / "wire" / f"remoting-{request.param}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["link"] in LINKS]


def test_every_recorded_request_is_answered_as_java_did(rows, tmp_path):
    responses = {(r["connection"], r["opaque"]): r for r in rows if r["direction"] == "response"}
    callers: dict[int, Caller] = {}
    compared = set()
    with name_server(tmp_path) as server, ExitStack() as stack:
        for row in rows:
            if row["direction"] == "response":
                continue
            if row["connection"] not in callers:
                callers[row["connection"]] = stack.enter_context(Caller(server.port))
            caller = callers[row["connection"]]
            if row["link"] == "client-namesrv":
                register_all(rows, callers)
            answer = caller.call(base64.b64decode(row["frame"]))
            expected = responses.get((row["connection"], row["opaque"]))
            if expected is not None:
                assert_answered(row, answer, decode(base64.b64decode(expected["frame"])[4:]))
                compared.add(row["requestCode"])
    assert compared >= {100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 304}
    assert compared >= {311, 312, 313, 318, 319, 322, 327, 901, 904}


def test_an_unknown_topic_is_answered_as_java_did(rows, tmp_path):
    unknown = [r for r in rows if r["code"] == ResponseCode.TOPIC_NOT_EXIST]
    assert unknown
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        for row in unknown:
            expected = decode(base64.b64decode(row["frame"])[4:])
            topic = (expected.remark or "").splitlines()[0].rpartition(": ")[2]
            answer = caller.call(ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic))
            assert (answer.code, answer.remark, answer.body) == (expected.code, expected.remark, None)


def test_cluster_info_has_java_s_bytes(rows, tmp_path):
    register = next(r for r in rows if r["requestCode"] == RequestCode.REGISTER_BROKER)
    expected = next(
        r for r in rows if r["requestCode"] == RequestCode.GET_BROKER_CLUSTER_INFO and r["body"]
    )  # fmt: skip
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        caller.call(base64.b64decode(register["frame"]))
        answer = caller.call(ask(RequestCode.GET_BROKER_CLUSTER_INFO))
    assert answer.body == base64.b64decode(expected["body"])


def register_all(rows: list[Row], callers: dict[int, Caller]) -> None:
    """What master and slave had registered when clients asked."""
    recorded = next(r for r in rows if r["requestCode"] == RequestCode.REGISTER_BROKER)
    request = decode(base64.b64decode(recorded["frame"])[4:])
    body = lenient_json.loads(base64.b64decode(recorded["body"]))
    wrapper = body["topicConfigSerializeWrapper"]
    wrapper["dataVersion"] = json_of_answer(rows, RequestCode.QUERY_DATA_VERSION)
    known = wrapper["topicConfigTable"]
    template = known["SELF_TEST_TOPIC"]
    for topic in json_of_answer(rows, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)["topicList"]:
        known.setdefault(topic, {**template, "topicName": topic})
    master = callers.setdefault(1, next(iter(callers.values())))
    addresses = json_of_answer(rows, RequestCode.GET_BROKER_MEMBER_GROUP)["brokerMemberGroup"]["brokerAddrs"]
    for broker_id, address in addresses.items():
        fields = {**request.ext_fields, "brokerId": broker_id, "brokerAddr": address, "bodyCrc32": "0"}
        answer = master.call(RemotingCommand(RequestCode.REGISTER_BROKER, fields, json.dumps(body).encode()))
        assert answer.code == ResponseCode.SUCCESS


def json_of_answer(rows: list[Row], code: int) -> Any:
    row = next(r for r in rows if r["requestCode"] == code and r["direction"] == "response")
    return lenient_json.loads(base64.b64decode(row["body"]))


def assert_answered(row: Row, answer: RemotingCommand, expected: RemotingCommand) -> None:
    name = row["requestName"]
    assert (answer.code, answer.remark, answer.opaque, answer.flag) == (
        expected.code, expected.remark, expected.opaque, expected.flag,
    ), name  # fmt: skip
    assert answer.serialize_type == expected.serialize_type
    assert answer.ext_fields == expected.ext_fields, name
    assert has_ext_fields(answer) == has_ext_fields(expected), name
    assert comparable(row, answer.body) == comparable(row, expected.body), name


def has_ext_fields(command: RemotingCommand) -> bool:
    return b"extFields" in command.encode_header()


def comparable(row: Row, body: bytes | memoryview | None) -> Any:
    if body is None:
        return None
    if row["requestCode"] == RequestCode.GET_NAMESRV_CONFIG:
        values = dict(line.split("=", 1) for line in str(body, "utf-8").splitlines())
        return {k: v for k, v in values.items() if k not in OF_THE_MACHINE}
    value = lenient_json.loads(body)
    if "topicList" in value:
        value["topicList"] = sorted(value["topicList"])
    return value


# What the recording does not hold


def test_a_body_may_be_compressed_and_must_have_its_checksum(tmp_path):
    body = compressed_body(
        {"counter": 1}, ['T 4 8 6 SINGLE_TAG {"+message.type":"FIFO"}', "U 1 1 4 SINGLE_TAG "]
    )
    fields = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "haServerAddr": "127.0.0.1:2",
        "brokerId": "0", "compressed": "true",
    }  # fmt: skip
    good, bad = str(zlib.crc32(body) & 0x7FFFFFFF), "1"
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        refused = caller.call(RemotingCommand(103, {**fields, "bodyCrc32": bad}, body))
        assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "crc32 not match")

        assert caller.call(RemotingCommand(103, {**fields, "bodyCrc32": good}, body)).code == 0
        route = lenient_json.loads(caller.call(ask(105, topic="T")).body or b"")
        assert route["queueDatas"] == [
            {"brokerName": "b", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 8}
        ]
        assert route["topicQueueMappingByBroker"]["b"]["currIdMap"] == {"0": 3}

        cut = caller.call(RemotingCommand(103, {**fields, "bodyCrc32": "0"}, body[:20]))
        assert cut.code == ResponseCode.SYSTEM_ERROR
        assert "Failed to decode RegisterBrokerBody" in (cut.remark or "")


def compressed_body(version: Row, topics: list[str]) -> bytes:
    def block(data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + data

    mapping = b'{"bname":"b","currIdMap":{0:3},"topic":"T"}'
    parts = [block(json.dumps(version).encode()), len(topics).to_bytes(4, "big")]
    parts += [block(topic.encode()) for topic in topics]
    parts += [block(b"[]"), (1).to_bytes(4, "big"), block(mapping)]
    return zlib.compress(b"".join(parts))


def test_an_old_client_gets_bare_numbers_unless_it_asks_for_strict_json(rows, tmp_path):
    register = next(r for r in rows if r["requestCode"] == RequestCode.REGISTER_BROKER)
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        caller.call(base64.b64decode(register["frame"]))
        old = RemotingCommand(105, {"topic": "TBW102"}, version=300)
        strict = RemotingCommand(105, {"topic": "TBW102", "acceptStandardJsonOnly": "true"}, version=300)
        assert b'"brokerAddrs":{0:"' in bytes(caller.call(old).body or b"")
        assert b'"brokerAddrs":{"0":"' in bytes(caller.call(strict).body or b"")


def test_a_field_that_is_missing_is_named(tmp_path):
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        answer = caller.call(ask(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "the custom field <topic> is null")


def test_a_topic_is_registered_and_deleted(rows, tmp_path):
    register = next(r for r in rows if r["requestCode"] == RequestCode.REGISTER_BROKER)
    queues = {"queueDatas": [{"brokerName": "broker-gw", "perm": 6, "readQueueNums": 1, "writeQueueNums": 2}]}
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        caller.call(base64.b64decode(register["frame"]))
        assert caller.call(RemotingCommand(217, {"topic": "N"}, json.dumps(queues).encode())).code == 0
        assert lenient_json.loads(caller.call(ask(105, topic="N")).body or b"")["queueDatas"] == [
            {"brokerName": "broker-gw", "perm": 6, "readQueueNums": 1, "topicSysFlag": 0, "writeQueueNums": 2}
        ]
        assert caller.call(ask(216, topic="N")).code == 0
        assert caller.call(ask(105, topic="N")).code == ResponseCode.TOPIC_NOT_EXIST


def test_the_broker_of_a_lost_connection_is_gone(rows, tmp_path):
    register = next(r for r in rows if r["requestCode"] == RequestCode.REGISTER_BROKER)
    with name_server(tmp_path) as server, Caller(server.port) as watcher:
        with Caller(server.port) as broker:
            broker.call(base64.b64decode(register["frame"]))
            assert watcher.call(ask(105, topic="TBW102")).code == 0
        for _ in range(1000):  # until the server has noticed
            if watcher.call(ask(105, topic="TBW102")).code == ResponseCode.TOPIC_NOT_EXIST:
                return
    pytest.fail("the route stayed")


def test_kv_config_and_configuration_outlive_the_server(tmp_path):
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        for value in ("v", "w"):
            assert caller.call(ask(100, namespace="ns", key="k", value=value)).code == 0
        assert caller.call(RemotingCommand(318, body=b"enableTopicList=false\n")).code == 0
        assert caller.call(ask(311)).remark == "disable"
        assert caller.call(RemotingCommand(318, body=b"kvConfigPath=x\n")).code == ResponseCode.NO_PERMISSION
        refused = caller.call(RemotingCommand(318, body=b"enableTopicList=perhaps\n"))
        assert refused.remark == "enableTopicList=perhaps: expected true or false"

    assert json.loads((tmp_path / "kvConfig.json").read_bytes()) == {"configTable": {"ns": {"k": "w"}}}
    assert NameServerConfig.load(tmp_path / "namesrv.properties").enable_topic_list is False
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        assert caller.call(ask(101, namespace="ns", key="k")).ext_fields == {"value": "w"}


def test_a_damaged_kv_file_falls_back_to_the_one_before(tmp_path, caplog):
    with name_server(tmp_path) as server:
        server.kv.put("ns", "k", "v")
        server.kv.put("ns", "k", "w")
    (tmp_path / "kvConfig.json").write_bytes(b'{"configTa')
    with name_server(tmp_path) as server:
        assert server.kv.get("ns", "k") == "v"
    assert "cannot read" in caplog.text


def test_routes_wait_until_brokers_have_had_time_to_register(tmp_path):
    with name_server(tmp_path, need_wait_for_service=True) as server, Caller(server.port) as caller:
        answer = caller.call(ask(105, topic="T"))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")


def test_a_broker_is_told_of_another_lowest_id(tmp_path):
    with (
        socket.create_server(("127.0.0.1", 0)) as broker,
        name_server(tmp_path, notify_min_broker_id_changed=True) as server,
        Caller(server.port) as caller,
    ):
        broker.settimeout(10)
        address = f"127.0.0.1:{broker.getsockname()[1]}"
        fields = {"brokerName": "b", "clusterName": "c", "enableActingMaster": "true"}
        slave = {**fields, "brokerId": "1", "brokerAddr": address, "haServerAddr": "slave:1"}
        master = {**fields, "brokerId": "0", "brokerAddr": "master:1", "haServerAddr": "master:2"}
        for who in (slave, master):
            assert caller.call(RemotingCommand(RequestCode.REGISTER_BROKER, who)).code == 0
        connection, _ = broker.accept()
        with connection, connection.makefile("rb") as stream:
            notice = decode(stream.read(int.from_bytes(stream.read(4), "big")))

    assert notice.code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
    assert notice.is_oneway
    assert notice.ext_fields == {
        "minBrokerId": "0", "minBrokerAddr": "master:1", "haBrokerAddr": "master:2",
    }  # fmt: skip


def test_a_client_names_its_zone(tmp_path):
    body = json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": {"T": {}, "U": {}}}}).encode()
    with name_server(tmp_path) as server, Caller(server.port) as caller:
        for name in ("near", "far"):
            fields = {
                "brokerName": name, "clusterName": "c", "brokerId": "0", "brokerAddr": f"{name}:1",
                "haServerAddr": f"{name}:2", "__ZONE_NAME": name,
            }  # fmt: skip
            assert caller.call(RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)).code == 0
        route = lenient_json.loads(
            caller.call(ask(105, topic="T", __ZONE_MODE="true", __ZONE_NAME="near")).body or b""
        )
    assert [(b["brokerName"], b["zoneName"]) for b in route["brokerDatas"]] == [("near", "near")]


def ask(code: int, **fields: str) -> RemotingCommand:
    return RemotingCommand(code, fields or None)
