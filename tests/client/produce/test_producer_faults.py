"""The producer with brokers that do what real ones do seldom: refuse, half store, say nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kourou.client import Message, Producer, RefusedError
from kourou.client.core import ClientCore
from kourou.client.produce.receipts import NotSentError, SendEvent
from kourou.client.produce.transactions import TransactionState
from kourou.message.model import MessageQueue
from kourou.message.properties import decode_properties
from kourou.remoting.connection import Connection, Handler
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer

HOST = "127.0.0.1"
OFFSET_ID = "7F0000010000000100000000000004D2"  # physical offset 1234
OK = ResponseCode.SUCCESS
SILENCE = -1


class Brokers:
    """Two brokers, a and b, each with one queue of any topic, and their name server, all in one."""

    def __init__(self, answers: Callable[[str, int], int]) -> None:
        self.requests: list[RemotingCommand] = []
        self.ports: dict[str, int] = {}
        self._answers = answers  # the code of the answer of a broker to its nth message

    def route(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        queues = [
            {"brokerName": name, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1} for name in self.ports
        ]
        brokers = [
            {"brokerName": name, "cluster": "c", "brokerAddrs": {"0": f"{HOST}:{port}"}}
            for name, port in self.ports.items()
        ]
        return request.response(body=lenient_json.dumps({"queueDatas": queues, "brokerDatas": brokers}))

    def take(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        request.body = bytes(request.body or b"")
        self.requests.append(request)
        name = request.ext_fields.get("n", "")
        code = self._answers(name, len([r for r in self.requests if r.ext_fields.get("n") == name]))
        if code == SILENCE:
            return None
        fields = {"msgId": OFFSET_ID, "queueId": "0", "queueOffset": "5"} if code != 1 else None
        return request.response(code, fields, remark="as told")

    @property
    def brokers(self) -> list[str]:
        return [request.ext_fields["n"] for request in self.requests]


@asynccontextmanager
async def brokers(answers: Callable[[str, int], int]) -> AsyncIterator[tuple[Brokers, str]]:
    both = Brokers(answers)
    handlers: dict[int, Handler] = {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: both.route,
        RequestCode.HEART_BEAT: lambda _, request: request.response(),
        RequestCode.UNREGISTER_CLIENT: lambda _, request: request.response(),
        RequestCode.SEND_MESSAGE_V2: both.take,
        RequestCode.SEND_BATCH_MESSAGE: both.take,
        RequestCode.END_TRANSACTION: both.take,
    }
    servers = [RemotingServer(handlers) for _ in "ab"]
    try:
        for name, server in zip("ab", servers, strict=True):
            both.ports[name] = await server.start(HOST, 0)
        yield both, f"{HOST}:{both.ports['a']}"
    finally:
        for server in servers:
            await server.stop()


@asynccontextmanager
async def play(answers: Callable[[str, int], int], **options: Any) -> AsyncIterator[tuple[Producer, Brokers]]:
    async with (
        brokers(answers) as (both, namesrv),
        Producer(namesrv, **{"group": "PG", "timeout_s": 10, **options}) as producer,
    ):
        yield producer, both


def first_is_bad(code: int) -> Callable[[str, int], int]:
    """The first message of all gets this answer, the others are stored."""
    counted: list[str] = []

    def answer(name: str, number: int) -> int:
        counted.append(name)
        return code if len(counted) == 1 else OK

    return answer


async def test_what_a_request_says():
    async with play(lambda *_: OK, default_queues=16, unit_mode=True) as (producer, both):
        await producer.send(
            Message("orders%", b"body", {"a": 'é"\x00'}, 9), queue=MessageQueue("orders%", "b", 0)
        )
        await producer.send_oneway(Message("orders%", b"x"))
        await producer.send_batch([Message("orders%", b"x")])
        sent = both.requests[0]
        assert (sent.code, sent.flag, sent.body) == (RequestCode.SEND_MESSAGE_V2, 0, b"body")
        assert (sent.language, sent.version) == ("PYTHON", 513)
        fields = dict(sent.ext_fields)
        properties = decode_properties(fields.pop("i"))
        assert properties.keys() == {"a", "UNIQ_KEY", "WAIT"}
        assert properties["a"] == 'é"\x00'
        assert int(fields.pop("g")) > 1_700_000_000_000
        assert fields == {
            "a": "PG", "b": "orders%", "c": "TBW102", "d": "16", "e": "0", "f": "0", "h": "9", "j": "0",
            "k": "true", "m": "false", "n": "b",
        }  # fmt: skip
        oneway, batch = sorted(both.requests[1:], key=lambda request: request.code)
        assert oneway.is_oneway
        assert (batch.code, batch.ext_fields["m"]) == (RequestCode.SEND_BATCH_MESSAGE, "true")


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_PERMISSION,
    ],
)
async def test_another_broker_is_tried_after_an_answer_that_may_be_its_own(code):
    events: list[SendEvent] = []

    async with play(first_is_bad(code), on_send=events.append) as (producer, both):
        message = Message("T", b"x")
        receipt = await producer.send(message)
        assert receipt.message_id == message.properties["UNIQ_KEY"]
        assert set(both.brokers) == {"a", "b"}
        assert receipt.queue.broker_name == both.brokers[1]
        first, second = events
        assert isinstance(first.error, RefusedError)
        assert first.error.code == code
        assert second.receipt == receipt
        ids = {decode_properties(request.ext_fields["i"])["UNIQ_KEY"] for request in both.requests}
        assert ids == {receipt.message_id}  # the same on every resend


async def test_all_brokers_are_named_where_none_takes_a_message():
    async with play(lambda *_: ResponseCode.SYSTEM_BUSY) as (producer, both):
        with pytest.raises(NotSentError) as caught:
            await producer.send(Message("T", b"x"))
        assert len(both.requests) == 3
        for word in ("topic T", "in 3 tries", "broker a", "broker b", "SYSTEM_BUSY (2) as told", "send less"):
            assert word in str(caught.value)
        assert isinstance(caught.value.__cause__, RefusedError)


async def test_a_message_that_is_wrong_is_not_sent_again():
    async with play(lambda *_: ResponseCode.MESSAGE_ILLEGAL) as (producer, both):
        with pytest.raises(RefusedError, match=r"MESSAGE_ILLEGAL \(13\) as told; see maxMessageSize"):
            await producer.send(Message("T", b"x"))
        assert len(both.requests) == 1


async def test_a_chosen_queue_is_the_only_one_that_is_tried():
    async with play(lambda *_: ResponseCode.SYSTEM_BUSY) as (producer, both):
        with pytest.raises(RefusedError, match="SYSTEM_BUSY"):
            await producer.send(Message("T", b"x"), select=lambda queues: queues[0])
        with pytest.raises(RefusedError, match="SYSTEM_BUSY"):
            await producer.send(Message("T", b"x", sharding_key="k"))
        assert len(both.requests) == 2


async def test_a_message_that_is_half_stored_is_sent_again_if_that_is_wanted():
    bad = ResponseCode.FLUSH_DISK_TIMEOUT

    async with play(first_is_bad(bad)) as (producer, both):
        assert (await producer.send(Message("T", b"x"))).status == "FLUSH_DISK_TIMEOUT"
        assert len(both.requests) == 1
    async with play(first_is_bad(bad), retry_not_stored=True) as (producer, both):
        assert (await producer.send(Message("T", b"x"))).status == "SEND_OK"
        assert set(both.brokers) == {"a", "b"}
    async with play(lambda *_: ResponseCode.SLAVE_NOT_AVAILABLE, retry_not_stored=True) as (producer, both):
        assert (await producer.send(Message("T", b"x"))).status == "SLAVE_NOT_AVAILABLE"
        assert len(both.requests) == 3


async def test_a_broker_that_says_nothing_is_left_after_the_time_of_a_try():
    async with play(first_is_bad(SILENCE), timeout_per_try_s=0.1) as (producer, both):
        receipt = await producer.send(Message("T", b"x"))
        assert set(both.brokers) == {"a", "b"}
        assert receipt.queue.broker_name == both.brokers[1]


async def test_the_time_of_a_message_is_kept():
    async with play(lambda *_: SILENCE) as (producer, both):
        with pytest.raises(NotSentError, match=r"did not answer request 310 in 0\.\d+ s.*may be stored"):
            await producer.send(Message("T", b"x"), timeout_s=0.2)
        assert len(both.requests) == 1


async def test_with_fault_tolerance_a_broker_that_failed_is_left_out():
    async with play(first_is_bad(ResponseCode.SYSTEM_BUSY), latency_fault_tolerance=True) as (producer, both):
        for _ in range(6):
            await producer.send(Message("T", b"x"))
        bad = both.brokers[0]
        assert both.brokers.count(bad) == 1


async def test_a_transaction_that_a_slave_may_not_have_is_rolled_back():
    async with play(lambda *_: ResponseCode.FLUSH_SLAVE_TIMEOUT) as (producer, both):
        done = await producer.send_in_transaction(Message("T", b"x"), lambda _: TransactionState.COMMIT)
        assert done.state is TransactionState.ROLLBACK
        while len(both.requests) < 2:
            await asyncio.sleep(0.01)
        half, end = both.requests
        assert half.ext_fields["f"] == "4"  # prepared
        assert end.is_oneway
        assert end.ext_fields == {
            "producerGroup": "PG", "tranStateTableOffset": "5", "commitLogOffset": "1234",
            "commitOrRollback": "12", "msgId": done.receipt.message_id, "topic": "T",
            "fromTransactionCheck": "false", "bname": half.ext_fields["n"],
        }  # fmt: skip


async def test_what_the_work_of_a_transaction_raises_is_told_to_the_broker():
    def fail(message: Message) -> TransactionState:
        raise RuntimeError("no money")

    async with play(lambda *_: OK) as (producer, both):
        done = await producer.send_in_transaction(Message("T", b"x"), fail)
        assert done.state is TransactionState.UNKNOWN
        while len(both.requests) < 2:
            await asyncio.sleep(0.01)
        end = both.requests[1]
        assert end.ext_fields["commitOrRollback"] == "0"
        assert end.remark is not None
        assert "no money" in end.remark


async def test_a_cancelled_send_leaves_nothing_behind():
    async with brokers(lambda *_: SILENCE) as (both, namesrv):
        core = ClientCore(namesrv, client_id="c")
        async with core, Producer(group="PG", core=core, retries=0) as producer:
            task = asyncio.create_task(producer.send(Message("T", b"x"), timeout_s=30))
            while not both.requests:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not any(connection._calls for connection in core._remoting._connections)
