"""Transactions: their end, and checks that are taken up again (EndTransactionProcessor)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kourou.errors import BadMessageError
from kourou.message.ids import decode_offset_message_id
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Connection
from kourou.remoting.headers import EndTransaction, ResumeCheckHalfMessage
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
    return broker.transactions.end(request, header)


def resume_check(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """RESUME_CHECK_HALF_MESSAGE: check a prepared message again that was given up."""
    header = ResumeCheckHalfMessage.read(request)
    try:
        place = decode_offset_message_id(header.msg_id or "")
    except BadMessageError as error:
        return request.response(ResponseCode.SYSTEM_ERROR, remark=str(error))
    half = broker.store.look_message(place.physical_offset)
    if half is None or not broker.transactions.resume(half):
        remark = "Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed."
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    return request.response()


HANDLERS = {
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resume_check,
}
