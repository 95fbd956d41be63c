"""Transactions: their end, and checks that are taken up again (EndTransactionProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.auth.rules import PUB, UPDATE, sending, topic
from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message.codec import StoredMessage
from kourou.message.ids import decode_offset_message_id
from kourou.message.topics import TRANS_CHECK_MAX_TIME_TOPIC
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import EndTransaction, ResumeCheckHalfMessage
from kourou.store.config import BrokerRole

if TYPE_CHECKING:
    from kourou.broker.server import Broker


def end_transaction(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """END_TRANSACTION: a producer commits a prepared message, or rolls it back."""
    header = EndTransaction.read(request)
    if broker.config.store.broker_role is BrokerRole.SLAVE:
        return request.response(ResponseCode.SLAVE_NOT_AVAILABLE)
    half = broker.transactions.find_half(header.commit_log_offset)
    if broker.guard.authorizes:
        actions = (PUB,) if half is None else sending(_owner(half)).actions
        _require(broker, connection, request, header.commit_log_offset, half, *actions)
    return broker.transactions.end(request, header, half)


def resume_check(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """RESUME_CHECK_HALF_MESSAGE: check a prepared message again that was given up."""
    header = ResumeCheckHalfMessage.read(request)
    try:
        place = decode_offset_message_id(header.msg_id or "")
    except BadMessageError as error:
        return request.response(ResponseCode.SYSTEM_ERROR, remark=str(error))
    half = broker.transactions.find_half(place.physical_offset, TRANS_CHECK_MAX_TIME_TOPIC)
    _require(broker, connection, request, place.physical_offset, half, UPDATE)
    if half is None or not broker.transactions.resume(half):
        remark = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    return request.response()


def _require(
    broker: Broker,
    connection: Connection,
    request: RemotingCommand,
    physical_offset: int,
    half: StoredMessage | None,
    *actions: str,
) -> None:
    """A half is of the topic that it waits for, whichever one the request names."""
    owner = None if half is None else topic(_owner(half))
    what = f"half message at {physical_offset}"
    broker.guard.require_found(request, connection.peer, what, owner, *actions)


def _owner(half: StoredMessage) -> str:
    """Where a half goes: the broker wrote it down, nobody else puts messages where halves are."""
    return half.properties.get(names.REAL_TOPIC, "")


HANDLERS = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
}
