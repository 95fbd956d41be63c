"""The store against a model of it: whatever is done in whatever order, it holds what a plain list would."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kourou.message import Message, encode_batch
from kourou.store import FlushDiskType, GetMessageStatus, MessageStore
from support.stores.fault_disk import FaultDisk
from support.stores.store import LOG_FILE, ManualClock, decoded, message, put, small_config

Queue = tuple[str, int]
queues = st.tuples(st.sampled_from(["a", "b", "long" * 40]), st.integers(0, 1))
sizes = st.sampled_from([0, 1, 100, 3000, 3000, 20_000])


class StoreMachine(RuleBasedStateMachine):
    """Puts, flushes, clean restarts, crashes of the process and expiry, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="kourou-model-"))
        self.clock = ManualClock()
        self.count = 0
        # The model: the messages of each queue (number, physical offset), and those that wait for a flush.
        self.seen: dict[Queue, list[tuple[int, int]]] = defaultdict(list)
        self.waiting: list[tuple[Queue, int, int]] = []

    @initialize(flush=st.sampled_from(FlushDiskType), ext=st.booleans())
    def open(self, flush: FlushDiskType, ext: bool) -> None:
        self.config = small_config(
            self.directory, flush_disk_type=flush, enable_consume_queue_ext=ext, max_index_num=60
        )
        self.load()

    def load(self) -> None:
        self.store = MessageStore(self.config, clock=self.clock)
        self.store.load()
        self.store.start(threads=False)

    def body(self, size: int) -> bytes:
        self.count += 1
        # No two in one millisecond: where the checkpoint has no offset, recovery goes by times, as in Java.
        self.clock.advance(size + 1)
        return b"%d" % self.count + bytes(size)

    def note(self, queue: Queue, number: int, physical_offset: int) -> None:
        self.waiting.append((queue, number, physical_offset))
        if not self.config.sync_flush:
            self.all_seen()

    def all_seen(self) -> None:
        for queue, number, physical_offset in self.waiting:
            self.seen[queue].append((number, physical_offset))
        self.waiting.clear()

    @rule(queue=queues, size=sizes)
    def put(self, queue: Queue, size: int) -> None:
        body = self.body(size)
        (offset,) = put(self.store, message(*queue, body, KEYS=f"n{self.count}", TAGS="t"))
        self.note(queue, self.count, offset)

    @rule(queue=queues, parts=st.lists(sizes, min_size=1, max_size=3))
    def put_batch(self, queue: Queue, parts: list[int]) -> None:
        first = self.count + 1
        messages = [Message(queue[0], self.body(size), {"KEYS": f"n{self.count}"}) for size in parts]
        result = self.store.put_messages(message(*queue, encode_batch(messages)))
        assert result.ok
        assert result.physical_offsets is not None
        for number, offset in enumerate(result.physical_offsets, first):
            self.note(queue, number, offset)

    @rule(queue=queues)
    def put_what_is_refused(self, queue: Queue) -> None:
        assert not self.store.put_message(message(*queue, b"x", k="v" * 40_000)).ok
        assert not self.store.put_message(message(*queue, bytes(LOG_FILE))).ok

    @rule()
    def flush(self) -> None:
        self.store.flusher.flush()
        self.store.wait(0)
        self.all_seen()

    @rule()
    def flush_queues(self) -> None:
        self.store._queue_flusher.flush_all()

    @rule()
    def restart(self) -> None:
        self.store.shutdown()
        self.all_seen()
        self.load()
        assert self.store.recovery is not None
        assert self.store.recovery.clean
        assert self.store.recovery.cut_bytes == 0

    @rule()
    def crash(self) -> None:
        """The process dies; what it wrote is in the page cache and so in the files."""
        self.store.abandon()
        self.all_seen()
        self.load()
        assert self.store.recovery is not None
        assert not self.store.recovery.clean

    @precondition(lambda self: len(self.store.commit_log.files.files) > 1)
    @rule()
    def expire(self) -> None:
        self.flush()
        files = self.store.commit_log.files
        assert files.remove_files(files.files[:1]) == 1
        self.store.retention.delete_queue_and_index_files()

    @invariant()
    def queues_hold_what_the_model_holds(self) -> None:
        if not hasattr(self, "store"):
            return
        begin = self.store.commit_log.min_offset
        for queue, items in self.seen.items():
            left = [(number, offset) for number, offset in items if offset >= begin]
            low, high = self.store.min_offset(*queue), self.store.max_offset(*queue)
            assert high == len(items)
            assert low == len(items) - len(left)
            found, at = [], low
            while at < high:
                result = self.store.get_message(*queue, at, 32)
                assert result.status is GetMessageStatus.FOUND
                assert result.queue_offsets == list(range(at, result.next_begin_offset))
                for stored in decoded(result):
                    found.append((int(bytes(stored.body).rstrip(b"\0")), stored.physical_offset))
                at = result.next_begin_offset
            assert found == left

    @invariant()
    def keys_find_what_is_left(self) -> None:
        if not hasattr(self, "store"):
            return
        begin = self.store.commit_log.min_offset
        for queue, items in self.seen.items():
            for number, offset in items[:1] + items[-2:]:
                expected = [offset] if offset >= begin else []
                assert self.store.query_message(queue[0], f"n{number}").physical_offsets == expected

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.shutdown()
        shutil.rmtree(self.directory)


class FaultyStoreMachine(StoreMachine):
    """The same on a disk that fills up, refuses files and fails to sync.

    What is answered OK is kept, what is refused is never seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.disk = FaultDisk()
        self.faulty = False

    def load(self) -> None:
        self.store = MessageStore(self.config, clock=self.clock, disk=self.disk)
        self.store.load()
        self.store.start(threads=False)

    @rule(
        fault=st.sampled_from([FaultDisk.fill, FaultDisk.fail_maps, FaultDisk.fail_syncs]),
        where=st.sampled_from(["", "commitlog", "consumequeue", "/index/", "consumequeue/a/"]),
    )
    def break_disk(self, fault: Callable[[FaultDisk, str], None], where: str) -> None:
        self.faulty = True
        fault(self.disk, where)

    @rule()
    def flush_queues(self) -> None:
        with contextlib.suppress(OSError):
            super().flush_queues()

    @rule()
    def heal(self) -> None:
        self.disk.heal()
        self.faulty = False
        if self.store.refusal is not None:  # a failure that only a restart gets over
            self.crash()

    @rule(queue=queues, size=sizes)
    def put(self, queue: Queue, size: int) -> None:
        body = self.body(size)
        result = self.store.put_message(message(*queue, body, KEYS=f"n{self.count}", TAGS="t"))
        if result.ok:
            self.note(queue, self.count, result.physical_offset)
        else:
            assert self.faulty

    @rule(queue=queues, parts=st.lists(sizes, min_size=1, max_size=3))
    def put_batch(self, queue: Queue, parts: list[int]) -> None:
        first = self.count + 1
        messages = [Message(queue[0], self.body(size), {"KEYS": f"n{self.count}"}) for size in parts]
        result = self.store.put_messages(message(*queue, encode_batch(messages)))
        for number, offset in enumerate(result.physical_offsets or [], first):
            self.note(queue, number, offset)
        assert result.ok or self.faulty

    @rule()
    def restart(self) -> None:
        if self.faulty:
            return
        self.store.shutdown()
        self.all_seen()
        self.load()

    @rule()
    def crash(self) -> None:
        if not self.faulty:
            super().crash()

    @precondition(lambda self: not self.faulty and len(self.store.commit_log.files.files) > 1)
    @rule()
    def expire(self) -> None:
        super().expire()

    @invariant()
    def queues_hold_what_the_model_holds(self) -> None:
        if not self.faulty:
            super().queues_hold_what_the_model_holds()

    @invariant()
    def keys_find_what_is_left(self) -> None:
        if not self.faulty:
            super().keys_find_what_is_left()

    def teardown(self) -> None:
        self.disk.heal()
        super().teardown()


TestStoreAgainstItsModel = StoreMachine.TestCase

TestFaultyStoreAgainstItsModel = FaultyStoreMachine.TestCase
