"""Headers of sends, short or long, read into the same values."""

from __future__ import annotations

from typing import NamedTuple

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
_LONG_CODES = (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
# Numbers as senders write them: to look one up is quicker than to read it, and strict.
_SMALL = {str(number): number for number in range(1024)}
_BOOLS = {"true": True, "false": False}


class SendHeader(NamedTuple):
    """What a send says, whichever names its fields have."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    batch: bool
    max_reconsume_times: int | None


_new = tuple.__new__


def read_header(request: RemotingCommand) -> SendHeader:
    """The header of a send. Hot: the short one as most senders write it is read without conversions."""
    fields = request.ext_fields
    if request.code not in _LONG_CODES:
        get = fields.get
        try:
            born = fields["g"]
            if born.isdigit() and born.isascii() and len(born) < 18 and "l" not in fields:
                return _new(
                    SendHeader,
                    (
                        fields["a"], fields["b"], fields["c"], _SMALL[fields["d"]], _SMALL[fields["e"]],
                        _SMALL[fields["f"]], int(born), _SMALL[fields["h"]], get("i", ""),
                        _SMALL[get("j", "0")], _BOOLS[get("k", "false")], _BOOLS[get("m", "false")], None,
                    ),
                )  # fmt: skip
        except KeyError:
            pass
    return _read_any(request)


def _read_any(request: RemotingCommand) -> SendHeader:
    """Any header; BadRequestError names the field that is missing or of no use."""
    header = _read_either(request)
    for name in _INTS:
        value = getattr(header, name)
        if value is not None and not -MAX_INT - 1 <= value <= MAX_INT:
            raise BadRequestError(f"the field {name} is {value}: it has 32 bits")
    return SendHeader(*(getattr(header, name) for name in SendHeader._fields))


def _read_either(request: RemotingCommand) -> SendMessage:
    if request.code not in _LONG_CODES:
        fields = request.ext_fields
        try:
            long = {_V2[name]: text for name, text in fields.items() if name in _V2}
            return SendMessage.read(RemotingCommand(request.code, long, opaque=0))
        except BadRequestError as error:
            raise BadRequestError(f"{error} (short header: {_V2})") from None
    return SendMessage.read(request)
