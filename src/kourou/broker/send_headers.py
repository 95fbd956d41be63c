"""Headers of sends, short or long, read field by field."""

from __future__ import annotations

from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.header import BadRequestError
from kourou.remoting.headers import SendMessage

MAX_INT = 0x7FFFFFFF
_INTS = ("default_topic_queue_nums", "queue_id", "sys_flag", "flag", "reconsume_times", "max_reconsume_times")

# Names of the short header, in the order of the long one.
_V2 = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId",
    "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes",
    "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip


def read_header(request: RemotingCommand) -> SendMessage:
    """The header of a send, short or long."""
    header = _read_either(request)
    for name in _INTS:
        value = getattr(header, name)
        if value is not None and not -MAX_INT - 1 <= value <= MAX_INT:
            raise BadRequestError(f"the field {name} is {value}: it has 32 bits")
    return header


def _read_either(request: RemotingCommand) -> SendMessage:
    if request.code not in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE):
        fields = request.ext_fields
        try:
            long = {_V2[name]: text for name, text in fields.items() if name in _V2}
            return SendMessage.read(RemotingCommand(request.code, long, opaque=0))
        except BadRequestError as error:
            raise BadRequestError(f"{error} (short header: {_V2})") from None
    return SendMessage.read(request)
