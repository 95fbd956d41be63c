"""PlainProperties: the properties of messages that are like most, read without being taken apart each time.

Messages of one producer differ in their unique id and their keys; what is left of the property string is the
same again and again. It is taken apart once, and what was found is copied for each message.
"""

from __future__ import annotations

from collections.abc import Mapping

from kourou.message import properties as names
from kourou.message.properties import decode_properties

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
_UNIQUE, _KEYS = f"{names.UNIQ_KEY}\x01", f"{names.KEYS}\x01"
_UNIQUE_LENGTH, _KEYS_LENGTH = len(_UNIQUE), len(_KEYS)


class PlainProperties:
    """Reads property strings of plain messages, and adds the broker's own properties."""

    def __init__(self, added: Mapping[str, str]) -> None:
        self._added = dict(added)
        self._models: dict[str, dict[str, str]] = {}  # by what is left without unique id and keys

    def read(self, raw: str) -> dict[str, str] | None:
        """The properties with the broker's own; None if the message is not plain. Hot."""
        at = raw.find(_UNIQUE)
        if at < 0 or (at > 0 and raw[at - 1] != "\x02"):
            return None
        end = raw.find("\x02", at)
        if end < 0:
            end = len(raw)
        unique_id = raw[at + _UNIQUE_LENGTH : end]
        if not (unique_id.isalnum() and unique_id.isascii()):
            return None
        rest = raw[:at] + raw[end + 1 :]
        keys = None
        at = rest.find(_KEYS)
        if at >= 0 and (at == 0 or rest[at - 1] == "\x02"):
            end = rest.find("\x02", at)
            if end < 0:
                end = len(rest)
            keys = rest[at + _KEYS_LENGTH : end]
            if not keys:
                return None
            rest = rest[:at] + rest[end + 1 :]
        model = self._models.get(rest)
        if model is None and (model := self._take_apart(rest)) is None:
            return None
        properties = model.copy()
        properties[names.UNIQ_KEY] = unique_id
        if keys is not None:
            properties[names.KEYS] = keys
        return properties

    def _take_apart(self, rest: str) -> dict[str, str] | None:
        model = decode_properties(rest)
        segments = rest.count("\x02") + (rest[-1:] not in ("", "\x02"))
        if len(model) != segments or not NOT_PLAIN.isdisjoint(model):
            return None
        model.update(self._added)
        if len(rest) <= MAX_MODEL_LENGTH:
            if len(self._models) >= MAX_MODELS:
                self._models.clear()
            self._models[rest] = model
        return model
