"""What administrators ask of a broker: offsets, figures, configuration, files; over real sockets."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from kourou.broker import BrokerConfig
from kourou.broker.handlers import offsets as offset_handlers
from kourou.broker.handlers import statistics
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.protocol.headers import CreateTopic
from kourou.testing import Cluster
from support.sites.broker import until

WAIT_S = 10
PULL_RESET = ResponseCode.PULL_OFFSET_MOVED
MAX_LONG = (1 << 63) - 1


class Peer:
    """A connection on which both ends may ask."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._stream = self._socket.makefile("rb")
        self.passed_over: list[int] = []  # codes

    def send(self, command: RemotingCommand) -> None:
        self._socket.sendall(command.encode())

    def receive(self, code: int | None = None) -> RemotingCommand:
        """The next response, or the next request of a code; what else comes is passed over."""
        while True:
            command = decode(self._stream.read(int.from_bytes(self._stream.read(4), "big")))
            if command.is_response if code is None else not command.is_response and command.code == code:
                return command
            self.passed_over.append(command.code)

    def call(self, code: int, body: Any = None, **fields: str) -> RemotingCommand:
        self.send(request(code, body, **fields))
        return self.receive()

    def ask(self, code: int, body: Any = None, **fields: str) -> RemotingCommand:
        """The answer to a request that must succeed."""
        answer = self.call(code, body, **fields)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    def put(self, topic: str, queue_id: int = 0, count: int = 1, size_bytes: int = 10) -> None:
        for _ in range(count):
            self.ask(RequestCode.SEND_MESSAGE_V2, b"x" * size_bytes, **send_fields(topic, queue_id))

    def commit(self, group: str, topic: str, offset: int, queue_id: int = 0) -> RemotingCommand:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=str(offset), **fields)

    def offset_of(self, group: str, topic: str, queue_id: int = 0) -> int:
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        return int(self.ask(RequestCode.QUERY_CONSUMER_OFFSET, **fields).ext_fields["offset"])

    def pull(self, group: str, topic: str, offset: int) -> RemotingCommand:
        return self.call(
            RequestCode.PULL_MESSAGE,
            consumerGroup=group,
            topic=topic,
            queueId="0",
            queueOffset=str(offset),
            maxMsgNums="8",
            sysFlag="4",  # with its own subscription, and without waiting
            commitOffset="0",
            suspendTimeoutMillis="0",
            subscription="*",
            subVersion="0",
        )

    def join(self, client_id: str, group: str, *topics: str, version: int = 513) -> None:
        """Consume topics from now on."""
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": topic, "subString": "*"} for topic in topics],
        }
        body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
        self.send(RemotingCommand(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body), version=version))
        assert self.receive().code == ResponseCode.SUCCESS

    def close(self) -> None:
        self._stream.close()
        self._socket.close()


class Site:
    """A cluster of one broker, and connections to it."""

    def __init__(self, cluster: Cluster, stack: ExitStack) -> None:
        self.cluster = cluster
        self.broker = cluster.brokers[0]
        self._stack = stack
        self.admin = self.connect()

    def connect(self) -> Peer:
        peer = Peer(self.broker.config.listen_port)
        self._stack.callback(peer.close)
        return peer

    def make_group(self, group: str) -> None:
        self.admin.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": group})


@contextmanager
def make_site(config: dict[str, str] | None = None, *, brokers: int = 1) -> Iterator[Site]:
    with Cluster(brokers=brokers, config=config) as cluster, ExitStack() as stack:
        yield Site(cluster, stack)


@pytest.fixture
def site() -> Iterator[Site]:
    """With topics `orders` and `bills` of two queues and the group `g`."""
    with make_site() as made:
        for topic in ("orders", "bills"):
            made.cluster.create_topic(topic, queues=2)
        made.make_group("g")
        yield made


def request(code: int, body: Any = None, **fields: str) -> RemotingCommand:
    data = body if body is None or isinstance(body, bytes) else lenient_json.dumps(body)
    return RemotingCommand(code, fields, data)


def send_fields(topic: str, queue_id: int = 0) -> dict[str, str]:
    return {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false",
    }  # fmt: skip


def body_of(answer: RemotingCommand) -> Any:
    return lenient_json.loads(bytes(answer.body or b""))


def queue_table(value: dict[str, Any]) -> dict[tuple[str, int], Any]:
    """A table whose keys are queues, by topic and queue id."""
    found = {MessageQueue.from_json(key): item for key, item in value.items()}
    return {(queue.topic, queue.queue_id): item for queue, item in found.items()}


# Offsets: reset on the server


def reset(
    topic: str = "orders", group: str = "g", timestamp: int = -1, queue_id: int = -1, offset: int = -1
) -> dict[str, str]:
    return {
        "topic": topic, "group": group, "timestamp": str(timestamp), "isForce": "true",
        "queueId": str(queue_id), "offset": str(offset),
    }  # fmt: skip


def test_a_reset_sends_the_next_pull_to_its_place(site):
    admin = site.admin
    admin.put("orders", 0, count=3)
    admin.commit("g", "orders", 3)

    answer = admin.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset(timestamp=0))

    assert queue_table(body_of(answer)["offsetTable"]) == {("orders", 0): 0, ("orders", 1): 0}
    assert admin.commit("g", "orders", 3).remark == "Offset has been previously reset"
    moved = admin.pull("g", "orders", 3)
    assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (PULL_RESET, "0")
    assert admin.pull("g", "orders", 0).code == ResponseCode.SUCCESS
    assert admin.commit("g", "orders", 2).remark is None
    assert admin.offset_of("g", "orders") == 2


def test_a_reset_to_a_time_below_0_goes_to_the_end(site):
    site.admin.put("orders", 1, count=2)
    answer = site.admin.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset(timestamp=-1))
    assert queue_table(body_of(answer)["offsetTable"]) == {("orders", 0): 0, ("orders", 1): 2}


def test_one_queue_is_reset_to_an_offset_that_it_has(site):
    admin = site.admin
    admin.put("orders", 0, count=3)
    admin.commit("g", "orders", 3)
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET

    answer = admin.ask(code, **reset(queue_id=0, offset=1))
    assert queue_table(body_of(answer)["offsetTable"]) == {("orders", 0): 1}
    assert admin.offset_of("g", "orders") == 1

    refused = admin.call(code, **reset(queue_id=0, offset=9))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert refused.remark == "Target offset 9 not in consume queue range [0-3]"
    assert admin.offset_of("g", "orders") == 1


def test_a_reset_needs_a_topic_and_a_group(site):
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    no_topic = site.admin.call(code, **reset(topic="nothing"))
    no_group = site.admin.call(code, **reset(group="nobody"))
    assert (no_topic.code, no_topic.remark) == (
        ResponseCode.TOPIC_NOT_EXIST,
        "Topic nothing does not exist",
    )
    assert (no_group.code, no_group.remark) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "Group nobody does not exist",
    )


# Offsets: reset by the clients


@pytest.fixture
def by_clients() -> Iterator[Site]:
    """A broker that leaves resets to the clients; `g` has consumed two messages of `orders`."""
    with make_site({"useServerSideResetOffset": "false"}) as made:
        made.cluster.create_topic("orders", queues=1)
        made.make_group("g")
        made.admin.put("orders", 0, count=2)
        made.admin.commit("g", "orders", 2)
        yield made


def test_clients_are_told_where_to_go_on(by_clients):
    consumers = [by_clients.connect(), by_clients.connect()]
    for number, consumer in enumerate(consumers):
        consumer.join(f"c{number}", "g", "orders")

    answer = by_clients.admin.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset(timestamp=0))

    assert queue_table(body_of(answer)["offsetTable"]) == {("orders", 0): 0}
    for consumer in consumers:
        told = consumer.receive(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
        assert told.is_oneway
        assert told.ext_fields["group"] == "g"
        assert queue_table(body_of(told)["offsetTable"]) == {("orders", 0): 0}
    assert by_clients.admin.offset_of("g", "orders") == 2  # until the clients commit


def test_without_force_nobody_goes_forward(by_clients):
    consumer = by_clients.connect()
    consumer.join("c", "g", "orders")
    by_clients.admin.commit("g", "orders", 1)
    fields = reset(timestamp=-1) | {"isForce": "false"}
    answer = by_clients.admin.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **fields)
    assert queue_table(body_of(answer)["offsetTable"]) == {("orders", 0): 1}


def test_an_administrator_in_c_has_the_clients_told_in_its_form(by_clients):
    consumer = by_clients.connect()
    consumer.join("c", "g", "orders")
    question = request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset(timestamp=0))
    question.language = "CPP"
    by_clients.admin.send(question)
    assert by_clients.admin.receive().code == ResponseCode.SUCCESS
    told = consumer.receive(RequestCode.RESET_CONSUMER_CLIENT_OFFSET)
    name = by_clients.broker.config.broker_name
    assert body_of(told) == {
        "offsetTable": [{"brokerName": name, "queueId": 0, "topic": "orders", "offset": 0}]
    }


def test_a_reset_by_clients_that_are_not_there_is_refused(by_clients):
    code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
    absent = by_clients.admin.call(code, **reset(timestamp=7))
    assert absent.code == ResponseCode.CONSUMER_NOT_ONLINE
    assert absent.remark == (
        "Consumer not online, so can not reset offset, Group: g Topic: orders Timestamp: 7"
    )
    unknown = by_clients.admin.call(code, **reset(group="nobody"))
    assert (unknown.code, unknown.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "THe consumer group <nobody> not exist",
    )


def test_clients_that_are_too_old_are_not_asked(by_clients):
    consumer = by_clients.connect()
    consumer.join("c", "g", "orders", version=27)
    for code, fields in (
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset(timestamp=0)),
        (RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, {"topic": "orders", "group": "g"}),
    ):
        refused = by_clients.admin.call(code, **fields)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark == "the client does not support this feature. version=V3_0_6"


# Offsets: what clients say


def say(consumer: Peer, body: bytes) -> None:
    """Answer the broker's question for the status."""
    question = consumer.receive(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT)
    assert question.ext_fields == {"topic": "orders", "group": "g"}
    consumer.send(question.response(ResponseCode.SUCCESS, None, body))


def test_what_clients_say_is_put_together(site, monkeypatch):
    monkeypatch.setattr(offset_handlers, "ASK_CLIENT_S", 1.0)
    names = ("sane", "silent", "mad")
    consumers = {name: site.connect() for name in names}
    for name, consumer in consumers.items():
        consumer.join(name, "g", "orders")
    said = lenient_json.dumps({"messageQueueTable": {MessageQueue("orders", "b", 1): 5}})

    site.admin.send(request(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="g"))
    say(consumers["mad"], b'{"messageQueueTable":{"no queue":[]}}')
    say(consumers["sane"], said)
    table = body_of(site.admin.receive())["consumerTable"]

    assert {name: queue_table(offsets) for name, offsets in table.items()} == {"sane": {("orders", 1): 5}}


def test_one_client_can_be_asked_alone(site):
    consumers = {name: site.connect() for name in ("one", "other")}
    for name, consumer in consumers.items():
        consumer.join(name, "g", "orders")
    question = request(
        RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="g", clientAddr="other"
    )
    site.admin.send(question)
    say(consumers["other"], b"{}")
    assert body_of(site.admin.receive()) == {"consumerTable": {"other": {}}, "messageQueueTable": {}}
    consumers["one"].ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    assert RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT not in consumers["one"].passed_over


def test_nobody_says_anything_of_a_group_that_is_not_there(site):
    answer = site.admin.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="orders", group="nobody")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == "No Any Consumer online in the consumer group: [nobody]"


# Offsets: tables


def test_offsets_are_cloned_in_one_topic_or_in_all(site):
    site.admin.put("orders", count=2)
    site.admin.put("bills", count=3)
    site.admin.commit("g", "orders", 2)
    site.admin.commit("g", "bills", 3)

    site.admin.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="g", destGroup="one", topic="orders")
    site.admin.ask(RequestCode.CLONE_GROUP_OFFSET, srcGroup="g", destGroup="all")

    assert site.broker.offsets.topics_of("one") == {"orders"}
    assert [site.admin.offset_of("all", topic) for topic in ("orders", "bills")] == [2, 3]


def test_offsets_in_a_topic_that_the_group_has_left_are_cloned_only_offline(site):
    site.admin.commit("g", "orders", 2)
    site.connect().join("c", "g", "bills")
    fields = {"srcGroup": "g", "destGroup": "h", "topic": "orders"}
    site.admin.ask(RequestCode.CLONE_GROUP_OFFSET, offline="false", **fields)
    assert site.broker.offsets.topics_of("h") == set()
    site.admin.ask(RequestCode.CLONE_GROUP_OFFSET, offline="true", **fields)
    assert site.broker.offsets.topics_of("h") == {"orders"}


def test_the_correction_offset_is_the_least_of_all_groups(site):
    site.admin.put("orders", 0, count=5)
    site.make_group("h")
    site.admin.commit("g", "orders", 4)
    site.admin.commit("h", "orders", 3)
    code, fields = RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "orders", "compareGroup": "g"}
    assert body_of(site.admin.ask(code, **fields)) == {"correctionOffsets": {"0": 3}}
    assert body_of(site.admin.ask(code, filterGroups="h", **fields)) == {"correctionOffsets": {"0": 4}}
    behind = site.admin.ask(code, topic="orders", compareGroup="h", filterGroups="h")
    assert body_of(behind) == {"correctionOffsets": {"0": MAX_LONG}}
    assert site.admin.offset_of("h", "orders") == 3  # asking forgets nothing


def test_slaves_get_the_tables_of_offsets(site):
    site.admin.commit("g", "orders", 7, queue_id=1)
    table = body_of(site.admin.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
    assert table["offsetTable"] == {"orders@g": {"1": 7}}
    assert table["groupTopicMap"] == {"g": ["orders"]}
    delays = body_of(site.admin.ask(RequestCode.GET_ALL_DELAY_OFFSET))
    assert delays["offsetTable"]["18"] == 0


# Figures


def test_consume_stats_tell_how_far_a_group_is(site):
    site.admin.put("orders", 0, count=3)
    site.admin.commit("g", "orders", 1)
    site.admin.pull("g", "orders", 0)

    stats = body_of(site.admin.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g"))

    table = queue_table(stats["offsetTable"])
    assert set(table) == {("orders", 0), ("orders", 1)}
    first = table["orders", 0]
    assert (first["brokerOffset"], first["consumerOffset"], first["pullOffset"]) == (3, 1, 3)
    assert time.time() - 60 < first["lastTimestamp"] / 1000 <= time.time()
    assert table["orders", 1] == {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0}
    assert stats["consumeTps"] == 0.0


def test_consume_stats_leave_out_topics_that_the_group_has_left_unless_they_are_listed(site):
    for topic in ("orders", "bills"):
        site.admin.commit("g", topic, 1)
    site.connect().join("c", "g", "bills")

    def topics(**fields: str) -> set[str]:
        answer = site.admin.ask(RequestCode.GET_CONSUME_STATS, consumerGroup="g", **fields)
        return {topic for topic, _ in queue_table(body_of(answer)["offsetTable"])}

    assert topics() == {"bills"}
    assert topics(topic="orders") == set()
    assert topics(topicList="orders;bills;nothing;") == {"orders", "bills"}


def test_consume_stats_of_all_groups_add_up(site):
    site.admin.put("orders", 0, count=3)
    site.admin.put("bills", 1, count=2)
    site.admin.commit("g", "orders", 1)
    site.admin.commit("g", "bills", 2, queue_id=1)
    everything = body_of(site.admin.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false"))
    ordered = body_of(site.admin.ask(RequestCode.GET_BROKER_CONSUME_STATS, isOrder="true"))

    found = {group: parts for groups in everything["consumeStatsList"] for group, parts in groups.items()}
    assert set(found) == set(site.broker.groups.groups)
    assert len(found["g"]) == 2
    assert (everything["totalDiff"], everything["totalInflightDiff"]) == (2, 0)
    assert everything["brokerAddr"] == site.broker.config.address
    assert {"g": []} in ordered["consumeStatsList"]
    assert ordered["totalDiff"] == 0


def test_the_time_span_shows_how_long_messages_wait(site):
    site.admin.put("orders", 0, count=2)
    site.admin.put("orders", 1, count=2)
    site.admin.commit("g", "orders", 1, queue_id=0)
    site.admin.commit("g", "orders", 2, queue_id=1)
    time.sleep(0.05)

    answer = site.admin.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="orders", group="g")

    waits, done = sorted(
        body_of(answer)["consumeTimeSpanSet"], key=lambda span: span["messageQueue"]["queueId"]
    )
    assert 50 <= waits["delayTime"] < 60_000
    assert waits["minTimeStamp"] == waits["consumeTimeStamp"] <= waits["maxTimeStamp"]
    assert done["delayTime"] == 0
    assert done["consumeTimeStamp"] == done["maxTimeStamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d#\d\d:\d\d:\d\d:\d{3}", done["maxTimeStampStr"])
    nothing = site.admin.call(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="nothing", group="g")
    assert (nothing.code, nothing.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[nothing] not exist")


def test_a_group_that_never_consumed_waits_since_the_first_message(site):
    site.admin.put("orders", 0, count=2)
    answer = site.admin.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, topic="orders", group="never")
    filled, empty = sorted(body_of(answer)["consumeTimeSpanSet"], key=lambda span: -span["delayTime"])
    assert 0 <= filled["delayTime"] < 60_000
    assert (empty["delayTime"], empty["minTimeStamp"], empty["maxTimeStamp"]) == (0, -1, -1)


def test_what_was_never_counted_has_no_figures(site):
    answer = site.admin.call(
        RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="orders"
    )
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "The stats <TOPIC_PUT_NUMS> <orders> not exist",
    )


def test_runtime_information_is_true(site):
    site.admin.put("orders", 0, count=3)
    site.admin.put("bills", 0, count=1)
    site.admin.pull("g", "orders", 0)
    table = body_of(site.admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]

    assert all(isinstance(value, str) for value in table.values())
    assert table["brokerVersionDesc"] == "V5_5_0"
    assert table["brokerActive"] == "true"
    assert (table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == ("4", "3")
    assert table["putMessageTimesTotal"] == "4"
    assert table["commitLogMinOffset"] == "0"
    assert table["commitLogMaxOffset"] == table["putMessageSizeTotal"]
    assert int(table["earliestMessageTimeStamp"]) >= int(table["bootTimestamp"])
    assert table["dispatchBehindBytes"] == "0"
    assert (table["sendThreadPoolQueueSize"], table["sendThreadPoolQueueCapacity"]) == ("0", "10000")
    assert (table["pullThreadPoolQueueSize"], table["pullThreadPoolQueueCapacity"]) == ("0", "100000")
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert re.fullmatch(
        r"Total : [\d.]+ [KMGT]?i?B, Free : [\d.]+ [KMGT]?i?B\.", table["commitLogDirCapacity"]
    )
    assert re.fullmatch(r"\d+ B|[\d.]+ KiB", table["remainHowManyDataToFlush"])
    assert re.fullmatch(r"\[ 0 days, 0 hours, \d+ minutes, \d+ seconds \]", table["runtime"])
    for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
        assert len([float(rate) for rate in table[name].split(" ")]) == 3


def test_runtime_information_counts_pulls_that_wait(site):
    waiting = site.connect()
    waiting.send(
        request(
            RequestCode.PULL_MESSAGE, consumerGroup="g", topic="orders", queueId="0", queueOffset="0",
            maxMsgNums="8", sysFlag="6", commitOffset="0", suspendTimeoutMillis="5000", subscription="*",
            subVersion="0",
        )
    )  # fmt: skip
    until(lambda: site.broker.puller.held == 1)
    table = body_of(site.admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert table["pullThreadPoolQueueSize"] == "1"


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (8000, "7.8 KiB"), (270_000_000_000, "251.5 GiB"),
        (3 << 60, "3.0 EiB"),
    ],
)  # fmt: skip
def test_sizes_are_shown_as_java_shows_them(size_bytes, text):
    assert statistics._size_text(size_bytes) == text


def test_runtime_information_of_a_broker_without_messages_is_well_formed_too():
    with make_site() as site:
        table = body_of(site.admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    assert 0 < float(table["commitLogDiskRatio"]) <= 1
    assert (table["commitLogMinOffset"], table["earliestMessageTimeStamp"]) == ("-1", "-1")


# Configuration


def read_config(admin: Peer) -> tuple[dict[str, str], int]:
    """The values, and the counter of their version."""
    answer = admin.ask(RequestCode.GET_BROKER_CONFIG)
    lines = bytes(answer.body or b"").decode().splitlines()
    version = lenient_json.loads(answer.ext_fields["version"].encode())
    return dict(line.split("=", 1) for line in lines), version["counter"]


def test_a_change_of_the_configuration_counts_now_and_after_a_restart(tmp_path):
    file = tmp_path / "broker.conf"
    file.write_text("brokerClusterName=first\nmyOwnKey=1\n")
    with make_site({"brokerConfigPath": str(file), "myOwnKey": "1"}) as site:
        assert read_config(site.admin)[1] == 0
        body = b"longPollingEnable=false\nregionId=C:\\\\temp\\nfile\nmyOwnKey=2\nnobodyKnows=3\n"
        site.admin.ask(RequestCode.UPDATE_BROKER_CONFIG, body)
        values, counter = read_config(site.admin)
        assert counter == 1
        assert values["longPollingEnable"] == "false"
        assert values["myOwnKey"] == "2"
        assert "nobodyKnows" not in values
        assert "brokerConfigPath" not in values
        assert site.broker.config.long_polling_enable is False
    assert "brokerClusterName=first" in (tmp_path / "broker.conf.bak").read_text()
    again = BrokerConfig.load(file)
    assert again.long_polling_enable is False
    assert again.region_id == "C:\\temp\nfile"
    assert again.others["myOwnKey"] == "2"


@pytest.mark.parametrize("key", ["brokerConfigPath", "configBlackList", "rocketmqHome", "brokerName"])
def test_what_is_on_the_black_list_cannot_be_changed(key):
    with make_site({"configBlackList": "brokerName;listenPort"}) as site:
        before = read_config(site.admin)
        answer = site.admin.call(RequestCode.UPDATE_BROKER_CONFIG, f"{key}=x\nregionId=y\n".encode())
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "Can not update config in black list.",
        )
        assert read_config(site.admin) == before


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (b"longPollingEnable=perhaps", "longPollingEnable=perhaps: expected true or false"),
        (b"deleteWhen=noon", "deleteWhen has 'noon': it takes hours from 00 to 23, joined by ';'"),
        (
            b"mappedFileSizeCommitLog=65536",
            "mappedFileSizeCommitLog counts at the start only: it cannot change while the broker runs",
        ),
        (b"\xff=1", "the body of UPDATE_BROKER_CONFIG is no UTF-8"),
    ],
)
def test_a_change_of_no_use_changes_nothing(site, change, remark):
    before = read_config(site.admin)
    answer = site.admin.call(RequestCode.UPDATE_BROKER_CONFIG, b"regionId=elsewhere\n" + change)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert read_config(site.admin) == before


def test_a_key_that_counts_at_the_start_only_may_be_repeated(site):
    port = site.broker.config.listen_port
    site.admin.ask(RequestCode.UPDATE_BROKER_CONFIG, f"listenPort={port}\nregionId=here".encode())
    assert site.broker.config.region_id == "here"


def test_a_change_that_cannot_be_kept_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with make_site({"brokerConfigPath": str(tmp_path / "file" / "broker.conf")}) as site:
        answer = site.admin.call(RequestCode.UPDATE_BROKER_CONFIG, b"regionId=here")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "its file cannot be written" in (answer.remark or "")
        assert site.broker.config.region_id == "here"


def test_a_broker_that_may_not_be_written_to_says_so_at_the_name_server(site):
    def permission() -> int:
        answer = site.cluster.call(
            site.cluster.namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}
        )
        return int(body_of(answer)["queueDatas"][0]["perm"])

    ordered = CreateTopic("ordered", "TBW102", 1, 1, 6, "SINGLE_TAG", order=True)
    site.admin.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **ordered.fields())
    version = site.broker.topics.data_version.counter
    site.admin.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
    assert permission() == 4
    assert site.broker.topics.data_version.counter == version + 1
    refused = site.admin.call(RequestCode.SEND_MESSAGE_V2, b"x", **send_fields("ordered"))
    assert refused.code == ResponseCode.NO_PERMISSION  # others may send until their route tells them

    site.admin.ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
    assert permission() == 6
    site.admin.put("ordered")


# Files


def test_expired_files_and_queues_go_when_asked():
    hour = (time.localtime().tm_hour + 12) % 24
    config = {
        "mappedFileSizeCommitLog": "65536", "fileReservedTime": "0", "deleteWhen": f"{hour:02d}",
        "cleanResourceInterval": "20", "deleteCommitLogFilesInterval": "0",
    }  # fmt: skip
    with make_site(config) as site:
        log = site.broker.store.commit_log
        site.admin.put("early", 0, count=3)
        site.admin.put("late", 0, count=30, size_bytes=8000)
        site.admin.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert len(log.files.files) > 3
        assert site.broker.store.queues.get("early", 0) is not None

        time.sleep(0.01)  # a file is past its time when the clock has moved on
        site.admin.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)
        until(lambda: len(log.files.files) == 1)
        site.admin.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert site.broker.store.queues.get("early", 0) is not None  # it alone knows which offset comes next

        site.broker.topics.topics.pop("early")
        site.admin.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)
        assert site.broker.store.queues.get("early", 0) is None
        assert site.broker.store.queues.get("late", 0) is not None


# Peers


def test_a_notice_of_another_lowest_broker_id_is_taken(site):
    fields = {"minBrokerId": "1", "brokerName": "b", "minBrokerAddr": "127.0.0.1:1"}
    assert site.admin.ask(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, **fields).body is None


# Queues that the broker distributes


def assigned(
    peer: Peer, client_id: str, topic: str = "orders", **values: str
) -> list[tuple[str, int]] | None:
    body = {
        "topic": topic, "consumerGroup": "g", "clientId": client_id, "messageModel": "CLUSTERING",
        "strategyName": "AVG", **values,
    }  # fmt: skip
    answer = body_of(peer.ask(RequestCode.QUERY_ASSIGNMENT, body))
    if not answer:
        return None
    assert all(entry["mode"] == "PULL" for entry in answer["messageQueueAssignments"])
    queues = [MessageQueue.from_json(entry["messageQueue"]) for entry in answer["messageQueueAssignments"]]
    return [(queue.broker_name, queue.queue_id) for queue in queues]


def test_queues_of_all_brokers_are_shared_among_the_clients_of_a_group():
    with make_site(brokers=2) as site:
        site.cluster.create_topic("orders", queues=3)
        for name in ("c1", "c2", "c3", "c4"):
            site.connect().join(name, "g", "orders")
        a, b = ((f"broker-{x}", 0) for x in "ab")
        everything = [(broker, queue) for broker in (a[0], b[0]) for queue in range(3)]

        shares = [assigned(site.admin, name) for name in ("c1", "c2", "c3", "c4")]
        assert shares == [everything[0:2], everything[2:4], everything[4:5], everything[5:6]]
        circle = [assigned(site.admin, name, strategyName="AVG_BY_CIRCLE") for name in ("c1", "c4")]
        assert circle == [[everything[0], everything[4]], [everything[3]]]
        assert assigned(site.admin, "c1", messageModel="BROADCASTING") == everything
        assert assigned(site.admin, "stranger") == []


def test_without_an_answer_a_client_keeps_its_queues(site):
    assert assigned(site.admin, "c1") is None  # nobody is in the group
    site.connect().join("c1", "g", "orders")
    assert assigned(site.admin, "c1") == [
        (site.broker.config.broker_name, 0),
        (site.broker.config.broker_name, 1),
    ]
    assert assigned(site.admin, "c1", topic="nothing") is None
    assert assigned(site.admin, "c1", strategyName="MINE") is None


def test_more_clients_than_queues_leave_some_without(site):
    for name in ("c1", "c2", "c3"):
        site.connect().join(name, "g", "orders")
    shares = [assigned(site.admin, name) for name in ("c1", "c2", "c3")]
    assert [len(share or ()) for share in shares] == [1, 1, 0]
