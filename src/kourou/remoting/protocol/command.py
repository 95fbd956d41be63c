"""RemotingCommand: a request or a response on the wire, in either of its two forms.

Frame:

| size | field |
|------|-------|
| 4    | length of everything behind it |
| 1    | serialisation of the header: 0 JSON, 1 ROCKETMQ |
| 3    | header length h |
| h    | header |
| rest | body |

A ROCKETMQ header (RocketMQSerializable); all numbers big-endian:

| size | field |
|------|-------|
| 2    | code, signed: codes above 32767 are cut |
| 1    | language |
| 2    | version |
| 4    | opaque, by which a response finds its request |
| 4    | flag: bit 0 response, bit 1 one-way |
| 4    | remark length, then the remark |
| 4    | length of the extension fields, then for each: 2 name length, name, 4 value length, value |

Java reads a string of length 0 there as none; here it is an empty one, which `Header.read` takes for none.
A JSON header is an object of the same, with the names code, language, version, opaque, flag, remark,
extFields, and serializeTypeCurrentRPC.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import orjson
from msgspec import DecodeError, Meta, Struct, field
from msgspec.json import Decoder

from kourou.errors import KourouError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.layouts import Layouts, Spans

UNREADABLE = (DecodeError, UnicodeDecodeError, RecursionError)  # what msgspec raises
JSON = 0
ROCKETMQ = 1

VERSION = 513  # MQVersion.V5_5_0, what a server of this version says
LANGUAGE = "PYTHON"
RESPONSE_FLAG = 1
ONEWAY_FLAG = 2

# Java's com.rocketmq.remoting.frameMaxLength: 16 MiB
MAX_FRAME_BYTES = 16 * 1024 * 1024

LANGUAGES = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS",
    "RUST", "NODE_JS",
)  # fmt: skip
_LANGUAGE_CODES = {name: code for code, name in enumerate(LANGUAGES)}

_FRAME_HEAD = struct.Struct(">iI")
_BINARY_HEAD = struct.Struct(">hBhiii")
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")

_Int32 = Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)]

_JSON_ANSWER = b",".join(
    (
        b'{"code":%d',
        b'"extFields":%b',
        b'"flag":1',
        b'"language":"%b"',
        b'"opaque":%d',
        b'"serializeTypeCurrentRPC":"JSON"',
        b'"version":%d}',
    )
)


class BadFrameError(KourouError):
    """Bytes that are no frame: the connection they came on is of no use any more."""


if TYPE_CHECKING:
    Body = bytes | memoryview | None
    NotRead = Any
else:

    class NotRead:
        """The type of what is never in a JSON header: msgspec refuses a header that has it."""

    Body = NotRead

_next_opaque = itertools.count().__next__


def new_opaque() -> int:
    """A number that tells a request from the others of its connection."""
    return _next_opaque() & 0x7FFFFFFF


class RemotingCommand(Struct, eq=False, gc=False):
    """A request or a response. Hot: msgspec reads one from a JSON header in half of the time that a
    dictionary and a class take.

    The fields of the requests that come most often are read at once into their header (header.py), and as
    text only where somebody asks for `ext_fields`: `source` is where they stand.
    """

    code: _Int32
    _ext_fields: dict[str, str] | None = field(default=None, name="extFields")  # None: there are none at all
    body: Body = None
    remark: str | None = None
    opaque: _Int32 = field(default_factory=new_opaque)
    flag: _Int32 = 0
    language: str = LANGUAGE
    version: _Int32 = VERSION
    serialize_type: NotRead = JSON
    header: NotRead = field(default=None, name="-header")
    source: NotRead = None  # the bytes of the JSON header, until its fields are asked for
    began: NotRead = 0.0  # when a request that is timed came, by perf_counter

    def __repr__(self) -> str:
        kind = "response" if self.is_response else "request"
        body = len(self.body or b"")
        return (
            f"<{kind} {self.code} opaque={self.opaque} {self.ext_fields} remark={self.remark!r} body={body}>"
        )

    @property
    def ext_fields(self) -> dict[str, str]:
        """The fields of the request or response; empty where the header has none."""
        if self.source is not None:
            self._ext_fields, self.source = _read_json_header(self.source)._ext_fields, None
        return {} if self._ext_fields is None else self._ext_fields

    def detach(self) -> None:
        """Let go of the bytes of the read that this request came with: it is answered later."""
        if self.source is not None:
            self.source = bytes(self.source)

    @property
    def is_response(self) -> bool:
        """Whether it answers a request of ours."""
        return bool(self.flag & RESPONSE_FLAG)

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & ONEWAY_FLAG)

    def response(
        self,
        code: int = ResponseCode.SUCCESS,
        ext_fields: dict[str, str] | None = None,
        body: bytes | memoryview | None = None,
        remark: str | None = None,
    ) -> RemotingCommand:
        """An answer to this request, in the form it was asked."""
        return RemotingCommand(
            code, ext_fields, body, remark, self.opaque, RESPONSE_FLAG, LANGUAGE, VERSION, self.serialize_type
        )

    def encode(self) -> bytes:
        """The whole frame."""
        header = self.encode_header()
        if self.body is None:
            return frame_head(self.serialize_type, header)
        return b"".join((frame_head(self.serialize_type, header, len(self.body)), self.body))

    def encode_header(self) -> bytes:
        """The header alone, in the form of this command."""
        if self.source is not None:
            self._ext_fields = self.ext_fields
        return self._encode_binary() if self.serialize_type == ROCKETMQ else self._encode_json()

    def _encode_json(self) -> bytes:
        if self.flag == RESPONSE_FLAG and self.remark is None and self._ext_fields:
            # An answer as nearly all are. Hot: a template costs half of a dictionary to be dumped.
            return _JSON_ANSWER % (
                self.code, orjson.dumps(self._ext_fields), self.language.encode(), self.opaque, self.version
            )  # fmt: skip
        header: dict[str, Any] = {"code": self.code}
        if self._ext_fields is not None:
            header["extFields"] = self._ext_fields
        header["flag"] = self.flag
        header["language"] = self.language
        header["opaque"] = self.opaque
        if self.remark is not None:
            header["remark"] = self.remark
        header["serializeTypeCurrentRPC"] = "JSON"
        header["version"] = self.version
        return orjson.dumps(header)

    def _encode_binary(self) -> bytes:
        remark = self.remark.encode() if self.remark else b""
        fields: list[bytes] = []
        for name, value in (self._ext_fields or {}).items():
            name_bytes, value_bytes = name.encode(), value.encode()
            fields += _SHORT.pack(len(name_bytes)), name_bytes, _INT.pack(len(value_bytes)), value_bytes
        joined = b"".join(fields)
        code = (self.code + 0x8000 & 0xFFFF) - 0x8000  # as Java cuts it to 16 bits
        head = _BINARY_HEAD.pack(
            code, _LANGUAGE_CODES[self.language], self.version, self.opaque, self.flag, len(remark)
        )
        return b"".join((head, remark, _INT.pack(len(joined)), joined))


class ReadCommand(RemotingCommand, kw_only=True, eq=False, gc=False):
    """A command as a JSON header has it: what is left out is not ours, and nothing is made up."""

    opaque: _Int32
    language: str = "OTHER"
    version: _Int32 = 0


_read_json = Decoder(ReadCommand).decode
# By the first bytes of a JSON header, what reads it with its fields; None where that takes a closer look.
ReadTyped = Callable[[memoryview], RemotingCommand | None]
TYPED_PREFIX_BYTES = 12
typed_readers: dict[bytes, ReadTyped] = {}


def frame_head(serialize_type: int, header: bytes, body_length: int = 0) -> bytes:
    """A frame up to its body."""
    length = len(header)
    return _FRAME_HEAD.pack(4 + length + body_length, serialize_type << 24 | length) + header


def decode(data: bytes | memoryview) -> RemotingCommand:
    """The command of a frame, given without its first four bytes."""
    if len(data) < 4:
        raise BadFrameError(f"frame of {len(data)} bytes has no header")
    data = bytes(data)
    return decode_frame(data, memoryview(data), 4, len(data), int.from_bytes(data[:4], "big"))


def decode_frame(
    data: bytes, view: memoryview, at: int, end: int, word: int, layouts: Layouts | None = None
) -> RemotingCommand:
    """The command of a frame whose header is at `at`; `word` is what stands before it. `view` shows `data`,
    `layouts` is what is known of the headers of its peer. Hot."""
    header_end = at + (word & 0xFFFFFF)
    if header_end > end:
        raise BadFrameError(f"header of {word & 0xFFFFFF} bytes does not fit a frame of {end - at}")
    header = view[at:header_end]
    if word < ROCKETMQ << 24:
        read_typed = typed_readers.get(data[at : at + TYPED_PREFIX_BYTES])
        command = None if read_typed is None else read_typed(header)
        if command is None:
            command = _read_json_header(header)
    elif word >> 24 == ROCKETMQ:
        command = _decode_binary(data[at:header_end], layouts)
    else:
        raise BadFrameError(f"unknown serialisation {word >> 24}")
    if header_end < end:
        command.body = view[header_end:end]
    return command


def _read_json_header(header: bytes | memoryview) -> RemotingCommand:
    try:
        return _read_json(header)
    except UNREADABLE:
        return _read_odd_json(header)


def _read_odd_json(header: bytes | memoryview) -> RemotingCommand:
    """A header with numbers as text or as fields, or null for what is left out, as other clients write it."""
    try:
        given = orjson.loads(header)
        fields = given.get("extFields")
        if fields is not None:
            fields = {name: _text(value) for name, value in fields.items() if value is not None}
        numbers = (given["code"], given["opaque"], given.get("flag"), given.get("version"))
        code, opaque, flag, version = map(_whole, numbers)
        language = given.get("language") or "OTHER"
        return RemotingCommand(code, fields, None, given.get("remark"), opaque, flag, language, version)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadFrameError(f"header is no JSON header: {error}") from error


def _text(value: Any) -> str:
    """The text that Java makes of a value of JSON."""
    return value if isinstance(value, str) else lenient_json.dumps(value).decode()


def _whole(value: Any) -> int:
    """A number of the header that may stand there as text, or not at all."""
    return int(value or 0) if isinstance(value, str | None) else operator.index(value)


def _decode_binary(data: bytes, layouts: Layouts | None) -> RemotingCommand:
    size = len(data)
    try:
        code, language, version, opaque, flag, remark_length = _BINARY_HEAD.unpack_from(data, 0)
        at = _BINARY_HEAD.size
        remark = None
        if remark_length:
            at += _checked(remark_length, size)
            remark = str(data[_BINARY_HEAD.size : at], "utf-8", "replace")
        (fields_length,) = _INT.unpack_from(data, at)
        at += 4
        end = at + _checked(fields_length, size - at)
        fields = None
        if end > at:
            fields = (layouts or _NO_LAYOUTS).read(code, data, at, end)
        name = LANGUAGES[language] if language < len(LANGUAGES) else "OTHER"
        return RemotingCommand(code, fields, None, remark, opaque, flag, name, version, ROCKETMQ)
    except struct.error as error:
        raise BadFrameError(f"header ends early: {error}") from error


def _decode_fields(data: bytes, at: int, end: int, spans: Spans) -> dict[str, str]:
    """The fields of a ROCKETMQ header, and where the value of each lies."""
    ext_fields = {}
    unpack_short, unpack_int = _SHORT.unpack_from, _INT.unpack_from
    while at < end:
        (length,) = unpack_short(data, at)
        at += 2
        name_end = at + length
        (value_length,) = unpack_int(data, name_end)
        value_at = name_end + 4
        value_end = value_at + value_length
        if length < 0 or value_length < 0 or value_end > end:
            raise BadFrameError(
                f"lengths of {length} and {value_length} in the header, {end - at} bytes are left"
            )
        name = data[at:name_end].decode("utf-8", "replace")
        ext_fields[name] = data[value_at:value_end].decode("utf-8", "replace")
        spans.append((name, value_at, value_end))
        at = value_end
    return ext_fields


def new_layouts() -> Layouts:
    """For the headers of one peer."""
    return Layouts(_decode_fields)


class _NoLayouts:
    """Takes every header apart."""

    @staticmethod
    def read(code: int, data: bytes, at: int, end: int) -> dict[str, str]:
        return _decode_fields(data, at, end, [])


_NO_LAYOUTS = _NoLayouts()


def _checked(length: int, most: int) -> int:
    if not 0 <= length <= most:
        raise BadFrameError(f"a length of {length} in the header, {most} bytes are left")
    return length
