"""Sends: what is taken, what is refused and changes nothing, what is stored and what is answered."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message import StoredMessage, sysflag
from kourou.message.batch import decode_batch, encode_batch
from kourou.message.codec import decode as decode_record
from kourou.message.host import format_host, pack_host
from kourou.message.model import Message, MessageQueue
from kourou.message.properties import encode_properties
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, ROCKETMQ, RemotingCommand
from kourou.store import FlushDiskType, MessageStore
from kourou.store.put import InnerMessage
from support.sites.broker import (
    UNIQUE_ID,
    Peer,
    Site,
    heartbeat,
    long_form,
    running,
    send_request,
    until,
)
from support.stores.fault_disk import FaultDisk
from support.stores.store import QUEUE_FILE, ManualClock, message, open_store, put, small_config

MAX_LONG = (1 << 63) - 1
SEND_V2, SEND_BATCH = RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE
ADDED = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
RECORD_OFFSET = slice(-16, None)  # of an offset message id


def last_of(site: Site, topic: str = "t", queue_id: int = 0) -> StoredMessage:
    return site.stored(topic, queue_id)[-1]


def assert_refused(site: Site, peer: Peer, request: RemotingCommand, code: int, text: str = "") -> None:
    """A request is refused, for this reason, and leaves nothing in the log."""
    before = site.log_end()
    answer = peer.call(request)
    assert (answer.code, text in (answer.remark or "")) == (code, True), answer
    assert site.log_end() == before


# Topics


def test_a_topic_is_made_after_its_pattern(site, peer):
    """Given no such topic, when a message comes, then it has as many queues as both sides allow."""
    peer.ask(send_request("few", d="3", e="2"))
    peer.ask(send_request("many", d="99", e="7"))
    peer.ask(send_request("by-cluster", c="DefaultCluster", d="4"))
    queues = {name: site.broker.topics.get(name) for name in ("few", "many", "by-cluster")}
    assert {name: (topic.read_queue_nums, topic.perm) for name, topic in queues.items()} == {
        "few": (3, 6), "many": (8, 6), "by-cluster": (4, 6),
    }  # fmt: skip
    assert last_of(site, "many", 7).topic == "many"


def test_without_a_pattern_no_topic_is_made(site, peer):
    assert_refused(
        site, peer, send_request("new", c="nothing"), ResponseCode.TOPIC_NOT_EXIST, "topic[new] not exist"
    )
    assert_refused(site, peer, send_request("new", c="t"), ResponseCode.TOPIC_NOT_EXIST)  # t has no heirs
    assert site.broker.topics.get("new") is None


def test_auto_creation_may_be_off(tmp_path):
    with running(tmp_path, {"autoCreateTopicEnable": "false"}) as site:
        assert_refused(site, site.connect(), send_request("new"), ResponseCode.TOPIC_NOT_EXIST)


def test_a_topic_without_queues_takes_nothing(site, peer):
    """Given that a sender asks for no queues, then the topic has none, and nothing fits into it."""
    wrong = ResponseCode.INVALID_PARAMETER
    assert_refused(site, peer, send_request("empty", d="0"), wrong, "queueId[0] is illegal")
    assert_refused(site, peer, send_request("empty", d="4", e="-1"), wrong, "has no queue to write to")
    assert_refused(site, peer, send_request("minus", d="-4"), wrong)
    assert site.broker.topics.get("minus").write_queue_nums == 0


@pytest.mark.parametrize(
    "name", ["", " ", "a b", "ü", "a/b", "../x", "x" * 128, "%RETRY%" + "x" * 250, "a\x00b"]
)
@pytest.mark.parametrize("form", ["short", "long"])
def test_names_that_no_topic_may_have_are_refused(site, peer, name, form):
    request = send_request(name)
    request = request if form == "short" else long_form(request)
    assert_refused(site, peer, request, ResponseCode.INVALID_PARAMETER, "The specified topic")
    assert site.broker.topics.get(name) is None


def test_topics_of_the_broker_take_no_messages_from_outside(site, peer):
    for name in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT", "SELF_TEST_TOPIC"):
        assert_refused(site, peer, send_request(name), ResponseCode.NO_PERMISSION, "is forbidden")


def test_a_broker_without_write_permission_refuses_ordered_topics(tmp_path):
    """Given brokerPermission=4, as in Java only ordered topics are refused: others are not routed here."""
    with running(tmp_path, {"brokerPermission": "4"}) as site:
        site.make_topic("free")
        site.make_topic("ordered", order=True)
        peer = site.connect()
        assert_refused(
            site, peer, send_request("ordered"), ResponseCode.NO_PERMISSION, "sending message is forbidden"
        )
        peer.ask(send_request("free"))


def test_a_change_of_permission_counts_for_the_next_message(site, peer):
    site.make_topic("ordered", order=True)
    peer.ask(send_request("ordered"))
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4"))
    assert_refused(site, peer, send_request("ordered"), ResponseCode.NO_PERMISSION)
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6"))
    peer.ask(send_request("ordered"))


def test_a_deleted_topic_is_made_anew(site, peer):
    """Given a topic that was used, when it is deleted, then the next message begins a new one."""
    assert peer.ask(send_request("gone", e="3")).ext_fields["queueOffset"] == "0"
    assert peer.ask(send_request("gone", e="3")).ext_fields["queueOffset"] == "1"
    peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "gone"}))
    assert_refused(site, peer, send_request("gone", c="none"), ResponseCode.TOPIC_NOT_EXIST)
    assert peer.ask(send_request("gone", e="1", d="2")).ext_fields["queueOffset"] == "0"
    assert site.broker.topics.get("gone").write_queue_nums == 2


def test_fewer_queues_count_at_once(site, peer):
    peer.ask(send_request(e="3"))
    site.make_topic("t", queues=2)
    assert_refused(site, peer, send_request(e="3"), ResponseCode.INVALID_PARAMETER, "queueId[3] is illegal")


def test_sends_may_be_taken_from_a_time_on_only(tmp_path):
    with running(tmp_path, {"startAcceptSendRequestTimeStamp": str(10**14)}) as site:
        site.make_topic("t")
        assert_refused(
            site, site.connect(), send_request(), ResponseCode.SYSTEM_ERROR, "unable to service, until"
        )


# Queues


def test_a_negative_queue_is_any_of_them(site, peer):
    chosen = {int(peer.ask(send_request(e="-1")).ext_fields["queueId"]) for _ in range(60)}
    assert chosen == {0, 1, 2, 3}
    assert sum(site.max_offset("t", queue_id) for queue_id in range(4)) == 60


def test_a_queue_that_the_topic_does_not_have_is_refused(site, peer):
    for queue_id in ("4", "2147483647"):
        assert_refused(site, peer, send_request(e=queue_id), ResponseCode.INVALID_PARAMETER, "is illegal")
        assert_refused(site, peer, long_form(send_request(e=queue_id)), ResponseCode.INVALID_PARAMETER)


def test_a_priority_chooses_the_queue(site, peer):
    """Given a priority and nothing that excludes one, then it is the queue, up to the last."""
    for priority, expected in (("2", "2"), ("99", "3"), ("9" * 5000, "1"), ("x", "1")):
        properties = {"UNIQ_KEY": UNIQUE_ID, "_SYS_MSG_PRIORITY_": priority}
        assert peer.ask(send_request(properties=properties, e="1")).ext_fields["queueId"] == expected
    both = {"UNIQ_KEY": UNIQUE_ID, "_SYS_MSG_PRIORITY_": "2", "__SHARDINGKEY": "s"}
    assert peer.ask(send_request(properties=both)).ext_fields["queueId"] == "0"
    assert "_SYS_MSG_PRIORITY_" not in last_of(site).properties


# Numbers


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("d", "2147483648"), ("e", "2147483648"), ("e", "-2147483649"), ("f", "2147483648"), ("g", "x"),
        ("g", str(MAX_LONG + 1)), ("h", "-2147483649"), ("h", "1.0"), ("e", "9" * 5000), ("e", ""),
        ("f", "0x1"), ("e", " 1"), ("e", "1_0"), ("g", "𝟓"),
    ],
)  # fmt: skip
def test_numbers_of_no_use_are_refused_and_nothing_is_made(site, peer, field, value):
    """Given a field that Java could not read, then it is refused, and neither topic nor message is there."""
    for request in (send_request("new", **{field: value}), long_form(send_request("new", **{field: value}))):
        assert_refused(site, peer, request, ResponseCode.SYSTEM_ERROR)
        assert_refused(site, peer, send_request("t", **{field: value}), ResponseCode.SYSTEM_ERROR)
    assert site.broker.topics.get("new") is None


@pytest.mark.parametrize("field", ["j", "l"])
def test_an_optional_number_of_no_use_is_refused_in_a_short_header_only(site, peer, field):
    """Given one in a long header, then the message is stored without it, as Java does."""
    request = send_request("t", **{field: "99999999999"})  # type: ignore[arg-type]
    assert_refused(site, peer, request, ResponseCode.SYSTEM_ERROR, f"<{field}>")
    peer.ask(long_form(request))
    assert last_of(site).reconsume_times == 0


@pytest.mark.parametrize("value", ["0", "maybe", "", "False", "1"])
def test_a_flag_is_false_by_any_text_but_true(site, peer, value):
    """Given flags as the C++ client writes them, then they are false: one message is stored."""
    for request in (send_request(k=value, m=value), long_form(send_request(k=value, m=value))):
        peer.ask(request)
        assert last_of(site).body == request.body


def test_numbers_are_those_that_java_reads(site, peer):
    """Given signs, leading zeros and digits of other scripts, then they are numbers."""
    for text in ("+1", "01", "١", "１"):
        assert peer.ask(send_request(e=text)).ext_fields["queueId"] == "1"
        peer.ask(send_request(g=text, h=text))
        assert (last_of(site).born_timestamp, last_of(site).flag) == (1, 1)


@pytest.mark.parametrize("field", ["a", "b", "c", "d", "e", "f", "g", "h"])
def test_a_field_that_is_missing_is_named(site, peer, field):
    request = send_request()
    del request.ext_fields[field]
    answer = peer.call(request)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "is null" in (answer.remark or "")


def test_the_ends_of_each_range_are_stored_as_they_are(site, peer):
    low, high = "-2147483648", "2147483647"
    peer.ask(send_request(g=str(-MAX_LONG - 1), h=low, j=low, f="0"))
    peer.ask(send_request(g=str(MAX_LONG), h=high, j=high, f="256"))
    first, second = site.stored()
    assert (first.born_timestamp, first.flag, first.reconsume_times) == (-MAX_LONG - 1, int(low), int(low))
    assert (second.born_timestamp, second.flag, second.reconsume_times) == (MAX_LONG, int(high), int(high))
    assert second.sys_flag == 256


def test_flags_of_addresses_and_transactions_are_the_brokers(site, peer):
    """Given a sender that sets bits of the sysFlag which are not its to set, then they are not set."""
    peer.ask(
        send_request(f=str(sysflag.BORN_HOST_V6 | sysflag.STORE_HOST_V6 | sysflag.TRANSACTION_ROLLBACK | 1))
    )
    assert last_of(site).sys_flag == sysflag.COMPRESSED


# Properties


def sent(site: Site, peer: Peer, raw: str) -> dict[str, str]:
    """The properties that are stored of a property string."""
    peer.ask(send_request(properties=raw))
    return last_of(site).properties


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (f"UNIQ_KEY\x01{UNIQUE_ID}", {"UNIQ_KEY": UNIQUE_ID}),
        (f"a\x01b\x02UNIQ_KEY\x01{UNIQUE_ID}", {"a": "b", "UNIQ_KEY": UNIQUE_ID}),
        (f"UNIQ_KEY\x01{UNIQUE_ID}\x02a\x011\x02a\x012\x02", {"UNIQ_KEY": UNIQUE_ID, "a": "2"}),
        (f"UNIQ_KEY\x01{UNIQUE_ID}\x02a\x01\x02\x01b\x02c\x02\x02", {"UNIQ_KEY": UNIQUE_ID}),
        (f"UNIQ_KEY\x01{UNIQUE_ID}\x02POP_CK\x01x\x02", {"UNIQ_KEY": UNIQUE_ID}),
        (
            f"UNIQ_KEY\x01{UNIQUE_ID}\x02CLUSTER\x01x\x02MSG_REGION\x01y\x02TRACE_ON\x01z",
            {"UNIQ_KEY": UNIQUE_ID},
        ),
        (
            f"UNIQ_KEY\x01{UNIQUE_ID}\x02名\x01値 \U0001f600\x02",
            {"UNIQ_KEY": UNIQUE_ID, "名": "値 \U0001f600"},
        ),
        (f"UNIQ_KEY\x01{UNIQUE_ID}\x02a\x01b\x01c\x02", {"UNIQ_KEY": UNIQUE_ID, "a": "b\x01c"}),
    ],
    ids=[
        "no last separator",
        "nor here",
        "twice",
        "empty",
        "POP_CK",
        "the broker's",
        "not ASCII",
        "separator",
    ],
)
def test_properties_are_stored_as_java_reads_them(site, peer, raw, expected):
    """Given a property string, then each name is there once, and those of the broker have its values."""
    assert sent(site, peer, raw) == {**expected, **ADDED}
    stored = last_of(site).properties_raw
    assert stored.endswith("\x02")
    assert stored.count("\x02") == len(expected) + len(ADDED)


@pytest.mark.parametrize("raw", ["", "a\x01b", "UNIQ_KEY\x01\x02", "TAGS\x01T\x02"])
def test_a_message_without_a_unique_id_gets_one(site, peer, raw):
    answer = peer.ask(send_request(properties=raw))
    stored = last_of(site)
    assert len(stored.properties["UNIQ_KEY"]) == 32
    assert answer.ext_fields["transactionId"] == stored.properties["UNIQ_KEY"]


def test_without_the_field_of_properties_there_are_none(site, peer):
    request = send_request()
    del request.ext_fields["i"]
    peer.ask(request)
    assert set(last_of(site).properties) == {"UNIQ_KEY", *ADDED}


@pytest.mark.parametrize(
    "unique_id", ['"', 'a"b\\', "é", "名前", "\U0001f600", "a b", "\x7f", "\t", "%d%s", "A" * 2000]
)
@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_any_unique_id_comes_back_as_it_was(site, peer, unique_id, form):
    """Given an id with characters that JSON has to escape, then the answer is JSON and has it."""
    answer = peer.ask(send_request(properties={"UNIQ_KEY": unique_id}, serialize_type=form))
    assert answer.ext_fields["transactionId"] == unique_id
    assert last_of(site).properties["UNIQ_KEY"] == unique_id


def test_properties_may_take_32767_bytes(site, peer):
    """Given the limit of Java, then it counts with what the broker adds, and what is longer is not stored."""
    room = 32767 - len(encode_properties({"UNIQ_KEY": UNIQUE_ID, "a": "", **ADDED}))
    peer.ask(send_request(properties={"UNIQ_KEY": UNIQUE_ID, "a": "x" * room}))
    assert len(last_of(site).properties_raw) == 32767
    illegal = ResponseCode.MESSAGE_ILLEGAL
    for size in (room + 1, 60_000):
        longer = send_request(properties={"UNIQ_KEY": UNIQUE_ID, "a": "x" * size})
        assert_refused(site, peer, longer, illegal, "32767 allowed")
    wide = send_request(properties={"UNIQ_KEY": UNIQUE_ID, "a": "é" * (room // 2 + 1)})
    assert_refused(site, peer, wide, illegal)


def test_a_compacted_topic_needs_keys(site, peer):
    site.make_topic("c", attributes={"+cleanup.policy": "COMPACTION"})
    assert_refused(
        site, peer, send_request("c"), ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing"
    )
    peer.ask(send_request("c", properties={"UNIQ_KEY": UNIQUE_ID, "KEYS": "k"}))


# Bodies


@pytest.mark.configured({"maxMessageSize": "4096"})
def test_a_body_may_be_as_long_as_max_message_size(site, peer):
    for body in (b"", b"x", bytes(4096)):
        peer.ask(send_request(body=body) if body else send_request(body=b"\x00"))
    for request in (send_request(body=bytes(4097)), long_form(send_request(body=bytes(4097)))):
        assert_refused(site, peer, request, ResponseCode.MESSAGE_ILLEGAL, "maxMessageSize=4096")
    assert [len(item.body) for item in site.stored()] == [1, 1, 4096]


def test_a_message_without_a_body_is_illegal(site, peer):
    for request in (send_request(body=None), long_form(send_request(body=None))):
        assert_refused(site, peer, request, ResponseCode.MESSAGE_ILLEGAL, "no body")


def test_a_new_limit_counts_at_once(site, peer):
    peer.ask(send_request(body=bytes(2000)))
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"maxMessageSize=1000"))
    assert_refused(site, peer, send_request(body=bytes(2000)), ResponseCode.MESSAGE_ILLEGAL)


# Batches


def batch(count: int = 3, size: int = 4, **properties: str) -> bytes:
    return encode_batch(Message("t", bytes([number % 256]) * size, properties) for number in range(count))


@pytest.mark.parametrize("code", [SEND_V2, SEND_BATCH])
@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_a_batch_is_a_record_a_message(site, peer, code, form):
    """Given a batch by its flag or its code, then each message has a record, and the answer all places."""
    body = encode_batch([Message("t", b"1", {"TAGS": "A", "UNIQ_KEY": "U1"}), Message("t", b"2", {}, 7)])
    for first in (0, 2):  # the first message of a queue takes another way than those behind it
        answer = peer.ask(send_request(body=body, code=code, m="true", serialize_type=form))
        assert answer.ext_fields["queueOffset"] == str(first)
        assert answer.ext_fields["transactionId"] == UNIQUE_ID
        places = [int(part[RECORD_OFFSET], 16) for part in answer.ext_fields["msgId"].split(",")]
        found = site.stored()[first:]
        assert [item.physical_offset for item in found] == places
        assert [(bytes(item.body), item.flag, item.queue_offset) for item in found] == [
            (b"1", 0, first), (b"2", 7, first + 1),
        ]  # fmt: skip
        assert found[0].properties == {"TAGS": "A", "UNIQ_KEY": "U1"}


def test_a_batch_is_one_however_its_flag_is_written(site, peer):
    """Given `True` as other clients write it, then it is a batch; by any other text it is one message."""
    for expected in ("0", "3", "6"):
        answer = peer.ask(send_request(body=batch(), m="True"))
        assert (answer.ext_fields["queueOffset"], answer.ext_fields["msgId"].count(",")) == (expected, 2)
    for _ in range(2):
        answer = peer.ask(send_request(body=batch(), m="yes"))
        assert "," not in answer.ext_fields["msgId"]
        assert last_of(site).body == batch()


BAD_BATCHES = {
    "nothing in it": b"",
    "too short": batch()[:-1],
    "something behind": batch() + b"\x00",
    "size of nothing": bytes(22),
    "negative size": struct.pack(">iiiii", -22, 0, 0, 0, 0) + bytes(2),
    "negative body": struct.pack(">iiiiih", 22, 0, 0, 0, -1, 0),
    "negative properties": struct.pack(">iiiiih", 22, 0, 0, 0, 0, -1),
    "huge body": struct.pack(">iiiiih", 22, 0, 0, 0, 2**31 - 1, 0),
    "second bad": batch(1) + struct.pack(">iiiiih", 23, 0, 0, 0, 0, 0),
    "inner number": batch(2, INNER_NUM="2"),
}


@pytest.mark.parametrize("body", BAD_BATCHES.values(), ids=BAD_BATCHES.keys())
def test_a_bad_batch_is_refused_as_a_whole(site, peer, body):
    peer.ask(send_request())
    for request in (
        send_request(body=body or None, m="true"),
        send_request(body=body or None, code=SEND_BATCH),
        long_form(send_request(body=body or None, m="true")),
    ):
        assert_refused(site, peer, request, ResponseCode.MESSAGE_ILLEGAL)


def test_what_a_batch_cannot_be(site, peer):
    """Given a batch for retries, or delayed, then it is refused on either way."""
    illegal = ResponseCode.MESSAGE_ILLEGAL
    peer.ask(send_request("%RETRY%g"))
    assert_refused(
        site, peer, send_request("%RETRY%g", batch(), m="true"), illegal, "does not support retry group"
    )
    late = {"UNIQ_KEY": UNIQUE_ID, "DELAY": "3"}
    for e in ("0", "1"):
        peer.ask(send_request(e=e))
        assert_refused(
            site, peer, send_request(body=batch(), properties=late, m="true", e=e), illegal, "delayed"
        )


@pytest.mark.configured({"mappedFileSizeCommitLog": "65536"})
def test_a_batch_that_reaches_the_end_of_a_file_goes_to_the_next(site, peer):
    """Given batches that fill more than one file, then each lies in one file, and all are there."""
    for _ in range(13):
        peer.ask(send_request(body=batch(10, 1000), m="true"))
    found = site.stored()
    assert [item.queue_offset for item in found] == list(range(130))
    assert {item.physical_offset // 65536 for item in found} == {0, 1, 2}
    for start in range(0, 130, 10):
        assert len({item.physical_offset // 65536 for item in found[start : start + 10]}) == 1
    assert_refused(
        site,
        peer,
        send_request(body=batch(70, 1000), m="true"),
        ResponseCode.MESSAGE_ILLEGAL,
        "fit a log",
    )


def test_a_batch_queue_takes_inner_batches(site, peer):
    """Given a topic of queue.type=BatchCQ, then a batch is one record that says how many are in it."""
    site.make_topic("b", attributes={"+queue.type": "BatchCQ"})
    for first in (0, 3):
        answer = peer.ask(send_request("b", batch(), m="true"))
        assert answer.ext_fields["batchUniqId"] == UNIQUE_ID
        assert answer.ext_fields["queueOffset"] == str(first)
        assert len(answer.ext_fields["msgId"]) == 32
    first, second = site.stored("b")
    assert first.sys_flag == sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
    assert (second.properties["INNER_NUM"], second.properties["INNER_BASE"]) == ("3", "3")
    assert [item.body for item in decode_batch(first.body, "b")] == [b"\x00" * 4, b"\x01" * 4, b"\x02" * 4]


def test_what_a_batch_queue_does_not_take(site, peer):
    site.make_topic("b", attributes={"+queue.type": "BatchCQ"})
    illegal = ResponseCode.MESSAGE_ILLEGAL
    assert_refused(site, peer, send_request("b", batch(), {}, m="true"), illegal, "takes inner batches only")
    assert_refused(site, peer, send_request("b", batch()[:-1], m="true"), ResponseCode.SYSTEM_ERROR)
    inner = str(sysflag.INNER_BATCH)
    for number in ("0", "32768", "-1", "x", "9" * 5000):
        properties = {"UNIQ_KEY": UNIQUE_ID, "INNER_NUM": number}
        assert_refused(site, peer, send_request("b", batch(), properties, f=inner), illegal, "INNER_NUM")
    assert_refused(site, peer, send_request("t", batch(), f=inner), illegal, "queue.type=BatchCQ")
    only_inner = send_request("t", properties={"UNIQ_KEY": UNIQUE_ID, "INNER_NUM": "2"})
    assert_refused(site, peer, only_inner, illegal, "inner batches only")


# Answers


def test_a_one_way_send_is_not_answered(site, peer):
    """Given sends that nobody waits for, good or bad, then they have their effect and no answer."""
    for request in (
        send_request(oneway=True),
        send_request(oneway=True, body=batch(), m="true"),
        send_request("new topic", oneway=True),
        send_request(oneway=True, e="99"),
        send_request(oneway=True, g="x"),
    ):
        peer.send(request)
    assert peer.is_silent()
    assert site.max_offset() == 4


def test_both_forms_have_the_same_answer(site, peer):
    """Given the same send as JSON and in the binary form, then the fields of the answers are the same."""
    requests: list[dict[str, Any]] = [
        {}, {"properties": {}}, {"e": "-1"}, {"body": batch(), "m": "true"}, {"topic": "no topic"},
        {"e": "77"}, {"j": "1"}, {"f": "256"},
    ]  # fmt: skip
    peer.ask(send_request())
    for values in requests:
        answers = [peer.call(send_request(serialize_type=form, **values)) for form in (JSON, ROCKETMQ)]
        first, second = (set(answer.ext_fields) for answer in answers)
        assert first == second, values
        assert answers[0].code == answers[1].code
        assert [answer.ext_fields["MSG_REGION"] for answer in answers] == ["DefaultRegion"] * 2


def test_the_answer_says_where_the_message_lies(site, peer):
    """Given an answer, then its id leads to the record, by which it can be asked for."""
    peer.ask(send_request(body=b"before", e="2"))
    for request in (send_request(body=b"here", e="2"), long_form(send_request(body=b"here", e="2"))):
        fields = peer.ask(request).ext_fields
        offset = int(fields["msgId"][RECORD_OFFSET], 16)
        assert fields["msgId"][:16] == pack_host("127.0.0.1", site.port).hex().upper()
        view = peer.ask(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)}))
        record = decode_record(bytes(view.body or b""))
        assert (bytes(record.body), record.queue_id) == (b"here", 2)
        assert (str(record.queue_offset), fields["queueId"]) == (fields["queueOffset"], "2")


# Addresses


def test_a_client_of_ipv6_is_stored_as_such(tmp_path):
    if not has_ipv6():
        pytest.skip("needs: an IPv6 loopback")
    with running(tmp_path, {"bindAddress": "::1"}) as site:
        site.make_topic("t")
        peer = site.connect("::1")
        port = peer.socket.getsockname()[1]
        for request in (
            send_request(),
            send_request(),
            send_request(body=batch(1), m="true"),
            long_form(send_request()),
        ):
            peer.ask(request)
            found = last_of(site)
            assert found.sys_flag == sysflag.BORN_HOST_V6
            assert format_host(found.born_host) == f"0:0:0:0:0:0:0:1:{port}"


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


@pytest.mark.configured({"brokerIP1": "2001:db8::1"})
def test_a_broker_of_ipv6_says_so_in_each_record(site, peer):
    for request in (send_request(), send_request(), send_request(body=batch(1), m="true")):
        fields = peer.ask(request).ext_fields
        found = last_of(site)
        assert found.sys_flag == sysflag.STORE_HOST_V6
        assert fields["msgId"] == found.offset_message_id
        assert len(fields["msgId"]) == 56


def test_an_address_that_came_through_ipv6_is_ipv4(site):
    """Given a connection whose peer is ::ffff:10.0.0.1, then records have four bytes of it."""
    peer = site.connect()
    peer.ask(send_request())

    def pretend() -> None:
        (connection,) = site.broker.server.connections
        connection.peer_host = pack_host("::ffff:10.0.0.1", 5)

    site.do(pretend)
    peer.ask(send_request())
    assert format_host(last_of(site).born_host) == "10.0.0.1:5"
    assert last_of(site).sys_flag == 0


@pytest.mark.configured({"brokerIP1": "localhost"})
def test_the_address_of_a_broker_may_be_a_name(site):
    """Given brokerIP1=localhost, as in container files, then records have its address, clients the name."""
    site.connect().ask(send_request())
    assert format_host(last_of(site).store_host) in (
        f"127.0.0.1:{site.port}",
        f"0:0:0:0:0:0:0:1:{site.port}",
    )
    assert site.broker.config.address == f"localhost:{site.port}"


# Synchronous flush


SYNC = {"flushDiskType": "SYNC_FLUSH"}


@pytest.mark.configured(SYNC)
def test_an_answer_comes_after_the_flush(site, disk):
    """Given SYNC_FLUSH and a slow disk, then senders wait for it, unless they do not want to."""
    site.connect().ask(send_request())
    peer, hasty = site.connect(), site.connect()
    with disk.held_syncs("commitlog") as gate:
        asked = [
            peer.send(request)
            for request in (
                send_request(),
                send_request(body=batch(), m="true"),
                long_form(send_request()),
            )
        ]
        assert gate.reached.wait(10)
        hasty.ask(send_request(properties={"UNIQ_KEY": UNIQUE_ID, "WAIT": "false"}))
        until(lambda: site.broker.sender.waiting == 3)
        assert peer.is_silent()
    for request in asked:
        assert peer.answer_to(request).code == ResponseCode.SUCCESS
    assert site.broker.sender.waiting == 0


@pytest.mark.configured({**SYNC, "sendThreadPoolQueueCapacity": "2"})
def test_too_many_that_wait_for_the_disk_make_the_broker_busy(site, peer, disk):
    peer.ask(send_request())
    with disk.held_syncs("commitlog"):
        asked = [peer.send(send_request()) for _ in range(2)]
        until(lambda: site.broker.sender.waiting == 2)
        assert_refused(site, peer, send_request(), ResponseCode.SYSTEM_BUSY, "system busy")
    assert [peer.answer_to(request).code for request in asked] == [0, 0]
    peer.ask(send_request())


@pytest.mark.configured({**SYNC, "syncFlushTimeout": "50"})
def test_a_flush_that_takes_too_long_is_told(site, peer, disk):
    peer.ask(send_request())
    with disk.held_syncs("commitlog"):
        answer = peer.call(send_request())
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.ext_fields["queueOffset"] == "1"
    assert site.broker.sender.waiting == 0


def test_a_stop_answers_sends_that_wait(tmp_path):
    """Given sends that wait for the disk, when the broker stops, then they are flushed and answered."""
    with running(tmp_path, SYNC) as site:
        site.make_topic("t")
        peer = Peer(site.port)
        peer.ask(send_request())
        store = site.broker.store
        site.do(lambda: setattr(store.flusher, "wake", lambda: None))
        store._services[0].stop()  # nobody flushes but the stop
        asked = [peer.send(send_request()) for _ in range(5)]
        until(lambda: site.broker.sender.waiting == 5)
        assert peer.is_silent()
    with contextlib.closing(peer):
        assert [peer.answer_to(request).code for request in asked] == [0] * 5


def test_a_broker_that_stops_takes_no_more(site, peer):
    peer.ask(send_request())
    site.do(site.broker.sender.stop)
    for request in (send_request(), send_request("new"), send_request(body=batch(), m="true")):
        assert_refused(site, peer, request, ResponseCode.SERVICE_NOT_AVAILABLE, "shutting down")


@pytest.mark.configured(SYNC)
def test_a_disk_that_fails_is_told_and_no_more_is_taken(site, peer, disk):
    peer.ask(send_request())
    disk.fail_syncs("commitlog")
    assert peer.call(send_request()).code == ResponseCode.FLUSH_DISK_TIMEOUT
    until(lambda: site.broker.store.refusal is not None)
    assert_refused(
        site, peer, send_request(), ResponseCode.SERVICE_NOT_AVAILABLE, "cannot be brought to the disk"
    )


@pytest.mark.configured({"mappedFileSizeCommitLog": "65536"})
def test_a_full_disk_refuses_until_there_is_room(site, peer, disk):
    """Given a disk without room for the next file, then nothing is half written, and it goes on later."""
    peer.ask(send_request(body=bytes(30_000)))
    disk.fill("commitlog")
    peer.ask(send_request(body=bytes(30_000)))
    for request in (send_request(body=bytes(30_000)), send_request(body=batch(3, 9000), m="true")):
        answer = peer.call(request)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    disk.heal()
    peer.ask(send_request(body=bytes(30_000)))
    assert [item.queue_offset for item in site.stored()] == [0, 1, 2]


# One message and many


names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "a", "WAIT", "名"])
texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=12
)
items = st.lists(
    st.tuples(st.binary(min_size=1, max_size=60), st.dictionaries(names, texts, max_size=4)),
    min_size=1,
    max_size=12,
)


def content_of(store: MessageStore) -> object:
    """Log, queues, index and figures."""
    store.index.try_write_pending()
    (log,), (index, *_) = store.commit_log.files.files, [*store.index.files, None]
    queue = store.queues.get("t", 0)
    assert queue is not None
    puts = store.putter.topics["t"].puts
    return (
        bytes(log.view),
        log.store_timestamp,
        list(queue.iterate(0)),
        queue.next_offset,
        index and bytes(index.mapping.view),
        store.dispatcher.dispatched_offset,
        store.checkpoint.dispatched_physical_offset,
        (puts.count, puts.size_bytes),
    )


@given(
    batches=st.lists(items, min_size=1, max_size=5), ext=st.booleans(), crc=st.booleans(), sync=st.booleans()
)
def test_a_batch_stores_what_its_messages_one_by_one_do(memory_path, batches, ext, crc, sync):
    """Whatever the queues are, and whether records are seen at once or when the disk has them."""
    host, clock = pack_host("10.0.0.1", 1), ManualClock()
    more = {
        "enable_consume_queue_ext": ext,
        "enabled_append_prop_crc": crc,
        "flush_disk_type": FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
    }
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=memory_path)))
        together, alone = (
            stack.enter_context(open_store(small_config(directory / name, **more), clock=clock))
            for name in ("together", "alone")
        )
        for number, batch_items in enumerate(batches):
            body = encode_batch(Message("t", content, properties) for content, properties in batch_items)
            result = together.put_messages(InnerMessage("t", 0, body, "", {}, 0, number, host, host))
            assert result.message_count == len(batch_items)
            for content, properties in batch_items:
                raw = encode_properties(properties)
                one = InnerMessage("t", 0, content, raw, dict(properties), 0, number, host, host)
                assert alone.put_message(one).ok
            clock.advance(1)
        for store in (together, alone):
            store.flusher.flush()
            store.dispatcher.reput()
        assert content_of(together) == content_of(alone)


def test_a_message_whose_queue_has_no_room_is_taken_back(tmp_path):
    """Given a disk without room for the next file of a queue, then the log ends where it did, with zeros."""
    disk, host = FaultDisk(), pack_host("10.0.0.1", 1)
    with open_store(small_config(tmp_path), disk=disk, clock=ManualClock()) as store:
        put(store, *(message("t") for _ in range(QUEUE_FILE // 20)))
        (log,) = store.commit_log.files.files
        end = log.wrote
        disk.fill("consumequeue")
        assert not store.put_message(message("t")).ok
        assert not any(log.view[end:])
        together = InnerMessage("t", 0, batch(), "", {}, 0, 1, host, host)
        assert not store.put_messages(together).ok
        assert log.wrote == end
        assert not any(log.view[end:])
        disk.heal()
        assert store.put_message(message("t")).ok


def test_both_ways_give_the_same_answer(site, peer):
    """Given the same message by the short and the long header, then the same is stored and answered."""
    for properties in ({"UNIQ_KEY": UNIQUE_ID}, {"UNIQ_KEY": UNIQUE_ID, "TAGS": "T", "KEYS": "a b"}):
        request = send_request(properties=properties)
        peer.ask(request)
        answers = [peer.ask(request), peer.ask(long_form(request))]
        records = site.stored()[-2:]
        assert records[0].properties == records[1].properties
        assert records[0].sys_flag == records[1].sys_flag
        assert len({record.store_size for record in records}) == 1
        own = ("msgId", "queueOffset")
        kept = [{k: v for k, v in answer.ext_fields.items() if k not in own} for answer in answers]
        assert kept[0] == kept[1]


# Retries and dead letters


def retry(group: str = "g", times: int = 1, most: int | None = None, version: int = 513) -> RemotingCommand:
    request = send_request(f"%RETRY%{group}", j=str(times), version=version)
    if most is not None:
        request.ext_fields["l"] = str(most)
    return request


def test_a_client_sends_back_until_it_gives_up(site, peer):
    """Given retries by the client, then those up to its limit are retried, others are dead letters."""
    for times in (1, 16, 17):
        peer.ask(retry(times=times))
    assert [item.reconsume_times for item in site.stored("%RETRY%g")] == [1, 16]
    (dead,) = site.stored("%DLQ%g")
    assert (dead.topic, dead.reconsume_times, dead.properties["DELAY"]) == ("%DLQ%g", 17, "-1")
    assert site.broker.topics.get("%DLQ%g").write_queue_nums == 1


def test_the_limit_of_retries_is_the_clients_if_it_knows_one(site, peer):
    peer.ask(retry(times=3, most=2))
    assert [item.reconsume_times for item in site.stored("%DLQ%g")] == [3]
    peer.ask(retry(times=17, most=20))
    assert [item.reconsume_times for item in site.stored("%RETRY%g")] == [17]
    peer.ask(retry(times=4, most=3, version=120))  # no signature covers a version: it decides nothing
    assert [item.reconsume_times for item in site.stored("%DLQ%g")] == [3, 4]
    peer.ask(retry(times=4, version=120))
    assert [item.reconsume_times for item in site.stored("%RETRY%g")] == [17, 4]


def test_a_group_that_consumes_in_order_has_no_retries(site, peer):
    queue = MessageQueue("t", "broker-a", 0)
    site.do(site.broker.locks.try_lock, "g", queue, "c")
    peer.ask(retry(times=0))
    assert len(site.stored("%DLQ%g")) == 1


def test_retries_of_a_group_that_there_is_not_are_refused(tmp_path):
    with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as site:
        peer = site.connect()
        missing = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert_refused(site, peer, retry(), missing, "subscription group not exist, g")
        back = RemotingCommand(
            RequestCode.CONSUMER_SEND_MSG_BACK, {"offset": "0", "group": "g", "delayLevel": "0"}
        )
        assert_refused(site, peer, back, missing)


def back(offset: int, level: int = 0, group: str = "g", version: int = 513, **more: str) -> RemotingCommand:
    fields = {"offset": str(offset), "group": group, "delayLevel": str(level), **more}
    return RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, fields, version=version)


def test_a_message_that_is_sent_back_waits_for_its_retry(site, peer):
    """Given a message that was not consumed, then it waits in the level that follows from how often."""
    message_id = peer.ask(
        send_request(body=b"again", h="7", properties={"UNIQ_KEY": "U", "TAGS": "T"})
    ).ext_fields["msgId"]
    offset = int(message_id[RECORD_OFFSET], 16)
    peer.ask(back(offset))
    (waiting,) = site.stored("SCHEDULE_TOPIC_XXXX", 2)
    assert (bytes(waiting.body), waiting.flag, waiting.reconsume_times) == (b"again", 7, 1)
    assert waiting.properties == {
        "UNIQ_KEY": "U", "TAGS": "T", **ADDED, "RETRY_TOPIC": "t", "WAIT": "false", "DELAY": "3",
        "ORIGIN_MESSAGE_ID": message_id, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0",
    }  # fmt: skip
    assert site.broker.topics.get("%RETRY%g") is not None

    peer.ask(back(waiting.physical_offset, level=7))
    (second,) = site.stored("SCHEDULE_TOPIC_XXXX", 6)
    assert (second.properties["ORIGIN_MESSAGE_ID"], second.properties["RETRY_TOPIC"]) == (message_id, "t")
    assert second.reconsume_times == 2


def test_what_is_given_up_lies_dead(site, peer):
    """Given a message that was sent back too often, or whose consumer says so, then it is a dead letter."""
    fresh = int(peer.ask(send_request()).ext_fields["msgId"][RECORD_OFFSET], 16)
    tired = int(peer.ask(send_request(j="16")).ext_fields["msgId"][RECORD_OFFSET], 16)
    for request in (back(fresh, -1), back(tired), back(fresh, maxReconsumeTimes="0")):
        peer.ask(request)
    found = site.stored("%DLQ%g")
    assert [item.properties["DELAY"] for item in found] == ["0"] * 3
    assert [item.reconsume_times for item in found] == [1, 17, 1]


def test_the_last_number_of_retries_is_not_passed(site, peer):
    peer.ask(send_request(j="2147483647"))
    offset = site.stored()[-1].physical_offset
    peer.ask(back(offset))
    assert site.stored("%DLQ%g")[-1].reconsume_times == 2147483647


@pytest.mark.parametrize("offset", [-1, 3, 10**9, MAX_LONG, -MAX_LONG])
def test_what_is_not_there_cannot_be_sent_back(site, peer, offset):
    peer.ask(send_request())
    assert_refused(site, peer, back(offset), ResponseCode.SYSTEM_ERROR, "look message by offset failed")


def test_who_may_send_back(site, peer):
    offset = int(peer.ask(send_request()).ext_fields["msgId"][RECORD_OFFSET], 16)
    peer.ask(back(offset))
    site.make_topic("%RETRY%g", 1, perm=4)
    assert_refused(
        site,
        peer,
        back(offset),
        ResponseCode.NO_PERMISSION,
        "the topic[%RETRY%g] sending message is forbidden",
    )
    body = json.dumps({"groupName": "n", "retryQueueNums": 0}).encode()
    peer.ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
    before = site.log_end()
    peer.ask(back(offset, group="n"))  # a group without retries gives up in silence, as in Java
    assert site.log_end() == before
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4"))
    assert_refused(site, peer, back(offset, group="h"), ResponseCode.NO_PERMISSION)


# Request and reply


def reply(
    client_id: str | None = "asker", code: int = RequestCode.SEND_REPLY_MESSAGE_V2, **fields: str
) -> RemotingCommand:
    properties = {"CORRELATION_ID": "1"}
    if client_id is not None:
        properties["REPLY_TO_CLIENT"] = client_id
    request = send_request("DefaultCluster_REPLY_TOPIC", b"pong", properties, code=code)
    request.ext_fields.update(fields)
    return request if code != RequestCode.SEND_REPLY_MESSAGE else long_form(request, code)


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_reaches_who_asked(site, peer, code):
    """Given a client that asked, when the reply comes, then it is handed over, kept, and its sender told."""
    asker = site.connect()
    asker.ask(heartbeat("asker", "", producers=("p",)))
    sent_reply = peer.send(reply(code=code, h="5", g="77"))
    pushed = asker.receive()
    assert (pushed.code, bytes(pushed.body or b"")) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"pong")
    host, port = peer.socket.getsockname()
    fields = pushed.ext_fields
    assert (fields["bornHost"], fields["storeHost"]) == (f"{host}:{port}", site.broker.config.address)
    assert (fields["flag"], fields["bornTimestamp"]) == ("5", "77")
    assert "PUSH_REPLY_TIME\x01" in fields["properties"]
    assert peer.is_silent()  # as long as the asker has not said that it has it

    asker.send(pushed.response())
    answer = peer.answer_to(sent_reply)
    assert (answer.code, answer.ext_fields["queueOffset"]) == (0, "0")
    (kept,) = site.stored("DefaultCluster_REPLY_TOPIC")
    assert kept.properties == {
        "REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip


def test_a_reply_that_nobody_waits_for_is_kept_all_the_same(site, peer):
    answer = peer.call(reply("nobody"))
    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <nobody> not found.")
    answer = peer.call(reply(None))
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert site.max_offset("DefaultCluster_REPLY_TOPIC") == 2


def test_a_reply_whose_asker_goes_or_refuses_is_told(site, peer):
    """Given an asker that is cut off while it is told, or says no, then who replied hears of it."""
    for leaves in (True, False):
        asker = site.connect()
        asker.ask(heartbeat("asker", "", producers=("p",)))
        sent_reply = peer.send(reply())
        pushed = asker.receive()
        if leaves:
            asker.close()
        else:
            asker.send(pushed.response(ResponseCode.SYSTEM_ERROR))
        answer = peer.answer_to(sent_reply)
        assert (answer.code, answer.remark) == (1, "push reply message to askerfail.")
    gone = peer.call(reply("asker-of-before"))
    assert gone.code == 1


def test_replies_need_not_be_kept(tmp_path):
    with running(tmp_path, {"storeReplyMessageEnable": "false"}) as site:
        peer = site.connect()
        assert_refused(site, peer, reply("nobody"), ResponseCode.SYSTEM_ERROR, "not found")


def test_replies_of_no_use_are_refused(site, peer):
    wrong = ResponseCode.INVALID_PARAMETER
    assert_refused(site, peer, reply(e="5"), wrong, "is illegal")
    assert_refused(site, peer, reply(b="no topic"), wrong)
    assert_refused(site, peer, reply(h="2147483648"), ResponseCode.SYSTEM_ERROR, "32 bits")
