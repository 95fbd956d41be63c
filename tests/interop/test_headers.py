"""Headers as Java's own RemotingCommand reads them: every field of every request, with odd values.

Java's handlers go on with null where a required field is missing or of no use, and end in an exception when
they use it; here such a request is refused before anything is done. `Case.stricter` says where else we read
less.
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from typing import Any, NamedTuple

import pytest

from kourou.broker.handlers import SERVED
from kourou.namesrv import handlers as name_server
from kourou.remoting.protocol import headers
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import JSON, ROCKETMQ, BadFrameError, decode, frame_head
from kourou.remoting.protocol.header import BadRequestError, Header, plan_of
from support.java import RUN, RUN_TIMEOUT_S

# Java's class for each request whose header has fields, without "RequestHeader"
BROKER = {
    RequestCode.SEND_MESSAGE: (headers.SendMessage, "SendMessage"),
    RequestCode.SEND_MESSAGE_V2: (headers.SendMessageV2, "SendMessageRequestHeaderV2"),
    RequestCode.SEND_BATCH_MESSAGE: (headers.SendMessageV2, "SendMessageRequestHeaderV2"),
    RequestCode.SEND_REPLY_MESSAGE: (headers.SendMessage, "SendMessage"),
    RequestCode.SEND_REPLY_MESSAGE_V2: (headers.SendMessageV2, "SendMessageRequestHeaderV2"),
    RequestCode.PULL_MESSAGE: (headers.PullMessage, "PullMessage"),
    RequestCode.LITE_PULL_MESSAGE: (headers.PullMessage, "PullMessage"),
    RequestCode.CONSUMER_SEND_MSG_BACK: (headers.ConsumerSendMsgBack, "ConsumerSendMsgBack"),
    RequestCode.RECALL_MESSAGE: (headers.RecallMessage, "RecallMessage"),
    RequestCode.QUERY_MESSAGE: (headers.QueryMessage, "QueryMessage"),
    RequestCode.VIEW_MESSAGE_BY_ID: (headers.ViewMessage, "ViewMessage"),
    RequestCode.QUERY_CONSUME_QUEUE: (headers.QueryConsumeQueue, "QueryConsumeQueue"),
    RequestCode.END_TRANSACTION: (headers.EndTransaction, "EndTransaction"),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: (headers.ResumeCheckHalfMessage, "ResumeCheckHalfMessage"),
    RequestCode.POP_MESSAGE: (headers.PopMessage, "PopMessage"),
    RequestCode.ACK_MESSAGE: (headers.AckMessage, "AckMessage"),
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: (headers.ChangeInvisibleTime, "ChangeInvisibleTime"),
    RequestCode.PEEK_MESSAGE: (headers.PeekMessage, "PeekMessage"),
    RequestCode.NOTIFICATION: (headers.Notification, "Notification"),
    RequestCode.POLLING_INFO: (headers.PollingInfo, "PollingInfo"),
    RequestCode.GET_MIN_OFFSET: (headers.QueueOfTopic, "GetMinOffset"),
    RequestCode.GET_EARLIEST_MSG_STORETIME: (headers.QueueOfTopic, "GetEarliestMsgStoretime"),
    RequestCode.GET_MAX_OFFSET: (headers.GetMaxOffset, "GetMaxOffset"),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (headers.SearchOffset, "SearchOffset"),
    RequestCode.QUERY_CONSUMER_OFFSET: (headers.QueryConsumerOffset, "QueryConsumerOffset"),
    RequestCode.UPDATE_CONSUMER_OFFSET: (headers.UpdateConsumerOffset, "UpdateConsumerOffset"),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (headers.ResetOffset, "ResetOffset"),
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (headers.GetConsumerStatus, "GetConsumerStatus"),
    RequestCode.CLONE_GROUP_OFFSET: (headers.CloneGroupOffset, "CloneGroupOffset"),
    RequestCode.QUERY_CORRECTION_OFFSET: (headers.QueryCorrectionOffset, "QueryCorrectionOffsetHeader"),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (headers.CreateTopic, "CreateTopic"),
    RequestCode.DELETE_TOPIC_IN_BROKER: (headers.TopicName, "DeleteTopic"),
    RequestCode.GET_TOPIC_CONFIG: (headers.TopicName, "GetTopicConfig"),
    RequestCode.GET_TOPIC_STATS_INFO: (headers.TopicName, "GetTopicStatsInfo"),
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: (headers.TopicName, "QueryTopicConsumeByWho"),
    RequestCode.GET_ALL_TOPIC_CONFIG: (headers.GetAllTopicConfig, "GetAllTopicConfig"),
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: (headers.GroupName, "GetSubscriptionGroupConfig"),
    RequestCode.QUERY_TOPICS_BY_CONSUMER: (headers.GroupName, "QueryTopicsByConsumer"),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: (headers.ConsumerGroupName, "GetConsumerListByGroup"),
    RequestCode.GET_CONSUMER_CONNECTION_LIST: (headers.ConsumerGroupName, "GetConsumerConnectionList"),
    RequestCode.GET_PRODUCER_CONNECTION_LIST: (headers.ProducerGroupName, "GetProducerConnectionList"),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: (headers.DeleteSubscriptionGroup, "DeleteSubscriptionGroup"),
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: (
        headers.GetAllSubscriptionGroup, "GetAllSubscriptionGroup"
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: (headers.UpdateGroupForbidden, "UpdateGroupForbidden"),
    RequestCode.UNREGISTER_CLIENT: (headers.UnregisterClient, "UnregisterClient"),
    RequestCode.GET_CONSUMER_RUNNING_INFO: (headers.GetConsumerRunningInfo, "GetConsumerRunningInfo"),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: (headers.ConsumeMessageDirectly, "ConsumeMessageDirectlyResult"),
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: (
        headers.QuerySubscriptionByConsumer, "QuerySubscriptionByConsumer"
    ),
    RequestCode.GET_CONSUME_STATS: (headers.GetConsumeStats, "GetConsumeStats"),
    RequestCode.GET_BROKER_CONSUME_STATS: (headers.GetConsumeStatsInBroker, "GetConsumeStatsInBrokerHeader"),
    RequestCode.QUERY_CONSUME_TIME_SPAN: (headers.QueryConsumeTimeSpan, "QueryConsumeTimeSpan"),
    RequestCode.VIEW_BROKER_STATS_DATA: (headers.ViewBrokerStatsData, "ViewBrokerStatsData"),
    RequestCode.EXCHANGE_BROKER_HA_INFO: (headers.ExchangeHAInfo, "ExchangeHAInfo"),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (headers.ResetMasterFlushOffset, "ResetMasterFlushOffsetHeader"),
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: (headers.NotifyMinBrokerIdChange, "NotifyMinBrokerIdChange"),
}  # fmt: skip
NAME_SERVER = {
    RequestCode.REGISTER_BROKER: (headers.RegisterBroker, "RegisterBroker"),
    RequestCode.UNREGISTER_BROKER: (headers.UnregisterBroker, "UnRegisterBroker"),
}
# Requests of a broker without fields, or with texts alone that are read by name
NO_HEADER = {
    RequestCode.HEART_BEAT, RequestCode.CHECK_CLIENT_CONFIG, RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ, RequestCode.GET_ALL_PRODUCER_INFO, RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.SET_MESSAGE_REQUEST_MODE, RequestCode.QUERY_ASSIGNMENT, RequestCode.SWITCH_TIMER_ENGINE,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC, RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER,
    RequestCode.AUTH_DELETE_USER, RequestCode.AUTH_GET_USER, RequestCode.AUTH_LIST_USER,
    RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL, RequestCode.AUTH_DELETE_ACL,
    RequestCode.AUTH_GET_ACL, RequestCode.AUTH_LIST_ACL, RequestCode.BATCH_ACK_MESSAGE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
}  # fmt: skip

TEXTS = [
    "", " ", "5", "-5", "+5", "0", "-0", "007", " 5", "5 ", "\t5\n", "5.0", "5.", "1e3", "0x10", "0b1", "5L",
    "1_000", "--5", "+-5", "+", "-", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "9" * 40,
    "9" * 5000, "0" * 30 + "5", "١٢", "５", "𝟓", "²", "Ⅷ", "true", "TRUE", "tRuE", " true", "true ", "ｔrue",
    "yes", "1", "false", "FALSE", "null", "None", "maybe", "abc", "é中𝟓", "\x00", "a\x01b\x02", "upper",
    "UPPER", "8", "012", "SINGLE_TAG", "single_tag",
]  # fmt: skip
# Values of JSON that are no texts
VALUES: list[Any] = [5, -5, 0, 2**31, 2**63, True, False, None, 1.5, {"a": 1, "b": None}, [1, "x", None], {}]
ALL_FORMS = [*((text, form) for text in TEXTS for form in (JSON, ROCKETMQ)), *((v, JSON) for v in VALUES)]
VALID = {"str": "text", "Int": "7", "Long": "8", "bool": "true"}
ONE_OF = {"commitOrRollback": "12", "topicFilterType": "MULTI_TAG"}

REFUSED = "refused"

# Where we read less than Java, and why
EMPTY = (
    "an optional field with an empty text is as one that is missing: a signature is over the values alone, so"
    " that anyone on the way could add such a field to a signed request"
)
TIME_OF_RESET = (
    "a reset needs a time: Java takes 0 for one that is missing, and goes back to the oldest message"
)


class Case(NamedTuple):
    code: int
    ours: type[Header]
    java: str
    field: str  # the odd one
    serialize_type: int
    fields: dict[str, Any]

    def stricter(self) -> str | None:
        """Why our reading is not Java's, if it is not."""
        given = self.fields.get(self.field)
        optional = [wire_name for _, wire_name, _, required, _ in plan_of(self.ours) if not required]
        if given == "" and self.field in optional:
            return EMPTY
        is_time = (self.ours, self.field) == (headers.ResetOffset, "timestamp")
        return TIME_OF_RESET if is_time and str(given) not in ("0", "-0") else None


def cases(table: dict[RequestCode, tuple[type[Header], str]]) -> list[Case]:
    """Each field of each header with each odd value, the others valid; then without it, or misspelt."""
    found: list[Case] = []
    for code, (ours, short) in {pair: (code, pair) for code, pair in table.items()}.values():
        java = short if "Header" in short else short + "RequestHeader"
        valid: dict[str, Any] = {wire: ONE_OF.get(wire, VALID[kind]) for _, wire, kind, *_ in plan_of(ours)}
        for name in valid:
            without = {other: value for other, value in valid.items() if other != name}
            found += (Case(code, ours, java, name, form, {**valid, name: odd}) for odd, form in ALL_FORMS)
            for form in (JSON, ROCKETMQ):
                found.append(Case(code, ours, java, name, form, without))
                found.append(Case(code, ours, java, name, form, {**without, name.swapcase(): "7"}))
        for form in (JSON, ROCKETMQ):
            found.append(Case(code, ours, java, "", form, {}))
            found.append(Case(code, ours, java, "", form, {**valid, "": "x", "more": "x", "Topic": "x"}))
    return found


def frame(case: Case, fields: dict[str, Any]) -> bytes:
    """A frame without its length, written by hand: no writer of ours is between the values and the wire."""
    if case.serialize_type == JSON:
        head = {"code": int(case.code), "flag": 0, "language": "CPP", "opaque": 1, "version": 513}
        text = json.dumps({**head, "extFields": fields}).encode()
    else:
        packed = b""
        for name, value in ((name.encode(), value.encode()) for name, value in fields.items()):
            packed += struct.pack(">h", len(name)) + name + struct.pack(">i", len(value)) + value
        code = case.code & 0x7FFF  # those of POP do not fit: only their headers are looked at
        text = struct.pack(">hBhiiii", code, 1, 513, 1, 0, 0, len(packed)) + packed
    return frame_head(case.serialize_type, text)[4:]


def ask_java(class_name: str, data: bytes) -> dict[str, str]:
    return {"class": class_name, "frame": base64.b64encode(data).decode()}


def answers_of_java(requests: list[dict[str, str]]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [RUN, "Headers"],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    lines = done.stdout.decode().split("\n")  # not splitlines: values have other ends of lines in them
    found = [json.loads(line[2:]) for line in lines if line.startswith("> ")]
    assert len(found) == len(requests)
    return found


def java_request(case: Case) -> dict[str, str]:
    fields = case.fields
    if case.stricter() is EMPTY:
        fields = {name: value for name, value in fields.items() if name != case.field}
    return ask_java(case.java, frame(case, fields))


def read(case: Case) -> dict[str, Any] | str:
    """What the handler of a request reads, by the names on the wire."""
    command = decode(frame(case, case.fields))
    try:
        found = case.ours.read(command)
    except BadRequestError:
        return REFUSED
    return {wire: of_boundary(wire, getattr(found, name)) for name, wire, *_ in plan_of(type(found))}


def expected(case: Case, java: dict[str, Any]) -> dict[str, Any] | str:
    """What Java's reading comes to: refused, also where a handler needs what is null, or the values."""
    found = {}
    for _, wire, _, required, default in plan_of(case.ours):
        value = java.get(wire)
        if REFUSED in java or (required and value is None):
            return REFUSED
        found[wire] = of_boundary(wire, default if value is None else value)
    return REFUSED if case.stricter() is TIME_OF_RESET and java["timestamp"] == 0 else found


def of_boundary(wire: str, value: Any) -> Any:
    """Java reads this one into an enum; our handler asks for one of its names, in any case."""
    if wire != "boundaryType":
        return value
    return "UPPER" if (value or "").lower() == "upper" else "LOWER"


def test_every_request_that_is_served_is_in_the_table():
    assert BROKER.keys() | NO_HEADER == SERVED
    assert name_server.HANDLERS.keys() >= NAME_SERVER.keys()


@pytest.mark.parametrize("table", [BROKER, NAME_SERVER], ids=["broker", "name server"])
def test_every_field_is_read_as_java_reads_it(java, table):
    asked = cases(table)

    answers = answers_of_java([java_request(case) for case in asked])

    readings = [
        (case, expected(case, answer), read(case)) for case, answer in zip(asked, answers, strict=True)
    ]
    different = [
        (case.java, case.field, case.serialize_type, str(case.fields.get(case.field))[:50], java_s, ours)
        for case, java_s, ours in readings
        if java_s != ours
    ]
    assert not different, (len(different), different[:10])
    refused = sum(ours == REFUSED for *_, ours in readings)
    assert len(readings) / 20 < refused < len(readings) / 2  # the table says something of both


# Headers as a whole: {"topic":"t"} read from it, refused, or a reason why we refuse what Java reads
NO_JSON = "JSON that is none is refused"
NO_ANSWER = "a request without code or opaque is refused: nobody could tell what the answer belongs to"
WHOLE: dict[str, dict[str, str] | str] = {
    '{"code":14,"opaque":1,"extFields":{"topic":"t"}}': {"topic": "t"},
    ' {"opaque":1,"extFields":{"topic":"t"},"code":14} ': {"topic": "t"},
    '{"code":"14","opaque":"1","flag":"0","version":"513","extFields":{"topic":"t"}}': {"topic": "t"},
    '{"code":14,"opaque":1,"flag":null,"version":null,"remark":null,"extFields":{"topic":"t"}}': {
        "topic": "t"
    },
    '{"code":14,"opaque":1,"extFields":{"topic":"u","topic":"t"}}': {"topic": "t"},
    '{"code":14,"opaque":1,"extFields":{"topic":"t"},"language":"MARS"}': {"topic": "t"},
    '{"code":14,"opaque":1,"extFields":{"topic":"t"},"language":7}': {"topic": "t"},
    '{"code":14,"opaque":1,"extFields":{"topic":"t"},"more":{"x":[1]}}': {"topic": "t"},
    '{"code":14,"opaque":1,"extFields":{"topic":"t"},"serializeTypeCurrentRPC":"X"}': {"topic": "t"},
    '{"code":14,"opaque":1,"extFields":null}': {},
    '{"code":14,"opaque":1,"extFields":{}}': {},
    '{"code":14,"opaque":1}': {},
    '{"code":14,"opaque":1,"ext_fields":{"topic":"t"}}': {},
    '{"code":14,"opaque":1,"extFields":[]}': REFUSED,
    '{"code":14,"opaque":1,"extFields":"x"}': REFUSED,
    '{"code":14,"opaque":1,"extFields":{1:"t"}}': REFUSED,
    '{"code":14,"opaque":1,"extFields":{"topic":NaN}}': REFUSED,
    '{"code":14,"opaque":1,"extFields":{"topic":True}}': REFUSED,
    '{"code":14,"opaque":1,"extFields":{"topic":"t"}} x': REFUSED,
    '{"code":"x","opaque":1,"extFields":{"topic":"t"}}': REFUSED,
    "{code:14,opaque:1}": REFUSED,
    "\ufeff{}": REFUSED,
    "": REFUSED,
    "null": REFUSED,
    "[]": REFUSED,
    '{"opaque":1,"extFields":{"topic":"t"}}': NO_ANSWER,
    '{"code":14,"extFields":{"topic":"t"}}': NO_ANSWER,
    "{'code':14,'opaque':1,'extFields':{'topic':'t'}}": NO_JSON,
    '/* */{"code":14,"opaque":1,"extFields":{"topic":"t"}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":"t",},}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":"a\nb"}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":"\\x41"}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":"\\ud800"}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":05}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":1L}}': NO_JSON,
    '{"code":14,"opaque":1,"extFields":{"topic":1e400}}': NO_JSON,
    '{"code":14.7,"opaque":1,"extFields":{"topic":"t"}}': "a code is a whole number",
}


def test_a_header_is_taken_or_refused_as_java_does(java):
    data = {text: frame_head(JSON, text.encode())[4:] for text in WHOLE}

    answers = answers_of_java([ask_java("GetTopicConfigRequestHeader", one) for one in data.values()])

    for (text, wanted), answer in zip(WHOLE.items(), answers, strict=True):
        if isinstance(wanted, dict):
            assert (answer["topic"], decode(data[text]).ext_fields) == (wanted.get("topic"), wanted), text
        else:
            assert (REFUSED in answer) == (wanted is REFUSED), text
            with pytest.raises(BadFrameError):
                decode(data[text])
