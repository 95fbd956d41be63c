"""Requests, good and bad, at Kourou's proxy and at Java's, before the same broker: the same statuses.

Where they do not on purpose, DIFFERENT has both codes; docs/differences.md says why.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from kourou.proxy.protocol import duration, pb, timestamp
from support.foreign import make_typed_topics
from support.java import java
from support.recorded.wire import Caller
from support.sites.proxy import HOST, Client, message
from support.sites.servers import java_proxy, kourou_broker, kourou_name_server, kourou_proxy

Types = pb.MessageType
TOPICS = {"normal": "NORMAL", "fifo": "FIFO", "delay": "DELAY", "halves": "TRANSACTION", "empty": "NORMAL"}
HOUR_MS = 3_600_000
DEFAULT = "normal"
GARBAGE, EXPIRED, MISSING, ELSEWHERE = "garbage", "expired", "missing", "elsewhere"  # receipts

Case = tuple[str, Callable[[Client], Any]]  # the call, and the request of a client


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """The ports of Kourou's proxy and of Java's."""
    java()
    directory = tmp_path_factory.mktemp("proxies")
    with kourou_name_server(directory) as names, kourou_broker(directory, names.port) as broker:
        with Caller(broker.port) as caller:
            make_typed_topics(caller, TOPICS)
        with kourou_proxy(names.address) as proxy, java_proxy(directory, names.port) as other:
            yield [proxy.port, other.port]


def named(name: str) -> Any:
    return pb.Resource(name=name)


def in_future(milliseconds: int) -> Any:
    return timestamp(time.time_ns() // 1_000_000 + milliseconds)


def receipt(kind: str) -> str:
    """A receipt handle of a message that is not there, or what is no handle."""
    popped_ms = time.time_ns() // 1_000_000 - (HOUR_MS if kind == EXPIRED else 0)
    broker = "broker-x" if kind == ELSEWHERE else "broker-a"
    return kind if kind == GARBAGE else f"0 {popped_ms} 600000 0 0 {broker} 0 99999 0"


def send(
    topic: str = DEFAULT, body: bytes = b"body", user: dict[str, str] | None = None, **system: Any
) -> Case:
    return "SendMessage", lambda _: pb.SendMessageRequest(messages=[message(topic, body, user, **system)])


def route(topic: str) -> Case:
    return "QueryRoute", lambda client: pb.QueryRouteRequest(topic=named(topic), endpoints=client.endpoints)


def assignment(topic: str = DEFAULT, group: str = "g") -> Case:
    return "QueryAssignment", lambda client: pb.QueryAssignmentRequest(
        topic=named(topic), group=named(group), endpoints=client.endpoints
    )


def ack(*kinds: str, topic: str = DEFAULT, group: str = "g") -> Case:
    return "AckMessage", lambda _: pb.AckMessageRequest(
        group=named(group), topic=named(topic),
        entries=[pb.AckMessageEntry(message_id="m", receipt_handle=receipt(kind)) for kind in kinds],
    )  # fmt: skip


def change(kind: str, milliseconds: int = 10_000, topic: str = DEFAULT, group: str = "g") -> Case:
    return "ChangeInvisibleDuration", lambda _: pb.ChangeInvisibleDurationRequest(
        group=named(group), topic=named(topic), invisible_duration=duration(milliseconds),
        receipt_handle=receipt(kind), message_id="m",
    )  # fmt: skip


def forward(kind: str, group: str = "g") -> Case:
    return "ForwardMessageToDeadLetterQueue", lambda _: pb.ForwardMessageToDeadLetterQueueRequest(
        group=named(group), topic=named(DEFAULT), receipt_handle=receipt(kind), message_id="m",
        delivery_attempt=1, max_delivery_attempts=16,
    )  # fmt: skip


def end(topic: str = "halves", transaction: str = "unknown") -> Case:
    return "EndTransaction", lambda _: pb.EndTransactionRequest(
        topic=named(topic), message_id="m", transaction_id=transaction,
        resolution=pb.TransactionResolution.COMMIT,
    )  # fmt: skip


def recall(topic: str = "delay", text: str = "garbage") -> Case:
    return "RecallMessage", lambda _: pb.RecallMessageRequest(topic=named(topic), recall_handle=text)


def receive(topic: str = DEFAULT, group: str = "g", **fields: Any) -> Case:
    return "ReceiveMessage", lambda client: client.receive(topic, group, **fields)


def batch(*messages: Any) -> Case:
    return "SendMessage", lambda _: pb.SendMessageRequest(messages=messages)


CASES: dict[str, Case] = {
    "send": send(),
    "send: fifo": send("fifo", message_type=Types.FIFO, message_group="g"),
    "send: delay": send("delay", message_type=Types.DELAY, delivery_timestamp=in_future(60_000)),
    "send: due already": send("delay", message_type=Types.DELAY, delivery_timestamp=in_future(-60_000)),
    "send: nothing": batch(),
    "send: two topics": batch(message("normal"), message("fifo")),
    "send: one of two is wrong": batch(message("normal"), message("normal", b"")),
    "send: empty body": send(body=b""),
    "send: too large": send(body=b"x" * (4 * 1024 * 1024 + 1)),
    "send: no id": send(message_id=""),
    "send: tag with |": send(tag="a|b"),
    "send: blank tag": send(tag=" "),
    "send: tag with a control character": send(tag="a\x01"),
    "send: blank key": send(keys=[" "]),
    "send: key with a control character": send(keys=["a\x01"]),
    "send: reserved property": send(user={"KEYS": "x"}),
    "send: property with a control character": send(user={"a": "b\x02c"}),
    "send: too many properties": send(user={str(number): "x" for number in range(129)}),
    "send: too large properties": send(user={"a": "x" * 17_000}),
    "send: no type": send(message_type=Types.MESSAGE_TYPE_UNSPECIFIED),
    "send: message group to a normal topic": send(message_group="g"),
    "send: fifo to a normal topic": send(message_type=Types.FIFO, message_group="g"),
    "send: delay to a normal topic": send(message_type=Types.DELAY, delivery_timestamp=in_future(5000)),
    "send: half to a normal topic": send(message_type=Types.TRANSACTION),
    "send: normal to a fifo topic": send("fifo"),
    "send: fifo without a group": send("fifo", message_type=Types.FIFO),
    "send: delay without a time": send("delay", message_type=Types.DELAY),
    "send: long message group": send("fifo", message_type=Types.FIFO, message_group="g" * 64),
    "send: blank message group": send("fifo", message_type=Types.FIFO, message_group=" "),
    "send: message group with a control character": send(
        "fifo", message_type=Types.FIFO, message_group="\x01"
    ),
    "send: delay too long": send(
        "delay", message_type=Types.DELAY, delivery_timestamp=in_future(25 * HOUR_MS)
    ),
    "send: recovery too long": send(
        "halves", message_type=Types.TRANSACTION, orphaned_transaction_recovery_duration=duration(2 * HOUR_MS)
    ),
    "send: bad topic": send("bad topic"),
    "send: long topic": send("t" * 128),
    "send: no topic": send(""),
    "send: topic of brokers": send("TBW102"),
    "send: topic of delays": send("SCHEDULE_TOPIC_XXXX"),
    "send: prefix of brokers": send("rmq_sys_x"),
    "send: retry topic": send("%RETRY%g"),
    "send: unknown topic": send("nowhere"),
    "route": route("normal"),
    "route: unknown topic": route("nowhere"),
    "route: bad topic": route("bad topic"),
    "route: no topic": route(""),
    "route: topic of brokers": route("TBW102"),
    "route: no endpoints": ("QueryRoute", lambda _: pb.QueryRouteRequest(topic=named(DEFAULT))),
    "assignment": assignment(),
    "assignment: unknown topic": assignment("nowhere"),
    "assignment: bad group": assignment(group="bad group"),
    "assignment: no group": assignment(group=""),
    "assignment: group of brokers": assignment(group="CID_RMQ_SYS_x"),
    "heartbeat": ("Heartbeat", lambda _: pb.HeartbeatRequest(group=named("g"))),
    "ack: none": ack(),
    "ack: garbage": ack(GARBAGE),
    "ack: expired": ack(EXPIRED),
    "ack: no such message": ack(MISSING),
    "ack: unknown broker": ack(ELSEWHERE),
    "ack: unknown topic": ack(MISSING, topic="nowhere"),
    "ack: bad topic": ack(MISSING, topic="bad topic"),
    "ack: bad group": ack(MISSING, group="bad group"),
    "change: garbage": change(GARBAGE),
    "change: expired": change(EXPIRED),
    "change: expired, to 0 ms": change(EXPIRED, 0),
    "change: negative": change(MISSING, -1000),
    "change: too long": change(MISSING, 13 * HOUR_MS),
    "change: no such message": change(MISSING),
    "change: unknown topic": change(MISSING, topic="nowhere"),
    "change: bad group": change(MISSING, group="bad group"),
    "forward: garbage": forward(GARBAGE),
    "forward: expired": forward(EXPIRED),
    "forward: no such message": forward(MISSING),
    "forward: bad group": forward(MISSING, "bad group"),
    "end: unknown transaction": end(),
    "end: no transaction": end(transaction=""),
    "end: bad topic": end("bad topic"),
    "recall: garbage": recall(),
    "recall: bad topic": recall("bad topic"),
    "recall: unknown topic": recall("nowhere"),
    "receive: nothing there": receive("empty", "g-empty"),
    "receive: unknown topic": receive("nowhere"),
    "receive: bad topic": receive("bad topic"),
    "receive: bad group": receive(group="bad group"),
    "receive: no group": receive(group=""),
    "receive: group of brokers": receive(group="CID_RMQ_SYS_x"),
    "receive: long group": receive(group="g" * 256),
    "receive: invisible for too short": receive(invisible_duration=duration(9999)),
    "receive: invisible for too long": receive(invisible_duration=duration(13 * HOUR_MS)),
    "receive: unknown broker": receive(
        "empty",
        "g-empty",
        message_queue=pb.MessageQueue(topic=named("empty"), broker=pb.Broker(name="broker-x")),
    ),
    "receive: bad filter": receive(
        filter_expression=pb.FilterExpression(type=pb.FilterType.SQL, expression="a >")
    ),
    "lite": (
        "SyncLiteSubscription",
        lambda _: pb.SyncLiteSubscriptionRequest(topic=named(DEFAULT), group=named("g")),
    ),
}
# Kourou's code, and Java's
DIFFERENT: dict[str, tuple[int, int]] = {
    "send: unknown topic": (pb.Code.TOPIC_NOT_FOUND, pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "recall: unknown topic": (pb.Code.TOPIC_NOT_FOUND, pb.Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    "route: no endpoints": (pb.Code.ILLEGAL_ACCESS_POINT, pb.Code.OK),
    "ack: garbage": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.INTERNAL_SERVER_ERROR),
    "ack: no such message": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.INTERNAL_SERVER_ERROR),
    "ack: unknown broker": (pb.Code.INTERNAL_SERVER_ERROR, pb.Code.INVALID_RECEIPT_HANDLE),
    "ack: unknown topic": (pb.Code.TOPIC_NOT_FOUND, pb.Code.INTERNAL_SERVER_ERROR),
    "change: garbage": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.INTERNAL_SERVER_ERROR),
    "change: no such message": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.INTERNAL_SERVER_ERROR),
    "change: unknown topic": (pb.Code.TOPIC_NOT_FOUND, pb.Code.INTERNAL_SERVER_ERROR),
    "forward: garbage": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.INTERNAL_SERVER_ERROR),
    "forward: expired": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.OK),
    "forward: no such message": (pb.Code.INVALID_RECEIPT_HANDLE, pb.Code.OK),
    "end: unknown transaction": (pb.Code.INVALID_TRANSACTION_ID, pb.Code.INTERNAL_SERVER_ERROR),
    "receive: unknown broker": (pb.Code.INTERNAL_SERVER_ERROR, pb.Code.MESSAGE_NOT_FOUND),
    "recall: garbage": (pb.Code.BAD_REQUEST, pb.Code.INTERNAL_SERVER_ERROR),
}
# Where the text is our own: Java's has names of its classes in it, or says less
OWN_TEXT = re.compile(
    "bad (topic|group)|no (topic|group)$|long (topic|group)|unknown topic|retry topic|expired|to a .* topic"
    "|without a|two topics|property with|recovery too long"
)


@pytest.mark.parametrize("name", CASES)
async def test_both_proxies_answer_the_same(proxies, name):
    ours, theirs = await asyncio.gather(*(status_at(port, CASES[name]) for port in proxies))
    if name in DIFFERENT:
        assert (ours.code, theirs.code) == DIFFERENT[name], (ours, theirs)
        return
    assert ours.code == theirs.code, (ours, theirs)
    if OWN_TEXT.search(name) is None:
        assert ours.message == theirs.message


@pytest.mark.parametrize("name", ["send", "route", "heartbeat", "ack: garbage"])
async def test_both_want_the_id_of_a_client(proxies, name):
    ours, theirs = await asyncio.gather(*(status_at(port, CASES[name], client_id="") for port in proxies))
    assert ours == theirs
    assert ours.code == pb.Code.CLIENT_ID_REQUIRED


async def test_both_want_settings_before_a_heartbeat(proxies):
    """Java's wants them from a client that goes, too."""
    calls = [CASES["heartbeat"], ("NotifyClientTermination", lambda _: pb.NotifyClientTerminationRequest())]
    codes = [
        [(await status_at(port, call, "client-2", has_settings=False)).code for port in proxies]
        for call in calls
    ]
    unknown = pb.Code.UNRECOGNIZED_CLIENT_TYPE
    assert codes == [[unknown, unknown], [pb.Code.OK, unknown]]


async def status_at(port: int, case: Case, client_id: str = "client-1", *, has_settings: bool = True) -> Any:
    """The status that a proxy answers; to a simple consumer, unless it is to have no settings."""
    name, request = case
    async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
        client = Client(channel, port, client_id)
        stream = (await client.settle(settings_of(client)))[0] if client_id and has_settings else None
        if name == "ReceiveMessage":
            status = (await request(client))[0]
        else:
            status = (await client.call(name, request(client))).status
        if stream is not None:
            await stream.done_writing()
        return status


def settings_of(client: Client) -> Any:
    everything = pb.FilterExpression(type=pb.FilterType.TAG, expression="*")
    return pb.Settings(
        client_type=pb.ClientType.SIMPLE_CONSUMER, access_point=client.endpoints,
        request_timeout=duration(3000),
        subscription=pb.Subscription(
            group=named("g"),
            subscriptions=[pb.SubscriptionEntry(topic=named(DEFAULT), expression=everything)],
        ),
    )  # fmt: skip
