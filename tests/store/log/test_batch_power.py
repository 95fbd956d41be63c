"""A batch that was not acknowledged when the power went: its first messages may be there, in their order;
never one without those before it. Its messages are records of their own in the log, as in Java, and recovery
ends the log at the first that is not whole.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from kourou.inspect import StoreDirectory
from kourou.inspect.check.whole import check
from kourou.message import Message, encode_batch
from kourou.store import FlushDiskType, MessageStore, PutMessageStatus
from support.stores.store import ManualClock, bodies, decoded, message, open_store, put, small_config

SECTOR = 512
ACKNOWLEDGED = 5
SIZES = [3, 700, 90, 2000, 1, 450, 4100, 60, 1300, 12, 800, 5]
WHOLE_CRC = {"enabled_append_prop_crc": True, "force_verify_prop_crc": True}


@dataclass
class Crashed:
    """A store as its process left it: a flushed part, and behind it a batch that the disk need not have."""

    directory: Path
    overrides: dict[str, object]
    flushed: int  # bytes of the log that are on the disk for sure
    ends: list[int]  # of the records of the batch

    def recovered(self, root: Path, log: bytes, *, with_queues: bool = True) -> MessageStore:
        """A store on these bytes of the log. Queues and index are as they were, ahead of it, or lost."""
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.directory / "store", root / "store")
        self.log_file(root).write_bytes(log)
        if not with_queues:
            shutil.rmtree(root / "store" / "consumequeue")
            shutil.rmtree(root / "store" / "index")
        return MessageStore(small_config(root, **self.overrides), clock=ManualClock())

    @staticmethod
    def log_file(root: Path) -> Path:
        return root / "store" / "commitlog" / ("0" * 20)


def acknowledged_bodies() -> list[bytes]:
    return [b"acknowledged %d" % number for number in range(ACKNOWLEDGED)]


def batch_bodies() -> list[bytes]:
    return [b"%02d" % number + b"." * size for number, size in enumerate(SIZES)]


@pytest.fixture(scope="module", params=[{}, WHOLE_CRC], ids=["crc of bodies", "crc of records"])
def crashed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    directory = tmp_path_factory.mktemp("crashed")
    parts = [
        Message("topic", body, {"KEYS": f"b{number}", "UNIQ_KEY": f"{number:032X}"})
        for number, body in enumerate(batch_bodies())
    ]
    with open_store(small_config(directory / "live", **request.param), clock=ManualClock()) as store:
        put(store, *(message(body=b, KEYS=f"a{n}") for n, b in enumerate(acknowledged_bodies())))
        flushed = store.commit_log.max_offset
        result = store.put_messages(message(body=encode_batch(parts)))
        assert result.physical_offsets is not None
        ends = [*result.physical_offsets[1:], store.commit_log.max_offset]
        store.index.write_pending()
        shutil.copytree(store.root, directory / "store")
    return Crashed(directory, request.param, flushed, ends)


def check_recovered(store: MessageStore, root: Path) -> int:
    """What holds after any power cut; how many messages of the batch are there."""
    store.load()
    store.start(threads=False)
    try:
        found = bodies(store)
        count = len(found) - ACKNOWLEDGED
        assert found == acknowledged_bodies() + batch_bodies()[:count]  # no hole, no other order
        queue = store.queues.get("topic", 0)
        assert queue is not None
        assert (queue.min_offset, queue.max_offset) == (0, len(found))
        records = decoded(store.get_message("topic", 0, ACKNOWLEDGED, 32))
        offsets = [record.queue_offset for record in records]
        assert offsets == list(range(ACKNOWLEDGED, len(found)))
        while store.index.is_behind:
            store.index_catch_up.run_once()
        for number in range(len(SIZES)):
            places = store.index.query("topic", f"b{number}", 9, 0, 1 << 62)
            # Without the CRC of whole records one may have lost its properties, and so its key.
            keyed = number < count and records[number].properties.get("KEYS") == f"b{number}"
            assert set(places) == ({records[number].physical_offset} if keyed else set()), number
        put(store, message(body=b"after", KEYS="after"))
        assert bodies(store) == [*found, b"after"]
    finally:
        store.shutdown()
    with StoreDirectory.open(root / "store", store.config) as directory:
        assert [str(finding) for finding in check(directory).findings] == []
    return count


@pytest.mark.parametrize("with_queues", [True, False], ids=["queues ahead", "queues lost"])
def test_a_log_that_ends_within_a_batch_has_its_first_messages(crashed, tmp_path, with_queues):
    """The log is cut at the end of every record, and in the header, the body and the tail of every record."""
    whole = crashed.log_file(crashed.directory).read_bytes()
    starts = [crashed.flushed, *crashed.ends[:-1]]
    for number, (start, end) in enumerate(zip(starts, crashed.ends)):
        for cut in sorted({start, start + 4, start + 60, (start + end) // 2, end - 1}):
            log = whole[:cut].ljust(len(whole), b"\0")
            store = crashed.recovered(tmp_path / "cut", log, with_queues=with_queues)
            count = check_recovered(store, tmp_path / "cut")
            # The last byte of a record is its last property's: without the CRC of all of it nobody misses it.
            assert count == number or (cut == end - 1 and count == number + 1 and not crashed.overrides)
    store = crashed.recovered(tmp_path / "cut", whole, with_queues=with_queues)
    assert check_recovered(store, tmp_path / "cut") == len(SIZES)


def test_sectors_that_are_lost_in_any_order_leave_its_first_messages(tmp_path, crashed):
    """Whatever sectors of the batch the disk has, what is there is a beginning of it. With the CRC of whole
    records it ends before the first that lost something; else it may go on over one that lost properties."""
    whole = crashed.log_file(crashed.directory).read_bytes()
    chance = random.Random(29)
    first, last = crashed.flushed // SECTOR, crashed.ends[-1] // SECTOR
    for _ in range(60):
        log = bytearray(whole)
        share = chance.random()
        for sector in range(first, last + 1):
            if chance.random() < share:
                begin, end = max(sector * SECTOR, crashed.flushed), (sector + 1) * SECTOR
                log[begin:end] = bytes(end - begin)
        store = crashed.recovered(tmp_path / "torn", bytes(log), with_queues=chance.random() < 0.5)
        count = check_recovered(store, tmp_path / "torn")
        right = next((n for n, end in enumerate(crashed.ends) if log[:end] != whole[:end]), len(SIZES))
        assert count == right if crashed.overrides else count >= right


def test_an_acknowledged_batch_is_there_whole(tmp_path):
    """With SYNC_FLUSH a batch is acknowledged once its last record is on the disk."""
    config = small_config(tmp_path / "live", flush_disk_type=FlushDiskType.SYNC_FLUSH)
    told: list[PutMessageStatus] = []
    with open_store(config, clock=ManualClock()) as store:
        batch = message(body=encode_batch([Message("topic", body) for body in batch_bodies()]))
        result = store.put_messages(batch)
        end = store.commit_log.max_offset
        store.when_stored(result, batch, told.append)
        store.wait(0)
        assert (told, store.commit_log.files.flushed_where) == ([], 0)
        store.flusher.flush()
        store.wait(0)
        assert (told, store.commit_log.files.flushed_where) == ([PutMessageStatus.PUT_OK], end)
        put(store, message(body=b"later"))
        shutil.copytree(store.root, tmp_path / "dead" / "store")
    log = Crashed.log_file(tmp_path / "dead")
    log.write_bytes(log.read_bytes()[:end].ljust(log.stat().st_size, b"\0"))
    with open_store(small_config(tmp_path / "dead"), clock=ManualClock()) as store:
        assert bodies(store) == batch_bodies()
