"""Bugs that are planted one at a time: each is one that a broker could have, and the simulator has to find
it.

`PLANTED` has their names, what each does, and a seed that finds it: `python -m simulator.mutations` looks for
it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec.structs

import kourou.broker.server
import kourou.files
import kourou.store.bulk_dispatch
import kourou.store.dispatch
import kourou.store.message_store
import kourou.store.queue.consume_queue
import kourou.store.recovery
from kourou.broker import Broker
from kourou.broker.pop.buffer import Buffer
from kourou.broker.pop.order import OrderTable
from kourou.broker.pop.popper import Popper
from kourou.broker.pop.recovery import RevivedBefore
from kourou.broker.pop.revive import ReviveService
from kourou.broker.pop.settled import Settled
from kourou.broker.services.timer.time import WheelTime
from kourou.broker.services.transactions import TransactionService, _final_message
from kourou.broker.state.locks import QueueLocks
from kourou.broker.state.offsets import ConsumerOffsets
from kourou.message import sysflag
from kourou.store import MessageStore, PutMessageResult, PutMessageStatus
from kourou.store.clock_steps import ClockSteps, _State
from kourou.store.dispatch import Dispatcher
from kourou.store.index.index_catch_up import IndexCatchUp
from kourou.store.log.commit_log import CommitLog
from kourou.store.log.disk import OsMapping
from kourou.store.log.flush import CommitLogFlusher
from kourou.store.put import MessagePutter
from kourou.store.queue.queue_store import ConsumeQueueStore
from simulator.runner import play

MOST_SEEDS = 2000
PUT_OK = PutMessageStatus.PUT_OK
_recover = kourou.store.recovery.recover
_cut = kourou.store.recovery._cut
_check_record = kourou.store.dispatch.check_record
_deliver_time = MessagePutter._deliver_time
_end = TransactionService.end
_answer = CommitLogFlusher._answer
_close_with_blank = CommitLog._close_with_blank
_mapping_init = OsMapping.__init__
_is_needless = Settled.is_needless


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _says_ok(self: Any, offset: int, callback: Callable[[PutMessageStatus], None]) -> None:
    callback(PUT_OK)


def _recover_without_crc(store: MessageStore, last_exit_ok: bool) -> Any:
    store.config.check_crc_on_recover = False
    return _recover(store, last_exit_ok)


def _recover_without_sync(store: MessageStore, last_exit_ok: bool) -> Any:
    with mock.patch.object(OsMapping, "sync", _nothing):
        return _recover(store, last_exit_ok)


def _cut_one_more(store: MessageStore, end: int, report: Any) -> None:
    _cut(store, store.checkpoint.confirm_phy_offset if report.records else end, report)


def _cut_nothing(store: MessageStore, end: int, report: Any) -> None:
    files = store.commit_log.files
    files.flushed_where = files.committed_where = end


def _write_without_sync(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    os.replace(temporary, path)
    kourou.files.sync_dir(path.parent)


def _answers_below(self: CommitLogFlusher, where: int, status: PutMessageStatus, *more: Any) -> None:
    _answer(self, where - 1, status, *more)


def _no_end_of_eight_bytes(view: memoryview, position: int, limit: int, **more: Any) -> Any:
    return _check_record(view, position, position if limit - position <= 8 else limit, **more)


def _blank_too_long(self: CommitLog, file: Any) -> None:
    at = file.wrote
    _close_with_blank(self, file)
    if file.size - at >= 8:
        file.write_view[at : at + 4] = (file.size - at + 1).to_bytes(4, "big")


def _early(self: MessagePutter, properties: dict[str, str], timestamp: int, code: int) -> int:
    return _deliver_time(self, properties, timestamp, code) - 100


def _turned(outcome: int, into: int) -> Callable[..., Any]:
    def end(self: TransactionService, request: Any, header: Any, half: Any) -> Any:
        if header.commit_or_rollback == outcome and not header.from_transaction_check:
            header = msgspec.structs.replace(header, commit_or_rollback=into)
        return _end(self, request, header, half)

    return end


def _resolved_first(self: TransactionService, request: Any, header: Any, half: Any) -> Any:
    if header.commit_or_rollback != sysflag.TRANSACTION_COMMIT or half is None:
        return _end(self, request, header, half)
    self._resolve(half.queue_offset)
    asyncio.get_running_loop().call_later(0.5, self._broker.put, _final_message(half))
    return request.response()


def _deleted_in_silence(self: MessageStore, topics: Any) -> None:
    for topic in topics:
        self.queues.delete_topic(topic)
        self._topic_deleted(topic)


async def _settles_the_first(self: Broker, *files: str) -> None:
    await _settle(self, files[0])


def _opened_as_synced(self: OsMapping, path: str, size: int, writable: bool) -> None:
    _mapping_init(self, path, size, writable)
    self._unsynced.clear()


def _commit_unsaved(self: ConsumerOffsets, *args: Any) -> None:
    was = self.dirty
    _commit(self, *args)
    self.dirty = was


_commit = ConsumerOffsets.commit
_settle = Broker.settle


def _now_if_too_long(self: ClockSteps, due_ms: int, physical_offset: int, delay_ms: int) -> int:
    left_ms = due_ms - self.now_ms
    return left_ms if left_ms <= delay_ms else 0


def _as_it_says(self: ClockSteps, time_ms: int, physical_offset: int) -> int:
    return time_ms


def _nothing_known(self: ClockSteps) -> Any:
    return _State(), False


def _wall_time(self: WheelTime) -> int:
    self.lead_ms = 0
    return self._store.look_at_clock().now_ms


class _ByTheWall:
    """A clock whose elapsed time is the time of day."""

    def __init__(self, clock: Any) -> None:
        self.now_ms = self.elapsed_ms = clock.now_ms


def _locks_by_the_wall(self: QueueLocks, clock: Any) -> None:
    _locks_init(self, _ByTheWall(clock))  # type: ignore[arg-type]


_locks_init = QueueLocks.__init__


def _end_of_recovery(self: IndexCatchUp) -> int:
    assert self._store.recovery is not None
    return self._store.recovery.end_offset


def _put_nothing(*_: Any) -> list[PutMessageResult]:
    return []


def _check_point_later(self: Popper, point: Any, revive_queue: int) -> PutMessageResult:
    asyncio.get_running_loop().call_later(0.5, _put_check_point, self, point, revive_queue)
    return PutMessageResult(PUT_OK)


def _whether_it_rolls_or_not(self: Settled, place: int, *, rolls: bool = False) -> bool:
    return _is_needless(self, place)


def _answered_at_once(
    self: Popper, connection: Any, request: Any, stored: list[PutMessageResult], answer: Any
) -> Any:
    return answer


def _moves_first(
    self: Popper,
    popped: Any,
    header: Any,
    topic: str,
    queue_id: int,
    start: int,
    places: Any,
    next_offset: int,
) -> bool:
    self._broker.offsets.commit("pop", header.consumer_group, topic, queue_id, next_offset)
    return _keep(self, popped, header, topic, queue_id, start, places, next_offset)


def _skips_the_last(self: ReviveService, number: int, point: Any, offset: int) -> bool:
    return (len(point.differences) > 1 and offset == point.open_offsets()[-1]) or _revive_one(
        self, number, point, offset
    )


def _given_up(self: ReviveService, number: int, point: Any, offset: int) -> bool:
    _revive_one(self, number, point, offset)
    return True


def _as_saved(broker: Broker, since: int) -> int:
    return 0


def _never(*_: Any) -> bool:
    return False


_put_check_point, _keep = Popper.put_check_point, Popper._keep
_revive_one = ReviveService._revive_one


class Planted(NamedTuple):
    """A bug: what it is, how it is made, and the seed that finds it."""

    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    seed: int

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The bug is there."""
        with ExitStack() as stack:
            for target, name, planted in self.patches:
                stack.enter_context(mock.patch.object(target, name, planted))
            yield


_store, _recovery = kourou.store.message_store, kourou.store.recovery
_commit_flag, _rollback_flag = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK

PLANTED: dict[str, Planted] = {
    "flush": Planted("a flush does not sync", ((OsMapping, "sync", _nothing),), 1),
    "early-ack": Planted(
        "sends are acknowledged before the flush", ((CommitLogFlusher, "wait_for", _says_ok),), 5
    ),
    "slave-ack": Planted(
        "sends are acknowledged before the slave has them", ((MessageStore, "wait_for_slaves", _says_ok),), 0
    ),
    "crc": Planted("recovery checks no CRC", ((_store, "recover", _recover_without_crc),), 42),
    "cut-more": Planted("recovery cuts the last good record", ((_recovery, "_cut", _cut_one_more),), 2),
    "cut-nothing": Planted("recovery leaves what is behind the end", ((_recovery, "_cut", _cut_nothing),), 0),
    "config-sync": Planted(
        "config files are renamed before they are synced",
        ((kourou.files, "_write_one", _write_without_sync),),
        1,
    ),
    "rename-sync": Planted(
        "the directory is not synced after the rename", ((kourou.files, "sync_dir", _nothing),), 5
    ),
    "new-file": Planted(
        "the name of a new file is not synced", ((OsMapping, "__init__", _opened_as_synced),), 1
    ),
    "waiter": Planted(
        "whoever waits for just what was flushed is forgotten",
        ((CommitLogFlusher, "_answer", _answers_below),),
        2,
    ),
    "blank": Planted(
        "the blank at the end of a file is a byte too long",
        ((CommitLog, "_close_with_blank", _blank_too_long),),
        0,
    ),
    "blank-of-eight": Planted(
        "recovery ends at a blank of eight bytes",
        ((kourou.store.bulk_dispatch, "check_record", _no_end_of_eight_bytes),),
        44,
    ),
    "delay": Planted("delayed messages are due too early", ((MessagePutter, "_deliver_time", _early),), 0),
    "commit": Planted(
        "a commit is taken for a rollback",
        ((TransactionService, "end", _turned(_commit_flag, _rollback_flag)),),
        0,
    ),
    "rollback": Planted(
        "a rollback is taken for a commit",
        ((TransactionService, "end", _turned(_rollback_flag, _commit_flag)),),
        0,
    ),
    "op-first": Planted(
        "a transaction counts as ended before its message is stored",
        ((TransactionService, "end", _resolved_first),),
        12,
    ),
    "offsets": Planted("offsets are not saved", ((ConsumerOffsets, "commit", _commit_unsaved),), 24),
    "queues-flush": Planted(
        "the checkpoint says that queues are on the disk, and they are not",
        ((ConsumeQueueStore, "flush", _nothing),),
        3,
    ),
    "log-first": Planted(
        "offsets of delays are saved before the log is", ((Broker, "_flush_log", _nothing),), 21
    ),
    "recovered": Planted(
        "what a killed process wrote is taken for flushed", ((_store, "recover", _recover_without_sync),), 11
    ),
    "set-back": Planted(
        "what waits longer than its level says is delivered at once, as in Java",
        ((ClockSteps, "left_ms", _now_if_too_long),),
        7,
    ),
    "set-ahead": Planted(
        "delayed messages are due by the time of day alone", ((ClockSteps, "today", _as_it_says),), 7
    ),
    "clock-file": Planted(
        "a restart forgets that the clock was set", ((ClockSteps, "_read", _nothing_known),), 7
    ),
    "wheel-back": Planted(
        "the time of the wheel stops while the clock is back", ((WheelTime, "now_ms", _wall_time),), 10
    ),
    "lock-time": Planted("locks end by the time of day", ((QueueLocks, "__init__", _locks_by_the_wall),), 5),
    "deletion": Planted(
        "the log does not say that a topic was deleted",
        ((MessageStore, "delete_topics", _deleted_in_silence),),
        0,
    ),
    "deletion-loss": Planted(
        "recovery dispatches what was deleted into the queues of a topic that was made again",
        (
            (MessageStore, "delete_topics", _deleted_in_silence),
            (kourou.store.queue.consume_queue, "begin_anew", _nothing),
        ),
        0,
    ),
    "deletion-late": Planted(
        "delayed messages of a deleted topic come to the one that is made again",
        ((ConsumeQueueStore, "was_deleted", _nothing),),
        8,
    ),
    "deleted-group": Planted(
        "offsets of a deleted group are deleted later", ((Broker, "settle", _settles_the_first),), 141
    ),
    "index-seam": Planted(
        "keys of messages that come while the index catches up are lost",
        ((IndexCatchUp, "_end", property(_end_of_recovery)),),
        12,
    ),
    "room-again": Planted(
        "queues that had no room are not tried again", ((Dispatcher, "retry", _nothing),), 17
    ),
    "pop-ack": Planted(
        "acknowledgements of popped messages are lost", ((Popper, "put_ack", _put_nothing),), 6
    ),
    "pop-check-point": Planted(
        "check points are written after the answer, and after acknowledgements",
        ((Popper, "put_check_point", _check_point_later),),
        6,
    ),
    "pop-answer": Planted(
        "pops and acknowledgements are answered before the disk has what they wrote",
        ((Popper, "answer_when_safe", _answered_at_once),),
        29,
    ),
    "pop-roll": Planted(
        "an acknowledgement that rolls is dropped before its check point",
        ((Settled, "is_needless", _whether_it_rolls_or_not),),
        16,
    ),
    "pop-offset": Planted(
        "the offset of a pop moves before its check point is stored",
        ((Popper, "_keep", _moves_first),),
        59,
    ),
    "pop-offset-old": Planted(
        "after a crash groups are where their offsets were saved",
        ((kourou.broker.server, "restore_offsets", _as_saved),),
        6,
    ),
    "revive-skips": Planted(
        "the last message of a check point is not revived",
        ((ReviveService, "_revive_one", _skips_the_last),),
        9,
    ),
    "revive-once": Planted(
        "what could not be revived is given up", ((ReviveService, "_revive_one", _given_up),), 29
    ),
    "revive-twice": Planted(
        "messages that were revived before a crash are revived again", ((RevivedBefore, "has", _never),), 6
    ),
    "pop-buffer": Planted(
        "a broker that stops forgets the check points in memory", ((Buffer, "stop", _nothing),), 19
    ),
    "order-block": Planted(
        "a restart forgets what ordered groups have in flight", ((OrderTable, "decode", _nothing),), 16
    ),
    "order-done": Planted(
        "ordered groups get again what they acknowledged out of order",
        ((OrderTable, "open_offsets", lambda self, topic, group, queue_id, offsets: offsets),),
        26,
    ),
}


def find(name: str, first: int = 0, most: int = MOST_SEEDS) -> tuple[int, str] | None:
    """The first seed that finds a bug, and what it says."""
    for seed in range(first, first + most):
        outcome = play(seed, planted=PLANTED[name].applied())
        if outcome.error is not None:
            return seed, outcome.error
    return None


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PLANTED:
        print(wanted, find(wanted), flush=True)
