"""SlaveOffsets: offsets that groups committed at this slave while its master was away, kept in
config/slaveOffset.json until the master has them. The file is Kourou's own: Java forgets such offsets.

{"offsetTable": {"topic@group": {0: 12, 1: 7}}}
"""

from __future__ import annotations

from typing import Any

from kourou.broker.state.offsets import SEPARATOR, Table
from kourou.remoting.protocol import lenient_json

FILE_NAME = "slaveOffset.json"


class SlaveOffsets:
    """The offsets that the master has not heard of."""

    def __init__(self) -> None:
        self.table: Table = {}
        self.dirty = False

    def note(self, key: str, queue_id: int, offset: int) -> None:
        """A group committed an offset here."""
        self.table.setdefault(key, {})[queue_id] = offset
        self.dirty = True

    def forget(self, key: str, queue_id: int) -> None:
        """The master has it, or a later one."""
        queues = self.table.get(key, {})
        queues.pop(queue_id, None)
        if not queues:
            self.table.pop(key, None)
        self.dirty = True

    def remove_topic(self, topic: str) -> None:
        """Forget all offsets in a topic."""
        for key in [key for key in self.table if key.partition(SEPARATOR)[0] == topic]:
            del self.table[key]
            self.dirty = True

    def newer_than(self, table: Table) -> list[tuple[str, int, int]]:
        """Key, queue and offset of what is beyond another table; what is not is forgotten."""
        newer = []
        for key, queues in list(self.table.items()):
            known = table.get(key, {})
            for queue_id, offset in list(queues.items()):
                if offset > known.get(queue_id, -1):
                    newer.append((key, queue_id, offset))
                else:
                    self.forget(key, queue_id)
        return newer

    def encode(self) -> bytes:
        """The JSON of the table."""
        return lenient_json.dumps({"offsetTable": self.table})

    def decode(self, value: Any) -> None:
        """Take the offsets of a file."""
        self.table = {
            key: {int(queue_id): int(offset) for queue_id, offset in queues.items()}
            for key, queues in value["offsetTable"].items()
        }
