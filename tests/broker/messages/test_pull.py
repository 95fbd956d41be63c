"""Pulls: who may pull what, what each finds, and those that wait until there is something."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.broker.messages.filters import TagFilter
from kourou.broker.messages.pull import MAX_HOLD_MS, PIECES_FROM_BYTES
from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.message.batch import encode_batch
from kourou.message.model import Message
from kourou.message.properties import java_hash
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, ROCKETMQ, RemotingCommand
from kourou.store import GetMessageStatus
from kourou.store.put import InnerMessage
from support.sites.broker import (
    COMMIT,
    SUBSCRIPTION,
    SUSPEND,
    UNIQUE_ID,
    Peer,
    Site,
    heartbeat,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)
from support.stores.store import ManualClock, message, open_store, put, small_config

NOT_FOUND = ResponseCode.PULL_NOT_FOUND
RETRY = ResponseCode.PULL_RETRY_IMMEDIATELY
MOVED = ResponseCode.PULL_OFFSET_MOVED
HOLD = SUBSCRIPTION | SUSPEND
LONG_MS = 600_000  # longer than any test


def fill(peer: Peer, count: int = 1, *, tag: str = "", queue_id: int = 0, body: bytes = b"body") -> None:
    properties = {"UNIQ_KEY": UNIQUE_ID} | ({"TAGS": tag} if tag else {})
    for _ in range(count):
        peer.ask(send_request(body=body, properties=properties, e=str(queue_id)))


def outcome(answer: RemotingCommand) -> tuple[int, str | None, str, str, str]:
    fields = answer.ext_fields
    return answer.code, answer.remark, fields["nextBeginOffset"], fields["minOffset"], fields["maxOffset"]


def make_group(site: Site, name: str = "g", **values: Any) -> None:
    site.do(site.broker.groups.update, SubscriptionGroupConfig(name, **values))


def wants(topic: str = "t", *tags: str, version: int = 1, **more: Any) -> dict[str, Any]:
    """A subscription as heartbeats have it."""
    return {
        "topic": topic,
        "subString": "||".join(tags) or "*",
        "tagsSet": list(tags),
        "codeSet": [java_hash(tag) for tag in tags],
        "subVersion": version,
        "expressionType": "TAG",
        **more,
    }


# What is found


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_records_come_as_they_are_stored(site, peer, form):
    fill(peer, 5)
    answer = peer.ask(pull_request(offset=1, count=3, serialize_type=form))
    assert outcome(answer) == (0, "FOUND", "4", "0", "5")
    assert answer.ext_fields["suggestWhichBrokerId"] == "0"
    assert (answer.ext_fields["topicSysFlag"], answer.ext_fields["groupSysFlag"]) == ("0", "0")
    assert [item.queue_offset for item in messages_in(answer)] == [1, 2, 3]
    assert messages_in(answer) == site.stored()[1:4]


def test_answers_say_why_nothing_was_found(site, peer):
    """Given each place that a pull may ask for, then code, remark and the next offset are Java's."""
    assert outcome(peer.call(pull_request())) == (NOT_FOUND, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")
    assert outcome(peer.call(pull_request(offset=7))) == (MOVED, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")
    assert outcome(peer.call(pull_request(offset=-7))) == (MOVED, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")
    fill(peer, 3, tag="A")
    assert outcome(peer.call(pull_request(offset=3))) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE", "3", "0", "3")
    assert outcome(peer.call(pull_request(offset=4))) == (MOVED, "OFFSET_OVERFLOW_BADLY", "3", "0", "3")
    assert outcome(peer.call(pull_request(offset=2**62))) == (MOVED, "OFFSET_OVERFLOW_BADLY", "3", "0", "3")
    assert outcome(peer.call(pull_request(offset=-1))) == (MOVED, "OFFSET_TOO_SMALL", "0", "0", "3")
    other = peer.call(pull_request(subscription="B"))
    assert outcome(other) == (RETRY, "NO_MATCHED_MESSAGE", "3", "0", "3")
    assert not other.body


@pytest.mark.configured({"mappedFileSizeCommitLog": "65536"})
def test_messages_whose_file_is_gone_are_passed(site, peer):
    """Given a log whose first file was deleted before its queue entries were, then pulls go on behind it."""
    fill(peer, 6, body=bytes(30_000))
    files = site.broker.store.commit_log.files
    first = files.files[0]

    def forget_first() -> None:
        files.files = files.files[1:]

    site.do(forget_first)
    try:
        answer = peer.call(pull_request())
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert [item.queue_offset for item in messages_in(answer)] == [2, 3, 4, 5]
        only = peer.call(pull_request(subscription="X"))
        assert outcome(only)[:3] == (RETRY, "NO_MATCHED_MESSAGE", "6")
    finally:
        site.do(lambda: setattr(files, "files", (first, *files.files)))


@pytest.mark.parametrize("count", ["0", "-1", "1", "33", "2147483647", "+3"])
def test_any_number_of_messages_may_be_asked_for(site, peer, count):
    """Given a count that is too large or none at all, then at least one comes, at most what Java allows."""
    fill(peer, 40)
    found = messages_in(peer.ask(pull_request(maxMsgNums=count)))
    assert len(found) == min(max(int(count), 1), 32)


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("maxMsgNums", "2147483648"), ("maxMsgNums", "9" * 30), ("queueId", " 0"), ("queueOffset", "0x0"),
        ("queueOffset", "9223372036854775808"), ("sysFlag", "4_0"), ("commitOffset", "-"),
        ("subVersion", "𝟓"),
    ],
)  # fmt: skip
def test_a_number_that_java_does_not_read_is_named(site, peer, field, value, serialize_type):
    fill(peer, 1)
    answer = peer.call(pull_request(**{field: value}, serialize_type=serialize_type))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert f"<{field}> is {value!r}" in (answer.remark or "")


@pytest.mark.configured({"maxTransferBytesOnMessageInMemory": "5000"})
def test_a_pull_is_bounded_by_bytes(site, peer):
    fill(peer, 6, body=bytes(2000))
    assert len(messages_in(peer.ask(pull_request()))) == 2
    fill(peer, 1, queue_id=1, body=bytes(9000))
    assert len(messages_in(peer.ask(pull_request(queue_id=1)))) == 1  # the first comes, whatever its size


# Who may pull


def forbidden(answer: RemotingCommand) -> tuple[int, str | None]:
    return answer.code, answer.ext_fields.get("forbiddenType")


def test_what_forbids_a_pull_is_named(site, peer):
    """Given each reason, then the answer is NO_PERMISSION with Java's number for it."""
    no = ResponseCode.NO_PERMISSION
    fill(peer)
    make_group(site, "off", consume_enable=False)
    assert forbidden(peer.call(pull_request(group="off"))) == (no, "2")
    site.make_topic("secret", perm=2)
    assert forbidden(peer.call(pull_request("secret"))) == (no, "3")
    make_group(site, "quiet", consume_broadcast_enable=False)
    peer.ask(heartbeat("c", "quiet", [wants()], model="BROADCASTING"))
    assert forbidden(peer.call(pull_request(group="quiet", flag=0))) == (no, "4")
    peer.ask(heartbeat("c", "g", [wants()]))
    peer.ask(pull_request(flag=0))
    site.do(site.broker.groups.set_forbidden, "g", "t", 2, True)
    assert forbidden(peer.call(pull_request(flag=0))) == (no, "5")
    site.do(site.broker.groups.set_forbidden, "g", "t", 2, False)
    peer.ask(pull_request(flag=0))
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=2"))
    assert forbidden(peer.call(pull_request())) == (no, "1")


@pytest.mark.configured({"autoCreateSubscriptionGroup": "false"})
def test_topics_groups_and_queues_that_are_not_there(site, peer):
    assert peer.call(pull_request()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    make_group(site)
    assert peer.call(pull_request("nothing")).code == ResponseCode.TOPIC_NOT_EXIST
    for queue_id in (-1, 4, 2**31 - 1):
        answer = peer.call(pull_request(queue_id=queue_id))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert f"queueId[{queue_id}] is illegal" in (answer.remark or "")


@pytest.mark.configured({"litePullMessageEnable": "false"})
def test_lite_pulls_may_be_off(site, peer):
    fill(peer)
    for _ in range(2):
        lite = peer.call(pull_request(code=RequestCode.LITE_PULL_MESSAGE))
        assert forbidden(lite) == (ResponseCode.NO_PERMISSION, "1")
        peer.ask(pull_request())


def test_changes_of_topics_groups_and_configuration_count_at_once(site, peer):
    """Given a group that pulls, when what it may do changes, then its next pull is answered by that."""
    fill(peer)
    peer.ask(pull_request())
    for change, undo in (
        (lambda: make_group(site, "g", consume_enable=False), lambda: make_group(site, "g")),
        (lambda: site.make_topic("t", perm=2), lambda: site.make_topic("t")),
        (lambda: configure(peer, "brokerPermission=2"), lambda: configure(peer, "brokerPermission=6")),
    ):
        change()
        assert peer.call(pull_request()).code == ResponseCode.NO_PERMISSION
        undo()
        peer.ask(pull_request())
    site.make_topic("t", queues=1)
    assert peer.call(pull_request(queue_id=1)).code == ResponseCode.INVALID_PARAMETER
    peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}))
    assert peer.call(pull_request()).code == ResponseCode.TOPIC_NOT_EXIST
    configure(peer, "autoCreateSubscriptionGroup=false")
    peer.ask(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"}))
    site.make_topic("t")
    assert peer.call(pull_request()).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def configure(peer: Peer, text: str) -> None:
    peer.ask(RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, text.encode()))


def test_flags_of_topic_and_group_are_told(site, peer):
    fill(peer)
    site.make_topic("t", topic_sys_flag=3)
    make_group(site, group_sys_flag=9)
    fields = peer.ask(pull_request()).ext_fields
    assert (fields["topicSysFlag"], fields["groupSysFlag"]) == ("3", "9")


# Subscriptions


def test_tags_let_through_what_they_name(site, peer):
    for tag in ("A", "B", "", "C", "A"):
        fill(peer, tag=tag)
    for expression, offsets in (
        ("*", [0, 1, 2, 3, 4]), ("A", [0, 4]), ("A || C", [0, 3, 4]), (" B ", [1]), ("", [0, 1, 2, 3, 4]),
    ):  # fmt: skip
        found = messages_in(peer.ask(pull_request(subscription=expression)))
        assert [item.queue_offset for item in found] == offsets, expression
    assert len(messages_in(peer.ask(pull_request(subscription=None)))) == 5
    assert peer.call(pull_request(subscription="||")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_tags_that_share_a_hash_both_come(site, peer):
    """Given two tags with the same hash, then the broker cannot tell them apart: the consumer does."""
    assert java_hash("Aa") == java_hash("BB")
    fill(peer, tag="Aa")
    fill(peer, tag="BB")
    assert len(messages_in(peer.ask(pull_request(subscription="Aa")))) == 2


def test_a_filter_that_passes_much_goes_on_behind_it(site, peer):
    """Given many messages that do not match, then a pull says how far it came, until there is a match."""
    fill(peer, 900, tag="B")
    fill(peer, tag="A")
    offset, pulls = 0, 0
    while (answer := peer.call(pull_request(offset=offset, subscription="A"))).code == RETRY:
        offset, pulls = int(answer.ext_fields["nextBeginOffset"]), pulls + 1
    assert [item.queue_offset for item in messages_in(answer)] == [900]
    assert pulls >= 1


def test_a_filter_by_sql_is_refused(site, peer):
    answer = peer.call(pull_request(subscription="a > 1", expressionType="SQL92"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "filter message by SQL92" in (answer.remark or "")


def test_without_its_own_subscription_that_of_the_heartbeat_counts(site, peer):
    fill(peer, 2, tag="A")
    fill(peer, 1, tag="B")
    none = ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert peer.call(pull_request(flag=0)).code == none
    peer.ask(heartbeat("c", "g", [wants("other")]))
    assert peer.call(pull_request(flag=0)).code == none
    peer.ask(heartbeat("c", "g", [wants("t", "A", version=5)]))
    assert len(messages_in(peer.ask(pull_request(flag=0)))) == 2
    assert peer.call(pull_request(flag=0, subVersion="6")).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    peer.ask(pull_request(flag=0, subVersion="5"))
    peer.ask(heartbeat("c", "g", [wants("t", "B", version=6)]))
    assert len(messages_in(peer.ask(pull_request(flag=0, subVersion="6")))) == 1
    peer.ask(heartbeat("c", "g", [wants("t", "A", version=7, classFilterMode=True)]))
    assert len(messages_in(peer.ask(pull_request(flag=0)))) == 3  # classes decide, not tags


def test_a_pull_with_its_subscription_tells_of_its_group(site, peer):
    """Given a group that never sent a heartbeat, then administrators see what it pulls."""
    fill(peer, tag="A")
    peer.ask(pull_request(subscription="A"))
    fields = {"group": "g", "topic": "t"}
    answer = peer.call(RemotingCommand(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, fields))
    assert json.loads(bytes(answer.body or b"{}"))["subscriptionData"]["subString"] == "A"


# Offsets


def committed(peer: Peer, topic: str = "t", group: str = "g") -> RemotingCommand:
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "setZeroIfNotFound": "false"}
    return peer.call(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))


def test_a_pull_commits_if_it_says_so(site, peer):
    fill(peer, 3)
    peer.ask(pull_request(commitOffset="2"))
    assert committed(peer).code == ResponseCode.QUERY_NOT_FOUND
    peer.ask(pull_request(flag=SUBSCRIPTION | COMMIT, commitOffset="2"))
    assert committed(peer).ext_fields["offset"] == "2"
    peer.call(pull_request(offset=3, flag=SUBSCRIPTION | COMMIT, commitOffset="3"))
    assert committed(peer).ext_fields["offset"] == "3"


@pytest.mark.parametrize("offset", [str(2**63), str(-(2**63) - 1), "9" * 400, "x", ""])
def test_an_offset_that_is_no_number_of_64_bits_is_not_committed(site, peer, offset):
    fill(peer)
    answer = peer.call(pull_request(flag=SUBSCRIPTION | COMMIT, commitOffset=offset))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "commitOffset" in (answer.remark or "")
    assert committed(peer).code == ResponseCode.QUERY_NOT_FOUND


def test_a_held_pull_commits_once_and_at_once(site, peer):
    held = peer.send(pull_request(flag=HOLD | COMMIT, suspend_ms=LONG_MS, commitOffset="0"))
    until(lambda: site.broker.puller.held == 1)
    other = site.connect()
    assert committed(other).ext_fields["offset"] == "0"
    site.do(site.broker.offsets.commit, "x", "g", "t", 0, 5)
    fill(other)
    peer.answer_to(held)
    assert committed(other).ext_fields["offset"] == "5"


def test_a_reset_sends_a_pull_elsewhere_once(site, peer):
    fill(peer, 5)
    site.do(site.broker.offsets.assign_reset, "t", "g", 0, 2)
    assert outcome(peer.call(pull_request(offset=5))) == (MOVED, "OFFSET_RESET", "2", "0", "5")
    assert len(messages_in(peer.ask(pull_request(offset=2)))) == 3


def test_a_missing_field_is_named(peer):
    for name in ("consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset",
                 "suspendTimeoutMillis", "subVersion"):  # fmt: skip
        request = pull_request()
        del request.ext_fields[name]
        answer = peer.call(request)
        assert (answer.code, answer.remark) == (1, f"the custom field <{name}> is null")


# Waiting


def hold(
    peer: Peer, offset: int = 0, subscription: str = "*", queue_id: int = 0, **values: Any
) -> RemotingCommand:
    return peer.send(
        pull_request(
            offset=offset,
            subscription=subscription,
            queue_id=queue_id,
            flag=HOLD,
            suspend_ms=LONG_MS,
            **values,
        )
    )


def held(site: Site, count: int) -> None:
    """Wait until so many pulls are held."""
    until(lambda: site.broker.puller.held == count, f"{count} holds")


def assert_none_held(site: Site) -> None:
    puller = site.broker.puller
    assert site.do(lambda: (puller.held, puller._by_queue, puller._by_connection, puller._woken)) == (
        0,
        {},
        {},
        [],
    )


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_a_held_pull_is_answered_when_a_message_comes(site, peer, form):
    sender = site.connect()
    waiting = hold(peer, serialize_type=form)
    held(site, 1)
    assert peer.is_silent()
    fill(sender, body=b"news")
    answer = peer.answer_to(waiting)
    assert [bytes(item.body) for item in messages_in(answer)] == [b"news"]
    assert outcome(answer) == (0, "FOUND", "1", "0", "1")
    assert_none_held(site)


def test_only_messages_of_the_queue_and_of_the_tags_wake_a_pull(site):
    """Given pulls for several tags and queues, when a message comes, then those that want it are answered."""
    peers = {name: site.connect() for name in ("A", "B", "*", "queue 1", "topic u")}
    site.make_topic("u")
    waiting = {
        "A": hold(peers["A"], subscription="A"),
        "B": hold(peers["B"], subscription="B || C"),
        "*": hold(peers["*"]),
        "queue 1": hold(peers["queue 1"], queue_id=1),
        "topic u": hold(peers["topic u"], topic="u"),
    }
    held(site, 5)
    sender = site.connect()
    fill(sender, tag="X")
    assert len(messages_in(peers["*"].answer_to(waiting.pop("*")))) == 1
    fill(sender, 3, tag="A")
    assert outcome(peers["A"].answer_to(waiting.pop("A"))) == (0, "FOUND", "2", "0", "2")
    assert all(peers[name].is_silent() for name in waiting)
    held(site, 3)
    sender.ask(
        send_request(body=b"x", properties={"UNIQ_KEY": UNIQUE_ID, "TAGS": "C"}, j="1")
    )  # the long way
    assert [item.queue_offset for item in messages_in(peers["B"].answer_to(waiting.pop("B")))] == [4]
    fill(sender, queue_id=1)
    peers["queue 1"].answer_to(waiting.pop("queue 1"))
    sender.ask(send_request("u"))
    peers["topic u"].answer_to(waiting.pop("topic u"))
    assert_none_held(site)


def test_a_batch_wakes_by_each_of_its_tags(site, peer):
    sender = site.connect()
    fill(sender)
    body = encode_batch([Message("t", b"1", {"TAGS": "A"}), Message("t", b"2", {"TAGS": "B"})])
    for number in range(2):
        waiting = hold(peer, offset=1 + 2 * number, subscription="B")
        held(site, 1)
        sender.ask(send_request(body=body, m="true"))
        assert [bytes(item.body) for item in messages_in(peer.answer_to(waiting))] == [b"2"]


def test_many_pulls_on_one_queue_are_all_answered(site):
    """Given pulls of many groups for one queue, on few connections, then one message answers them all."""
    peers = [site.connect() for _ in range(4)]
    waiting = [(peer, hold(peer, group=f"g{number}")) for number in range(50) for peer in peers]
    held(site, 200)
    fill(site.connect(), 3)
    for peer in peers:
        expected = {request.opaque for owner, request in waiting if owner is peer}
        while expected:
            answer = peer.receive()
            assert len(messages_in(answer)) >= 1
            expected.remove(answer.opaque)
    assert_none_held(site)


def test_a_held_pull_is_answered_when_its_time_is_up(site, peer):
    """Given pulls that wait for different times, then each ends at its own, in their order."""
    times_ms = (300, 30, 120)
    requests = [pull_request(flag=HOLD, suspend_ms=ms, queue_id=number) for number, ms in enumerate(times_ms)]
    peer.socket.sendall(b"".join(request.encode() for request in requests))
    order = [peer.receive() for _ in requests]
    assert [answer.opaque for answer in order] == [requests[number].opaque for number in (1, 2, 0)]
    assert {outcome(answer) for answer in order} == {(NOT_FOUND, "NO_MESSAGE_IN_QUEUE", "0", "0", "0")}
    assert_none_held(site)


@pytest.mark.parametrize("suspend", [0, -1, -(2**63)])
def test_a_pull_that_does_not_want_to_wait_is_answered(site, peer, suspend):
    assert peer.call(pull_request(flag=HOLD, suspend_ms=suspend)).code == NOT_FOUND


@pytest.mark.parametrize("suspend", ["x", "", str(2**63)])
def test_a_time_of_no_use_is_named(site, peer, suspend):
    answer = peer.call(pull_request(flag=HOLD, suspend_ms=suspend))
    assert (answer.code, "suspendTimeoutMillis" in (answer.remark or "")) == (1, True)


def test_no_pull_waits_longer_than_ten_minutes(site, peer):
    hold(peer, suspendTimeoutMillis=str(2**63 - 1))
    held(site, 1)
    ((deadline, now),) = site.do(
        lambda: [(item.deadline, site.broker.puller._loop.time()) for item in site.broker.puller._deadlines]
    )
    assert deadline <= now + MAX_HOLD_MS / 1000


def test_a_pull_that_is_moved_or_filtered_is_not_held(site, peer):
    fill(peer, tag="A")
    assert peer.call(pull_request(offset=9, flag=HOLD, suspend_ms=LONG_MS)).code == MOVED
    assert peer.call(pull_request(flag=HOLD, suspend_ms=LONG_MS, subscription="B")).code == RETRY


@pytest.mark.configured({"longPollingEnable": "false", "shortPollingTimeMills": "20"})
def test_short_polling_ends_soon(site, peer):
    """Given longPollingEnable=false, then pulls wait for shortPollingTimeMills, whatever they ask for."""
    assert peer.call(pull_request(flag=HOLD, suspend_ms=LONG_MS)).code == NOT_FOUND
    assert_none_held(site)


@pytest.mark.configured({"pullThreadPoolQueueCapacity": "3"})
def test_more_than_the_capacity_is_not_held(site):
    peer, other = site.connect(), site.connect()
    waiting = [hold(peer) for _ in range(3)]
    held(site, 3)
    assert other.call(pull_request(flag=HOLD, suspend_ms=LONG_MS)).code == NOT_FOUND
    fill(other)
    assert {peer.receive().opaque for _ in waiting} == {request.opaque for request in waiting}
    assert_none_held(site)


def test_pulls_of_a_lost_connection_are_forgotten(site):
    """Given pulls that wait, when their connection goes, even as a message comes, then nothing is left."""
    for number in range(20):
        peer, other = Peer(site.port), site.connect()
        for queue_id in range(4):
            hold(peer, offset=site.max_offset(queue_id=queue_id), queue_id=queue_id)
        hold(other, offset=site.max_offset(), group="h")
        held(site, 5)
        if number % 2:
            other.send(send_request())
        peer.close()
        other.close()
        held(site, 0)
    assert_none_held(site)


def test_a_stop_answers_pulls_that_wait(tmp_path):
    """Given pulls that wait, when the broker stops, then they are answered before their connections close."""
    with running(tmp_path) as site:
        site.make_topic("t")
        peer = Peer(site.port)
        waiting = [hold(peer, queue_id=number) for number in range(3)]
        held(site, 3)
    with contextlib.closing(peer):
        answers = [peer.receive() for _ in waiting]
        assert {answer.opaque for answer in answers} == {request.opaque for request in waiting}
        assert {answer.code for answer in answers} == {NOT_FOUND}
        with pytest.raises(ConnectionError):
            peer.receive()


def test_a_pull_that_waits_hears_of_its_group_and_topic(site, peer):
    """Given a pull that waits, when its topic goes, then it is told so when its time is up, as in Java."""
    waiting = peer.send(pull_request(flag=HOLD, suspend_ms=1500))
    held(site, 1)
    site.do(site.broker.topics.delete, "t")
    assert peer.answer_to(waiting).code == ResponseCode.TOPIC_NOT_EXIST
    assert_none_held(site)


def test_a_pull_behind_the_end_of_a_queue_that_began_anew_waits_on(site, peer):
    """Given a topic that was deleted and made again, then its first messages do not wake this pull."""
    other = site.connect()
    fill(other, 5)
    waiting = hold(peer, offset=5)
    held(site, 1)
    other.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}))
    site.make_topic("t")
    fill(other, 5)
    held(site, 1)
    assert peer.is_silent()
    fill(other)
    assert [item.queue_offset for item in messages_in(peer.answer_to(waiting))] == [5]


def test_holds_that_are_over_do_not_pile_up(site, peer):
    """Given many pulls that are answered long before their time, then the list of deadlines stays short."""
    sender = site.connect()
    for number in range(30):
        waiting = {hold(peer, offset=number).opaque for _ in range(50)}
        held(site, 50)
        fill(sender)
        assert {peer.receive().opaque for _ in range(50)} == waiting
    assert len(site.broker.puller._deadlines) <= 1024 + 3 * 50


# Large answers


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
@pytest.mark.parametrize("body_size", [PIECES_FROM_BYTES // 32 - 100, PIECES_FROM_BYTES // 32 + 100, 40_000])
def test_large_answers_arrive_whole(site, peer, form, body_size):
    """Given answers around the size from which slices of the log are sent, then each byte is there."""
    for number in range(40):
        fill(peer, body=bytes([number]) * body_size)
    expected = site.stored()
    offset = 0
    while offset < 40:
        found = messages_in(peer.ask(pull_request(offset=offset, serialize_type=form)))
        assert found == expected[offset : offset + len(found)]
        offset += len(found)


@pytest.mark.configured({"mappedFileSizeCommitLog": "65536"})
def test_records_of_several_files_come_in_one_answer(site, peer):
    for number in range(30):
        fill(peer, body=bytes([number]) * 7000, tag="A" if number % 2 else "B")
    found = messages_in(peer.ask(pull_request()))
    assert len({item.physical_offset // 65536 for item in found}) > 2
    assert found == site.stored()[: len(found)]
    only = messages_in(peer.ask(pull_request(subscription="A")))
    assert [item.queue_offset for item in only] == list(range(1, 30, 2))


def test_a_peer_that_reads_slowly_gets_every_byte(site):
    """Given 20 MB of answers to one who reads late, then all arrive, and others are served meanwhile."""
    sender, slow = site.connect(), site.connect()
    for number in range(24):
        fill(sender, body=bytes([number]) * 32_000)
    expected = site.stored()[:8]  # what fits into an answer
    requests = [pull_request(count=24) for _ in range(80)]
    done = threading.Thread(target=lambda: [slow.send(request) for request in requests])
    done.start()
    until(lambda: site.do(lambda: max(c.unsent_bytes for c in site.broker.server.connections)) > 0)
    for _ in range(20):
        fill(sender, queue_id=1)
        assert len(messages_in(sender.ask(pull_request(queue_id=1)))) >= 1
    for number, request in enumerate(requests):
        if number < 4:
            time.sleep(0.02)
        assert messages_in(slow.answer_to(request)) == expected
    done.join(10)


records = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from(["A", "B", ""]), st.integers(0, 9000)),
    min_size=1,
    max_size=40,
)


@given(
    records=records, offset=st.integers(0, 20), count=st.integers(1, 70), tags=st.sampled_from([None, "A"])
)
def test_blocks_are_the_records_one_behind_the_other(memory_path, records, offset, count, tags):
    """Given any queue over several files, then the slices of an answer are its records, joined."""
    with (
        tempfile.TemporaryDirectory(dir=memory_path) as directory,
        open_store(small_config(Path(directory)), clock=ManualClock()) as store,
    ):
        for queue_id, tag, size in records:
            put(store, message("t", queue_id, bytes(size), **({"TAGS": tag} if tag else {})))
        chosen = None if tags is None else TagFilter(frozenset({java_hash(tags)}))
        result = store.get_message("t", 0, offset, count, message_filter=chosen)
        blocks = b"".join(result.blocks)
        assert blocks == b"".join(result.records)
        assert len(blocks) == result.buffer_total_size
        assert len(result.records) == len(result.queue_offsets) == result.message_count
        wanted = [
            number
            for number, (_, tag, _) in enumerate(item for item in records if item[0] == 0)
            if number >= offset and (tags is None or tag == tags)
        ]
        assert list(result.queue_offsets) == wanted[: len(result.queue_offsets)]
        assert bool(wanted) == (result.status is GetMessageStatus.FOUND)


def test_batch_queues_are_pulled_by_record(site, peer):
    """Given inner batches, then a pull from the middle of one gives all of it."""
    site.make_topic("b", attributes={"+queue.type": "BatchCQ"})
    body = encode_batch(Message("b", bytes([number])) for number in range(3))
    waiting = peer.send(pull_request("b", flag=HOLD, suspend_ms=LONG_MS))
    held(site, 1)
    sender = site.connect()
    sender.ask(send_request("b", body, m="true"))
    assert outcome(peer.answer_to(waiting)) == (0, "FOUND", "3", "0", "3")
    sender.ask(send_request("b", body, m="true"))
    answer = peer.ask(pull_request("b", 4))
    assert [item.properties["INNER_BASE"] for item in messages_in(answer)] == ["3"]
    assert answer.ext_fields["nextBeginOffset"] == "6"


def test_what_the_broker_puts_itself_wakes_too(site, peer):
    waiting = hold(peer)
    held(site, 1)
    site.do(lambda: site.broker.put(InnerMessage.of("t", 0, b"from inside")))
    assert [bytes(item.body) for item in messages_in(peer.answer_to(waiting))] == [b"from inside"]
