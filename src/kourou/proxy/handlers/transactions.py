"""EndTransaction, and brokers that ask what became of a transaction (EndTransactionActivity).

The id of a transaction has all that its end needs: any proxy may be told, also one that was started since.

    broker, offset in the half topic, offset in the log, unique id of the message; joined by blanks, in base64
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from kourou.client.produce.transactions import end_request
from kourou.message import properties as names
from kourou.message.codec import decode
from kourou.message.sysflag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from kourou.proxy import messages
from kourou.proxy.calls import Call
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import OK, StatusError
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CheckTransactionState, EndTransaction

if TYPE_CHECKING:
    from kourou.proxy.server import Proxy

log = logging.getLogger(__name__)

MAX_TOPICS = 10_000  # with transactions, of one proxy

_FLAGS = {
    pb.TransactionResolution.COMMIT: TRANSACTION_COMMIT,
    pb.TransactionResolution.ROLLBACK: TRANSACTION_ROLLBACK,
}


class TransactionId(NamedTuple):
    """Where a half message lies."""

    broker_name: str
    half_offset: int
    physical_offset: int
    unique_id: str

    @property
    def text(self) -> str:
        """The id as clients have it."""
        return base64.urlsafe_b64encode(" ".join(map(str, self)).encode()).decode()

    @classmethod
    def read(cls, text: str) -> TransactionId:
        """The id that a text is. Raises StatusError if it is none."""
        try:
            broker, half, physical, unique_id = base64.urlsafe_b64decode(text).decode().split(" ")
            return cls(broker, int(half), int(physical), unique_id)
        except (binascii.Error, ValueError):
            raise StatusError(pb.Code.INVALID_TRANSACTION_ID, "transaction id is invalid") from None


class Transactions:
    """Half messages of clients, which their clients end or are asked about."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        proxy.cluster.core.add_handler(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    async def join(self, topic: str, broker_name: str) -> None:
        """Be a producer of a topic, before its first half message: brokers ask one of its group."""
        core = self._proxy.cluster.core
        if topic not in core.producer_groups:
            if len(core.producer_groups) >= MAX_TOPICS:
                raise StatusError(pb.Code.TOO_MANY_REQUESTS, f"{MAX_TOPICS} topics have transactions")
            core.producer_groups.add(topic)
            await core.send_heartbeats()
        address = core.broker_address(broker_name)
        if address is not None:
            await core.ensure_heartbeat(address)

    async def end(self, call: Call, request: Any) -> Any:
        """EndTransaction: commit it, or roll it back."""
        topic = call.name_of(request.topic)
        self._proxy.check_topic(topic)
        if not request.transaction_id.strip():
            raise StatusError(pb.Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        place = TransactionId.read(request.transaction_id)
        header = EndTransaction(
            topic, place.half_offset, place.physical_offset, _FLAGS.get(request.resolution, 0),
            place.unique_id, topic=topic,
            from_transaction_check=request.source == pb.TransactionSource.SOURCE_SERVER_CHECK,
            transaction_id=place.unique_id,
        )  # fmt: skip
        cluster = self._proxy.cluster
        await cluster.route(topic)
        address = await cluster.address_of(place.broker_name)
        await cluster.core.send_oneway(address, end_request(header, place.broker_name, None))
        return pb.EndTransactionResponse(status=OK)

    def _on_check(self, connection: Connection, request: RemotingCommand) -> None:
        """CHECK_TRANSACTION_STATE: a client of the topic is asked, by its telemetry stream."""
        header = CheckTransactionState.read(request)
        record = decode(request.body or b"")
        topic = record.properties.get(names.REAL_TOPIC) or record.topic
        record.topic = topic
        broker_name = header.bname or self._broker_at(connection.peer)
        if broker_name is None:
            log.info("%s asks for a transaction, and no route has it", connection.peer)
            return
        place = TransactionId(
            broker_name, header.tran_state_table_offset, header.commit_log_offset,
            header.transaction_id or record.message_id,
        )  # fmt: skip
        command = pb.TelemetryCommand(
            recover_orphaned_transaction_command=pb.RecoverOrphanedTransactionCommand(
                message=messages.to_message(record), transaction_id=place.text
            )
        )
        if not self._proxy.clients.tell_producer(topic, command):
            log.info("no producer of %s is here; %s asks for its transaction", topic, connection.peer)

    def _broker_at(self, address: str) -> str | None:
        for route in self._proxy.cluster.core.known_routes():
            for name, members in route.addresses.items():
                if address in members.values():
                    return name
        return None
