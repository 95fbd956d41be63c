"""Fields of JSON bodies: taken by name, as forgiving as fastjson, with an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.header import BadRequestError

# Of a body that is not strict JSON, which takes a second of the loop for a million. No request needs more.
MAX_LENIENT_TOKENS = 20_000

_MISSING = object()


def read_body(body: bytes | memoryview | None, what: str) -> dict[str, Any]:
    """The object in a body."""
    if not body:
        raise BadRequestError(f"the body of {what} is missing")
    try:
        value = lenient_json.loads(body, MAX_LENIENT_TOKENS)
    except ValueError as error:
        raise BadRequestError(f"the body of {what} is no JSON: {error}") from None
    return as_object(value, what)


def as_object(value: Any, name: str) -> dict[str, Any]:
    """A value that must be an object."""
    if not isinstance(value, dict):
        raise _bad(name, value, "an object")
    return value


def read_text(value: Mapping[str, Any], name: str, default: Any = _MISSING) -> str:
    """A text; raises BadRequestError if there is none and no default."""
    found = value.get(name)
    if found is None:
        return str(_or_missing(name, default))
    if not isinstance(found, str):
        raise _bad(name, found, "a text")
    return found


def read_int(value: Mapping[str, Any], name: str, default: Any = _MISSING) -> int:
    """A whole number, or the text of one."""
    found = value.get(name)
    if found is None:
        return int(_or_missing(name, default))
    return as_int(found, name)


def as_int(value: Any, name: str) -> int:
    """A value that must be a whole number."""
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
    except ValueError:
        pass
    raise _bad(name, value, "a whole number")


def read_bool(value: Mapping[str, Any], name: str, default: bool) -> bool:
    """True or false, or the text of it."""
    found = value.get(name)
    if found is None:
        return default
    if isinstance(found, bool):
        return found
    if isinstance(found, str) and found.lower() in ("true", "false"):
        return found.lower() == "true"
    raise _bad(name, found, "true or false")


def read_list(value: Mapping[str, Any], name: str) -> list[Any]:
    """A list; none is an empty one."""
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list):
        raise _bad(name, found, "a list")
    return found


def read_texts(value: Mapping[str, Any], name: str) -> dict[str, str]:
    """An object of texts; none is an empty one."""
    found = value.get(name)
    if found is None:
        return {}
    return {str(key): str(item) for key, item in as_object(found, name).items() if item is not None}


def _or_missing(name: str, default: Any) -> Any:
    if default is _MISSING:
        raise BadRequestError(f"the field <{name}> is missing")
    return default


def _bad(name: str, value: Any, wanted: str) -> BadRequestError:
    return BadRequestError(f"the field <{name}> is {str(value)[:80]!r}, not {wanted}")
