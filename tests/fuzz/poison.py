"""Messages that cannot be read among honest ones, given to every reader of bodies.

Bodies that are marked as compressed and are garbage, cut, mutated, of a type that nobody knows or a bomb, and
inner batches that are none. Whatever lies beside them, each reader gives every honest message as it was sent
and in its place, gives the others as they are stored with a reason, and all readers say the same of each.
"""

from __future__ import annotations

import itertools
import random
import zlib
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import lz4.frame
import pyarrow as pa

from fuzz.mutate import mutate
from fuzz.watch import Findings, HangError, MemoryWatch, no_hang, watched_log
from kourou.cli import message_view
from kourou.client.consume.received import MessageBatch
from kourou.message import Message, encode_batch, sysflag
from kourou.message.codec import decode, encode
from kourou.message.compression import CompressionType, compress
from kourou.message.model import MessageQueue
from support.poison import BAD_BATCHES, POISON, Poison, bomb, zstd
from support.stores.records import simple_message

HANG_S = 60.0
RECORDS = 24  # of one pull
BOMB_SIZES = (5 << 20,) * 250 + (80 << 20, 256 << 20, 257 << 20)
LARGE_BYTES = 1 << 20
PULL = "a pull"
_UNWRAP = sysflag.INNER_BATCH | sysflag.NEED_UNWRAP


class Given(NamedTuple):
    """What a reader gave of a message: of one that it could not read, the stored bytes."""

    queue_offset: int
    body: bytes
    is_read: bool


class Sent(NamedTuple):
    """A record, and what must be given for it: None where only the readers themselves can tell."""

    queue_offset: int
    record: bytes
    stored: bytes
    sys_flag: int
    given: list[Given] | None


@cache
def bombs() -> list[Poison]:
    """Small bodies that become large ones, some of them larger than any may."""
    made = {
        (kind, size): Poison(kind.sys_flag, bomb(kind, size), "")
        for kind in CompressionType
        for size in set(BOMB_SIZES)
    }
    return [made[kind, size] for kind in CompressionType for size in BOMB_SIZES]


class PoisonFuzz:
    """Pulls of honest messages and others, one after the other."""

    def __init__(self, seed: int, findings: Findings) -> None:
        self._chance = random.Random(seed)
        self._findings = findings
        self._memory = MemoryWatch(findings)

    def run(self, count: int) -> None:
        """Try so many messages."""
        counts = self._findings.counts
        until = counts["messages tried"] + count
        for read in readers().values():  # compiles kernels, which is slow and no hang
            list(read(encode(simple_message(b"first"))))
        with watched_log(self._findings) as watch:
            while counts["messages tried"] < until:
                sent = self._sent()
                watch.input = data = b"".join(one.record for one in sent)
                counts["messages tried"] += len(sent)
                try:
                    with no_hang(HANG_S):
                        self._try(sent, data)
                except (HangError, Exception) as error:
                    self._findings.add_error("a reader failed", error, data)
                pa.default_memory_pool().release_unused()
                self._memory.look()

    # What is sent

    def _sent(self) -> list[Sent]:
        found: list[Sent] = []
        place = self._chance.randrange(1000)
        bomb_share = self._chance.choice((0.0, 0.0, 0.02, 0.3))
        for _ in range(self._chance.randint(1, RECORDS)):
            kind = self._chance.random()
            if kind < bomb_share:
                one = self._poison(self._chance.choice(bombs()), place, is_known=False)
            elif kind < bomb_share + 0.15:
                one = self._poison(self._chance.choice(list((POISON | BAD_BATCHES).values())), place)
            elif kind < bomb_share + 0.3:
                one = self._mutated(place)
            elif kind < bomb_share + 0.4:
                one = self._batch(place)
            else:
                one = self._honest(place)
            found.append(one)
            place += 8  # an inner batch has fewer messages
        return found

    def _body(self) -> bytes:
        size = self._chance.choice((1, 12, 13, 300, 5000))
        return self._chance.randbytes(4) * size

    def _honest(self, place: int) -> Sent:
        body, flag = self._body(), 0
        stored = body
        if self._chance.random() < 0.7:
            kind = self._chance.choice(list(CompressionType))
            stored, flag = compress(body, kind), kind.sys_flag
        return _sent(stored, flag, place, [Given(place, body, True)])

    def _batch(self, place: int) -> Sent:
        parts = [Message("TopicTest", self._body()) for _ in range(self._chance.randint(1, 6))]
        stored, flag = encode_batch(parts), _UNWRAP
        if self._chance.random() < 0.5:
            stored, flag = compress(stored, CompressionType.ZSTD), flag | CompressionType.ZSTD.sys_flag
        given = [Given(place + number, bytes(part.body), True) for number, part in enumerate(parts)]
        return _sent(stored, flag, place, given)

    def _poison(self, poison: Poison, place: int, *, is_known: bool = True) -> Sent:
        given = [Given(place, poison.body, False)] if is_known else None
        return _sent(poison.body, poison.sys_flag, place, given)

    def _mutated(self, place: int) -> Sent:
        """A body that was right; what it is now is for the readers to say, and all must say the same."""
        kind = self._chance.choice(list(CompressionType))
        stored = mutate(self._chance, compress(self._body(), kind))[:100_000]
        kinds = self._chance.choice((0, 1, 2, 3, 4, 7)) << sysflag.COMPRESSION_SHIFT
        return _sent(stored, sysflag.COMPRESSED | kinds, place, None)

    # What must hold

    def _try(self, sent: list[Sent], data: bytes) -> None:
        by_reader = {name: list(read(data)) for name, read in readers().items()}
        first = by_reader.pop(PULL)
        stored = {one.queue_offset: _short(one.stored) for one in sent}
        for name, found in by_reader.items():
            if len(found) != len(first) or any(
                given != wanted and not _is_left_out(name, given, wanted, stored)
                for given, wanted in zip(found, first)
            ):
                self._findings.add(f"{name} does not give what a pull gives", data)
        rest = iter(first)
        for one in sent:
            wanted = one.given
            got = list(itertools.islice(rest, len(wanted or (0,))))
            if wanted is None:
                self._check_other(one, got, data)
            elif got != wanted:
                what = "honest" if wanted[0].is_read else "bad"
                self._findings.add(f"{what} messages at {wanted[0].queue_offset} are not as they were", data)
            self._findings.counts["honest messages" if wanted and wanted[0].is_read else "bad messages"] += 1
        if next(rest, None) is not None:
            self._findings.add("there are more messages than were sent", data)

    def _check_other(self, one: Sent, got: list[Given], data: bytes) -> None:
        (given,) = got
        if not given.is_read:
            if given.body != _short(one.stored):
                self._findings.add("a body that cannot be read is not as it is stored", data)
            return
        self._findings.counts["bodies read all the same"] += 1
        if given.body != _short(_inflated(one)):
            self._findings.add("a body is not what other code reads", data)


def _sent(stored: bytes, flag: int, place: int, given: list[Given] | None) -> Sent:
    record = encode(simple_message(stored, sys_flag=flag, queue_offset=place))
    return Sent(place, record, stored, flag, given)


def _is_left_out(reader: str, given: Given, wanted: Given, stored: dict[int, bytes]) -> bool:
    """Whether a batch of columns has a large body as it is stored, for it has no room for all of them."""
    return (
        "Arrow" in reader
        and wanted.is_read
        and given == Given(wanted.queue_offset, stored.get(wanted.queue_offset, b""), False)
        and b" bytes, CRC " in wanted.body
    )


def _inflated(one: Sent) -> bytes:
    """A body, read by the libraries' other ways in: all of it at once."""
    kind = one.sys_flag >> sysflag.COMPRESSION_SHIFT & 7
    if kind == CompressionType.LZ4:
        return bytes(lz4.frame.decompress(one.stored))
    if kind == CompressionType.ZSTD:
        frame = zstd.get_frame_size(one.stored)
        return zstd.decompress(one.stored[:frame])
    return zlib.decompressobj().decompress(one.stored)


# The readers


@cache
def readers() -> dict[str, Callable[[bytes], Iterator[Given]]]:
    """Whoever reads bodies; Spark's rows where it is installed."""
    found: dict[str, Callable[[bytes], Iterator[Given]]] = {
        PULL: _pulled,
        "Arrow": _arrow,
        "Arrow of an opened pull": _opened_arrow,
        "cat": _cat,
    }
    try:
        from kourou.spark.read.rows import RowMaker
    except ImportError:
        return found

    def rows(data: bytes) -> Iterator[Given]:
        maker = RowMaker(("queueOffset", "body", "bodyError"))
        for batch in maker.from_records(data):
            yield from _of_columns(batch.columns)

    return {**found, "Spark": rows}


def _batch(data: bytes) -> MessageBatch:
    return MessageBatch(MessageQueue("TopicTest", "broker-a", 1), data, 0, 1)


def _pulled(data: bytes) -> Iterator[Given]:
    for message in _batch(data):
        yield Given(message.queue_offset, _short(bytes(message.body)), message.body_error is None)


def _arrow(data: bytes) -> Iterator[Given]:
    return _of_columns(_batch(data).to_arrow(["queue_offset", "body", "body_error"]).columns)


def _opened_arrow(data: bytes) -> Iterator[Given]:
    batch = _batch(data)
    assert batch.messages
    return _of_columns(batch.to_arrow(["queue_offset", "body", "body_error"]).columns)


def _of_columns(columns: Iterable[Any]) -> Iterator[Given]:
    for place, body, error in zip(*columns):
        yield Given(place.as_py(), _short(body.as_py()), error.as_py() is None)


def _cat(data: bytes) -> Iterator[Given]:
    at = 0
    while at < len(data):
        message = decode(data, at)
        at += message.store_size
        shown = message_view.fields(message)
        for part in shown.get("inner") or [shown]:
            body = part["body"].encode() if part["bodyEncoding"] == "utf-8" else b64decode(part["body"])
            yield Given(part["queueOffset"], _short(body), "bodyError" not in shown)


def _short(body: bytes) -> bytes:
    """A body to compare: of a large one its size and CRC."""
    return body if len(body) <= LARGE_BYTES else b"%d bytes, CRC %d" % (len(body), zlib.crc32(body))
