"""PlainProperties: the properties of messages that are like most, read without being taken apart each time.

Messages of one producer differ in their unique id and their keys; what is left of the property string is the
same again and again. It is taken apart once, and what was found is remembered as a model.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.message import properties as names
from kourou.message.properties import decode_properties, encode_properties, tags_code

# What the broker has to look at, and what it sets itself: a message with one of these is not plain.
NOT_PLAIN = frozenset(
    (
        names.TRANSACTION_PREPARED, names.DELAY_TIME_LEVEL, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS,
        names.TIMER_DELIVER_MS, names.POP_CK, names.PRIORITY, names.LITE_TOPIC, names.MSG_REGION,
        names.TRACE_SWITCH, names.CLUSTER, names.UNIQ_KEY, names.KEYS,
    )
)  # fmt: skip
MAX_MODELS = 1000
MAX_MODEL_LENGTH = 1000
_INNER = b"INNER_"  # begins the names of what the store itself looks at
_UNIQUE, _KEYS = f"{names.UNIQ_KEY}\x01".encode(), f"{names.KEYS}\x01".encode()
_UNIQUE_LENGTH, _KEYS_LENGTH = len(_UNIQUE), len(_KEYS)
_END = 2  # behind a property
# The same as JSON has it
_JSON_UNIQUE, _JSON_KEYS = (name.replace(b"\x01", b"\\u0001") for name in (_UNIQUE, _KEYS))
_JSON_END = b"\\u0002"
_JSON_UNIQUE_LENGTH, _JSON_KEYS_LENGTH = len(_JSON_UNIQUE), len(_JSON_KEYS)


class PropertyModel:
    """What messages have in common whose properties differ in unique id and keys."""

    __slots__ = ("_properties", "has_sharding_key", "tags", "tags_code", "waits")

    def __init__(self, properties: dict[str, str]) -> None:
        self._properties = properties
        self.tags = properties.get(names.TAGS)
        self.tags_code = tags_code(self.tags)
        self.waits = properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"
        self.has_sharding_key = names.SHARDING_KEY in properties

    def properties(self, unique_id: bytes | None, keys: bytes | None) -> dict[str, str]:
        """All properties of a message."""
        found = self._properties.copy()
        if unique_id is not None:
            found[names.UNIQ_KEY] = unique_id.decode()
        if keys is not None:
            found[names.KEYS] = keys.decode()
        return found


class PlainProperties:
    """Reads property strings of plain messages, and adds the broker's own properties."""

    def __init__(self, added: Mapping[str, str]) -> None:
        self._added = dict(added)
        self._added_raw = encode_properties(self._added).encode()
        self._models: dict[bytes, PropertyModel] = {}  # by what is left without unique id and keys
        # By what is left as JSON has it, with NUL where something was: what stands around these in a record
        self._json_models: dict[bytes, tuple[list[bytes], PropertyModel]] = {}

    def read(self, raw: bytes) -> tuple[bytes, bytes | None, PropertyModel] | None:
        """Unique id, keys and the rest with the broker's own; None if the message is not plain. Hot."""
        at = raw.find(_UNIQUE)
        if at < 0 or (at > 0 and raw[at - 1] != _END):
            return None
        end = raw.find(b"\x02", at)
        if end < 0:
            end = len(raw)
        unique_id = raw[at + _UNIQUE_LENGTH : end]
        if not unique_id.isalnum():
            return None
        rest = raw[:at] + raw[end + 1 :]
        keys = None
        at = rest.find(_KEYS)
        if at >= 0 and (at == 0 or rest[at - 1] == _END):
            end = rest.find(b"\x02", at)
            if end < 0:
                end = len(rest)
            keys = rest[at + _KEYS_LENGTH : end]
            if not keys:
                return None
            rest = rest[:at] + rest[end + 1 :]
        model = self._models.get(rest)
        if model is None and (model := self._take_apart(rest)) is None:
            return None
        return unique_id, keys, model

    def read_json(self, text: bytes) -> tuple[bytes, bytes, bytes | None, PropertyModel] | None:
        """The same for what stands between the quotes of a JSON string, and before it the properties as they
        are stored, with the broker's own. Hot: only unique id and keys are looked at, the rest is known."""
        at = text.find(_JSON_UNIQUE)
        if at < 0:
            return None
        at += _JSON_UNIQUE_LENGTH
        end = text.find(_JSON_END, at)
        if end < 0:
            end = len(text)
        unique_id, keys = text[at:end], None
        keys_at = text.find(_JSON_KEYS)
        if keys_at < 0:
            form = b"%b\0%b" % (text[:at], text[end:])
        else:
            keys_at += _JSON_KEYS_LENGTH
            keys_end = text.find(_JSON_END, keys_at)
            if keys_end < 0:
                keys_end = len(text)
            keys = text[keys_at:keys_end]
            first = keys_at < at
            form = b"%b\0%b\0%b" % (
                (text[:keys_at], text[keys_end:at], text[end:])
                if first
                else (text[:at], text[end:keys_at], text[keys_end:])
            )
        known = self._json_models.get(form)
        if known is not None and unique_id.isalnum():
            parts, model = known
            if keys is None:
                return parts[0] + unique_id + parts[1], unique_id, None, model
            if keys and b"\\" not in keys:
                between = (keys, unique_id) if first else (unique_id, keys)
                stored = b"".join((parts[0], between[0], parts[1], between[1], parts[2]))
                return stored, unique_id, keys, model
        raw = text.replace(b"\\u0001", b"\x01").replace(_JSON_END, b"\x02")
        if b"\\" in raw or (read := self.read(raw)) is None:
            return None
        stored = self.stored(raw)
        if read[:2] == (unique_id, keys) and len(text) <= MAX_MODEL_LENGTH:
            if len(self._json_models) >= MAX_MODELS:
                self._json_models.clear()
            self._json_models[form] = _around(stored, unique_id, keys), read[2]
        return stored, *read

    def stored(self, raw: bytes) -> bytes:
        """A property string with the broker's own properties, as a record has it."""
        return raw + self._added_raw if raw[-1] == _END else b"%b\x02%b" % (raw, self._added_raw)

    def _take_apart(self, rest: bytes) -> PropertyModel | None:
        properties = decode_properties(rest.decode())
        segments = rest.count(b"\x02") + (rest[-1:] not in (b"", b"\x02"))
        if len(properties) != segments or _INNER in rest or not NOT_PLAIN.isdisjoint(properties):
            return None
        model = PropertyModel({**properties, **self._added})
        if len(rest) <= MAX_MODEL_LENGTH:
            if len(self._models) >= MAX_MODELS:
                self._models.clear()
            self._models[rest] = model
        return model


def _around(stored: bytes, unique_id: bytes, keys: bytes | None) -> list[bytes]:
    """What stands before, between and behind unique id and keys."""
    places = [(stored.index(_UNIQUE) + _UNIQUE_LENGTH, len(unique_id))]
    if keys is not None:
        places.append((stored.index(_KEYS) + _KEYS_LENGTH, len(keys)))
    parts, at = [], 0
    for start, length in sorted(places):
        parts.append(stored[at:start])
        at = start + length
    return [*parts, stored[at:]]
