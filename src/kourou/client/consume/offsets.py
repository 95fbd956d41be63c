"""Where a group goes on: offsets at the brokers (clustering), or in a file of this client (broadcasting).

Both have `read`, the offset that is kept for a queue or None; `update`, what is to be kept; `persist`, which
keeps it. The file is Java's offsets.json, `{"offsetTable": {queue: offset}}`; the one before it is beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from kourou.client.core import ClientCore, ClientError, RefusedError
from kourou.errors import KourouError
from kourou.files import write_atomically
from kourou.message.model import MessageQueue
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.headers import QueryConsumerOffset, UpdateConsumerOffset

log = logging.getLogger(__name__)


class Offsets(Protocol):
    """What a consumer needs of the place where offsets are kept."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset that is kept; None if there is none."""

    def known(self, queue: MessageQueue) -> int | None:
        """The offset that was told last."""

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Tell an offset that is to be kept."""

    def forget(self, queue: MessageQueue) -> None:
        """A queue is not ours any more."""

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Keep what was told, of these queues or of all; whether all of it is kept."""


class RemoteOffsets:
    """Offsets at the brokers, for all consumers of the group."""

    def __init__(self, core: ClientCore, group: str) -> None:
        self._core = core
        self._group = group
        self._offsets: dict[MessageQueue, int] = {}
        self._kept: dict[MessageQueue, int] = {}
        # Of two first offsets of a group that reach a broker of Java's at once, it may lose one.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset that the broker keeps."""
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id, False)
        try:
            answer = await self._core.ask(self._address(queue), RequestCode.QUERY_CONSUMER_OFFSET, header)
        except RefusedError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return int(answer.ext_fields["offset"])

    def known(self, queue: MessageQueue) -> int | None:
        """The offset that was told last."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Tell an offset that is to be kept."""
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """A queue is not ours any more."""
        self._offsets.pop(queue, None)
        self._kept.pop(queue, None)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Send what has changed to its brokers. What cannot be sent is remembered, and sent the next time."""
        chosen = self._offsets if queues is None else [queue for queue in queues if queue in self._offsets]
        work = [self._send(queue) for queue in list(chosen) if self._kept.get(queue) != self._offsets[queue]]
        failures = [failure for failure in await asyncio.gather(*work, return_exceptions=True) if failure]
        for failure in failures:
            if not isinstance(failure, KourouError):
                raise failure
            self._core.warnings.warn(
                log, self._group, "an offset of group %s was not kept: %s", self._group, failure
            )
        return not failures

    async def _send(self, queue: MessageQueue) -> None:
        async with self._turns[queue.broker_name]:
            offset = self._offsets.get(queue)
            if offset is None or self._kept.get(queue) == offset:
                return  # it was told meanwhile, or the queue is not ours any more
            header = UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)
            await self._core.ask(self._address(queue), RequestCode.UPDATE_CONSUMER_OFFSET, header)
            self._kept[queue] = offset

    def _address(self, queue: MessageQueue) -> str:
        address = self._core.broker_address(queue.broker_name)
        if address is None:
            raise ClientError(f"broker {queue.broker_name} of {queue.topic} is not known at the name server")
        return address


class LocalOffsets:
    """Offsets in a file: each consumer of the group reads all queues, and remembers them for itself."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[MessageQueue, int] = {}
        self._kept = self._load()

    def _load(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._backup):
            try:
                body = path.read_bytes()
                table = lenient_json.loads(body)["offsetTable"]
                return {MessageQueue.from_json(text): int(offset) for text, offset in table.items()}
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                log.error("%s has no offsets (%s): the one before it is used", path, error)
        return {}

    @property
    def _backup(self) -> Path:
        return self._path.with_name(self._path.name + ".bak")

    async def read(self, queue: MessageQueue) -> int | None:
        """The offset in the file."""
        return self._kept.get(queue)

    def known(self, queue: MessageQueue) -> int | None:
        """The offset that was told last."""
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Tell an offset that is to be kept."""
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        """A queue is not read any more; the file still knows it."""
        self._offsets.pop(queue, None)

    async def persist(self, queues: Collection[MessageQueue] | None = None) -> bool:
        """Write the file, if something has changed."""
        if any(self._kept.get(queue) != offset for queue, offset in self._offsets.items()):
            self._kept |= self._offsets
            body = lenient_json.dumps({"offsetTable": self._kept})
            await asyncio.to_thread(write_atomically, self._path, body)
        return True


def local_offsets_path(directory: str | Path | None, client_id: str, group: str) -> Path:
    """Where Java keeps the offsets of a broadcast group, for a client with a name that stays the same."""
    home = Path(directory) if directory is not None else Path.home() / ".rocketmq_offsets"
    return home / client_id / group / "offsets.json"
