"""Replication of the log: the bytes of the protocol, what becomes of slaves, and sends that wait for them."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import logging
import ssl
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.store import BrokerRole, FlushDiskType, PutMessageStatus
from kourou.store.replication.flow import FlowMonitor
from kourou.store.replication.waits import AckWaits
from support import loops
from support.loops import until
from support.sites.certificates import Authority, needs_openssl
from support.stores.replication import HOST, Node, caught_up, link, node, slave
from support.stores.store import LOG_FILE, bodies, fill_file, message, open_store, put, small_config

RECORDED = Path(__file__).parent.parent / "fixtures/rocketmq-5.5.0/wire/ha-replication.jsonl.gz"
SYNC = BrokerRole.SYNC_MASTER
OK = PutMessageStatus.PUT_OK


def run(main: Coroutine[Any, Any, None]) -> None:
    loops.run("uvloop", main)


def load(store: Node, count: int, size: int = 300, first: int = 0) -> None:
    for number in range(first, first + count):
        put(store.store, message("T", number % 3, bytes([number % 256]) * size, KEYS=f"k{number}", TAGS="a"))


def assert_same(master: Node, follower: Node) -> None:
    """The logs, the queues and the answers of the index are the same."""
    assert follower.log_bytes(follower.store.commit_log.min_offset) == master.log_bytes(
        follower.store.commit_log.min_offset
    )
    for queue_id in range(3):
        assert bodies(follower.store, "T", queue_id) == bodies(master.store, "T", queue_id)
    for key in ("k0", "k7", "k19"):
        assert (
            follower.store.query_message("T", key).physical_offsets
            == master.store.query_message("T", key).physical_offsets
        )


# The protocol


def recorded() -> list[tuple[str, bytes]]:
    """Who sent what on the connection of two Java brokers, in the order it came."""
    with gzip.open(RECORDED, "rt", encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return [(entry["sender"], base64.b64decode(entry["bytes"])) for entry in entries]


def blocks_of(stream: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + 12 <= len(stream):
        offset, size = struct.unpack_from(">qi", stream, at)
        assert at + 12 + size <= len(stream)
        found.append((offset, stream[at + 12 : at + 12 + size]))
        at += 12 + size
    assert at == len(stream)
    return found


async def test_a_slave_takes_what_a_java_master_sent_and_answers_as_javas_slave_did(tmp_path):
    said = bytearray()

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.extend(await reader.readexactly(8))
        for sender, data in recorded():
            if sender == "listener":
                writer.write(data)
                await writer.drain()
        while more := await reader.read(4096):
            said.extend(more)
        writer.close()

    server = await asyncio.start_server(play, HOST, 0)
    sent = b"".join(data for sender, data in recorded() if sender == "listener")
    content = b"".join(data for _, data in blocks_of(sent))
    port = server.sockets[0].getsockname()[1]
    async with slave(tmp_path, port, mapped_file_size_commit_log=1 << 20) as follower:
        await until(lambda: follower.end == len(content))
        await until(lambda: follower.store.dispatcher.dispatched_offset == len(content))
        assert follower.log_bytes() == content
        await until(lambda: bytes(said[-8:]) == len(content).to_bytes(8, "big"))
    server.close()
    offsets = [offset for (offset,) in struct.iter_unpack(">q", said)]
    acknowledged = {int.from_bytes(data, "big") for who, data in recorded() if who == "connector"}
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert offsets[-1] == len(content) >= max(acknowledged)  # the recording ends before its answer


async def test_a_master_sends_a_slave_the_very_bytes_that_javas_sent(tmp_path):
    sent = b"".join(data for sender, data in recorded() if sender == "listener")
    async with node(tmp_path, mapped_file_size_commit_log=1 << 20) as master:
        reader, writer = await asyncio.open_connection(HOST, master.port)
        writer.write(bytes(8))
        got = bytearray()
        for offset, data in blocks_of(sent):
            if not data:
                continue
            master.store.commit_log.append_raw(offset, data)
            master.replication.appended()
            block = await reader.readexactly(12 + len(data))
            assert block == struct.pack(">qi", offset, len(data)) + data
            got += data
            writer.write((offset + len(data)).to_bytes(8, "big"))
        assert bytes(got) == master.log_bytes()
        await until(lambda: master.replication.slaves[0].ack_offset == master.end)
        writer.close()


async def test_signs_of_life_have_no_bytes_and_say_where_the_log_goes_on(tmp_path):
    async with node(tmp_path, ha_send_heartbeat_interval=50) as master:
        load(master, 1)
        reader, writer = await asyncio.open_connection(HOST, master.port)
        writer.write(bytes(8))
        await reader.readexactly(12 + master.end)
        assert await reader.readexactly(24) == struct.pack(">qi", master.end, 0) * 2
        writer.close()


async def test_blocks_are_no_larger_than_the_batch_size_and_reports_may_come_in_pieces(tmp_path):
    async with node(tmp_path, ha_transfer_batch_size=1000) as master:
        load(master, 20)
        reader, writer = await asyncio.open_connection(HOST, master.port)
        for byte in bytes(8):
            writer.write(bytes([byte]))
            await writer.drain()
        rest, got = master.end, bytearray()
        while rest:
            offset, size = struct.unpack(">qi", await reader.readexactly(12))
            assert offset == len(got)
            assert size == min(rest, 1000)
            got += await reader.readexactly(size)
            rest -= size
        assert bytes(got) == master.log_bytes()
        writer.close()


# Slaves that come


@pytest.mark.parametrize("from_start", [False, True])
async def test_an_empty_slave_begins_with_the_last_file_or_with_the_first(tmp_path, from_start):
    async with node(tmp_path / "m", from_start=from_start) as master:
        fill_file(master.store, "T")
        fill_file(master.store, "T")
        load(master, 20)
        last = master.store.commit_log.files.files[-1].base
        assert last == 2 * LOG_FILE
        async with slave(tmp_path / "s", master.port) as follower:
            await caught_up(master, follower)
            assert follower.store.commit_log.min_offset == (0 if from_start else last)
            begin = follower.store.commit_log.min_offset
            assert follower.log_bytes(begin) == master.log_bytes(begin)
            if from_start:
                assert_same(master, follower)


async def test_a_slave_goes_on_after_restarts_of_both_and_after_a_record_that_was_cut(tmp_path):
    for round_number in range(3):
        # A batch of 1000 bytes cuts records, and each stop may come within one.
        async with (
            node(tmp_path / "m", ha_transfer_batch_size=1000) as master,
            slave(tmp_path / "s", master.port) as follower,
        ):
            load(master, 60, first=60 * round_number)
            if round_number == 2:
                await caught_up(master, follower)
                assert_same(master, follower)
                continue
            await until(lambda: follower.end > 0)


@pytest.mark.parametrize(
    "kind", [{"transient_store_pool_enable": True}, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}]
)
async def test_what_a_master_has_not_in_its_files_or_a_slave_not_on_its_disk_comes_later(tmp_path, kind):
    async with (
        node(tmp_path / "m", from_start=True, **kind) as master,
        slave(tmp_path / "s", master.port, **kind) as follower,
    ):
        for first in range(0, 200, 20):
            load(master, 20, first=first)
            await asyncio.sleep(0.01)
        await caught_up(master, follower)
        assert_same(master, follower)


async def test_a_part_of_a_record_is_neither_dispatched_nor_in_the_way_of_a_clean_stop(tmp_path):
    with open_store(small_config(tmp_path / "m")) as source:
        put(source, message("T", 0, b"one"), message("T", 0, b"two" * 100))
        data = bytes(source.commit_log.files.files[0].view[: source.commit_log.max_offset])

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = int.from_bytes(await reader.readexactly(8), "big")
        until_byte = len(data) - 50 if asked == 0 else len(data)
        part = data[asked:until_byte]
        writer.write(struct.pack(">qi", asked, len(part)) + part)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(play, HOST, 0)
    port = server.sockets[0].getsockname()[1]
    async with slave(tmp_path / "s", port) as follower:
        await until(lambda: bodies(follower.store, "T", 0) == [b"one"])
        assert follower.end == len(data) - 50
    assert not (tmp_path / "s" / "store" / "abort").exists()
    async with slave(tmp_path / "s", port) as follower:
        assert follower.store.recovery is not None
        assert follower.store.recovery.clean
        await until(lambda: follower.store.max_offset("T", 0) == 2)
        assert follower.log_bytes() == data
    server.close()


def test_a_slave_that_is_ahead_or_too_far_behind_is_turned_away_with_what_to_do(tmp_path, caplog):
    async def turned_away(master: Node, offset: int) -> str:
        caplog.clear()
        reader, writer = await asyncio.open_connection(HOST, master.port)
        writer.write(offset.to_bytes(8, "big"))
        assert await reader.read() == b""
        writer.close()
        return caplog.text

    async def main() -> None:
        async with node(tmp_path) as master:
            load(master, 3)
            text = await turned_away(master, master.end + 1)
            assert "it is ahead" in text
            assert "make the slave the master" in text
            fill_file(master.store, "T")
            master.store.commit_log.files.remove_files([master.store.commit_log.files.files[0]])
            text = await turned_away(master, 100)
            assert "too far behind" in text
            assert "empty its store" in text
            assert not master.replication.slaves

    with caplog.at_level(logging.ERROR):
        run(main())


async def test_what_a_slave_cannot_have_acknowledges_nothing(tmp_path, caplog):
    async with node(tmp_path) as master:
        load(master, 3)
        for lie in (master.end + 1, -5):
            reader, writer = await asyncio.open_connection(HOST, master.port)
            writer.write(bytes(8))
            await reader.readexactly(12 + master.end)
            writer.write(lie.to_bytes(8, "big", signed=True))
            assert await reader.read() == b""
            writer.close()
        assert not master.replication.slaves
    assert "it says that it has the log up to" in caplog.text


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (struct.pack(">qi", 5, 10) + bytes(10), "the master goes on at 5"),
        (struct.pack(">qi", 0, -1), "a block of -1 bytes"),
        (struct.pack(">qi", 0, 1 << 30), "a block of 1073741824 bytes"),
    ],
)
async def test_a_block_that_does_not_fit_ends_the_connection_and_changes_nothing(
    tmp_path, caplog, block, reason
):
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(block)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(play, HOST, 0)
    with open_store(small_config(tmp_path)) as source:
        put(source, message("T", 0, b"one"))
        end = source.commit_log.max_offset
    async with slave(tmp_path, server.sockets[0].getsockname()[1]) as follower:
        await until(lambda: reason in caplog.text)
        assert follower.end == end
    server.close()


async def test_a_master_that_the_check_finds_wrong_is_not_connected_to(tmp_path, caplog):
    mistakes = ["its log has other bytes: empty this store"]

    async def check() -> str | None:
        return mistakes[0] if mistakes else None

    async with (
        node(tmp_path / "m") as master,
        slave(tmp_path / "s", master.port, check_master=check) as s,
    ):
        load(master, 1)
        await until(lambda: mistakes[0] in caplog.text)
        assert s.end == 0
        assert not master.replication.slaves
        mistakes.clear()
        s.replication.client.wake()  # type: ignore[union-attr]
        await caught_up(master, s)


# The link


async def test_a_link_that_is_cut_in_any_place_neither_loses_nor_repeats_bytes(tmp_path):
    async with node(tmp_path / "m", from_start=True) as master, link(master.port) as between:
        between.cut_after_bytes = 20_011
        async with slave(tmp_path / "s", between.port) as follower:
            for first in range(0, 600, 100):
                load(master, 100, first=first)
                await asyncio.sleep(0)
            await until(lambda: follower.end == master.end)
            assert between.connections > 5
            between.cut_after_bytes = -1
            await caught_up(master, follower)
            assert_same(master, follower)


async def test_a_slow_link_does_not_hold_up_the_master(tmp_path):
    async with node(tmp_path / "m", from_start=True) as master, link(master.port) as between:
        between.delay_s, between.chunk_bytes = 0.005, 2000
        async with slave(tmp_path / "s", between.port) as follower:
            load(master, 200)
            assert follower.end < master.end
            await caught_up(master, follower)
            assert_same(master, follower)


async def test_a_half_open_link_is_given_up_by_both_and_made_again(tmp_path, caplog):
    timing: dict[str, Any] = {"ha_housekeeping_interval": 300, "ha_send_heartbeat_interval": 50}

    async with (
        node(tmp_path / "m", **timing) as master,
        link(master.port) as between,
        slave(tmp_path / "s", between.port, **timing) as follower,
    ):
        load(master, 10)
        await caught_up(master, follower)
        between.hold()
        load(master, 10, first=10)
        await until(lambda: not master.replication.slaves)
        await until(lambda: "the master said nothing for too long" in caplog.text)
        between.go_on()
        await caught_up(master, follower)
        assert_same(master, follower)
    assert "said nothing for too long: its connection is closed" in caplog.text


async def test_flow_control_keeps_to_its_bytes_a_second(tmp_path):
    limit = 20_000
    async with node(
        tmp_path / "m", ha_flow_control_enable=True, max_ha_transfer_byte_in_second=limit
    ) as master:
        load(master, 120)
        assert master.end > 2 * limit
        async with slave(tmp_path / "s", master.port) as follower:
            flow = master.replication.slaves
            await until(lambda: bool(flow) or bool(master.replication.slaves))
            connection = master.replication.slaves[0]
            most = 0
            while follower.end < master.end:
                most = max(most, connection.flow.bytes_in_second())
                await asyncio.sleep(0.01)
            assert 0 < most <= limit + 12
            await caught_up(master, follower)
            assert_same(master, follower)


def test_without_flow_control_anything_may_be_sent(tmp_path):
    flow = FlowMonitor(small_config(tmp_path))
    flow.add(1 << 40)
    assert flow.allowance() > 1 << 30


def tls_contexts(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a master and its slave."""
    authority = Authority(directory, "authority")
    certificate = authority.sign("master")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate.cert, certificate.key)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(authority.cert)
    return server, client


@needs_openssl
async def test_the_link_in_tls(tmp_path):
    server, client = tls_contexts(tmp_path)
    async with node(tmp_path / "m", server_tls=server) as master:
        load(master, 50)
        async with slave(tmp_path / "s", master.port, client_tls=lambda: client) as follower:
            await caught_up(master, follower)
            assert_same(master, follower)
        async with slave(tmp_path / "plain", master.port) as stranger:
            await asyncio.sleep(0.3)
            assert stranger.end == 0
            assert not master.replication.slaves


@needs_openssl
async def test_a_master_that_moves_while_a_slave_connects_is_found_where_it_is(tmp_path):
    server, client = tls_contexts(tmp_path)
    async with (
        node(tmp_path / "old", server_tls=server) as old,
        node(tmp_path / "new", server_tls=server) as new,
    ):
        followers: list[Node] = []

        def moved() -> ssl.SSLContext:  # asked for when the old address is being connected to
            assert followers[0].replication.client is not None
            followers[0].replication.client.set_address(f"{HOST}:{new.port}")
            return client

        async with slave(tmp_path / "s", old.port, client_tls=moved) as follower:
            followers.append(follower)
            load(new, 5)
            await caught_up(new, follower)
            assert not old.replication.slaves


# Sends that wait


@asynccontextmanager
async def sync_pair(tmp_path: Path, **more: Any) -> AsyncIterator[tuple[Node, Node, Any]]:
    async with (
        node(tmp_path / "m", SYNC, **more) as master,
        link(master.port) as between,
        slave(tmp_path / "s", between.port) as follower,
    ):
        await until(lambda: bool(master.replication.slaves))
        yield master, follower, between


def send(master: Node, body: bytes = b"x", **properties: str) -> list[PutMessageStatus]:
    """Put a message; a list that gets its outcome."""
    item = message("T", 0, body)
    for name, value in properties.items():
        item.set_property(name, value)
    told: list[PutMessageStatus] = []
    master.store.when_stored(master.store.put_message(item), item, told.append)
    return told


async def test_a_sync_master_answers_when_a_slave_has_the_message(tmp_path):
    async with sync_pair(tmp_path) as (master, follower, between):
        between.hold()
        outcomes = [send(master, bytes([number])) for number in range(50)]
        await asyncio.sleep(0.1)
        assert outcomes == [[]] * 50
        assert master.replication.waits.waiting == 50
        assert send(master, WAIT="false") == [OK]
        between.go_on()
        await until(lambda: outcomes == [[OK]] * 50)
        assert follower.end >= 50


async def test_without_a_slave_or_with_one_too_far_behind_it_is_not_available(tmp_path):
    async with node(tmp_path / "alone", SYNC) as master:
        assert send(master) == [PutMessageStatus.SLAVE_NOT_AVAILABLE]
    async with sync_pair(tmp_path, ha_max_gap_not_in_sync=2000) as (master, follower, between):
        between.hold()
        waiting = send(master)
        assert waiting == []
        load(master, 10)
        assert send(master) == [PutMessageStatus.SLAVE_NOT_AVAILABLE]
        between.go_on()
        await until(lambda: waiting == [OK])
        await caught_up(master, follower)
        again = send(master)
        await until(lambda: again == [OK])


async def test_a_slave_that_does_not_answer_in_time(tmp_path):
    async with sync_pair(tmp_path, slave_timeout=200) as (master, _, between):
        between.hold()
        outcome = send(master)
        await until(lambda: outcome == [PutMessageStatus.FLUSH_SLAVE_TIMEOUT])
        assert master.replication.waits.waiting == 0


async def test_an_async_master_waits_for_nobody(tmp_path):
    async with (
        node(tmp_path / "m") as master,
        link(master.port) as between,
        slave(tmp_path / "s", between.port),
    ):
        await until(lambda: bool(master.replication.slaves))
        between.hold()
        assert send(master) == [OK]


async def test_the_disk_and_the_slaves_are_both_waited_for(tmp_path):
    async with sync_pair(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH) as (master, _, between):
        outcome = send(master)
        await until(lambda: outcome == [OK])
        between.hold()
        outcome = send(master)
        end = master.end
        await until(lambda: master.store.commit_log.files.flushed_where >= end)
        assert outcome == []
        between.go_on()
        await until(lambda: outcome == [OK])


async def test_two_slaves_of_three_replicas(tmp_path):
    async with sync_pair(tmp_path, in_sync_replicas=3) as (master, _, between):
        assert send(master) == [PutMessageStatus.SLAVE_NOT_AVAILABLE]
        async with slave(tmp_path / "s2", master.port) as second:
            await caught_up(master, second)
            both = send(master)
            await until(lambda: both == [OK])
            between.hold()
            one = send(master)
            await until(lambda: second.end == master.end)
            await asyncio.sleep(0.05)
            assert one == []
            between.go_on()
            await until(lambda: one == [OK])


async def test_as_many_replicas_as_there_are(tmp_path):
    async with sync_pair(tmp_path, in_sync_replicas=3, enable_auto_in_sync_replicas=True) as (
        master,
        _,
        _,
    ):
        outcome = send(master)
        await until(lambda: outcome == [OK])


async def test_with_fewer_replicas_than_the_least_nothing_is_taken(tmp_path):
    async with node(tmp_path / "m", SYNC, min_in_sync_replicas=2) as master:
        assert send(master) == [PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH]
        assert master.end == 0
        assert send(master, WAIT="false") == [OK]
        async with slave(tmp_path / "s", master.port) as follower:
            await caught_up(master, follower)
            outcome = send(master)
            await until(lambda: outcome == [OK])


class Acked:
    def __init__(self, ack_offset: int) -> None:
        self.ack_offset = ack_offset


async def test_one_acknowledgement_releases_all_up_to_it(tmp_path):
    one = Acked(0)
    waits = AckWaits(small_config(tmp_path), lambda: [one])
    waits.refresh()
    told: list[int] = []
    for offset in (10, 20, 30):
        waits.wait_for(offset, lambda status, offset=offset: told.append(offset))  # type: ignore[misc]
    one.ack_offset = 25
    waits.refresh()
    assert told == [10, 20]
    assert waits.waiting == 1
    waits.stop()
    assert told == [10, 20, 30]


async def test_the_status_of_both_sides(tmp_path):
    async with node(tmp_path / "m") as master, slave(tmp_path / "s", master.port) as follower:
        load(master, 10)
        await caught_up(master, follower)
        status = master.replication.status()
        assert status.is_master
        assert status.max_offset == master.end
        assert status.in_sync_slaves == 1
        assert (status.slaves[0].ack_offset, status.slaves[0].diff) == (master.end, 0)
        status = follower.replication.status()
        assert not status.is_master
        assert status.client.is_connected
        assert status.client.max_offset == master.end
        assert status.client.last_read_ms > 0
