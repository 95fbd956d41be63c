"""Recorded requests to Java's broker, sent over sockets: our answers have the form of Java's, field by field.

The recording keeps at most three frames of each form, so that much of what its broker knew is not in it. It
is made up for: the messages, offsets and clients that Java's answers show are brought in between. Then every
recorded request of a code that this broker serves is sent, on the connection it came on, and its answer is
compared with Java's: code, remark, extFields (with or without, names and values), and the body: JSON key by
key and value by value, messages by what is in them. Left out are values of VOLATILE, which each run has its
own of; keys of NAMED, which are names; and what KNOWN lists, each with its reason. An entry of KNOWN that is
not needed any more fails as well.
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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.handlers import make_handlers
from kourou.message.codec import decode as decode_record
from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import ROCKETMQ, RemotingCommand, decode
from kourou.remoting.headers import CreateTopic
from kourou.testing import Cluster
from support.golden import FIXTURES

Row = dict[str, Any]

LINK = "to-master"
WAIT_S = 10
NUMBER, TEXT = "<number>", "<text>"

# Fields whose values belong to a run: times, rates, addresses, places in the log, versions
VOLATILE = {
    "brokerAddr", "clientAddr", "consumeTimeStamp", "consumeTimeStampStr", "consumeTps", "counter", "delayTime",
    "indexLastUpdatePhyoffset", "indexLastUpdateTimestamp", "lastTimestamp", "lastUpdateTimestamp",
    "maxTimeStamp", "maxTimeStampStr", "minTimeStamp", "minTimeStampStr", "msgId", "physicOffset",
    "physicSize", "queueOffset", "remoteIP", "subVersion", "timestamp", "topicPutTps", "tps", "transactionId",
    "version", "tagsCode",
}  # fmt: skip

# Objects whose keys are names of the run: request code -> paths
NAMED = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: {"groupTopicMap", "offsetTable", "pullOffsetTable"},
    RequestCode.GET_ALL_DELAY_OFFSET: {"offsetTable"},
}

# Differences on purpose: request code, pattern of the difference, reason
KNOWN: list[tuple[int, str, str]] = []


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
        self._clients: dict[int, Client] = {}
        self.responses = {(r["connection"], r["opaque"]): r for r in rows if is_answer(r)}
        self.compared: set[int] = set()
        self.differences: list[tuple[int, str]] = []

    def client(self, connection: int) -> Client:
        if connection not in self._clients:
            answers = {
                r["requestCode"]: command_of(r)
                for r in self.rows
                if r["connection"] == connection and r["direction"] == "response" and not is_answer(r)
            }
            made = Client(self.broker.config.listen_port, answers)
            self._clients[connection] = self._stack.enter_context(made)
        return self._clients[connection]

    def run(self, first: int, end: int) -> None:
        """Send the requests between two places of the recording, and compare the answers."""
        for row in self.rows:
            if not first <= row["seq"] < end or row["sender"] != "connector" or row["direction"] == "response":
                continue
            expected = self.responses.get((row["connection"], row["opaque"]))
            refused = expected is not None and expected["code"] == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            if row["requestCode"] not in self.served and not refused:
                continue
            frame = adjusted(row)
            if row["oneway"]:
                self.client(row["connection"]).send(frame)
                continue
            answer = self.client(row["connection"]).call(frame)
            if expected is not None:
                code = row["requestCode"]
                self.compared.add(code)
                found = compare(code, command_of(expected), answer)
                self.differences += [(code, difference) for difference in found]

    def answer_of(self, code: int) -> Any:
        """The body of Java's first answer to a request."""
        row = next(r for r in self.rows if r["requestCode"] == code and is_answer(r) and r["body"])
        return lenient_json.loads(base64.b64decode(row["body"]))

    def ask(self, code: int, body: Any = None, connection: int = 0, **fields: str) -> RemotingCommand:
        data = None if body is None else lenient_json.dumps(body)
        answer = self.client(connection).call(RemotingCommand(code, fields, data))
        assert answer.code == ResponseCode.SUCCESS, (code, fields, answer.remark)
        return answer

    # What is not in the recording

    def make_topics_and_groups(self) -> None:
        topics = self.answer_of(RequestCode.GET_ALL_TOPIC_CONFIG)["topicConfigTable"]
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
        groups = self.answer_of(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)["subscriptionGroupTable"]
        for name, group in groups.items():
            if name not in self.broker.groups.groups:
                self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)

    def progress(self) -> Iterator[tuple[str, Row, Row]]:
        """Group, queue and figures of all groups, as Java told them."""
        for groups in self.answer_of(RequestCode.GET_BROKER_CONSUME_STATS)["consumeStatsList"]:
            for group, parts in groups.items():
                for part in parts:
                    for key, figures in part["offsetTable"].items():
                        yield group, lenient_json.loads(key.encode()), figures

    def fill_queues(self) -> None:
        """Put messages until each queue has as many as Java's had."""
        for _, place, figures in self.progress():
            topic, queue_id = place["topic"], place["queueId"]
            if topic.startswith(("RMQ_SYS", "%RETRY%")):
                continue
            for number in range(self.broker.store.max_offset(topic, queue_id), figures["brokerOffset"]):
                fields = {
                    "a": "Gw_p", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1",
                    "h": "0", "i": "TAGS\x01TagF\x02", "j": "0", "k": "false", "m": "false",
                }  # fmt: skip
                answer = self.client(0).call(
                    RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, f"filler {number}".encode())
                )
                assert answer.code == ResponseCode.SUCCESS, answer

    def commit_offsets(self) -> None:
        for group, place, figures in self.progress():
            self.ask(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=group,
                topic=place["topic"],
                queueId=str(place["queueId"]),
                commitOffset=str(figures["consumerOffset"]),
            )

    def join(self, connection: int, client_id: str, group: str, topics: dict[str, str], **values: Any) -> None:
        """Have a client consume, on the connection that it has in the recording."""
        subscriptions = [
            {"topic": topic, "subString": text, "tagsSet": tags_of(text), "codeSet": codes_of(text)}
            for topic, text in {**topics, f"%RETRY%{group}": "*"}.items()
        ]
        consumer = {
            "groupName": group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": subscriptions,
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


@pytest.fixture(params=["json", "rocketmq"])
def rows(request) -> list[Row]:
    with gzip.open(FIXTURES / "wire" / f"remoting-{request.param}.jsonl.gz", "rt", encoding="utf-8") as file:
        return [row for row in map(json.loads, file) if row["link"] == LINK]


@contextmanager
def replay(rows: list[Row], directory: Path) -> Iterator[Replay]:
    config = {"brokerName": "broker-gw", "brokerClusterName": "GoldenWire"}
    with Cluster(config=config, directory=directory) as cluster, ExitStack() as stack:
        yield Replay(rows, cluster, stack)


def test_every_recorded_request_is_answered_in_the_form_of_java_s_answer(rows, tmp_path):
    consuming = min(r["seq"] for r in rows if r["requestCode"] == RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    asking = min(
        r["seq"] for r in rows if r["requestCode"] == RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
    )
    with replay(rows, tmp_path) as run:
        run.run(0, consuming)
        run.make_topics_and_groups()
        run.fill_queues()
        names = consumer_connections(rows)
        run.join(names["192.0.2.2@c1"], "192.0.2.2@c1", "Gw_g_push", {"GwOne": "TagA || TagB", "GwTwo": "*"})
        run.join(names["192.0.2.2@o1"], "192.0.2.2@o1", "Gw_g_order", {"GwOrder": "*"})
        run.join(names["192.0.2.2@pop1"], "192.0.2.2@pop1", "Gw_g_pop", {"GwPop": "*"})
        run.run(consuming, asking)
        run.join(names["192.0.2.2@c2"], "192.0.2.2@c2", "Gw_g_push", {"GwOne": "TagA || TagB", "GwTwo": "*"})
        run.join(1001, "192.0.2.2@s1", "Gw_g_sql", {"GwOne": "*"})
        run.join(1002, "192.0.2.2@b1", "Gw_g_bcast", {"GwOne": "*"}, messageModel="BROADCASTING")
        run.commit_offsets()
        run.run(asking, 1 << 30)
    for code, difference in run.differences:
        print(code, difference)
    print(sorted(run.served - run.compared))
    assert not run.differences


def consumer_connections(rows: list[Row]) -> dict[str, int]:
    return {"192.0.2.2@c1": 14, "192.0.2.2@c2": 29, "192.0.2.2@o1": 17, "192.0.2.2@pop1": 26}


# Frames


def is_answer(row: Row) -> bool:
    """Whether the broker answers with it; a client answers the broker with the other responses."""
    return row["direction"] == "response" and row["sender"] == "listener"


def command_of(row: Row) -> RemotingCommand:
    return decode(base64.b64decode(row["frame"])[4:])


def adjusted(row: Row) -> bytes:
    """The recorded frame, but for places in the log and the patience of a pull."""
    frame = base64.b64decode(row["frame"])
    changes = {
        RequestCode.CONSUMER_SEND_MSG_BACK: {"offset": "0"},
        RequestCode.PULL_MESSAGE: {"suspendTimeoutMillis": "20"},
        RequestCode.LITE_PULL_MESSAGE: {"suspendTimeoutMillis": "20"},
    }.get(row["requestCode"])
    if changes is None:
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
    named = NAMED.get(RequestCode(code) if code in set(RequestCode) else 0, set())
    yield from differences("body", content(expected, named), content(answer, named))


def has_ext_fields(command: RemotingCommand) -> bool:
    return command.serialize_type == ROCKETMQ or b'"extFields":' in command.encode_header()


def without_address(remark: str | None) -> str | None:
    return None if not remark else re.sub(r"127\.0\.0\.1:\d+", "<address>", remark)


def content(command: RemotingCommand, named: set[str]) -> Any:
    """A body for comparison."""
    if command.body is None:
        return None
    data = bytes(command.body)
    if data[:1] == b"{":
        value = lenient_json.loads(data)
        return {key: names_left_out(item) if key in named else item for key, item in value.items()}
    if data[4:7] == b"\xda\xa3\x20":
        return [record_content(record) for record in split_records(data)]
    return dict(line.split("=", 1) for line in data.decode().splitlines())


def names_left_out(table: Row) -> list[str]:
    return sorted({shape(item) for item in table.values()})


def shape(value: Any) -> str:
    if isinstance(value, dict):
        return "{number}" if all(key.isdecimal() for key in value) else str(sorted(value))
    return f"[{'|'.join(sorted(set(map(shape, value))))}]" if isinstance(value, list) else type(value).__name__


def split_records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at : at + size]
        at += size


def record_content(record: bytes) -> Row:
    message = decode_record(record)
    return {"topic": message.topic, "queueId": message.queue_id, "sysFlag": message.sys_flag}


def differences(path: str, expected: Any, found: Any) -> Iterator[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted(expected.keys() | found.keys()):
            here = f"{path}.{key}"
            if key not in found:
                yield f"{here}: missing, {str(expected[key])[:80]}"
            elif key not in expected:
                yield f"{here}: extra, {str(found[key])[:80]}"
            elif key in VOLATILE:
                if type_of(expected[key]) != type_of(found[key]):
                    yield f"{here}: {expected[key]!r} != {found[key]!r}"
            else:
                yield from differences(here, expected[key], found[key])
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path}: {len(expected)} != {len(found)}: {expected} != {found}"[:600]
        for number, (one, other) in enumerate(zip(in_order(expected), in_order(found))):
            yield from differences(f"{path}[{number}]", one, other)
    elif expected != found:
        yield f"{path}: {expected!r} != {found!r}"[:600]


def in_order(values: list[Any]) -> list[Any]:
    """Sets come in the order of a hash in Java."""
    return sorted(values, key=lambda value: json.dumps(stable(value), sort_keys=True))


def stable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: stable(item) for key, item in value.items() if key not in VOLATILE}
    return value


def type_of(value: Any) -> str:
    return NUMBER if isinstance(value, int | float) else TEXT if isinstance(value, str) else type(value).__name__


def tags_of(text: str) -> list[str]:
    return [] if text == "*" else text.split(" || ")


def codes_of(text: str) -> list[int]:
    return [java_hash(tag) for tag in tags_of(text)]


def java_hash(text: str) -> int:
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value
