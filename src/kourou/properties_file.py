"""Java's .properties files: broker.conf, namesrv.conf, tls.properties."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from kourou.errors import ConfigError

_BLANKS = (" ", "\t", "\f")


def read_properties_file(path: str | Path) -> dict[str, str]:
    """The keys and values of a Java .properties file."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    try:
        return parse_properties(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return parse_properties(data.decode("latin-1"))  # as Java reads it: a comment may be in any encoding


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of Java .properties text: #, ! comments, `=`, `:` or blank, \\ escapes."""
    properties = {}
    for line in _logical_lines(text):
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None
        properties[_unescape(match[1])] = _unescape(match[2]).rstrip()
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Java .properties text, a line for each key, in their order.

    What is read back is what was written: no value can bring another key along.
    """
    return "".join(f"{_escape_key(key)}={_escape(value)}\n" for key, value in sorted(properties.items()))


def _escape(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"\\{escaped}" if escaped[:1] in _BLANKS else escaped


def _escape_key(key: str) -> str:
    """A blank or a sign of assignment would end a key."""
    escaped = re.sub(r"[ =:#!\\]", r"\\\g<0>", key)
    return escaped.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t").replace("\f", "\\f")


def _logical_lines(text: str) -> Iterator[str]:
    """Lines that are neither blank nor a comment; one that ends with a backslash goes on in the next."""
    start = None  # of a line that goes on
    for line in re.split(r"\r\n|\r|\n", text):
        line = line.lstrip(" \t\f")
        if start is None and (not line or line[0] in "#!"):
            continue
        line = (start or "") + line
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2
        start = line[:-1] if goes_on else None
        if start is None:
            yield line
    if start is not None:
        yield start


def _unescape(text: str) -> str:
    plain = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def replace(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else plain.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", replace, text)
