"""ConsumerOffsets: how far each group has consumed each queue (Java: ConsumerOffsetManager and its LMQ kin).

Kept in consumerOffset.json; where light queues are enabled, in lmqConsumerOffset.json, which has them too:

    {"dataVersion": {…}, "groupTopicMap": {group: [topic]}, "offsetTable": {"topic@group": {0:12,1:7}},
     "pullOffsetTable": {"topic@group": {0:14,1:7}}, "lmqOffsetTable": {"%LMQ%t@%LMQ%g": 5}}

A light queue has one queue, so that its offset stands alone. Pull offsets, how far a group has been sent, are
written but not read: after a restart nothing is on its way.

Where topics were deleted or messages wait for a time, there is "logOffset" too, which is Kourou's own and
which Java ignores: where the log ended when the offsets were written. Offsets in a topic that the log deletes
after that place are of messages that are no more: this broker after a crash, and a slave that was sent them,
drop them. Check points after it say what was popped since (broker/pop/recovery.py). "reviveOffset" is there
while it is not known what was revived after that place of the log, before a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from kourou.broker.config import BrokerConfig
from kourou.broker.state.versions import next_version
from kourou.clock import Clock
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.protocol.topic_config import DataVersion
from kourou.store.queue.queue_store import LMQ_PREFIX

log = logging.getLogger(__name__)

FILE_NAME = "consumerOffset.json"
LMQ_FILE_NAME = "lmqConsumerOffset.json"
SEPARATOR = "@"
NO_OFFSET = -1

Table = dict[str, dict[int, int]]  # topic@group -> queue -> offset
MinOffsetOf = Callable[[str, int], int]  # topic, queue -> the first offset that the store has


class ConsumerOffsets:
    """The offsets of all groups."""

    def __init__(self, config: BrokerConfig, clock: Clock, *, bound: Bound = UNBOUND) -> None:
        self._config = config
        self._clock = clock
        self._bound = bound
        self._count = self._pull_count = 0  # offsets in the tables
        self._has_lmq = config.store.enable_lmq
        self.table: Table = {}
        self.lmq_table: dict[str, int] = {}  # topic@group -> offset
        self.pull_table: Table = {}
        self._resets: Table = {}
        self._commits_to_version = config.consumer_offset_update_version_step
        self.data_version = DataVersion(0, 0, clock.now_ms())
        self.dirty = False
        self.on_commit: Callable[[str, int, int], None] | None = None  # hears key, queue and offset
        # Where the log ends now; None where nobody needs to know.
        self.log_offset: Callable[[], int | None] = lambda: None
        self.revive_offset: Callable[[], int | None] = lambda: None
        self.read_log_offset: int | None = None  # of the file that was read
        self.read_revive_offset: int | None = None

    @property
    def file_name(self) -> str:
        """The name of the file that these offsets are kept in."""
        return LMQ_FILE_NAME if self._has_lmq else FILE_NAME

    # Hot: a pull asks for one and commits one

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """How far a group has consumed a queue, or where it was told to go; -1 if nobody knows."""
        key = topic + SEPARATOR + group
        if self._has_lmq and group.startswith(LMQ_PREFIX):
            return self.lmq_table.get(key, NO_OFFSET)
        if self._resets and self._config.use_server_side_reset_offset:
            reset = self._resets.get(key)
            if reset is not None and queue_id in reset:
                return reset[queue_id]
        queues = self.table.get(key)
        return NO_OFFSET if queues is None else queues.get(queue_id, NO_OFFSET)

    def commit(self, client: str, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Note how far a group has consumed a queue; False if there are too many offsets already."""
        key = topic + SEPARATOR + group
        self.dirty = True
        if self._has_lmq and group.startswith(LMQ_PREFIX):
            if key not in self.lmq_table and not self._add_one():
                return False
            self.lmq_table[key] = offset
            return True
        queues = self.table.get(key)
        before = None if queues is None else queues.get(queue_id)
        if before is None and not self._add_one():
            return False
        if queues is None:
            self.table[key] = {queue_id: offset}
        else:
            queues[queue_id] = offset
            if before is not None and offset < before:
                log.warning(
                    "%s: offset of %s, queue %d, goes back from %d to %d",
                    client,
                    key,
                    queue_id,
                    before,
                    offset,
                )
        if self.on_commit is not None:
            self.on_commit(key, queue_id, offset)
        self._commits_to_version -= 1
        if self._commits_to_version <= 0:
            self._commits_to_version = self._config.consumer_offset_update_version_step
            self.step_version()
        return True

    def commit_pull(self, client: str, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note how far a group has been sent a queue. Where that is more than there is room for, all is
        noted anew: it is of use for a moment only."""
        key = topic + SEPARATOR + group
        queues = self.pull_table.get(key)
        if queues is not None and queue_id in queues:
            queues[queue_id] = offset
            return
        if not self._bound.fits(self._pull_count + 1):
            self.pull_table.clear()
            self._pull_count = 0
        self.pull_table.setdefault(key, {})[queue_id] = offset
        self._pull_count += 1

    def _add_one(self) -> bool:
        """Whether there is room for another offset, which comes now."""
        if not self._bound.fits(self._count + 1):
            return False
        self._count += 1
        return True

    def _recount(self) -> None:
        self._count = sum(map(len, self.table.values())) + len(self.lmq_table)
        self._pull_count = sum(map(len, self.pull_table.values()))

    # Other questions

    def query_all(self, group: str, topic: str) -> dict[int, int] | None:
        """Queue -> offset of a group in a topic; None if it has none."""
        key = topic + SEPARATOR + group
        if self._is_lmq(group):
            return {0: self.lmq_table[key]} if key in self.lmq_table else {}
        queues = self.table.get(key)
        return None if queues is None else dict(queues)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int:
        """How far a group has been sent a queue; without that, how far it has consumed it."""
        queues = self.pull_table.get(topic + SEPARATOR + group)
        offset = None if queues is None else queues.get(queue_id)
        return self.query(group, topic, queue_id) if offset is None else offset

    def topics(self) -> set[str]:
        """The topics that some group has an offset in."""
        return {key.partition(SEPARATOR)[0] for table in (self.table, self.lmq_table) for key in table}

    def topics_of(self, group: str) -> set[str]:
        """The topics that a group has consumed."""
        return {topic for topic, name in self._pairs() if name == group}

    def groups_of(self, topic: str) -> set[str]:
        """The groups that have consumed a topic."""
        return {group for name, group in self._pairs() if name == topic}

    def group_topics(self) -> dict[str, list[str]]:
        """Group -> the topics that it has consumed."""
        found: dict[str, list[str]] = {}
        for topic, group in self._pairs():
            found.setdefault(group, []).append(topic)
        return found

    def min_in_all_groups(
        self, topic: str, left_out_groups: set[str], min_offset_of: MinOffsetOf
    ) -> dict[int, int]:
        """Queue -> the least offset of all groups but some, of those that the store still has."""
        least: dict[int, int] = {}
        for key, queues in self.table.items():
            name, _, group = key.partition(SEPARATOR)
            if name != topic or group in left_out_groups:
                continue
            for queue_id, offset in queues.items():
                if offset >= min_offset_of(topic, queue_id):
                    least[queue_id] = min(offset, least.get(queue_id, offset))
        return least

    def _pairs(self) -> list[tuple[str, str]]:
        """Topic and group of each key that is of two names; a proxy's broadcast offsets have three."""
        split = (key.split(SEPARATOR) for key in self.table)
        return [(parts[0], parts[1]) for parts in split if len(parts) == 2 and parts[1]]

    def _is_lmq(self, group: str) -> bool:
        return self._has_lmq and group.startswith(LMQ_PREFIX)

    # Offsets that were reset on the server: the next pull goes there, whatever the client asks. As in Java,
    # these name the topic first.

    def assign_reset(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Tell a group where to go on. BudgetSpentError if there are too many offsets already."""
        if not topic or not group or queue_id < 0 or offset < 0:
            log.warning("no reset of %s@%s, queue %d, to %d", topic, group, queue_id, offset)
            return
        key = topic + SEPARATOR + group
        self._bound.check(len(self._resets) + 1)
        if not self._is_lmq(group):
            if queue_id not in self.table.get(key, ()):
                self._bound.check(self._count + 1)
                self._count += 1
            self.table.setdefault(key, {})[queue_id] = offset
        elif key in self.lmq_table:
            self.lmq_table[key] = offset
        self._resets.setdefault(key, {})[queue_id] = offset
        self.dirty = True

    def has_reset(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether a group has not yet gone where it was told to."""
        return bool(self._resets) and queue_id in self._resets.get(topic + SEPARATOR + group, {})

    def take_reset(self, topic: str, group: str, queue_id: int) -> int | None:
        """Where a group was told to go on, once; None if it was not. Hot: every pull asks."""
        if not self._resets:
            return None
        key = topic + SEPARATOR + group
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    # Changes of many

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Let a group go on where another one is. BudgetSpentError if there are too many offsets already."""
        queues = self.table.get(topic + SEPARATOR + source_group)
        if queues is not None:
            self._bound.check(self._count + len(queues))
            self.table[topic + SEPARATOR + target_group] = dict(queues)
            self._recount()
            self.dirty = True

    def remove_group(self, group: str) -> None:
        """Forget all offsets of a group."""
        self._remove(lambda topic, name: name == group)

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        self._remove(lambda name, group: name == topic)

    def forget_deleted(self, deleted_at: Mapping[str, int], recovered_from: int | None) -> None:
        """Of what was read from the file, forget topics that were deleted after it was written. A file that
        does not say when that was is taken to be older than all that was recovered after a crash."""
        since = recovered_from if self.read_log_offset is None else self.read_log_offset
        for topic in deleted_after(deleted_at, since):
            self.remove_topic(topic)

    def _remove(self, matches: Callable[[str, str], bool]) -> None:
        tables: tuple[dict[str, Any], ...] = (self.table, self._resets, self.pull_table, self.lmq_table)
        for table in tables:
            for key in list(table):
                topic, _, group = key.partition(SEPARATOR)
                if matches(topic, group):
                    log.info("offsets of %s are forgotten: %s", key, table.pop(key))
                    self.dirty = True
        self._recount()

    def take(self, table: Table, lmq_table: dict[str, int], version: DataVersion) -> None:
        """Take the offsets of a master. Those that it does not have go: their group or topic was deleted, and
        may have been made again since."""
        self.table, self.lmq_table = table, lmq_table
        self._recount()
        self.data_version = version
        self.dirty = True

    def advance(self, table: Table) -> None:
        """Take the offsets of a slave, where they are further."""
        for key, queues in table.items():
            own = self.table.setdefault(key, {})
            for queue_id, offset in queues.items():
                own[queue_id] = max(own.get(queue_id, NO_OFFSET), offset)
        self._recount()
        self.dirty = True

    def step_version(self) -> None:
        """Tell slaves that there is something new."""
        self.data_version = next_version(self.data_version, self._clock.now_ms())

    # The file

    def encode(self) -> bytes:
        """The JSON of the tables, also the answer to GET_ALL_CONSUMER_OFFSET (43).

        Every few seconds, and all of it: str() of a dict of ints is their JSON with bare keys, ten times as
        fast as writing them one by one.
        """
        parts = [
            ("dataVersion", orjson.dumps(self.data_version.to_json()).decode()),
            ("groupTopicMap", orjson.dumps(self.group_topics()).decode()),
        ]
        if self._has_lmq:
            parts.append(("lmqOffsetTable", orjson.dumps(self.lmq_table).decode()))
        log_offset = self.log_offset()
        if log_offset is not None:
            parts.append(("logOffset", str(log_offset)))
        revive_offset = self.revive_offset()
        if revive_offset is not None:
            parts.append(("reviveOffset", str(revive_offset)))
        parts += [("offsetTable", _text_of(self.table)), ("pullOffsetTable", _text_of(self.pull_table))]
        return ("{" + ",".join([f'"{name}":{text}' for name, text in parts]) + "}").encode()

    def decode(self, value: Any) -> None:
        """Take the offsets of a file."""
        table = table_of(value["offsetTable"])
        lmq_table = {key: int(offset) for key, offset in (value.get("lmqOffsetTable") or {}).items()}
        version = DataVersion.from_json(value.get("dataVersion") or {})
        self.read_log_offset = log_offset_of(value)
        self.read_revive_offset = int(value["reviveOffset"]) if "reviveOffset" in value else None
        self.table, self.lmq_table, self.data_version = table, lmq_table, version
        self._recount()


def log_offset_of(value: Any) -> int | None:
    """Where the log ended when offsets were written; None where they do not say it."""
    return int(value["logOffset"]) if "logOffset" in value else None


def deleted_after(deleted_at: Mapping[str, int], log_offset: int | None) -> set[str]:
    """The topics that the log deletes at a place or after it; none where that place is not known."""
    if log_offset is None:
        return set()
    return {topic for topic, offset in deleted_at.items() if offset >= log_offset}


def table_of(value: Any) -> Table:
    """A table as its JSON has it; errors of conversion where it is none."""
    return {
        key: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
        for key, queues in value.items()
    }


def _text_of(table: Table) -> str:
    return "{" + ",".join([f"{orjson.dumps(key).decode()}:{queues}" for key, queues in table.items()]) + "}"
