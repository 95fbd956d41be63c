"""Requests in good frames and of no use otherwise: each is answered, by an error that says why, or its
connection is closed; nobody else notices, nothing grows, and the store is whole afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.handlers import make_handlers
from kourou.inspect import StoreDirectory
from kourou.inspect.check.findings import Severity
from kourou.inspect.check.whole import check
from kourou.message.batch import encode_batch
from kourou.message.model import Message
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, ROCKETMQ, RemotingCommand
from support.sites.broker import (
    FIELD_NAMES,
    SUBSCRIPTION,
    SUSPEND,
    Peer,
    Site,
    heartbeat,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)

REQUESTS_AT_ONCE = 12

BODY_NAMES = (
    "clientID", "clientId", "consumerDataSet", "producerDataSet", "subscriptionDataSet", "groupName", "topic",
    "subString", "tagsSet", "codeSet", "subVersion", "expressionType", "consumeType", "messageModel",
    "consumerGroup", "mqSet", "queueId", "brokerName", "heartbeatFingerprint", "withoutSub", "attributes",
    "topicConfigList", "topicName", "perm", "readQueueNums", "writeQueueNums", "retryQueueNums", "groupList",
    "retryMaxTimes", "strategyName", "messageQueueAssignments", "offsetTable", "subscriptionData", "group",
    "topicFilterType", "groupRetryPolicy", "topicSysFlag", "order", "groupConfigList", "consumeEnable",
    "subscriptionGroupConfigList", "topicList", "brokerAddr", "namespaceV2", "onlyThisBroker",
)  # fmt: skip

NUMBERS = ("0", "1", "-1", "2", "4", "31", "4096", "2147483647", "2147483648", "-2147483649", "1e3", "0x1",
           "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 40, "9" * 5000, " 1",
           "1_0", "٣", "NaN", "")  # fmt: skip
WORDS = ("t", "g", "p", "c", "*", "TagA||TagB", "||", "true", "false", "null", "%RETRY%g", "%DLQ%g", "TBW102",
         "%LMQ%x", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "broker-a", "DefaultCluster", "SQL92",
         "a@b", "../../etc", "名前", "\"quoted\"", "x" * 300, "%", "a b", "\n", "\x00", "LOWER", "TAG", "K",
         "TOPIC_PUT_NUMS", "GROUP_GET_NUMS", "t@g", "{}", "[]", '{"counter":1}', "+message.type=NORMAL",
         "+queue.type=BatchCQ", "-cleanup.policy", "7F00000100002A9F0000000000000000")  # fmt: skip
PROPERTIES = (
    "UNIQ_KEY\x017F00000100002A9F0000000000000001\x02", "DELAY\x011\x02", "DELAY\x01x\x02",
    "DELAY\x01" + "9" * 5000 + "\x02", "INNER_NUM\x012\x02", "INNER_NUM\x01" + "9" * 5000 + "\x02",
    "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02", "_SYS_MSG_PRIORITY_\x01" + "7" * 5000 + "\x02",
    "_SYS_MSG_PRIORITY_\x013\x02", "TIMER_DELAY_SEC\x015\x02", "TRAN_MSG\x01true\x02", "KEYS\x01a b c\x02",
    "__LITE_TOPIC\x01l\x02", "REPLY_TO_CLIENT\x01c\x02", "RETRY_TOPIC\x01\x02", "\x01\x02\x01", "TAGS\x01",
    "WAIT\x01false\x02", "__CRC32#\x011\x02", "a\x01" + "v" * 40_000 + "\x02",
)  # fmt: skip
BATCH = encode_batch([Message("t", b"one", {"TAGS": "A"}), Message("t", b"two")])

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
numbers, words = st.sampled_from(NUMBERS), st.sampled_from(WORDS)
values = st.one_of(numbers, words, any_text, st.lists(st.sampled_from(PROPERTIES), max_size=3).map("".join))
json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), words, numbers
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(BODY_NAMES), inner, max_size=5)
    ),
    max_leaves=12,
)
bodies = st.one_of(
    st.none(),
    st.binary(max_size=60),
    json_values.map(orjson.dumps),
    st.dictionaries(st.sampled_from(BODY_NAMES), json_values, max_size=8).map(orjson.dumps),
    st.sampled_from(
        [BATCH, BATCH[:-1], BATCH + b"\x00", b"{", b"[" * 2000, b"a=b\nbrokerPermission=x", b'{"a":', b"\xff"]
    ),
    st.binary(min_size=20, max_size=30).map(lambda data: struct.pack(">i", len(data)) + data),
)

# A header of each request as it should be, so that what is of no use is seldom all of it
GOOD: dict[int, dict[str, str]] = {
    RequestCode.SEND_MESSAGE_V2: dict(send_request().ext_fields),
    RequestCode.SEND_BATCH_MESSAGE: dict(send_request().ext_fields),
    RequestCode.SEND_REPLY_MESSAGE_V2: dict(send_request().ext_fields),
    RequestCode.PULL_MESSAGE: dict(pull_request().ext_fields),
    RequestCode.LITE_PULL_MESSAGE: dict(pull_request().ext_fields),
}
PULLS = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
COMMON = {
    "topic": "t", "group": "g", "consumerGroup": "g", "queueId": "0", "offset": "0", "clientID": "c",
    "clientId": "c", "timestamp": "0", "isForce": "true", "delayLevel": "0", "commitOffset": "1", "key": "k",
    "maxNum": "4", "beginTimestamp": "0", "endTimestamp": "9999999999999", "producerGroup": "p",
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "srcGroup": "g",
    "destGroup": "h", "topicFilterType": "SINGLE_TAG", "compareGroup": "g", "groupName": "h", "statsKey": "t",
    "statsName": "TOPIC_PUT_NUMS", "isOrder": "false", "jstackEnable": "false", "readable": "true",
    "sysFlag": "0", "flag": "0", "bornTimestamp": "1", "defaultTopicQueueNums": "4", "index": "0",
    "count": "5", "msgId": "7F00000100002A9F0000000000000000",
}  # fmt: skip


SILENT = RequestCode.END_TRANSACTION  # says nothing to who does not know the outcome, as in Java
codes: list[int] = []  # those that the broker serves


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker that all of these attack, one after the other; in the end its store is whole."""
    directory = tmp_path_factory.mktemp("attacked")
    with running(directory) as made:
        for topic in ("t", "steady"):
            made.make_topic(topic)
        made.make_topic("b", attributes={"+queue.type": "BatchCQ"})
        codes.extend(sorted(int(code) for code in make_handlers(made.broker)))
        yield made
    codes.clear()
    assert not (directory / "store" / "abort").exists()
    with StoreDirectory.open(directory / "store") as store:
        report = check(store)
    assert report.records > 0
    # One of the attacks may delete a topic, whose records stay in the log.
    faults = [found for found in report.findings if found.severity is Severity.FAULT]
    assert [found for found in faults if found.kind != "missing-queue"] == []


@pytest.fixture(scope="module")
def steady(site: Site) -> Peer:
    """Somebody else, who sends and pulls all the while."""
    return site.connect()


@st.composite
def requests(draw: st.DrawFn) -> RemotingCommand:
    code = draw(st.sampled_from(codes))
    fields: dict[str, str] = {}
    if draw(st.integers(0, 3)):
        fields.update(GOOD.get(code, COMMON))
    own_names = draw(st.booleans())
    names = sorted(fields) if fields and own_names else FIELD_NAMES
    fields.update(draw(st.dictionaries(st.sampled_from(names), values, max_size=4)))
    for name in draw(st.lists(st.sampled_from(sorted(fields) or [""]), max_size=1)):
        fields.pop(name, None)
    if code in PULLS:
        fields["suspendTimeoutMillis"] = draw(st.sampled_from(["0", "-5", "3", "x"]))
    form = draw(st.sampled_from([JSON, ROCKETMQ]))
    version = draw(st.sampled_from([513, 0, 100, -1]))
    return RemotingCommand(code, fields, draw(bodies), serialize_type=form, version=version)


def answers_to(peer: Peer, asked: list[RemotingCommand]) -> None:
    """Read until all are answered; what the broker asks meanwhile is refused."""
    waiting = {request.opaque: request for request in asked if request.code != SILENT}
    while waiting:
        try:
            command = peer.receive()
        except TimeoutError:
            raise AssertionError(f"not answered: {waiting}") from None
        if command.is_response:
            waiting.pop(command.opaque, None)
        else:
            peer.send(command.response(ResponseCode.SYSTEM_ERROR))


def assert_all_was_meant(caplog: pytest.LogCaptureFixture) -> None:
    """An error that nobody foresaw is logged with its traceback."""
    unmeant = [record for record in caplog.records if record.exc_info or record.levelno >= logging.CRITICAL]
    assert not unmeant, "\n".join(logging.Formatter().format(record) for record in unmeant)


def assert_goes_on(steady: Peer) -> None:
    """Somebody else is served as ever."""
    offset = int(steady.ask(send_request("steady", b"still here")).ext_fields["queueOffset"])
    (found,) = messages_in(steady.ask(pull_request("steady", offset)))
    assert bytes(found.body) == b"still here"


@given(data=st.data())
def test_requests_of_no_use_are_answered(
    site: Site, steady: Peer, caplog: pytest.LogCaptureFixture, data: st.DataObject
):
    """Given any requests of any code, when they are sent at once, then each has its answer."""
    asked = data.draw(st.lists(requests(), min_size=1, max_size=REQUESTS_AT_ONCE))
    caplog.clear()
    with contextlib.closing(Peer(site.port)) as peer:
        for request in asked:
            peer.send(request)
        answers_to(peer, asked)
    assert_goes_on(steady)
    assert_all_was_meant(caplog)


odd_values = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.just({"a": [1]}), st.just([]), words)


@given(data=st.data())
def test_headers_that_no_java_writes_are_answered_or_close_their_connection(
    site: Site, steady: Peer, caplog: pytest.LogCaptureFixture, data: st.DataObject
):
    """Given a JSON header with values of other types, then it is read as well as can be, or refused."""
    code = data.draw(st.sampled_from([*codes, RequestCode.HEART_BEAT, RequestCode.SEND_MESSAGE_V2]))
    fields: dict[str, Any] = {**GOOD.get(code, COMMON)}
    if code in PULLS:
        fields["suspendTimeoutMillis"] = 0
    fields |= data.draw(st.dictionaries(st.sampled_from(sorted(fields)), odd_values, max_size=3))
    header = {"code": code, "opaque": 7, "flag": 0, "version": 513, "language": "JAVA", "extFields": fields}
    header |= data.draw(
        st.dictionaries(st.sampled_from(["language", "version", "remark", "flag", "code"]), odd_values)
    )
    text = orjson.dumps(header)
    body = data.draw(st.sampled_from([b"", BATCH, heartbeat(producers=("p",)).body or b""]))
    frame = struct.pack(">ii", 4 + len(text) + len(body), len(text)) + text + body
    caplog.clear()
    with contextlib.closing(Peer(site.port)) as peer:
        peer.socket.sendall(frame)
        lists = RemotingCommand(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        with contextlib.suppress(ConnectionError):
            peer.send(lists)
            answers_to(peer, [lists])
    assert_goes_on(steady)
    assert_all_was_meant(caplog)


def test_connections_that_break_off_leave_nothing_behind(site: Site, steady: Peer):
    """Given clients that join groups, hold pulls and ask, then all that was theirs goes with them."""
    for number in range(40):
        peer = Peer(site.port)
        client = heartbeat(
            f"c{number}", f"g{number % 7}", [{"topic": "t", "subString": "*"}], producers=(f"p{number}",)
        )
        peer.ask(client)
        high = site.max_offset("steady", 3)
        for queue_id in range(4):
            flag = SUBSCRIPTION | SUSPEND
            peer.send(pull_request("steady", high, queue_id=3, flag=flag, suspend_ms=10**9))
            peer.send(RemotingCommand(RequestCode.QUERY_ASSIGNMENT, {}, b'{"topic":"t"}'))
            peer.send(pull_request("t", 10**6, queue_id=queue_id, flag=flag, suspend_ms=10**9))
        if number % 3 == 0:  # in the middle of a frame, and not politely
            peer.socket.sendall(send_request("t", bytes(5000)).encode()[:-1])
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
    broker = site.broker
    until(lambda: site.do(lambda: len(broker.server.connections)) == 1, "only the steady one")

    def left() -> tuple[int, int, int]:
        return site.do(lambda: (broker.puller.held, broker._later, broker.sender.waiting))

    until(lambda: left() == (0, 0, 0), "nothing that waits for a peer that is gone")
    assert not site.do(lambda: broker.puller._by_queue or broker.puller._by_connection)
    assert not site.do(lambda: [group for group in broker.producers.groups.values() if group])
    assert not site.do(lambda: broker.producers._by_client_id)
    assert_goes_on(steady)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_flood_of_refused_requests_is_not_remembered(site: Site, steady: Peer):
    """Given requests for ever new topics, groups and clients that are all refused, then nothing is kept."""

    def flood(rounds: range) -> None:
        with contextlib.closing(Peer(site.port)) as peer:
            for number in rounds:
                name = f"{number:06d}" + "x" * 100
                asked = [
                    send_request(name, bytes(1000), c="nothing"),
                    send_request("t", bytes(1000), e="9999", i=f"KEYS\x01{name}\x02"),
                    pull_request(name, group=f"group of {name}"),
                    RemotingCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": name}),
                    RemotingCommand(RequestCode.GET_MAX_OFFSET, {"topic": name, "queueId": str(number)}),
                    RemotingCommand(
                        RequestCode.UPDATE_BROKER_CONFIG, {}, f"brokerPermission={name}".encode()
                    ),
                    RemotingCommand(RequestCode.HEART_BEAT, {}, b'{"clientID":"%d"' % number),
                ]
                peer.socket.sendall(b"".join(request.encode() for request in asked))
                answers_to(peer, asked)

    topics = len(site.broker.store.putter.topics)
    flood(range(300))
    before = resident_bytes()
    flood(range(300, 1500))
    assert resident_bytes() - before < 32 * 1024 * 1024
    assert len(site.broker.store.putter.topics) == topics
    assert_goes_on(steady)


def test_bytes_that_are_no_frame_close_their_connection_alone(site: Site, steady: Peer):
    """Given what no client of RocketMQ sends, then its connection ends and no other."""
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(64),
        b"\xff" * 64,
        struct.pack(">iI", 100, 0x0200_0000) + bytes(96),
    ):
        with contextlib.closing(Peer(site.port)) as peer:
            peer.socket.sendall(data)
            with pytest.raises(ConnectionError):
                peer.receive()
        assert_goes_on(steady)
