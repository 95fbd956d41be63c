"""A check of a whole store: every record, every queue entry, every chain of the index, the checkpoint.

One pass over the log. Of each stretch of records the body CRCs, the CRC of the whole where there is one, and
the places are checked; then the queues (check_queues) and the index (check_index) are asked whether they
have what these records say, and at the end what they have that no record says.

What the next start of a broker would put right by itself is a warning, not a fault: a torn tail and what
points to it, where the abort file says that the store was not closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kourou.inspect.check.findings import DEFAULT_LIMIT, Finding, Findings, Severity
from kourou.inspect.check.index import IndexChecker
from kourou.inspect.check.queues import QueueChecker
from kourou.inspect.directory import StoreDirectory
from kourou.inspect.log_scan import Blank, Break, Stretch, walk
from kourou.inspect.rows import Rows, to_number
from kourou.message import properties as names
from kourou.message.checksum import crc32
from kourou.message.codec import PROPERTY_CRC_LENGTH
from kourou.message.scan.records import TopicTable
from kourou.store.index.index_file import IndexFile
from kourou.store.log.disk import PAGE_SIZE

Progress = Callable[[int], None]  # bytes of the log done since the last call

_PROPERTY_CRC_HEAD = f"{names.CRC32}\x01".encode()


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What was looked at, and what was found."""

    log_bytes: int  # from the log's begin to its end
    records: int
    queues: int
    queue_entries: int
    index_files: int
    index_entries: int
    faults: int
    warnings: int
    findings: list[Finding]
    seconds: float


def check(
    store: StoreDirectory,
    *,
    on_finding: Callable[[Finding], None] | None = None,
    progress: Progress | None = None,
    limit: int = DEFAULT_LIMIT,
) -> CheckReport:
    """Check everything. `limit` findings of one kind in one file are told one by one, 0 for all."""
    started = time.monotonic()
    findings = Findings(store, on_finding, limit)
    _check_file_sizes(store, findings)
    topics = TopicTable()
    queues = QueueChecker(store, findings)
    index = IndexChecker(store, findings)
    log = _LogChecker(store, findings)
    for part in walk(store):
        if isinstance(part, Stretch):
            log.take_records(part)
            rows = Rows(part, topics)
            _check_property_crc(rows, findings)
            queues.take(rows)
            index.take(rows)
        elif isinstance(part, Blank):
            log.take_blank(part)
        else:
            log.take_break(part)
        if progress is not None:
            progress(log.advance())
    log.finish()
    queues.finish(log.end, log.damaged)
    index.finish(log.end, log.damaged)
    _check_checkpoint(store, findings, log, index.files)
    findings.close()
    return CheckReport(
        log_bytes=log.end - store.min_offset,
        records=log.records,
        queues=len(store.queues),
        queue_entries=queues.entries,
        index_files=len(store.index_paths),
        index_entries=index.entries,
        faults=findings.total(Severity.FAULT),
        warnings=findings.total(Severity.WARNING),
        findings=findings.told,
        seconds=time.monotonic() - started,
    )


def _check_file_sizes(store: StoreDirectory, findings: Findings) -> None:
    wanted = store.config.mapped_file_size_commit_log
    files = store.log_files
    for file in files:
        if file.size != wanted:
            findings.fault(
                "log-file-size", file.path, -1,
                f"file has {file.size} bytes, mappedFileSizeCommitLog is {wanted}: no broker loads it",
            )  # fmt: skip
    for before, after in pairwise(files):
        if after.base != before.base + before.size:
            findings.fault(
                "log-gap", after.path, -1,
                f"file begins at {after.base}, the one before it ends at {before.base + before.size}",
            )  # fmt: skip


class _LogChecker:
    """The log itself: that records follow each other, and where they end."""

    def __init__(self, store: StoreDirectory, findings: Findings) -> None:
        self._store = store
        self._findings = findings
        self._pending: list[Break] = []  # until it shows whether records follow
        self._done = self._told = 0
        self.end = store.min_offset
        self.records = 0
        self.last_time = 0  # store time of the last record
        self.damaged: list[tuple[int, int]] = []  # places before the end of which no record can be told
        self.torn = False  # there is something after the end

    def advance(self) -> int:
        """Bytes of files done since the last call."""
        done, self._told = self._done - self._told, self._done
        return done

    def take_records(self, stretch: Stretch) -> None:
        for broken in self._pending:
            self._report_damage(broken)
        self._pending.clear()
        self.records += len(stretch.records)
        self.end = stretch.end
        self.last_time = int(stretch.records.header["store_timestamp"][-1])
        self._done += stretch.end - stretch.begin

    def take_blank(self, blank: Blank) -> None:
        rest = blank.file.size - blank.position
        self._done += rest
        if blank.size != rest:
            self._findings.fault(
                "blank-size", blank.file.path, blank.position,
                f"blank record says {blank.size} bytes, {rest} are left in the file",
            )  # fmt: skip

    def take_break(self, broken: Break) -> None:
        self._pending.append(broken)
        self._done += broken.resume - broken.position

    def _report_damage(self, broken: Break) -> None:
        base, resume = broken.file.base, broken.resume
        self.damaged.append((base + broken.position, base + resume))
        what = "no record" if broken.empty else f"damage ({broken.reason})"
        self._findings.fault(
            "record", broken.file.path, broken.position,
            f"{what} at physical offset {base + broken.position}; records follow behind {base + resume}",
        )  # fmt: skip

    def finish(self) -> None:
        """What is still pending has no record behind it: it is the end of the log."""
        for broken in self._pending:
            if broken.empty:
                continue
            self.torn = True
            start = broken.file.base + broken.position
            size = broken.dirty - broken.position
            message = f"{size} bytes behind the end of the log at physical offset {start} ({broken.reason})"
            if self._store.aborted:
                self._findings.warning(
                    "torn-tail", broken.file.path, broken.position, f"{message}: recovery cuts them"
                )
            else:
                self._findings.fault("torn-tail", broken.file.path, broken.position, message)


def _check_property_crc(rows: Rows, findings: Findings) -> None:
    """`__CRC32#` at the end of a record covers all before it; elsewhere it is what a client put there."""
    having, values = rows.property(names.CRC32)
    stretch = rows.stretch
    for row, digits in zip(having.tolist(), values):
        position = int(stretch.records.positions[row])
        end = position + int(rows.size[row]) - PROPERTY_CRC_LENGTH
        if stretch.view[end : end + len(_PROPERTY_CRC_HEAD)] != _PROPERTY_CRC_HEAD:
            continue
        crc = crc32(stretch.view[position:end]) & 0x7FFFFFFF
        if to_number(digits[::-1]) != crc:
            findings.fault(
                "record-crc", stretch.file.path, position,
                f"record at physical offset {stretch.file.base + position} says CRC"
                f" {str(digits[::-1], 'utf-8', 'replace')} for all of it, {crc:010d} is right",
            )  # fmt: skip


def _check_checkpoint(
    store: StoreDirectory, findings: Findings, log: _LogChecker, index_files: list[IndexFile]
) -> None:
    path = f"{store.root}/checkpoint"
    size = store.disk.size(path)
    if size != PAGE_SIZE:
        what = "is missing" if size < 0 else f"has {size} bytes, {PAGE_SIZE} are right"
        findings.warning("checkpoint", path, -1, f"checkpoint {what}: the next start reads more of the log")
    checkpoint = store.checkpoint
    if checkpoint is None:
        return
    index_time = max((file.end_timestamp for file in index_files), default=0)
    stored, indexed, ends = "the last record was stored", "the last record was indexed", "the log ends"
    words = (
        ("physicMsgTimestamp", checkpoint.physic_msg_timestamp, log.last_time, stored),
        ("logicsMsgTimestamp", checkpoint.logics_msg_timestamp, log.last_time, stored),
        ("indexMsgTimestamp", checkpoint.index_msg_timestamp, max(index_time, log.last_time), indexed),
        ("masterFlushedOffset", checkpoint.master_flushed_offset, log.end, ends),
        ("confirmPhyOffset", checkpoint.confirm_phy_offset, log.end, ends),
        ("logicsPhysicalOffset", checkpoint.logics_physical_offset, log.end, ends),
    )
    for number, (name, value, limit, what) in enumerate(words):
        # -1 stands for `not known` in offsets. A time or an offset after what is there makes recovery
        # begin too late; one of a record that was torn off with the tail goes with it.
        if value < -1 or value > limit:
            severity = Severity.WARNING if store.aborted and value > 0 and log.torn else Severity.FAULT
            findings.add(severity, "checkpoint", path, number * 8, f"{name} is {value}, {what} at {limit}")
