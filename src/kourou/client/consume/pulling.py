"""A pull: the request, the broker that it goes to, and what its answer says (PullAPIWrapper)."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

import orjson

from kourou.client.consume.received import MessageBatch
from kourou.client.core import ClientCore, RefusedError
from kourou.client.routes import MASTER_ID
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import LANGUAGE, VERSION, RemotingCommand
from kourou.remoting.protocol.subscription import SubscriptionData

SUSPEND_S = 15.0  # how long a broker keeps a pull that finds nothing
ANSWER_S = 15.0  # beyond that

# PullSysFlag
_COMMIT_OFFSET = 1
_SUSPEND = 2
_SUBSCRIPTION = 4


_HEAD = b'{"code":%d,"language":"%b","serializeTypeCurrentRPC":"JSON","version":%d,"extFields":%b,'
_REST = (
    b'"queueOffset":"%d","maxMsgNums":"%d","sysFlag":"%d","commitOffset":"%d","suspendTimeoutMillis":"%d"}'
    b',"flag":0,"opaque":%d}'
)


class PullStatus(Enum):
    """What a broker found."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NOTHING_WANTED = ResponseCode.PULL_RETRY_IMMEDIATELY
    MOVED = ResponseCode.PULL_OFFSET_MOVED  # the offset is not within the queue


_STATUS: dict[int, PullStatus] = {status.value: status for status in PullStatus}


class Pulled(NamedTuple):
    """The answer to a pull."""

    status: PullStatus
    batch: MessageBatch | None
    next_offset: int
    min_offset: int
    max_offset: int


class _PullRequest(RemotingCommand):
    """PULL_MESSAGE. Hot: most of its header is the same for all pulls of a queue, and is made once."""

    head: bytes = b""
    values: tuple[int, ...] = ()  # offset, most, flags, commit offset, milliseconds to wait

    def encode_header(self) -> bytes:
        """The header."""
        return self.head + _REST % (*self.values, self.opaque)


class Puller:
    """Pulls for one group. With `tell_subscription` each request says what is wanted; else heartbeats do."""

    def __init__(
        self, core: ClientCore, group: str, *, tell_subscription: bool, namespace: str | None = None
    ) -> None:
        self._core = core
        self._group = group
        self._tells = tell_subscription
        self._namespace = namespace
        self._heads: dict[MessageQueue, tuple[SubscriptionData, bytes]] = {}
        self._suggested: dict[MessageQueue, int] = {}  # the member of the broker to ask, by its last answer

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        *,
        most: int = 32,
        commit_offset: int | None = None,
        suspend_s: float = SUSPEND_S,
    ) -> Pulled:
        """What a queue has from an offset on; where it has nothing, the broker waits for `suspend_s`."""
        address = self._core.broker_address(queue.broker_name, self._suggested.get(queue, MASTER_ID))
        if address is None:
            await self._core.fetch_route(queue.topic)
            address = self._core.address_of(queue)
        if not self._core.has_heartbeat(address):
            await self._core.ensure_heartbeat(address)
        flags = (_SUSPEND if suspend_s > 0 else 0) | (_SUBSCRIPTION if self._tells else 0)
        if commit_offset is not None and commit_offset > 0:
            flags |= _COMMIT_OFFSET
        known = self._heads.get(queue)
        if known is None or known[0] is not wanted:
            known = self._heads[queue] = wanted, self._make_head(queue, wanted)
        values = (offset, most, flags, commit_offset or 0, int(suspend_s * 1000))
        request = _PullRequest(RequestCode.PULL_MESSAGE, head=known[1], values=values)
        answer = await self._core.call(address, request, suspend_s + ANSWER_S)
        status = _STATUS.get(answer.code)
        if status is None:
            raise RefusedError(address, f"a pull of {queue.topic}", answer)
        found = answer.ext_fields
        self._suggested[queue] = int(found.get("suggestWhichBrokerId", MASTER_ID))
        next_offset = int(found["nextBeginOffset"])
        batch = None
        if status is PullStatus.FOUND and answer.body is not None:
            batch = MessageBatch(
                queue, bytes(answer.body), offset, next_offset, wanted, group=self._group,
                namespace=self._namespace,
            )  # fmt: skip
        return Pulled(status, batch, next_offset, int(found["minOffset"]), int(found["maxOffset"]))

    def _make_head(self, queue: MessageQueue, wanted: SubscriptionData) -> bytes:
        """What all pulls of a queue have in common."""
        fields = {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "subVersion": str(wanted.sub_version),
            "expressionType": wanted.expression_type,
            "bname": queue.broker_name,
        }
        if self._tells:
            fields["subscription"] = wanted.sub_string
        return _HEAD % (RequestCode.PULL_MESSAGE, LANGUAGE.encode(), VERSION, orjson.dumps(fields)[:-1])

    def forget(self, queue: MessageQueue) -> None:
        """A queue is not ours any more."""
        self._heads.pop(queue, None)
        self._suggested.pop(queue, None)
