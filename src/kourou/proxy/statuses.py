"""StatusError, and which status an answer of a broker becomes (ResponseBuilder)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kourou.errors import KourouError
from kourou.proxy.protocol import pb
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import RemotingCommand

OK = pb.Status(code=pb.Code.OK, message="OK")

_OF_BROKER: dict[int, int] = {
    ResponseCode.SUCCESS: pb.Code.OK,
    ResponseCode.SYSTEM_BUSY: pb.Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.Code.NOT_IMPLEMENTED,
    ResponseCode.NO_PERMISSION: pb.Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: pb.Code.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.Code.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.MESSAGE_ILLEGAL: pb.Code.BAD_REQUEST,
    ResponseCode.INVALID_PARAMETER: pb.Code.BAD_REQUEST,
    ResponseCode.FLUSH_DISK_TIMEOUT: pb.Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: pb.Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: pb.Code.HA_NOT_AVAILABLE,
}


class StatusError(KourouError):
    """A call that is answered with a status other than OK; `code` is that of the interface."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code

    @property
    def status(self) -> Any:
        """The status of the answer."""
        return pb.Status(code=self.code, message=str(self))


def of_answer(answer: RemotingCommand) -> Any:
    """The status that the answer of a broker is."""
    if answer.code == ResponseCode.SUCCESS:
        return OK
    code = _OF_BROKER.get(answer.code, pb.Code.INTERNAL_SERVER_ERROR)
    return pb.Status(code=code, message=answer.remark or str(answer.code))


def of_all(entries: Sequence[Any]) -> Any:
    """The status of an answer with entries: theirs, if they have the same code."""
    if len({entry.status.code for entry in entries}) > 1:
        return pb.Status(code=pb.Code.MULTIPLE_RESULTS, message="there are different results")
    return entries[0].status if entries else OK


def check(answer: RemotingCommand) -> RemotingCommand:
    """The answer of a broker, which is a success; raises StatusError if it is not."""
    if answer.code != ResponseCode.SUCCESS:
        status = of_answer(answer)
        raise StatusError(status.code, status.message)
    return answer
