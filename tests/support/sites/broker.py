"""A broker in a thread of the test's process, and connections to it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from kourou.broker import Broker, BrokerConfig
from kourou.clock import Clock
from kourou.message import StoredMessage
from kourou.message.codec import decode as decode_record
from kourou.message.properties import encode_properties
from kourou.remoting.protocol import headers, lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import ONEWAY_FLAG, RemotingCommand, decode
from kourou.remoting.protocol.header import Header, plan_of
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.store.log.disk import Disk

# Every name of a field that some header has, and those of the short send header
FIELD_NAMES = sorted(
    {
        wire_name
        for header in vars(headers).values()
        if isinstance(header, type) and issubclass(header, Header) and header is not Header
        for _, wire_name, *_ in plan_of(header)
    }
    | set("abcdefghijklmn")
)

HOST = "127.0.0.1"
WAIT_S = 50
SUSPEND, SUBSCRIPTION, COMMIT = 2, 4, 1  # of a pull's sysFlag
UNIQUE_ID = "7F00000100002A9F0000000000000001"

SMALL = {
    "brokerIP1": HOST,
    "brokerIP2": HOST,
    "bindAddress": HOST,
    "listenPort": "0",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": str(1024 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 1000),
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "diskMaxUsedSpaceRatio": "99",
    "diskSpaceWarningLevelRatio": "99",
    "diskSpaceCleanForciblyRatio": "99",
}

_T = TypeVar("_T")


class Peer:
    """A connection on which both ends may ask."""

    def __init__(self, port: int, host: str = HOST) -> None:
        self.socket = socket.create_connection((host, port), WAIT_S)
        self._stream = self.socket.makefile("rb")
        self.asked: list[RemotingCommand] = []  # what the other end asked meanwhile

    def send(self, command: RemotingCommand) -> RemotingCommand:
        self.socket.sendall(command.encode())
        return command

    def receive(self) -> RemotingCommand:
        """The next frame, whatever it is."""
        size = self._stream.read(4)
        if len(size) < 4:
            raise ConnectionError("the broker hung up")
        return decode(self._stream.read(int.from_bytes(size, "big")))

    def answer_to(self, request: RemotingCommand) -> RemotingCommand:
        """The answer to a request that was sent; it must be the next answer."""
        while not (answer := self.receive()).is_response:
            self.asked.append(answer)
        assert answer.opaque == request.opaque, (request, answer)
        return answer

    def call(self, request: RemotingCommand) -> RemotingCommand:
        return self.answer_to(self.send(request))

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """The answer to a request that must succeed."""
        answer = self.call(request)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer

    def is_silent(self) -> bool:
        """Whether what was sent before is not answered: only a question asked now is."""
        probe = RemotingCommand(29_999)
        try:
            return self.call(probe).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        except AssertionError:
            return False

    def close(self) -> None:
        self._stream.close()
        self.socket.close()


class Site:
    """A broker that runs."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> None:
        self.broker = broker
        self._loop = loop
        self._stack = stack

    @property
    def port(self) -> int:
        return self.broker.config.listen_port

    def connect(self, host: str = HOST) -> Peer:
        peer = Peer(self.port, host)
        self._stack.callback(peer.close)
        return peer

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run something on the broker's loop."""
        return run_on(self._loop, work)

    def do(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call something on the broker's loop."""

        async def call() -> _T:
            return function(*arguments)

        return self.run(call())

    def make_topic(self, name: str = "t", queues: int = 4, **values: Any) -> None:
        self.do(self.broker.topics.update, TopicConfig(name, queues, queues, **values))

    def max_offset(self, topic: str = "t", queue_id: int = 0) -> int:
        return self.do(self.broker.store.max_offset, topic, queue_id)

    def log_end(self) -> int:
        return self.do(lambda: self.broker.store.commit_log.max_offset)

    def stored(self, topic: str = "t", queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """The messages of a queue."""

        def read() -> list[StoredMessage]:
            store = self.broker.store
            found, at = [], offset
            while (result := store.get_message(topic, queue_id, at, 32)).records:
                found += [decode_record(bytes(record)) for record in result.records]
                at = result.next_begin_offset
            return found

        return self.do(read)


@contextmanager
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in a thread of its own."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="loop-of-test")
    thread.start()
    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()


def run_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, _T]) -> _T:
    return asyncio.run_coroutine_threadsafe(work, loop).result(WAIT_S)


def broker_config(directory: Path, config: Mapping[str, str] | None = None) -> BrokerConfig:
    """A configuration of small files, with the store below a directory."""
    properties = {**SMALL, "storePathRootDir": str(directory / "store"), **(config or {})}
    return BrokerConfig.from_properties(properties)


@contextmanager
def running(
    directory: Path,
    config: Mapping[str, str] | None = None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Iterator[Site]:
    """A broker whose store is below a directory."""

    async def start() -> Broker:
        broker = Broker(broker_config(directory, config), clock=clock, disk=disk)
        await broker.start()
        return broker

    with loop_thread() as loop:
        broker = run_on(loop, start())
        try:
            with ExitStack() as stack:
                yield Site(broker, loop, stack)
        finally:
            run_on(loop, broker.stop())


def send_request(
    topic: str = "t",
    body: bytes | None = b"body",
    properties: Mapping[str, str] | str | None = None,
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    serialize_type: int = 0,
    oneway: bool = False,
    version: int = 513,
    **fields: str,
) -> RemotingCommand:
    """A send with the short header; `e="1"` and the like set its fields, "" leaves one out."""
    if properties is None:
        properties = {"UNIQ_KEY": UNIQUE_ID}
    text = properties if isinstance(properties, str) else encode_properties(properties)
    values = {
        "a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": text, "j": "0", "k": "false", "m": "false", "n": "broker-a", **fields,
    }  # fmt: skip
    return RemotingCommand(
        code, values, body, serialize_type=serialize_type, flag=ONEWAY_FLAG if oneway else 0, version=version
    )


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch", "n": "bname",
}  # fmt: skip


def long_form(request: RemotingCommand, code: int = RequestCode.SEND_MESSAGE) -> RemotingCommand:
    """The same send with the long header."""
    fields = {LONG_NAMES[name]: text for name, text in request.ext_fields.items()}
    return RemotingCommand(code, fields, request.body, version=request.version)


def pull_request(
    topic: str = "t",
    offset: int = 0,
    *,
    queue_id: int = 0,
    group: str = "g",
    flag: int = SUBSCRIPTION,
    subscription: str | None = "*",
    suspend_ms: int | str = 0,
    count: int = 32,
    code: int = RequestCode.PULL_MESSAGE,
    serialize_type: int = 0,
    **fields: str,
) -> RemotingCommand:
    """A pull, which by default brings its subscription and does not wait."""
    values = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": str(count), "sysFlag": str(flag), "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms), "subVersion": "0",
    }  # fmt: skip
    if subscription is not None:
        values["subscription"] = subscription
    return RemotingCommand(code, {**values, **fields}, serialize_type=serialize_type)


def heartbeat(
    client_id: str = "c",
    group: str = "g",
    subscriptions: list[dict[str, Any]] | None = None,
    *,
    producers: tuple[str, ...] = (),
    model: str = "CLUSTERING",
) -> RemotingCommand:
    """A heartbeat of a client with a consumer group, unless it has none."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": subscriptions or [],
    }
    body = {
        "clientID": client_id,
        "consumerDataSet": [consumer] if group else [],
        "producerDataSet": [{"groupName": name} for name in producers],
    }
    return RemotingCommand(RequestCode.HEART_BEAT, {}, lenient_json.dumps(body))


def messages_in(answer: RemotingCommand) -> list[StoredMessage]:
    """The messages in the body of a pull's answer."""
    data, found = bytes(answer.body or b""), []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_record(data[:size]))
        data = data[size:]
    return found


def until(condition: Callable[[], object], what: str = "", timeout_s: float = WAIT_S) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.005)
