"""Recorded requests to Java's broker, sent over sockets: our answers have the form of Java's, field by field.

The recording keeps at most three frames of each form, so that much of what its broker knew is not in it. It
is made up for: the messages, offsets and clients that Java's answers show are brought in between. Then every
recorded request of a code that this broker serves is sent, on the connection it came on, and its answer is
compared with Java's: code, remark, extFields (with or without, names and values), and the body: JSON key by
key and value by value, messages by what is in them. So is what the broker asks its clients.

Left out are values of VOLATILE, which each run has its own of; keys of NAMED, which are names of a run; and
what KNOWN lists, each with its reason. An entry of KNOWN that is not needed any more fails as well.
"""

from __future__ import annotations

import base64
import gzip
import json
import queue
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.handlers import make_handlers
from kourou.message import java_hash
from kourou.message.codec import decode as decode_record
from kourou.message.model import MessageQueue
from kourou.properties_file import parse_properties
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import JSON, ROCKETMQ, RemotingCommand, decode
from kourou.remoting.protocol.headers import CreateTopic
from kourou.testing import Cluster
from support.recorded.golden import FIXTURES

Row = dict[str, Any]

FORMS = ("json", "rocketmq")
LINK = "to-master"
OUR_OWN = 1 << 20  # a connection that is not in the recording
FUTURE = "4000000000000"
SERIALIZE_TYPES = {"JSON": JSON, "ROCKETMQ": ROCKETMQ}
ASKED = (40, 221, 307, 309, 326)  # by the broker, of its clients
WAIT_S = 10
NUMBER, TEXT = "<number>", "<text>"
MAX_BINARY_CODE = 0x7FFF

# Fields whose values belong to a run: times, rates, addresses, places in the log, versions
VOLATILE = {
    "avgpt", "bornHost", "bornTimestamp", "brokerAddr", "clientAddr", "consumeTimeStamp",
    "consumeTimeStampStr", "consumeTps", "counter", "delayTime", "indexLastUpdatePhyoffset",
    "indexLastUpdateTimestamp", "lastTimestamp", "lastUpdateTimestamp", "maxTimeStamp", "maxTimeStampStr",
    "minTimeStamp", "minTimeStampStr", "msgId", "physicOffset", "physicSize", "properties", "queueOffset",
    "remoteIP", "storeHost", "storeTimestamp", "subVersion", "sum", "tagsCode", "timestamp", "topicPutTps",
    "popTime", "reviveQid", "totalGroupNum", "totalTopicNum", "tps", "transactionId", "version",
}  # fmt: skip

# Keys of the configuration that name addresses, files and disks of a machine
OF_THE_MACHINE = {
    "bindAddress", "haListenPort", "listenPort", "namesrvAddr", "storePathRootDir", "storePathCommitLog",
    "brokerIP1", "brokerIP2", "diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio",
    "diskSpaceWarningLevelRatio",
}  # fmt: skip

# Objects whose keys are names of the run: request code -> names of fields
NAMED: dict[int, set[str]] = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: {"groupTopicMap", "offsetTable", "pullOffsetTable"},
    RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable"},
    RequestCode.GET_ALL_PRODUCER_INFO: {"data"},
    RequestCode.GET_TIMER_METRICS: {"timingCount"},
}

UNSET = "remark: 'not set any response code' != None"
LEFT_BLANK = "Java leaves here the remark of an answer that nobody filled in"

# Differences on purpose: request code, pattern of the difference, reason
# tests/interop/test_access.py and tests/admin compare these with Java
NOT_RECORDED = {
    RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER,
    RequestCode.AUTH_GET_USER, RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL,
    RequestCode.AUTH_DELETE_ACL, RequestCode.AUTH_GET_ACL, RequestCode.SWITCH_TIMER_ENGINE,
}  # fmt: skip

KNOWN = [
    (RequestCode.UPDATE_AND_CREATE_TOPIC, UNSET, LEFT_BLANK),
    (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, UNSET, LEFT_BLANK),
    (RequestCode.QUERY_CONSUME_QUEUE, UNSET, LEFT_BLANK),
    (RequestCode.SEND_MESSAGE, "code: 1 != 13", "Java fails at a message without a body"),
    (RequestCode.SEND_MESSAGE, "remark: 'java.lang.NullPointerException", "as above"),
    (RequestCode.GET_ALL_CONSUMER_OFFSET, "body.logOffset: extra", "deletions before it are known"),
    (RequestCode.SET_MESSAGE_REQUEST_MODE, "code: 0 != 17|remark: None", "its topic is not there yet"),
    (RequestCode.POP_MESSAGE, "OffsetInfo|restNum|body: ", "which queues come first is chance"),
    (RequestCode.POP_MESSAGE, "code: 0 != 210|remark: 'FOUND'", "what comes again takes ten seconds"),
    (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, "code: 0 != 208|missing", "its message is not recorded"),
    (RequestCode.GET_ALL_TOPIC_CONFIG, "order: True != False", "by a KV config that is not recorded"),
    (RequestCode.RESUME_CHECK_HALF_MESSAGE, "(code|remark): ", "a plain message does not become a half"),
    (RequestCode.RECALL_MESSAGE, "(code|remark): .*timestamp invalid|msgId: missing", "its time is over"),
    (
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        "subscriptionGroupTable.(Gw_g_raw|Gw_g_reply): missing",
        "made by requests that are not recorded",
    ),
    (
        RequestCode.GET_BROKER_CONSUME_STATS,
        "pullOffset: 0 != |totalInflightDiff: -",
        "Java does not fill in pullOffset here, and counts less than no messages on their way",
    ),
    (RequestCode.GET_BROKER_CONSUME_STATS, "CID_RMQ_SYS_TRANS", "no transactions are checked in the replay"),
    (RequestCode.GET_BROKER_CONSUME_STATS, "%RETRY%Gw_g_pop_GwPop.*Offset: 1 != 0", "nothing comes again"),
    (RequestCode.GET_BROKER_RUNTIME_INFO, "indexBehindBytes: extra", "Java makes no index anew"),
    (RequestCode.GET_BROKER_CONFIG, "readOnlyCommitLogStorePaths: extra", "empty here, where Java has none"),
    (RequestCode.GET_BROKER_CONFIG, "haMasterAddress: extra", "empty here, where Java has none"),
    (RequestCode.GET_BROKER_HA_STATUS, "haConnectionInfo|inSyncSlaveNums: 1 != 0", "there is no slave here"),
    (RequestCode.GET_BROKER_HA_STATUS, "masterCommitLogMaxOffset", "a place in the log"),
    (RequestCode.EXCHANGE_BROKER_HA_INFO, "masterAddress|masterHaAddress", "addresses of a run"),
    (RequestCode.AUTH_LIST_USER, "code: 1 != 0|remark", "Java needs a class named for it to have users"),
    (RequestCode.AUTH_LIST_ACL, "code: 1 != 0|remark", "as above"),
    (RequestCode.GET_BROKER_CONSUME_STATS, "Gw_g_reply", "made by requests that are not recorded"),
]  # fmt: skip


class Client:
    """A connection of the recording. What the broker asks on it is answered as the recorded client did."""

    def __init__(self, port: int, answers: dict[int, RemotingCommand]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._socket.settimeout(None)
        self._answers = answers
        self.asked: list[RemotingCommand] = []  # by the broker
        self._responses: queue.SimpleQueue[RemotingCommand] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def call(self, request: RemotingCommand | bytes) -> RemotingCommand:
        self.send(request)
        return self._responses.get(timeout=WAIT_S)

    def send(self, request: RemotingCommand | bytes) -> None:
        self._socket.sendall(request if isinstance(request, bytes) else request.encode())

    def _listen(self) -> None:
        with self._socket.makefile("rb") as stream:
            while head := stream.read(4):
                command = decode(stream.read(int.from_bytes(head, "big")))
                if command.is_response:
                    self._responses.put(command)
                    continue
                self.asked.append(command)
                if command.code in self._answers and not command.is_oneway:
                    known = self._answers[command.code]
                    self.send(command.response(known.code, None, known.body, known.remark))

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(WAIT_S)
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Replay:
    """A broker with the names of the recorded one, and the recorded connections to it."""

    def __init__(self, rows: list[Row], cluster: Cluster, stack: ExitStack) -> None:
        self.rows = rows
        self.broker = cluster.brokers[0]
        self.served = set(make_handlers(self.broker))
        self._stack = stack
        self.clients: dict[int, Client] = {}
        self._answers = {(r["connection"], r["opaque"]): r for r in rows if is_answer(r)}
        self.compared: set[int] = set()
        self.differences: list[tuple[int, str]] = []

    def client(self, connection: int) -> Client:
        if connection not in self.clients:
            answers = {
                r["requestCode"]: command_of(r)
                for r in self.rows
                if r["connection"] == connection and r["direction"] == "response" and not is_answer(r)
            }
            made = Client(self.broker.config.listen_port, answers)
            self.clients[connection] = self._stack.enter_context(made)
        return self.clients[connection]

    def run(self, first: int, end: int) -> None:
        """Send the requests between two places of the recording, and compare the answers."""
        for row in self.rows:
            if (
                not first <= row["seq"] < end
                or row["sender"] != "connector"
                or row["direction"] == "response"
            ):
                continue
            code = row["requestCode"]
            recorded = self._answers.get((row["connection"], row["opaque"]))
            expected = None if recorded is None else command_of(recorded)
            unknown = expected is not None and expected.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if code not in self.served and not unknown:
                continue
            client, frame = self.client(row["connection"]), adjusted(row, expected)
            if row["oneway"]:
                client.send(frame)
                continue
            answer = client.call(frame)
            if expected is not None:
                self.compared.add(code)
                self.differences += [(code, found) for found in compare(code, expected, answer)]

    def compare_questions(self) -> None:
        """What the broker asked its clients."""
        for row in self.rows:
            code = row["requestCode"]
            if row["sender"] == "connector" or row["direction"] == "response" or code not in ASKED:
                continue
            asked = [c for c in self.client(row["connection"]).asked if c.code == code]
            if not asked:
                self.differences.append((code, "not asked"))
                continue
            self.compared.add(code)
            question = asked[0]
            question.opaque = row["opaque"]
            question.serialize_type = SERIALIZE_TYPES[row["serializeType"]]  # Java's is a setting of its own
            self.differences += [(code, found) for found in compare(code, command_of(row), question)]

    def answer_to(self, code: int) -> Any:
        """The body of Java's first answer to a request."""
        row = next(r for r in self.rows if r["requestCode"] == code and is_answer(r) and r["body"])
        return lenient_json.loads(base64.b64decode(row["body"]))

    def ask(self, code: int, body: Any = None, **fields: str) -> None:
        data = body if body is None or isinstance(body, bytes) else lenient_json.dumps(body)
        answer = self.client(OUR_OWN).call(RemotingCommand(code, fields, data))
        assert answer.code == ResponseCode.SUCCESS, (code, fields, answer.remark)

    # What is not in the recording

    def make_topics_and_groups(self) -> None:
        topics = self.answer_to(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
        for name, topic in topics.items():
            if name not in self.broker.topics.topics and not self.broker.topics.is_system_topic(name):
                header = CreateTopic(
                    name,
                    "TBW102",
                    topic["readQueueNums"],
                    topic["writeQueueNums"],
                    topic["perm"],
                    topic["topicFilterType"],
                    topic["order"],
                    topic["topicSysFlag"],
                )
                self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **header.fields())
        groups = self.answer_to(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        for name, group in groups.items():
            if name not in self.broker.groups.groups:
                self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)

    def progress(self) -> Iterator[tuple[str, MessageQueue, Row]]:
        """Group, queue and figures of all groups, as Java told them; but for transactions and retries."""
        for groups in self.answer_to(RequestCode.GET_BROKER_CONSUME_STATS)["consumeStatsList"]:
            for group, parts in groups.items():
                for part in parts if group != "CID_RMQ_SYS_TRANS" else ():
                    for key, figures in part["offsetTable"].items():
                        place = MessageQueue.from_json(key)
                        if not place.topic.startswith("%RETRY%Gw_g_pop_"):
                            yield group, place, figures

    def fill_queues(self) -> None:
        """Put messages until each queue has as many as Java's had."""
        wanted = {place: figures["brokerOffset"] for _, place, figures in self.progress()}
        wanted[MessageQueue("%RETRY%Gw_g_push", "broker-gw", 0)] = 1
        for place, count in wanted.items():
            for number in range(self.broker.store.max_offset(place.topic, place.queue_id), count):
                fields = {
                    "a": "Gw_p", "b": place.topic, "c": "TBW102", "d": "4", "e": str(place.queue_id),
                    "f": "0", "g": "1", "h": "0", "i": "TAGS\x01TagF\x02", "j": "0", "k": "false",
                    "m": "false",
                }  # fmt: skip
                self.ask(RequestCode.SEND_MESSAGE_V2, f"filler {number}".encode(), **fields)

    def commit_offsets(self) -> None:
        for group, place, figures in self.progress():
            self.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group,
                topic=place.topic,
                queueId=str(place.queue_id),
                commitOffset=str(figures["consumerOffset"]),
            )

    def join(
        self, connection: int, client_id: str, group: str, topics: dict[str, str], **values: Any
    ) -> None:
        """Have a client consume, on the connection that it has in the recording."""
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [
                {"topic": topic, "subString": text, "tagsSet": tags_of(text), "codeSet": codes_of(text)}
                for topic, text in {**topics, f"%RETRY%{group}": "*"}.items()
            ],
            "unitMode": False,
            **values,
        }
        body = {
            "clientID": client_id,
            "consumerDataSet": [consumer],
            "producerDataSet": [{"groupName": "CLIENT_INNER_PRODUCER"}],
        }
        request = RemotingCommand(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body), language="JAVA")
        assert self.client(connection).call(request).code == ResponseCode.SUCCESS


def replay(form: str, directory: Path) -> Replay:
    """Send all of a recording to a broker of our own that is configured as Java's was."""
    with gzip.open(FIXTURES / "wire" / f"remoting-{form}.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [row for row in map(json.loads, file) if row["link"] == LINK]
    shown = next(r for r in rows if r["requestCode"] == RequestCode.GET_BROKER_CONFIG and r["body"])
    config = parse_properties(base64.b64decode(shown["body"]).decode())
    config = {key: value for key, value in config.items() if key not in OF_THE_MACHINE}
    consuming = first(rows, RequestCode.GET_CONSUMER_LIST_BY_GROUP)["seq"]
    asking = first(rows, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)["seq"]
    push_topics = {"GwOne": "TagA || TagB", "GwTwo": "*"}
    c1 = first(rows, RequestCode.GET_CONSUMER_RUNNING_INFO, sender="listener")["connection"]
    c2 = next(
        r["connection"] for r in rows if r["requestCode"] == 221 and r["connection"] != c1
    )  # the other one who was asked
    with Cluster(config=config, directory=directory) as cluster, ExitStack() as stack:
        run = Replay(rows, cluster, stack)
        run.run(0, consuming)
        run.make_topics_and_groups()
        run.fill_queues()
        mode = {"topic": "GwPop", "consumerGroup": "Gw_g_pop", "mode": "POP", "popShareQueueNum": 4}
        run.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode)
        run.join(c1, "192.0.2.2@c1", "Gw_g_push", push_topics)
        run.join(first(rows, 41)["connection"], "192.0.2.2@o1", "Gw_g_order", {"GwOrder": "*"})
        run.join(first(rows, 400)["connection"], "192.0.2.2@pop1", "Gw_g_pop", {"GwPop": "*"})
        run.run(consuming, asking)
        run.join(c2, "192.0.2.2@c2", "Gw_g_push", push_topics)
        run.join(OUR_OWN - 1, "192.0.2.2@s1", "Gw_g_sql", {"GwOne": "*"})
        run.join(OUR_OWN - 2, "192.0.2.2@b1", "Gw_g_bcast", {"GwOne": "*"}, messageModel="BROADCASTING")
        run.commit_offsets()
        run.run(asking, 1 << 30)
        run.compare_questions()
    return run


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Replay]:
    return {form: replay(form, tmp_path_factory.mktemp(form)) for form in FORMS}


@pytest.mark.parametrize("form", FORMS)
def test_every_recorded_request_is_answered_in_the_form_of_java_s_answer(runs, form):
    run = runs[form]
    unexpected = [f"{code} {found}" for code, found in run.differences if not reasons_for(code, found)]
    assert not unexpected, "\n".join(unexpected)
    # The one is sent to slaves, the other one-way in all of the recording.
    unanswered = {RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, RequestCode.END_TRANSACTION}
    if form == "rocketmq":  # whose codes have 16 bits
        unanswered |= {code for code in RequestCode if code > MAX_BINARY_CODE} & run.served
    assert run.served - run.compared == unanswered | NOT_RECORDED


def test_every_difference_that_is_allowed_is_there(runs):
    needed = {reason for run in runs.values() for found in run.differences for reason in reasons_for(*found)}
    assert [entry for entry in KNOWN if entry not in needed] == []


def reasons_for(code: int, difference: str) -> list[tuple[int, str, str]]:
    return [entry for entry in KNOWN if entry[0] == code and re.search(entry[1], difference)]


# Frames


def first(rows: list[Row], code: int, sender: str = "connector") -> Row:
    return next(r for r in rows if r["requestCode"] == code and r["sender"] == sender)


def is_answer(row: Row) -> bool:
    """Whether the broker answers with it; a client answers the broker with the other responses."""
    return row["direction"] == "response" and row["sender"] == "listener"


def command_of(row: Row) -> RemotingCommand:
    return decode(base64.b64decode(row["frame"])[4:])


def adjusted(row: Row, expected: RemotingCommand | None) -> bytes:
    """The recorded frame, but for places in the log, times, and the patience of a pull."""
    frame = base64.b64decode(row["frame"])
    code = row["requestCode"]
    changes: dict[str, str] = {}
    if code == RequestCode.CONSUMER_SEND_MSG_BACK:
        changes = {"offset": "0"}
    elif code == RequestCode.SEARCH_OFFSET_BY_TIMESTAMP:
        changes = {"timestamp": FUTURE}  # as Java's was, to its messages
    elif code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
        changes = {"suspendTimeoutMillis": "20"}
        if expected is not None and expected.code == ResponseCode.SUBSCRIPTION_NOT_LATEST:
            changes["subVersion"] = FUTURE  # a heartbeat that had not come is not recorded either
    elif code in (RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION):
        changes = {"bornTime": FUTURE, "pollTime": "20"}
    if not changes:
        return frame
    request = decode(frame[4:])
    request.ext_fields.update(changes)
    return request.encode()


def compare(code: int, expected: RemotingCommand, answer: RemotingCommand) -> Iterator[str]:
    """How an answer differs from Java's."""
    for name in ("code", "opaque", "flag", "serialize_type"):
        if getattr(answer, name) != getattr(expected, name):
            yield f"{name}: {getattr(expected, name)!r} != {getattr(answer, name)!r} ({answer.remark!r})"
    if without_address(answer.remark) != without_address(expected.remark):
        yield f"remark: {expected.remark!r} != {answer.remark!r}"
    if has_ext_fields(answer) != has_ext_fields(expected):
        yield f"extFields: {expected.ext_fields} != {answer.ext_fields}"
    yield from differences("extFields", expected.ext_fields, answer.ext_fields)
    yield from differences("body", content(code, expected), content(code, answer))


def has_ext_fields(command: RemotingCommand) -> bool:
    return command.serialize_type == ROCKETMQ or b'"extFields":' in command.encode_header()


def without_address(remark: str | None) -> str | None:
    return None if not remark else re.sub(r"127\.0\.0\.1:\d+", "<address>", remark)


def content(code: int, command: RemotingCommand) -> Any:
    """A body for comparison."""
    if command.body is None:
        return None
    data = bytes(command.body)
    if code == RequestCode.GET_BROKER_CONFIG:
        values = parse_properties(data.decode())
        return {key: TEXT if key in OF_THE_MACHINE else value for key, value in values.items()}
    if code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
        return data
    if code == RequestCode.GET_TIMER_CHECK_POINT:
        return len(data)
    if data[:1] != b"{":
        return [record_content(record) for record in split_records(data)]
    value = lenient_json.loads(data)
    if code == RequestCode.GET_BROKER_RUNTIME_INFO:
        return {figure_name(key): figure_form(text) for key, text in value["table"].items()}
    if code == RequestCode.GET_BROKER_CONSUME_STATS:
        value["consumeStatsList"] = {
            group: {MessageQueue.from_json(next(iter(part["offsetTable"]))).topic: part for part in parts}
            for groups in value["consumeStatsList"]
            for group, parts in groups.items()
        }
    for name in NAMED.get(code, ()):
        value[name] = frozenset(shape(item) for item in value[name].values())
    return value


def shape(value: Any) -> str:
    if isinstance(value, dict):
        return "{number}" if all(key.isdecimal() for key in value) else str(sorted(value))
    return (
        f"[{'|'.join(sorted(set(map(shape, value))))}]" if isinstance(value, list) else type(value).__name__
    )


def figure_name(key: str) -> str:
    """Without the directory or the delay level."""
    return re.sub(r"_.*", "_*", key)


def figure_form(text: str) -> str:
    """Numbers are all the same; a rate over a time that Java was not up for is empty there."""
    if re.fullmatch(r"[\d.E-]+ [\d.E-]* ?[\d.E-]*", text):
        return "three rates"
    return re.sub(r"\b[KMGT]iB\b", "B", re.sub(r"\d+(\.\d+)?(E-?\d+)?", "#", text.strip()))


def split_records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size


def record_content(record: bytes) -> Row:
    message = decode_record(record)
    added = {"UNIQ_KEY", "MSG_REGION", "TRACE_ON", "CLUSTER"} & message.properties.keys()
    return {"topic": message.topic, "queueId": message.queue_id, "added": sorted(added)}


def differences(path: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            here = f"{path}.{key}"
            if key not in found:
                yield f"{here}: missing, {str(expected[key])[:80]}"
            elif key not in expected:
                yield f"{here}: extra, {str(found[key])[:80]}"
            elif key in VOLATILE:
                if kind(expected[key]) != kind(found[key]):
                    yield f"{here}: {expected[key]!r} != {found[key]!r}"
            else:
                yield from differences(here, expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list):
        yield from list_differences(path, expected, found)
    elif isinstance(expected, frozenset) and isinstance(found, frozenset):
        if found - expected:  # a broker that is younger than Java's was has fewer
            yield f"{path}: extra {found - expected}"
    elif expected != found:
        yield f"{path}: {expected!r} != {found!r}"[:600]


def list_differences(path: str, expected: list[Any], found: list[Any]) -> Iterator[str]:
    """Most lists are sets in Java, in the order of a hash."""
    if all(isinstance(item, str) for item in [*expected, *found]):
        if set(expected) - set(found):
            yield f"{path}: missing {set(expected) - set(found)}"
        if set(found) - set(expected):
            yield f"{path}: extra {set(found) - set(expected)}"
        return
    if len(expected) != len(found):
        yield f"{path}: {expected} != {found}"[:600]
    for number, (one, other) in enumerate(zip(in_order(expected), in_order(found))):
        yield from differences(f"{path}[{number}]", one, other)


def in_order(values: list[Any]) -> list[Any]:
    def key(value: Any) -> str:
        left = {k: v for k, v in value.items() if k not in VOLATILE} if isinstance(value, dict) else value
        return json.dumps(left, sort_keys=True)

    return sorted(values, key=key)


def kind(value: Any) -> str:
    return (
        NUMBER if isinstance(value, int | float) else TEXT if isinstance(value, str) else type(value).__name__
    )


def tags_of(text: str) -> list[str]:
    return [] if text == "*" else text.split(" || ")


def codes_of(text: str) -> list[int]:
    return [java_hash(tag) for tag in tags_of(text)]
