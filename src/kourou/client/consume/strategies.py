"""Strategies: which queues of a topic each client of a group takes (AllocateMessageQueueStrategy).

Every client works out its own share, and nobody compares: all of them must use the same strategy, and see the
same queues and clients in the same order, which is why both are sorted here. What Java's clients and ours
give with the same strategy fits together.

    strategy(group, client_id, queues, client_ids)  # the queues of client_id
"""

from __future__ import annotations

import hashlib
import logging
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from kourou.client.core import ClientError
from kourou.message.model import MessageQueue

log = logging.getLogger(__name__)

VIRTUAL_NODES = 10  # of a client on the ring of ConsistentHash


class Strategy(Protocol):
    """A way to share queues. `name` is Java's, and stands in what a consumer tells of itself."""

    @property
    def name(self) -> str:
        """The name that the strategy has in Java."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues that a client of a group takes."""


class _Sharing:
    """A strategy by which the clients of a group share its queues: what all of these do first."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues that a client of a group takes."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        return self._share(client_id, sorted(queues), sorted(client_ids))

    @abstractmethod
    def _share(self, client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        """The queues of one of the clients; both are in their order."""


class Average(_Sharing):
    """Neighbouring queues for each client; the first clients have one more if they do not divide."""

    name = "AVG"

    def _share(self, client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        index = client_ids.index(client_id)
        size, more = divmod(len(queues), len(client_ids))
        start = index * size + min(index, more)
        return queues[start : start + size + (index < more)]


class AverageByCircle(_Sharing):
    """Queues are dealt like cards: the first client has the first, the second the second, and so on."""

    name = "AVG_BY_CIRCLE"

    def _share(self, client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        return queues[client_ids.index(client_id) :: len(client_ids)]


class ConsistentHash(_Sharing):
    """Clients lie on a ring, each at several places; a queue goes to the next one. A client that comes or
    goes moves few queues of the others."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 0:
            raise ClientError(f"a client has {virtual_nodes} places on the ring: it needs 0 or more")
        self._virtual_nodes = virtual_nodes

    def _share(self, client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        ring: dict[int, str] = {}
        for other in client_ids:
            for number in range(self._virtual_nodes):
                ring[_ring_hash(f"{other}-{number}")] = other
        if not ring:
            return []
        places = sorted(ring)
        return [
            queue
            for queue in queues
            if ring[places[bisect_left(places, _ring_hash(_java_text(queue))) % len(places)]] == client_id
        ]


class ByMachineRoom(_Sharing):
    """Queues of the brokers in some machine rooms alone, those named `room@broker`, in equal parts."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Collection[str]) -> None:
        self._rooms = frozenset(rooms)

    def _share(self, client_id: str, queues: list[MessageQueue], client_ids: list[str]) -> list[MessageQueue]:
        index = client_ids.index(client_id)
        usable = [queue for queue in queues if self._is_in(queue.broker_name)]
        size, more = divmod(len(usable), len(client_ids))
        found = usable[size * index : size * (index + 1)]
        if index < more:
            found.append(usable[size * len(client_ids) + index])
        return found

    def _is_in(self, broker_name: str) -> bool:
        parts = broker_name.rstrip("@").split("@")  # Java's split leaves out what is empty at the end
        return len(parts) == 2 and parts[0] in self._rooms


class MachineRoomNearby:
    """Queues go to the clients in the same machine room, by another strategy; all clients share the queues
    of a room that has none."""

    def __init__(
        self,
        inner: Strategy,
        broker_room: Callable[[MessageQueue], str],
        client_room: Callable[[str], str],
    ) -> None:
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"
        self._inner = inner
        self._broker_room = broker_room
        self._client_room = client_room

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues that a client of a group takes."""
        if not _is_member(group, client_id, queues, client_ids):
            return []
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in sorted(queues):
            queues_of.setdefault(self._room(self._broker_room(queue), queue), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for other in sorted(client_ids):
            clients_of.setdefault(self._room(self._client_room(other), other), []).append(other)
        own = self._client_room(client_id)
        found: list[MessageQueue] = []
        if own in queues_of:
            found += self._inner(group, client_id, queues_of.pop(own), clients_of[own])
        for room in sorted(queues_of.keys() - clients_of.keys()):
            found += self._inner(group, client_id, queues_of[room], client_ids)
        return found

    def _room(self, room: str, of: MessageQueue | str) -> str:
        if not room:
            raise ClientError(f"the machine room of {of} is not known: a name is needed")
        return room


class ByConfig:
    """The queues that were told, whoever else there is."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues that a client of a group takes."""
        return list(self._queues)


AVERAGE = Average()
AVERAGE_BY_CIRCLE = AverageByCircle()
CONSISTENT_HASH = ConsistentHash()


def _is_member(group: str, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> bool:
    """Whether a client is one of those who share; raises ClientError if there is nothing to share."""
    if not client_id:
        raise ClientError("queues cannot be shared: the client has no id")
    if not queues:
        raise ClientError("queues cannot be shared: there are none")
    if not client_ids:
        raise ClientError("queues cannot be shared: there are no clients")
    if client_id not in client_ids:
        log.info("client %s of group %s is not among %s: it takes no queues", client_id, group, client_ids)
        return False
    return True


def _ring_hash(text: str) -> int:
    """The first four bytes of the MD5, as ConsistentHashRouter has them."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _java_text(queue: MessageQueue) -> str:
    """What MessageQueue.toString gives: it is what is hashed."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
