"""Forms of headers: sends and pulls whose header is not parsed but matched.

The JSON headers that a client sends for plain messages differ in producer group, topic, queue, time,
properties and opaque, those of its pulls in group, topic and numbers; everything else is the same, byte by
byte. A form is the text of one header as a regular expression, with holes at these places. A header that
matches says what orjson would read from it, in half the time and without a dictionary. Clients write the same
fields in different orders: a form is learned from what a connection sends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from kourou.remoting.codes import RequestCode

if TYPE_CHECKING:
    from kourou.remoting.connection import Connection

MAX_LEARNED = 8  # forms of headers, by one connection
MAX_FORM_BYTES = 4096  # of a header that is learned: to compile a long one takes long
_OTHER = 1234567  # for a try of what was learned

# What JSON writes as it is stands in a hole, so that nothing in it can end its text; properties have escapes.
_TEXT = rb"[ !#-\[\]-~]"
_INT, _LONG = rb'"(\d{1,9})"', rb'"(\d{1,18})"'
_NAME = rb'"(' + _TEXT + rb'+)"'
_OPAQUE = {"opaque": rb"(0|[1-9]\d{0,9})"}

SEND_MARK = b'"code":%d' % RequestCode.SEND_MESSAGE_V2
# Topic, queue, time, properties; their order is that of all clients. The opaque is before or behind them.
SEND_FIELDS = ("b", "e", "g", "i")
_SEND_HOLES = {
    "a": rb'"' + _TEXT + rb'*"', "b": _NAME, "e": _INT, "g": _LONG, "i": rb'"([ !#-~]+)"', **_OPAQUE,
}  # fmt: skip
# Of a message that is sent for the first time, alone, without flags; anything else in these is no plain send.
_PLAIN = {"f": "0", "h": "0", "j": "0", "m": "false"}

PULL_CODES = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
PULL_MARKS = tuple(b'"code":%d,' % code for code in PULL_CODES)
_PULL_HOLES = {
    "consumerGroup": _NAME, "topic": _NAME, "queueId": _INT, "queueOffset": _LONG, "maxMsgNums": _INT,
    "sysFlag": _INT, "commitOffset": rb'"(-?\d{1,18})"', "subVersion": _LONG, **_OPAQUE,
}  # fmt: skip
PULL_FIELDS = tuple(_PULL_HOLES)
_NOT_HOLES = ("suspendTimeoutMillis", "subscription", "expressionType")


class SendForm:
    """A form: `match` gives the match of a header, whose groups are SEND_FIELDS and the opaque."""

    __slots__ = ("match", "opaque_first")

    def __init__(self, pattern: re.Pattern[bytes], opaque_first: bool) -> None:
        self.match = pattern.fullmatch
        self.opaque_first = opaque_first


class PullForm:
    """A form: `match` gives the match of a header, in which `places` are the groups of PULL_FIELDS."""

    __slots__ = ("expression", "match", "places")

    def __init__(
        self, pattern: re.Pattern[bytes], places: tuple[int, ...], expression: tuple[str | None, str | None]
    ) -> None:
        self.match = pattern.fullmatch
        self.places = places
        self.expression = expression  # and its type


def learn_form(connection: Connection, header: bytes) -> None:
    """Remember the form of a header that a connection sent; a few times for each connection."""
    if connection.forms_learned >= MAX_LEARNED:
        return
    if SEND_MARK in header:
        connection.forms_learned += 1
        connection.send_form = learn_send_form(header) or connection.send_form
    elif any(mark in header for mark in PULL_MARKS):
        connection.forms_learned += 1
        connection.pull_form = learn_pull_form(header) or connection.pull_form


def learn_send_form(header: bytes) -> SendForm | None:
    """The form of a header; None if it is not that of a plain send."""
    fields = _read(header)
    if fields is None or fields["code"] != RequestCode.SEND_MESSAGE_V2:
        return None
    ext_fields = fields["extFields"]
    if any(ext_fields.get(name, value) != value for name, value in _PLAIN.items()):
        return None
    if "f" not in ext_fields or "h" not in ext_fields:
        return None
    found = _with_holes(header, fields, _SEND_HOLES)
    if found is None:
        return None
    pattern, names = found
    groups = tuple(name for name in names if name != "a")
    if groups not in ((*SEND_FIELDS, "opaque"), ("opaque", *SEND_FIELDS)):
        return None
    return SendForm(pattern, groups[0] == "opaque")


def learn_pull_form(header: bytes) -> PullForm | None:
    """The form of a header; None if it is not that of a pull."""
    fields = _read(header)
    if fields is None or fields["code"] not in PULL_CODES:
        return None
    ext_fields = fields["extFields"]
    wait, expression, kind = (ext_fields.get(name) for name in _NOT_HOLES)
    if wait is None or not all(isinstance(text, str | None) for text in (wait, expression, kind)):
        return None
    found = _with_holes(header, fields, _PULL_HOLES)
    if found is None:
        return None
    pattern, names = found
    return PullForm(pattern, tuple(names.index(name) + 1 for name in PULL_FIELDS), (expression, kind))


def _read(header: bytes) -> dict[str, Any] | None:
    """The header of a request that is answered; None for what is not learned."""
    try:
        fields = orjson.loads(header)
        if isinstance(fields["extFields"], dict) and fields.get("flag", 0) == 0 and "code" in fields:
            return fields  # type: ignore[no-any-return]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        pass
    return None


def _with_holes(
    header: bytes, fields: dict[str, Any], holes: Mapping[str, bytes]
) -> tuple[re.Pattern[bytes], tuple[str, ...]] | None:
    """The header as a pattern with these holes, and their names in its order; None if one is not there."""
    if len(header) > MAX_FORM_BYTES:
        return None
    values = {**fields["extFields"], "opaque": fields.get("opaque")}
    places = []
    for name in holes:
        if name not in values:
            return None
        value = orjson.dumps(values[name])
        text = b'"%b":%b' % (name.encode(), value)
        if header.count(text) != 1:
            return None
        end = header.index(text) + len(text)
        places.append((end - len(value), end, name))
    places.sort()
    pieces: list[bytes] = []
    other: list[bytes] = []  # with something else in the holes
    at = 0
    for start, end, name in places:
        pieces += re.escape(header[at:start]), holes[name]
        other += header[at:start], b"%d" % _OTHER if name == "opaque" else b'"%d"' % _OTHER
        at = end
    pattern = re.compile(b"".join((*pieces, re.escape(header[at:]))))
    read = _read(b"".join((*other, header[at:])))
    if pattern.fullmatch(header) is None or read is None or read["opaque"] != _OTHER:
        return None
    if any(read["extFields"][name] != str(_OTHER) for name in holes if name != "opaque"):
        return None  # the same text stands elsewhere too
    return pattern, tuple(name for *_, name in places)
