"""Store files with damage of every kind: opened, recovered, read, written to and opened again.

Golden stores of Java and small ones of our own are the corpus. Whatever a file holds, the store opens or
says why not with an error of ours. What recovery takes for the log's end is what sizes, places and CRCs say
when they are read by other code (oracle.py); queues lead nowhere but to records; a message that is put then
is there after the next start, and that start finds the same log. The offline tools bear the same files.
"""

from __future__ import annotations

import random
import shutil
import struct
import tempfile
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from fuzz import oracle
from fuzz.mutate import mutate, overwrite
from fuzz.watch import Findings, HangError, MemoryWatch, no_hang, watched_log
from kourou.broker.messages.filters import SqlFilter
from kourou.broker.messages.sql92 import compile_sql
from kourou.errors import CorruptRecordError, KourouError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.index_report import look_up
from kourou.inspect.check.whole import check
from kourou.inspect.dump import dump
from kourou.inspect.info import describe
from kourou.inspect.rebuild import rebuild_into
from kourou.message.codec import decode
from kourou.message.properties import KEYS, UNIQ_KEY, encode_properties
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig
from support.recorded import golden
from support.stores.mixed import BATCH_MARK, mixed_messages

HANG_S = 20.0
FILES_AT_ONCE = (1, 1, 2, 4, 8)  # that are damaged in one store
OPENED_AGAIN = 0.3  # of the stores
FOLDERS = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "checkpoint")
LOG = "commitlog"
_TOPIC, _QUEUE = "after-the-damage", 0


@dataclass
class Template:
    """A store in memory, as it is before it is damaged."""

    name: str
    files: dict[str, bytes]
    config: MessageStoreConfig
    keys: list[tuple[str, str]]
    batch_topics: frozenset[str]

    def write(self, root: Path) -> MessageStoreConfig:
        """Have it in a directory."""
        for name, data in self.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return replace(self.config, store_path_root_dir=str(root), store_path_commit_log="")

    def log_files(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{LOG}/"))


@cache
def templates() -> list[Template]:
    """Golden stores and our own, each as it was left and as a crash leaves it."""
    with tempfile.TemporaryDirectory() as directory:
        found = [_golden(name, Path(directory)) for name in golden.GOLDEN_STORES if name != "crash_short"]
        found += [_own(kind, Path(directory) / f"own-{kind}") for kind in ("plain", "ext", "crc", "tiny")]
    crashed = [
        replace(one, name=f"{one.name}, crashed", files={**one.files, "abort": b"1"})
        for one in found
        if "abort" not in one.files
    ]
    small = [one for one in found + crashed if one.name.startswith("own")]
    return found + crashed + small * 2  # small ones are opened faster, and damage hits more of them


def _golden(name: str, directory: Path) -> Template:
    root, expected = golden.unpack(name, directory)
    return _template(f"golden {name}", root, golden.config_of(root, expected))


def _own(kind: str, root: Path) -> Template:
    """A store of ours. A tiny one has one log file, which damage hits more often."""
    config = MessageStoreConfig(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=8192 if kind == "tiny" else 16384,
        mapped_file_size_consume_queue=400,
        mapped_file_size_consume_queue_ext=1024,
        max_hash_slot_num=20,
        max_index_num=60,
        enable_consume_queue_ext=kind == "ext",
        enabled_append_prop_crc=kind == "crc",
        force_verify_prop_crc=kind == "crc",
    )
    with MessageStore(config) as store:
        store.queues.bitmap_of = (lambda *message: b"\x05\x06") if kind == "ext" else None
        for message in mixed_messages(20 if kind == "tiny" else 60, seed=5):
            if message.flag != BATCH_MARK and len(message.body) < 1000:
                message.topic = message.topic[-20:]
                assert store.put_message(message).ok
    return _template(f"own {kind}", root, config)


def _template(name: str, root: Path, config: MessageStoreConfig) -> Template:
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] in (*FOLDERS, "abort")
    }
    logs = [(int(path[-20:]), data) for path, data in files.items() if path.startswith(f"{LOG}/")]
    keys = []
    for offset, _ in oracle.read_log(sorted(logs)).records:
        base, data = max(file for file in logs if file[0] <= offset)
        try:
            message = decode(data, offset - base)
        except CorruptRecordError:
            continue
        texts = [message.properties.get(UNIQ_KEY, ""), *message.properties.get(KEYS, "").split()]
        keys += [(message.topic, key) for key in texts if key]
    batch_topics = frozenset(path.split("/")[1] for path in files if path.startswith("batchconsumequeue/"))
    return Template(name, files, config, keys, batch_topics)


class StoreFuzz:
    """Damaged stores, one after the other."""

    def __init__(self, seed: int, findings: Findings) -> None:
        self._chance = random.Random(seed)
        self._findings = findings
        self._memory = MemoryWatch(findings)
        self._templates = templates()

    def run(self, count: int, directory: Path) -> None:
        """Damage so many files."""
        counts = self._findings.counts
        until = counts["files tried"] + count
        with watched_log(self._findings) as watch:
            while counts["files tried"] < until:
                template = self._chance.choice(self._templates)
                damaged, what = self._damage(template)
                watch.input = what
                root = directory / "store"
                try:
                    with no_hang(HANG_S):
                        self._try(damaged, root, what)
                except (HangError, Exception) as error:
                    self._findings.add_error(f"{template.name}", error, what)
                finally:
                    shutil.rmtree(root, ignore_errors=True)
                counts["stores opened"] += 1
                if counts["stores opened"] % 2000 == 0:
                    self._memory.look()

    # Damage

    def _damage(self, template: Template) -> tuple[Template, bytes]:
        """A copy with damage to a file or some, and what was done."""
        chance, files = self._chance, dict(template.files)
        # Folders in turn: there are more files of queues than of anything else.
        folders = sorted({name.split("/")[0] for name in files} - {"abort"})
        done = []
        for _ in range(chance.choice(FILES_AT_ONCE)):
            folder = chance.choice(folders)
            name = chance.choice(sorted(name for name in files if name.split("/")[0] == folder) or [""])
            if not name:
                continue
            kind = self._damage_file(files, name)
            done.append(f"{kind} {name}")
            self._findings.counts["files tried"] += 1
            self._findings.counts[f"files of {folder}"] += 1
        return replace(template, files=files), f"{template.name}: {'; '.join(done)}".encode()

    def _damage_file(self, files: dict[str, bytes], name: str) -> str:
        chance, data = self._chance, files[name]
        kind = chance.random()
        if kind < 0.04:
            del files[name]
            return "removed"
        if kind < 0.08:
            files[name] = mutate(chance, data)
            return f"with {len(files[name])} bytes"
        if kind < 0.10:
            files[name] = b""
            return "emptied"
        if kind < 0.35 and name.startswith(f"{LOG}/"):
            files[name] = self._damage_record(data, int(name[-20:]))
            return "with another record"
        # Most of a file is zero: where something stands, damage says more.
        used = min(len(data.rstrip(b"\0")) + 64, len(data))
        files[name] = overwrite(chance, data[:used]) + data[used:]
        return "overwritten"

    def _damage_record(self, data: bytes, base: int) -> bytes:
        """Damage that sizes and CRC do not tell: what a record says is looked at."""
        records = oracle.read_log([(base, data)]).records
        if not records:
            return data
        offset, size = self._chance.choice(records)
        at = offset - base
        record = bytearray(data[at : at + 8] + overwrite(self._chance, data[at + 8 : at + size]))
        record[28:36] = struct.pack(">q", offset)
        (flags,) = struct.unpack_from(">i", record, 36)
        body_at = 84 + (12 if flags & 1 << 4 else 0) + (12 if flags & 1 << 5 else 0)
        (body_size,) = struct.unpack_from(">i", record, body_at) if body_at + 4 <= size else (0,)
        if 0 < body_size < size:
            body = bytes(record[body_at + 4 : body_at + 4 + body_size])
            record[8:12] = struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF)
        return data[:at] + bytes(record) + data[at + size :]

    # What must hold

    def _try(self, damaged: Template, root: Path, what: bytes) -> None:
        config = damaged.write(root)
        if self._chance.random() < 0.1:
            self._offline(root, config, damaged)
        store = self._open(config, damaged)
        if store is None:
            return
        try:
            self._check_end(store, damaged, what)
            self._read(store, damaged)
            end = store.commit_log.max_offset
        finally:
            store.abandon()
        if self._chance.random() < OPENED_AGAIN:
            self._try_again(damaged, config, end, what)

    def _try_again(self, damaged: Template, config: MessageStoreConfig, end: int, what: bytes) -> None:
        """What was recovered is recovered to the same, and taken further."""
        again = self._open(config, damaged)
        if again is None:
            self._findings.add("what was recovered does not open", what)
            return
        try:
            if again.commit_log.max_offset != end:
                self._findings.add(f"the log ended at {end}, now at {again.commit_log.max_offset}", what)
            self._put(again, damaged, config, what)
        finally:
            again.abandon()

    def _open(self, config: MessageStoreConfig, damaged: Template) -> MessageStore | None:
        store = MessageStore(config, is_batch_topic=damaged.batch_topics.__contains__)
        try:
            store.load()
        except KourouError as error:
            self._findings.counts[f"refused: {type(error).__name__}"] += 1
            return None
        return store

    def _check_end(self, store: MessageStore, damaged: Template, what: bytes) -> None:
        """The log ends where other code says that it does."""
        assert store.recovery is not None
        files = [(int(name[-20:]), damaged.files[name]) for name in damaged.log_files()]
        read = oracle.read_log([file for file in files if file[0] >= store.recovery.start_offset])
        end = store.commit_log.max_offset
        if end == read.end or not any(data for _, data in files):
            return
        reason = store.recovery.reason
        # The CRC of the whole record, and properties that must be numbers, are Kourou's part to look at.
        if end < read.end and ("must be a number" in reason or "record CRC" in reason):
            return
        self._findings.add(f"the log ends at {end} ({reason}), by its bytes at {read.end}", what)

    def _read(self, store: MessageStore, damaged: Template) -> None:
        """Everything that is asked for is answered; nothing lies outside the log."""
        for queue in list(store.queues):
            offset = queue.min_offset
            wanted = self._chance.choice((None, None, SqlFilter(compile_sql("KEYS IS NOT NULL"))))
            for entry in queue.iterate(offset):
                store.look_message(entry.physical_offset)
            for _ in range(40):
                result = store.get_message(queue.topic, queue.queue_id, offset, 32, message_filter=wanted)
                for record in result.records:
                    try:
                        decode(record)
                    except CorruptRecordError:
                        # As in Java, an entry that recovery does not look at is believed; `check` tells.
                        self._findings.counts["records that a damaged queue leads to"] += 1
                if result.next_begin_offset <= offset:
                    break
                offset = result.next_begin_offset
            store.offset_by_time(
                queue.topic, queue.queue_id, self._chance.choice((0, 1_790_000_000_000, 1 << 62))
            )
            store.message_store_timestamp(queue.topic, queue.queue_id, queue.min_offset)
        for topic, key in self._chance.sample(damaged.keys, min(8, len(damaged.keys))):
            store.query_message(topic, key, 16)

    def _put(self, store: MessageStore, damaged: Template, config: MessageStoreConfig, what: bytes) -> None:
        """A store that opened takes messages, and has them after a stop."""
        store.start(threads=False)
        body = b"new " * 10
        properties = encode_properties({UNIQ_KEY: "new"})
        message = InnerMessage.of(_TOPIC, _QUEUE, body, properties, born_host=bytes(8), store_host=bytes(8))
        result = store.put_message(message)
        if not result.ok:
            self._findings.counts[f"not taken: {result.status.name}"] += 1
            return
        store.shutdown()
        again = self._open(config, damaged)
        if again is None:
            self._findings.add("a store that took a message does not open", what)
            return
        try:
            found = again.get_message(_TOPIC, _QUEUE, result.queue_offset, 1).records
            if [bytes(decode(record).body) for record in found] != [body]:
                self._findings.add("a message that was taken is not there after a stop", what)
            self._findings.counts["messages put and found again"] += 1
        finally:
            again.abandon()

    def _offline(self, root: Path, config: MessageStoreConfig, damaged: Template) -> None:
        """The tools for directories bear what the store bears."""
        try:
            with StoreDirectory.open(root, config) as directory:
                check(directory)
                describe(directory)
                for _ in dump(directory):
                    pass
                for topic, key in damaged.keys[:4]:
                    for _ in look_up(directory, topic, key):
                        pass
                rebuild_into(directory, str(root / "rebuilt"))
        except KourouError as error:
            self._findings.counts[f"refused offline: {type(error).__name__}"] += 1
        shutil.rmtree(root / "rebuilt", ignore_errors=True)
        self._findings.counts["stores checked, dumped and rebuilt"] += 1
