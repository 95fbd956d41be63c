"""Headers of sends: read field by field, or by their form.

The JSON headers that a client sends for plain messages differ in producer group, topic, queue, time,
properties and opaque; everything else is the same, byte by byte. A form is the text of one header as a
regular expression, with holes at these places. A header that matches says what orjson would read from it, in
half the time and without a dictionary. Clients write the same fields in different orders: a form is learned
from what a connection sends.
"""

from __future__ import annotations

import re
from typing import Any

import orjson

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

SEND_MARK = b'"code":%d' % RequestCode.SEND_MESSAGE_V2
# Topic, queue, time, properties; their order is that of all clients. The opaque is before or behind them.
FIELDS = ("b", "e", "g", "i")
MAX_FORM_BYTES = 4096  # of a header that is learned: to compile a long one takes long

# What JSON writes as it is stands in a hole, so that nothing in it can end its text; properties have escapes.
_TEXT = rb"[ !#-\[\]-~]"
_HOLES = {
    "a": rb'"' + _TEXT + rb'*"',
    "b": rb'"(' + _TEXT + rb'+)"',
    "e": rb'"(\d{1,9})"',
    "g": rb'"(\d{1,18})"',
    "i": rb'"([ !#-~]+)"',
    "opaque": rb"(0|[1-9]\d{0,9})",
}
# Of a message that is sent for the first time, alone, without flags; anything else in these is no plain send.
_PLAIN = {"f": "0", "h": "0", "j": "0", "m": "false"}


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


class SendForm:
    """A form: `match` gives the match of a header, whose groups are FIELDS and the opaque."""

    __slots__ = ("match", "opaque_first")

    def __init__(self, pattern: re.Pattern[bytes], opaque_first: bool) -> None:
        self.match = pattern.fullmatch
        self.opaque_first = opaque_first


def learn_form(header: bytes) -> SendForm | None:
    """The form of a header; None if it is not that of a plain send."""
    if len(header) > MAX_FORM_BYTES:
        return None
    try:
        fields: dict[str, Any] = orjson.loads(header)
        ext_fields = fields["extFields"]
        if fields["code"] != RequestCode.SEND_MESSAGE_V2 or fields.get("flag", 0) != 0:
            return None
        if any(ext_fields.get(name, value) != value for name, value in _PLAIN.items()):
            return None
        values = {name: ext_fields[name] for name in "abegi"} | {"opaque": fields["opaque"]}
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    if "f" not in ext_fields or "h" not in ext_fields:
        return None
    holes = []
    for name, value in values.items():
        text = b'"%b":' % name.encode() + orjson.dumps(value)
        if header.count(text) != 1:
            return None
        end = header.index(text) + len(text)
        holes.append((end - len(orjson.dumps(value)), end, name))
    holes.sort()
    pieces: list[bytes] = []
    at = 0
    for start, end, name in holes:
        pieces += re.escape(header[at:start]), _HOLES[name]
        at = end
    pattern = re.compile(b"".join((*pieces, re.escape(header[at:]))))
    if pattern.fullmatch(header) is None:
        return None
    groups = tuple(name for *_, name in holes if name != "a")
    if groups not in ((*FIELDS, "opaque"), ("opaque", *FIELDS)):
        return None
    return SendForm(pattern, groups[0] == "opaque")
