"""Requests in good frames and of no use otherwise: each is answered, by an error that says why, or its
connection is closed; nobody else notices, nothing grows, and the store is whole afterwards."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kourou.broker.handlers import make_handlers
from kourou.message.batch import encode_batch
from kourou.message.model import Message
from kourou.remoting import headers
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import JSON, ROCKETMQ, RemotingCommand
from kourou.remoting.header import Header
from kourou.store.offline import StoreDirectory
from kourou.store.offline.check import check
from support.broker import Peer, Site, pull_request, running, send_request, until

REQUESTS_AT_ONCE = 12

# Every name of a field that some header has, and those of the short send header
FIELD_NAMES = sorted(
    {
        wire_name
        for header in vars(headers).values()
        if isinstance(header, type) and issubclass(header, Header) and header is not Header
        for _, wire_name, _, _ in header._plan
    }
    | set("abcdefghijklmn")
)
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("attacked")
    with running(directory) as made:
        made.make_topic("t")
        made.make_topic("b", attributes={"+queue.type": "BatchCQ"})
        codes.extend(sorted(int(code) for code in make_handlers(made.broker)))
        yield made
    codes.clear()
    assert_whole(directory / "store")


codes: list[int] = []


def assert_whole(store: Path) -> None:
    assert not (store / "abort").exists()
    with StoreDirectory.open(store) as directory:
        report = check(directory)
    assert (report.faults, report.warnings) == (0, 0), report.findings


@st.composite
def requests(draw: st.DrawFn) -> RemotingCommand:
    code = draw(st.sampled_from(codes))
    fields = dict(GOOD.get(code, COMMON)) if draw(st.integers(0, 3)) else {}
    names = sorted(fields) if fields and draw(st.booleans()) else FIELD_NAMES
    fields |= draw(st.dictionaries(st.sampled_from(names), values, max_size=4))
    for name in draw(st.lists(st.sampled_from(sorted(fields) or [""]), max_size=1)):
        fields.pop(name, None)
    if code in PULLS:
        fields["suspendTimeoutMillis"] = draw(st.sampled_from(["0", "-5", "3", "x"]))
    form = draw(st.sampled_from([JSON, ROCKETMQ])) if code <= 0x7FFF else JSON
    version = draw(st.sampled_from([513, 0, 100, -1]))
    return RemotingCommand(code, fields, draw(bodies), serialize_type=form, version=version)


def is_longer(record: logging.LogRecord) -> bool:
    """An error that nobody meant: the broker logs it with its traceback."""
    return record.exc_info is not None or record.levelno >= logging.CRITICAL


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(data=st.data())
def test_what_is_of_no_use_is_answered(site: Site, caplog: pytest.LogCaptureFixture, data: st.DataObject):
    """Given any requests of any code, when they are sent at once, then each has its answer."""
    asked = data.draw(st.lists(requests(), min_size=1, max_size=REQUESTS_AT_ONCE))
    caplog.clear()
    peer = Peer(site.port)
    with contextlib.closing(peer):
        for request in asked:
            peer.send(request)
        waiting = {request.opaque: request for request in asked}
        while waiting:
            try:
                command = peer.receive()
            except TimeoutError:
                raise AssertionError(f"not answered: {waiting}") from None
            if command.is_response:
                del waiting[command.opaque]
            else:
                peer.send(command.response(ResponseCode.SYSTEM_ERROR))
    unmeant = [record for record in caplog.records if is_longer(record)]
    assert not unmeant, "\n".join(logging.Formatter().format(record) for record in unmeant)
