"""Headers of sends, short or long."""

from __future__ import annotations

from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.headers import SendMessage, SendMessageV2

_LONG = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)


def read_header(request: RemotingCommand) -> SendMessage:
    """The header of a send, short or long."""
    return (SendMessage if request.code in _LONG else SendMessageV2).read(request)
