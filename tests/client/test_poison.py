"""One bad message, and nobody else notices: pulls with bodies that cannot be read, and with bombs."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from kourou.client.consume.received import MAX_INFLATED_BYTES, MAX_KEPT_BYTES, MessageBatch, held_bytes
from kourou.client.produce.requests import on_reply
from kourou.message import Message, encode_batch, sysflag
from kourou.message.codec import encode
from kourou.message.compression import MAX_DECOMPRESSED_BYTES, CompressionType, compress
from kourou.message.model import MessageQueue
from support.poison import BAD_BATCHES, POISON, Poison, bomb
from support.stores.records import simple_message

HONEST = b"an honest body " * 20
ALL = POISON | BAD_BATCHES


def record(body: bytes, sys_flag: int = 0, **fields: object) -> bytes:
    return encode(simple_message(body, "UNIQ_KEY\x01u\x02", sys_flag=sys_flag, **fields))


def honest(kind: CompressionType) -> bytes:
    return record(compress(HONEST, kind), kind.sys_flag)


def pulled(*records: bytes) -> MessageBatch:
    return MessageBatch(MessageQueue("t", "broker-a", 0), b"".join(records), 0, len(records))


@pytest.mark.parametrize("name", ALL)
def test_a_body_that_cannot_be_read_is_given_as_it_is_stored_and_says_why(name):
    flag, body, why = ALL[name]
    neighbour = honest(CompressionType.LZ4)
    before, poison, after = pulled(neighbour, record(body, flag), neighbour).messages
    assert (bytes(poison.body), poison.sys_flag) == (body, flag)
    assert (poison.body_error or "").startswith(why)
    for message in (before, after):
        assert (message.body, message.body_error, message.sys_flag) == (HONEST, None, 0)


@pytest.mark.parametrize("size", [MAX_DECOMPRESSED_BYTES, MAX_DECOMPRESSED_BYTES + (1 << 20)])
@pytest.mark.parametrize("kind", CompressionType)
def test_what_comes_after_bombs_is_given_as_it_was_sent(kind, size):
    """Two bombs of 8 KB were all that a pull could inflate: what followed them came compressed."""
    body = bomb(kind, size)
    tracemalloc.start()
    try:
        first, second, *others = pulled(
            *[record(body, kind.sys_flag)] * 2, *(honest(kind) for kind in CompressionType)
        ).messages
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [message.body for message in others] == [HONEST] * len(CompressionType)
    assert kept < MAX_KEPT_BYTES + 4 * len(body)  # no bomb is kept inflated
    for message in (first, second):
        if message.body_error is None:
            assert len(message.body) == size == MAX_DECOMPRESSED_BYTES
            assert held_bytes([message]) == len(body)
        else:
            assert message.body_error == f"body inflates to more than {MAX_DECOMPRESSED_BYTES} bytes"
            assert message.body == body


def test_bodies_that_inflate_together_are_bounded_and_all_are_readable():
    """As many as may be kept are; the others are inflated when they are asked for, as often as they are."""
    body, flag = bomb(CompressionType.ZSTD, MAX_KEPT_BYTES), CompressionType.ZSTD.sys_flag
    batch = pulled(*[record(body, flag)] * 32, honest(CompressionType.ZLIB))
    held = [held_bytes([message]) for message in batch.messages[:-1]]
    most = MAX_INFLATED_BYTES // MAX_KEPT_BYTES
    assert held == [MAX_KEPT_BYTES] * most + [len(body)] * (32 - most)
    for message in (batch[0], batch[most], batch[most]):
        assert (message.body, message.sys_flag) == (bytes(MAX_KEPT_BYTES), 0)
    batch[most].body = b"set by the application"
    assert batch[most].body == b"set by the application"
    assert batch[-1].body == HONEST


def test_messages_of_an_inner_batch_that_inflates_are_readable_and_bounded():
    """Each of them is kept as small as it can be where all together are too much."""
    sent = [Message("t", bytes([number]) * MAX_KEPT_BYTES, {"n": str(number)}) for number in range(20)]
    kind = CompressionType.ZSTD
    body = compress(encode_batch(sent), kind)
    batch = pulled(record(body, sysflag.INNER_BATCH | sysflag.NEED_UNWRAP | kind.sys_flag, queue_offset=7))
    assert held_bytes(batch) <= MAX_INFLATED_BYTES + len(body) * len(sent)
    assert [message.queue_offset for message in batch] == list(range(7, 27))
    assert all(message.body == item.body for message, item in zip(batch, sent))
    rows = batch.to_arrow(["body", "body_error"])
    assert rows["body"].to_pylist() == [item.body for item in sent]


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_arrow_has_a_row_for_every_message(name, opened):
    """It raised, and what was pulled with the message was lost to whoever reads columns."""
    pytest.importorskip("pyarrow")
    flag, body, why = ALL[name]
    batch = pulled(honest(CompressionType.ZSTD), record(body, flag), honest(CompressionType.ZLIB))
    assert not opened or len(batch.messages) == 3
    rows = batch.to_arrow(["body", "body_error", "broker_name"])
    assert rows["body"].to_pylist() == [HONEST, body, HONEST]
    first, error, last = rows["body_error"].to_pylist()
    assert (first, last) == (None, None)
    assert error.startswith(why)


@pytest.mark.parametrize("opened", [False, True])
def test_arrow_has_the_honest_bodies_that_came_with_bombs(opened):
    """The largest bodies are left out where all of them are more than a pull may take."""
    pytest.importorskip("pyarrow")
    kind = CompressionType.ZSTD
    inflating = record(bomb(kind, 200 << 20), kind.sys_flag)
    batch = pulled(inflating, honest(kind), *[inflating] * 9, honest(CompressionType.ZLIB))
    assert not opened or len(batch.messages) == 12
    rows = batch.to_arrow(["body", "body_error"])
    errors = rows["body_error"].to_pylist()
    assert [row for row, error in enumerate(errors) if error is None] in ([0, 1, 11], [1, 10, 11])
    assert [rows["body"][row].as_py() for row in (1, 11)] == [HONEST] * 2
    assert "body inflates to 209715200 bytes: too many for one batch" in errors


def reply_of(poison: Poison) -> tuple[bytes, str | None]:
    from kourou.client.produce import requests
    from kourou.remoting.connection import Connection
    from kourou.remoting.protocol.codes import RequestCode
    from kourou.remoting.protocol.command import RemotingCommand

    async def main() -> tuple[bytes, str | None]:
        future = requests._waiting["c"] = asyncio.get_running_loop().create_future()
        command = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, {
            "producerGroup": "g", "topic": "t", "defaultTopic": "d", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": str(poison.sys_flag), "bornTimestamp": "0", "flag": "0",
            "storeTimestamp": "0", "properties": "CORRELATION_ID\x01c\x02", "bornHost": "/127.0.0.1:1",
            "storeHost": "/127.0.0.1:2",
        }, poison.body)  # fmt: skip
        on_reply(Connection({}), command)
        reply = await asyncio.wait_for(future, 5)
        return bytes(reply.body), reply.body_error

    return asyncio.run(main())


def test_a_reply_that_cannot_be_read_comes_all_the_same():
    """Who waited for it was told of a timeout."""
    poison = POISON["LZ4 garbage"]
    body, error = reply_of(poison)
    assert body == poison.body
    assert (error or "").startswith(poison.why)
    good = Poison(CompressionType.LZ4.sys_flag, compress(HONEST, CompressionType.LZ4), "")
    assert reply_of(good) == (HONEST, None)
