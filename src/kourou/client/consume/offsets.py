"""The offsets of a group: at the brokers (clustering), or in a file of this client (broadcasting).

Both have `read`, the stored offset of a queue or None; `update`, a new offset; `persist`, which stores the
new offsets. The file is Java's offsets.json, `{"offsetTable": {queue: offset}}`, with a backup beside it.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from kourou.client.core import ClientCore, RefusedError
from kourou.errors import KourouError
from kourou.files import write_atomically
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header
from kourou.remoting.protocol.headers import QueryConsumerOffset, UpdateConsumerOffset

log = logging.getLogger(__name__)


class Offsets(ABC):
    """Where a consumer stores its offsets."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._stored: dict[MessageQueue, int] = {}

    @abstractmethod
    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None if there is none."""

    @abstractmethod
    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Store the new offsets of these queues, or of all. Returns whether all were stored."""

    def known(self, queue: MessageQueue) -> int | None:
        """The last offset of a queue, stored or not."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset of a queue; `persist` stores it."""
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """This client does not read the queue any more."""
        self._offsets.pop(queue, None)


class RemoteOffsets(Offsets):
    """Offsets at the brokers, for all consumers of the group."""

    def __init__(self, core: ClientCore, group: str) -> None:
        super().__init__()
        self._core = core
        self._group = group
        # Of two first offsets of a group that reach a broker of Java's at once, it may lose one.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset at the broker."""
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id, False)
        try:
            answer = await self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return int(answer.ext_fields["offset"])

    def forget(self, queue: MessageQueue) -> None:
        """This client does not read the queue any more: another one may move its offset."""
        super().forget(queue)
        self._stored.pop(queue, None)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Send changed offsets to their brokers. Those that fail are sent again the next time."""
        chosen = self._offsets if queues is None else [queue for queue in queues if queue in self._offsets]
        changed = [queue for queue in chosen if self._stored.get(queue) != self._offsets[queue]]
        outcomes = await asyncio.gather(*map(self._send, changed), return_exceptions=True)
        failures = [outcome for outcome in outcomes if outcome]
        for failure in failures:
            if not isinstance(failure, KourouError):
                raise failure
            self._core.warnings.warn(
                log, self._group, "an offset of group %s was not stored: %s", self._group, failure
            )
        return not failures

    async def _send(self, queue: MessageQueue) -> None:
        async with self._turns[queue.broker_name]:
            offset = self._offsets.get(queue)
            if offset is None or self._stored.get(queue) == offset:
                return  # it was stored meanwhile, or the queue is not ours any more
            header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
            await self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, header)
            self._stored[queue] = offset

    async def _ask(self, queue: MessageQueue, code: RequestCode, header: Header) -> RemotingCommand:
        return await self._core.ask(self._core.address_of(queue), code, header, broker=queue.broker_name)


class LocalOffsets(Offsets):
    """Offsets in a file: each consumer of the group reads all queues and has its own offsets."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._stored = self._load()

    def _load(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._backup):
            try:
                body = path.read_bytes()
                table = lenient_json.loads(body)["offsetTable"]
                return {MessageQueue.from_json(text): int(offset) for text, offset in table.items()}
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.error("cannot read the offsets in %s (%s): its backup is used", path, error)
        return {}

    @property
    def _backup(self) -> Path:
        return self._path.with_name(self._path.name + ".bak")

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset in the file."""
        return self._stored.get(queue)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Write the file, if something has changed."""
        if any(self._stored.get(queue) != offset for queue, offset in self._offsets.items()):
            self._stored |= self._offsets
            body = lenient_json.dumps({"offsetTable": self._stored})
            await asyncio.to_thread(write_atomically, self._path, body)
        return True


def local_offsets_path(directory: str | Path | None, client_id: str, group: str) -> Path:
    """Where Java keeps the offsets of a broadcast group, for a client with a name that stays the same."""
    home = Path(directory) if directory is not None else Path.home() / ".rocketmq_offsets"
    return home / client_id / group / "offsets.json"
