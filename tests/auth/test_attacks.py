"""A user with one topic and one group of its own, who tries to reach those of others: by names that look like
another's, by properties that say where a message goes, by places in the log, by ids of clients."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.message.host import pack_host
from kourou.message.properties import encode_properties
from kourou.message.recall import RecallHandle
from kourou.message.topics import TIMER_TOPIC, TRANS_HALF_TOPIC
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode as Code
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import (
    HOST,
    SUSPEND,
    Site,
    heartbeat,
    long_form,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)
from support.sites.broker import SUBSCRIPTION as SUBSCRIBES
from support.sites.guarded_site import GUARDED, User, guarded_name_server, guarded_site
from support.stores.store import ManualClock

NO_PERMISSION = ResponseCode.NO_PERMISSION
NO_TOPICS = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}'  # of a broker that registers
OWN = {"Topic:mine": ["All"], "Group:mine": ["All"], "Group:%RETRY%mine": ["All"]}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with guarded_site(
        tmp_path,
        enableLmq="true",
        enableMultiDispatch="true",
        transactionTimeOut="0",
        transactionCheckInterval="3600000",
    ) as made:
        yield made


@pytest.fixture
def victim(site: Site) -> User:
    user = User(site, "victim")
    user.allow({"Topic:theirs": ["All"], "Group:theirs": ["All"]})
    return user


@pytest.fixture
def attacker(site: Site) -> User:
    user = User(site, "attacker")
    user.allow(OWN)
    return user


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def half_of(user: User, topic: str, unique_id: str = "HALF", **more: str) -> dict[str, str]:
    """Prepare a message; what its end needs to say."""
    properties = {"UNIQ_KEY": unique_id, "TRAN_MSG": "true", "PGROUP": "p", **more}
    answer = user.ask(send_request(topic, b"secret half", properties, f="4", g=str(now_ms())))
    offset = int(answer.ext_fields["msgId"][16:], 16)
    return {
        "producerGroup": "p",
        "tranStateTableOffset": answer.ext_fields["queueOffset"],
        "commitLogOffset": str(offset),
        "commitOrRollback": "8",
        "msgId": unique_id,
        "fromTransactionCheck": "true",
    }


# Retry topics


@pytest.mark.parametrize("code", [Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE])
@pytest.mark.parametrize("group", ["mine", "%RETRY%mine", "%DLQ%mine", "%RETRY%theirs", "%DLQ%theirs"])
def test_the_retry_topic_of_a_group_is_read_by_that_group_alone(site, victim, attacker, code, group):
    site.do(site.broker.groups.update, SubscriptionGroupConfig("%RETRY%mine"))
    for topic in ("%RETRY%theirs", "%RETRY%mine", "%DLQ%theirs"):
        site.make_topic(topic, queues=1)
    victim.ask(send_request("%RETRY%theirs", b"secret"))
    for topic in ("%RETRY%theirs", "%DLQ%theirs"):
        assert attacker.call(pull_request(topic, group=group, code=code)).code == NO_PERMISSION

    mine = User(site, "mine")
    mine.allow({"Group:mine": ["Sub"]})
    own = mine.call(pull_request("%RETRY%mine", group="mine", code=code))
    assert own.code == ResponseCode.PULL_NOT_FOUND  # as ever, with the group alone
    (message,) = messages_in(victim.ask(pull_request("%RETRY%theirs", group="theirs", code=code)))
    assert bytes(message.body) == b"secret"


def about(code: Code, group: str, topic: str) -> RemotingCommand:
    """A request about a group and a topic."""
    body = {
        "clientID": "a", "clientId": "a", "consumerGroup": group, "topic": topic, "group": group,
        "mqSet": [{"topic": topic, "brokerName": "broker-a", "queueId": 0}], "mode": "PULL",
        "consumerDataSet": [{"groupName": group, "subscriptionDataSet": [{"topic": topic}]}],
        "subscriptionData": {"topic": topic},
    }  # fmt: skip
    fields = {
        "consumerGroup": group, "group": group, "topic": topic, "queueId": "0", "commitOffset": "7",
        "timestamp": "-1", "isForce": "true", "srcGroup": group, "destGroup": group, "compareGroup": group,
        "readable": "false", "index": "0", "count": "1",
    }  # fmt: skip
    return RemotingCommand(code, fields, lenient_json.dumps(body))


@pytest.mark.parametrize(
    "code",
    [
        Code.HEART_BEAT, Code.CHECK_CLIENT_CONFIG, Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ,
        Code.QUERY_ASSIGNMENT, Code.QUERY_CONSUMER_OFFSET, Code.UPDATE_CONSUMER_OFFSET,
        Code.GET_CONSUME_STATS, Code.INVOKE_BROKER_TO_RESET_OFFSET, Code.QUERY_CONSUME_TIME_SPAN,
        Code.QUERY_CORRECTION_OFFSET,
        Code.CLONE_GROUP_OFFSET, Code.QUERY_CONSUME_QUEUE, Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER, Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    ],
)  # fmt: skip
def test_no_request_is_about_the_retry_topic_of_another_group(site, attacker, code):
    site.make_topic("%RETRY%theirs", queues=1)
    offsets, groups = site.broker.offsets.encode(), site.broker.groups.encode()
    assert attacker.call(about(code, "mine", "%RETRY%theirs")).code == NO_PERMISSION
    assert (site.broker.offsets.encode(), site.broker.groups.encode()) == (offsets, groups)
    assert site.broker.consumers.get("mine") is None
    assert not site.broker.locks.has_locks("mine")


def test_a_group_whose_name_begins_as_a_retry_topic_does_is_another_group(site, attacker):
    plain = User(site, "plain")
    plain.allow({"Group:mine": ["All"], "Topic:mine": ["All"]})
    for name in ("%RETRY%mine", "%DLQ%mine"):
        body = lenient_json.dumps({"groupName": name})
        made = plain.call(RemotingCommand(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
        assert made.code == NO_PERMISSION
        assert name not in site.broker.groups.groups


def test_the_body_of_a_group_is_read_as_the_handler_reads_it(site, attacker):
    """A list beside the group itself would be what is checked, while the group is what is changed."""
    body = {"groupName": "theirs", "consumeEnable": False, "groupConfigList": [{"groupName": "mine"}]}
    request = RemotingCommand(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, lenient_json.dumps(body))
    assert attacker.call(request).code == NO_PERMISSION
    assert site.broker.groups.get("theirs").consume_enable


def test_a_deleted_topic_takes_no_retry_topic_of_another_group_along(tmp_path):
    """`%RETRY%mine_mine` may be POP's, of group and topic `mine`, or that of the group `mine_mine`."""
    with guarded_site(tmp_path, clearRetryTopicWhenDeleteTopic="true") as site:
        site.do(site.broker.groups.update, SubscriptionGroupConfig("mine_mine"))
        site.make_topic("%RETRY%mine_mine", queues=1)
        attacker = User(site, "attacker")
        attacker.allow(OWN)
        attacker.ask(about(Code.UPDATE_CONSUMER_OFFSET, "mine", "mine"))
        attacker.ask(about(Code.DELETE_TOPIC_IN_BROKER, "mine", "mine"))
        assert site.broker.topics.get("mine") is None
        assert site.broker.topics.get("%RETRY%mine_mine") is not None


def test_a_sender_does_not_choose_the_topic_that_a_retry_is_taken_for(site, victim, attacker):
    """Consumers take what comes from a retry topic for a message of the topic that RETRY_TOPIC names."""
    answer = attacker.ask(send_request("mine", b"x", {"UNIQ_KEY": "U", "RETRY_TOPIC": "theirs"}))
    offset = int(answer.ext_fields["msgId"][16:], 16)
    back = {"offset": str(offset), "group": "mine", "delayLevel": "-1"}
    attacker.ask(RemotingCommand(Code.CONSUMER_SEND_MSG_BACK, back))
    (dead,) = site.stored("%DLQ%mine")
    assert dead.properties["RETRY_TOPIC"] == "mine"


def test_a_message_that_is_refused_to_be_sent_back_makes_no_topic(site, victim, attacker):
    answer = victim.ask(send_request("theirs", b"x"))
    offset = int(answer.ext_fields["msgId"][16:], 16)
    back = RemotingCommand(
        Code.CONSUMER_SEND_MSG_BACK, {"offset": str(offset), "group": "mine", "delayLevel": "0"}
    )
    assert attacker.call(back).code == NO_PERMISSION
    assert site.broker.topics.get("%RETRY%mine") is None


# Where a message goes


def sends(properties: dict[str, str]) -> Iterator[RemotingCommand]:
    """The ways to send a message to the topic `mine`."""
    given = {"UNIQ_KEY": "U", **properties}
    yield send_request("mine", b"x", given)
    yield long_form(send_request("mine", b"x", given))
    yield send_request("mine", b"x", {**given, "DELAY": "1"})
    yield send_request("mine", b"x", {**given, "TIMER_DELAY_SEC": "3600"})
    yield send_request("mine", b"x", {**given, "TRAN_MSG": "true", "PGROUP": "p"}, f="4")
    yield long_form(send_request("mine", b"x", given), Code.SEND_REPLY_MESSAGE)
    yield send_request("mine", b"x", given, code=Code.SEND_REPLY_MESSAGE_V2)


@pytest.mark.parametrize(
    "properties",
    [
        {"INNER_MULTI_DISPATCH": "%LMQ%theirs"},
        {"INNER_MULTI_DISPATCH": "%LMQ%mine,%LMQ%theirs"},
        {"INNER_MULTI_DISPATCH": "%LMQ%$theirs$lite"},
        {"INNER_MULTI_DISPATCH": "theirs", "INNER_MULTI_QUEUE_OFFSET": "0"},
        {"__LITE_TOPIC": "x,%LMQ%theirs"},
    ],
)
def test_a_message_is_in_no_light_queue_that_its_sender_may_not_send_to(site, attacker, properties):
    attacker.allow({**OWN, "Topic:%LMQ%mine": ["Pub"]})
    before = site.log_end()
    for request in sends(properties):
        if "__LITE_TOPIC" in properties and request.code in (
            Code.SEND_REPLY_MESSAGE,
            Code.SEND_REPLY_MESSAGE_V2,
        ):
            continue  # a reply has no lite topic
        assert attacker.call(request).code == NO_PERMISSION, request
    assert site.log_end() == before


def test_a_message_is_in_the_light_queues_that_its_sender_may_send_to(site, attacker):
    attacker.allow({**OWN, "Topic:%LMQ%mine": ["Pub", "Sub"]})
    attacker.ask(send_request("mine", b"1", {"UNIQ_KEY": "U", "INNER_MULTI_DISPATCH": "%LMQ%mine"}))
    attacker.ask(send_request("mine", b"2", {"UNIQ_KEY": "V", "__LITE_TOPIC": "lite"}))
    for queue, body in (("%LMQ%mine", b"1"), ("%LMQ%$mine$lite", b"2")):
        assert [bytes(message.body) for message in site.stored(queue)] == [body]


def batch_of(properties: dict[str, str]) -> bytes:
    raw = encode_properties(properties).encode()
    size = 4 + 4 + 4 + 4 + 4 + 1 + 2 + len(raw)
    return struct.pack(f">iiiii1sh{len(raw)}s", size, 0, 0, 0, 1, b"x", len(raw), raw)


@pytest.mark.parametrize("light", [True, False])
@pytest.mark.parametrize("queue", ["%LMQ%theirs", "theirs"])
def test_a_message_gives_itself_no_offset_in_another_queue(tmp_path, light, queue):
    """Where a message lies is the store's to say, whether light queues are on or not."""
    on = {"enableLmq": str(light).lower(), "enableMultiDispatch": "true"}
    with guarded_site(tmp_path, **on) as site:
        attacker = User(site, "attacker")
        attacker.allow({**OWN, f"Topic:{queue}": ["Pub"]})  # even who may send there does not write its queue
        forged = {"UNIQ_KEY": "U", "INNER_MULTI_DISPATCH": queue, "INNER_MULTI_QUEUE_OFFSET": "5"}
        attacker.call(send_request("mine", batch_of(forged), code=Code.SEND_BATCH_MESSAGE, m="true"))
        if not (light and queue.startswith("%LMQ%")):
            attacker.call(send_request("mine", b"x", forged))
        assert site.max_offset(queue) == 0


def test_nobody_sends_where_timers_wait(site):
    """What lies there goes on to the topic that it names. Even who may send anywhere but to `theirs`."""
    user = User(site, "broad")
    user.allow({"Topic:*": ["Pub"]})
    properties = {"UNIQ_KEY": "U", "REAL_TOPIC": "theirs", "REAL_QID": "0", "TIMER_OUT_MS": "1"}
    before = site.log_end()
    assert user.call(send_request(TIMER_TOPIC, b"x", properties)).code == NO_PERMISSION
    assert site.log_end() == before


@pytest.mark.parametrize(
    "properties",
    [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1"}, {"TRAN_MSG": "true", "PGROUP": "p"}, {}],
    ids=["delayed", "timer", "transaction", "plain"],
)
def test_a_message_comes_out_where_it_was_allowed_to_go(tmp_path, properties):
    with guarded_site(tmp_path, messageDelayLevel="1s") as site:
        attacker = User(site, "attacker")
        attacker.allow(OWN)
        forged = {
            "UNIQ_KEY": "U", "REAL_TOPIC": "theirs", "REAL_QID": "3", "RETRY_TOPIC": "theirs",
            "ORIGIN_GROUP": "theirs", **properties,
        }  # fmt: skip
        if "TRAN_MSG" in properties:
            end = half_of(attacker, "mine", **{k: v for k, v in forged.items() if k != "UNIQ_KEY"})
            attacker.ask(RemotingCommand(Code.END_TRANSACTION, end))
        else:
            attacker.ask(send_request("mine", b"x", forged))
        until(lambda: site.max_offset("mine") == 1, "the message")
        assert [site.max_offset("theirs", queue_id) for queue_id in range(4)] == [0] * 4


def test_a_recall_takes_back_messages_of_its_own_topic_alone(tmp_path):
    clock = ManualClock(1_700_000_000_000)
    config = {
        **GUARDED,
        "timerPrecisionMs": "1000",
        "appendTopicForTimerDeleteKey": "false",
        "recallMessageEnable": "true",
    }
    with running(tmp_path, config, clock=clock) as site:
        for name in ("mine", "theirs"):
            site.make_topic(name)
        victim, attacker = User(site, "victim"), User(site, "attacker")
        victim.allow({"Topic:theirs": ["All"]})
        attacker.allow(OWN)
        due = clock.now_ms() + 10_000
        for name in ("SAME", "OTHER"):
            victim.ask(
                send_request("theirs", name.encode(), {"UNIQ_KEY": name, "TIMER_DELIVER_MS": str(due)})
            )
        handle = RecallHandle("mine", "broker-a", str(due), "SAME").encode()
        attacker.ask(RemotingCommand(Code.RECALL_MESSAGE, {"topic": "mine", "recallHandle": handle}))
        forged = {"UNIQ_KEY": "X", "TIMER_DEL_UNIQKEY": "SAME", "TIMER_DELIVER_MS": str(due)}
        attacker.ask(send_request("mine", b"x", forged))
        theirs = RecallHandle("theirs", "broker-a", str(due), "OTHER").encode()
        victim.ask(RemotingCommand(Code.RECALL_MESSAGE, {"topic": "theirs", "recallHandle": theirs}))
        until(lambda: site.broker.timers.queue_behind == 0, "the timers to be entered")
        clock.time_ms += 20_000

        def is_delivered() -> bool:
            site.do(site.broker.timers.deliver_due)
            return site.do(lambda: site.broker.timers.pending) == 0

        until(is_delivered, "the slot to be over")
        assert [bytes(message.body) for message in site.stored("theirs")] == [b"SAME"]


# Transactions


@pytest.mark.parametrize("outcome", ["8", "12"], ids=["commit", "rollback"])
@pytest.mark.parametrize("named", [{"topic": "mine"}, {}, {"topic": ""}], ids=["mine", "no topic", "empty"])
def test_a_half_is_ended_by_who_may_send_to_its_topic(site, victim, attacker, outcome, named):
    end = {**half_of(victim, "theirs"), "commitOrRollback": outcome}
    before = site.log_end()
    refused = attacker.call(RemotingCommand(Code.END_TRANSACTION, {**end, **named}))
    assert refused.code == NO_PERMISSION
    site.do(site.broker.transactions.write_ops)
    assert site.log_end() == before

    victim.ask(RemotingCommand(Code.END_TRANSACTION, {**end, "commitOrRollback": "8"}))
    assert [bytes(message.body) for message in site.stored("theirs")] == [b"secret half"]


def test_no_answer_tells_what_is_at_a_place_of_the_log(site, victim, attacker):
    """A half, a plain message, the middle of one, and nothing at all: one answer."""
    half = int(half_of(victim, "theirs")["commitLogOffset"])
    plain = int(victim.ask(send_request("theirs", b"x")).ext_fields["msgId"][16:], 16)
    places = (half, plain, plain + 1, 1 << 40)
    for code in (
        Code.END_TRANSACTION,
        Code.VIEW_MESSAGE_BY_ID,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.RESUME_CHECK_HALF_MESSAGE,
    ):
        answers = set()
        for place in places:
            fields = {
                "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": str(place),
                "commitOrRollback": "12", "offset": str(place), "group": "mine", "delayLevel": "0",
                "msgId": f"{pack_host(HOST, site.port).hex()}{place:016x}".upper(), "consumerGroup": "mine",
                "clientId": "c", "topic": "mine",
            }  # fmt: skip
            answer = attacker.call(RemotingCommand(code, fields))
            answers.add((answer.code, (answer.remark or "").replace(str(place), "")))
        assert len(answers) == 1, answers
        assert answers.pop()[0] == NO_PERMISSION


def test_an_id_that_another_one_chose_too_does_not_end_its_half(site, victim, attacker):
    """A unique id is its sender's choice: a half that was put again is known by its topic as well."""
    theirs = half_of(victim, "theirs", "SAME")
    site.run(site.broker.transactions.check())  # nobody can be asked: it is put again
    mine = half_of(attacker, "mine", "SAME")
    attacker.ask(RemotingCommand(Code.END_TRANSACTION, {**mine, "commitOrRollback": "12"}))
    (left,) = site.do(lambda: list(site.broker.transactions.unresolved()))[-1:]
    assert left.properties["REAL_TOPIC"] == "theirs"
    victim.ask(RemotingCommand(Code.END_TRANSACTION, theirs))
    assert [bytes(message.body) for message in site.stored("theirs")] == [b"secret half"]


def test_what_a_sender_says_of_checks_is_not_believed(site, attacker):
    half_of(attacker, "mine", TRAN_PREPARED_QUEUE_OFFSET="99", TRANSACTION_CHECK_TIMES="99")
    (half,) = site.stored(TRANS_HALF_TOPIC)
    assert {"TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES"}.isdisjoint(half.properties)


def test_a_half_is_shown_to_a_producer_who_may_send_to_its_topic(site, victim, attacker):
    """Anybody may say to be of a producer group: that alone brings nobody the messages of others."""
    attacker.ask(heartbeat("a", "", producers=("p",)))
    half_of(victim, "theirs")
    site.run(site.broker.transactions.check())
    attacker.ask(heartbeat("a", "", producers=("p",)))
    assert attacker.peer.asked == []

    victim.ask(heartbeat("v", "", producers=("p",)))
    for _ in range(3):
        site.run(site.broker.transactions.check())
    victim.ask(heartbeat("v", "", producers=("p",)))
    attacker.ask(heartbeat("a", "", producers=("p",)))
    assert [asked.code for asked in victim.peer.asked] == [Code.CHECK_TRANSACTION_STATE] * 3
    assert attacker.peer.asked == []


def test_no_message_becomes_a_half_by_being_taken_up_again(site, victim, attacker):
    places = [
        victim.ask(send_request("theirs", b"x")).ext_fields["msgId"],
        attacker.ask(send_request("mine", b"x", {"UNIQ_KEY": "U", "REAL_TOPIC": "theirs"})).ext_fields[
            "msgId"
        ],
    ]
    for user, place in ((attacker, places[0]), (attacker, places[1]), (victim, places[1])):
        request = RemotingCommand(Code.RESUME_CHECK_HALF_MESSAGE, {"topic": "mine", "msgId": place})
        assert user.call(request).code == NO_PERMISSION
    assert site.stored(TRANS_HALF_TOPIC) == []


# Clients


def test_a_client_id_is_its_users_while_a_connection_of_it_stands(site, victim, attacker):
    victim.ask(heartbeat("asker", "theirs", producers=("p",)))
    for taken in (
        heartbeat("asker", "", producers=("q",)),
        heartbeat("asker", "mine"),
        heartbeat("asker", ""),
    ):
        assert attacker.call(taken).code == NO_PERMISSION
    assert "q" not in site.broker.producers.groups
    assert site.broker.consumers.get("mine") is None
    second = User(site, "victim")
    second.ask(heartbeat("asker", "theirs", producers=("p",)))  # as often as its user likes

    for user in (victim, second):
        user.peer.close()
    until(lambda: site.broker.consumers.get("theirs") is None, "the connections to be gone")
    attacker.ask(heartbeat("asker", "mine"))


def test_who_takes_another_id_keeps_nothing_under_the_first_one(site, victim, attacker):
    """Else replies to the next who has that id would go to who had it before."""
    attacker.allow({**OWN, "Group:theirs": ["Sub"], "Topic:theirs": ["Sub"]})
    attacker.ask(heartbeat("asker", "theirs", producers=("p",)))
    attacker.ask(heartbeat("other", "mine", producers=("q",)))
    assert site.do(site.broker.producers.find, "asker") is None
    assert site.do(site.broker.consumers.find_client, "theirs", "asker") is None
    victim.ask(heartbeat("asker", "theirs"))
    attacker.ask(heartbeat("other", "mine", producers=("p", "q")))
    assert site.do(site.broker.producers.find, "asker") is None
    assert site.do(site.broker.producers.find, "other") is not None


def test_a_reply_goes_to_the_user_who_asked(site, victim, attacker):
    victim.ask(heartbeat("asker", "", producers=("p",)))
    attacker.call(heartbeat("asker", "", producers=("p", "q")))
    replier = User(site, "replier")
    replier.allow({"Topic:DefaultCluster_REPLY_TOPIC": ["Pub"]})
    properties = {"UNIQ_KEY": "U", "REPLY_TO_CLIENT": "asker", "CORRELATION_ID": "7"}
    request = replier.sign(
        send_request("DefaultCluster_REPLY_TOPIC", b"secret", properties, code=Code.SEND_REPLY_MESSAGE_V2)
    )
    replier.peer.send(request)
    pushed = victim.peer.receive()
    assert pushed.code == Code.PUSH_REPLY_MESSAGE_TO_CLIENT
    assert bytes(pushed.body or b"") == b"secret"
    victim.peer.send(pushed.response())
    assert replier.peer.answer_to(request).code == ResponseCode.SUCCESS


def test_locks_of_a_client_are_taken_and_given_back_by_its_user_alone(site, victim):
    """Two users who may both consume with a group."""
    other = User(site, "other")
    other.allow({"Topic:theirs": ["Sub"], "Group:theirs": ["Sub"]})
    victim.ask(heartbeat("v", "theirs"))
    queue = {"topic": "theirs", "brokerName": "broker-a", "queueId": 0}
    body = lenient_json.dumps({"consumerGroup": "theirs", "clientId": "v", "mqSet": [queue]})
    victim.ask(RemotingCommand(Code.LOCK_BATCH_MQ, {}, body))
    for code in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
        assert other.call(RemotingCommand(code, {}, body)).code == NO_PERMISSION
    assert site.do(site.broker.locks.has_locks, "theirs")
    victim.ask(RemotingCommand(Code.UNLOCK_BATCH_MQ, {}, body))
    assert not site.do(site.broker.locks.has_locks, "theirs")


def test_who_unregisters_leaves_by_its_own_connection(site, victim, attacker):
    victim.ask(heartbeat("v", "theirs", producers=("p",)))
    attacker.allow({**OWN, "Group:theirs": ["Sub"]})
    leaving = {"clientID": "v", "producerGroup": "p", "consumerGroup": "theirs"}
    attacker.ask(RemotingCommand(Code.UNREGISTER_CLIENT, leaving))
    assert site.broker.consumers.get("theirs").client_ids() == ["v"]
    assert "p" in site.broker.producers.groups


@pytest.mark.parametrize("code", [Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY])
def test_a_signature_is_not_handed_on(site, attacker, code):
    """A consumer that is asked something for an operator could sign anything with it: a signature covers
    neither the code of a request nor where its values end."""
    attacker.ask(heartbeat("a", "mine"))
    admin = User(site, "admin")
    place = admin.ask(send_request("mine", b"x")).ext_fields["msgId"]
    fields = {"consumerGroup": "mine", "clientId": "a", "msgId": place, "topic": "mine"}
    request = admin.sign(RemotingCommand(code, fields))
    admin.peer.send(request)
    asked = attacker.peer.receive()
    assert asked.code == code
    assert asked.ext_fields["consumerGroup"] == "mine"
    assert {"AccessKey", "Signature", "SecurityToken"}.isdisjoint(asked.ext_fields)
    attacker.peer.send(asked.response())
    assert admin.peer.answer_to(request).code == ResponseCode.SUCCESS


# Many at once, and later


def test_progress_in_all_topics_needs_each_of_them(site, victim, attacker):
    """Who may look at a group does not see by it how much there is in topics of others."""
    site.do(site.broker.offsets.commit, "x", "mine", "theirs", 0, 3)
    request = RemotingCommand(Code.GET_CONSUME_STATS, {"consumerGroup": "mine"})
    assert attacker.call(request).code == NO_PERMISSION
    attacker.allow({**OWN, "Topic:theirs": ["Get"]})
    attacker.ask(request)


def test_offsets_are_cloned_from_a_group_and_for_topics_that_are_allowed(site, attacker):
    site.do(site.broker.offsets.commit, "x", "theirs", "mine", 0, 3)
    site.do(site.broker.offsets.commit, "x", "mine", "theirs", 0, 3)
    before = site.broker.offsets.encode()
    for fields in (
        {"srcGroup": "theirs", "destGroup": "mine", "topic": "mine", "offline": "true"},
        {"srcGroup": "mine", "destGroup": "mine", "offline": "true"},
    ):
        assert attacker.call(RemotingCommand(Code.CLONE_GROUP_OFFSET, fields)).code == NO_PERMISSION
    assert site.broker.offsets.encode() == before


def test_the_least_offset_of_all_groups_needs_each_that_counts(site, attacker):
    site.do(site.broker.offsets.commit, "x", "theirs", "mine", 0, 3)
    request = RemotingCommand(Code.QUERY_CORRECTION_OFFSET, {"topic": "mine", "compareGroup": "mine"})
    assert attacker.call(request).code == NO_PERMISSION
    attacker.allow({**OWN, "Group:theirs": ["Get"]})
    attacker.ask(request)


@pytest.mark.parametrize("change", ["rights", "disabled", "deleted"])
def test_a_pull_that_waits_brings_nothing_once_it_is_not_allowed_any_more(site, attacker, change):
    held = attacker.sign(pull_request("mine", group="mine", flag=SUBSCRIBES | SUSPEND, suspend_ms=600_000))
    attacker.peer.send(held)
    until(lambda: site.broker.puller.held == 1, "a pull that waits")
    if change == "rights":
        attacker.allow({"Group:mine": ["All"]})
    elif change == "disabled":
        site.do(site.broker.access.update_user, {"username": "attacker", "userStatus": "disable"})
    else:
        site.do(site.broker.access.delete_user, "attacker")
    User(site, "admin").ask(send_request("mine", b"secret"))
    answer = attacker.peer.answer_to(held)
    assert (answer.code, answer.body) == (NO_PERMISSION, None)


def test_who_may_only_look_at_a_cluster_keeps_no_broker_of_it_alive(tmp_path):
    """A broker that is dead would stay in the routes."""
    who = {"clusterName": "two", "brokerName": "b", "brokerAddr": f"{HOST}:9", "brokerId": "0"}
    with guarded_name_server(tmp_path) as site:
        admin, looking = User(site, "admin"), User(site, "looking")
        looking.allow({"Cluster:two": ["Get"]})
        admin.ask(RemotingCommand(Code.REGISTER_BROKER, {**who, "haServerAddr": ""}, NO_TOPICS))
        ((_, live),) = site.server.routes._live.items()
        live.last_seen_ms = 0
        looking.ask(RemotingCommand(Code.QUERY_DATA_VERSION, who, b'{"counter":1}'))
        assert live.last_seen_ms == 0
        admin.ask(RemotingCommand(Code.QUERY_DATA_VERSION, who, b'{"counter":1}'))
        assert live.last_seen_ms > 0
