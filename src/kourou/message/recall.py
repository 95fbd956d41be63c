"""RecallHandle: what a sender needs to take a timer message back (RecallMessageHandle).

The broker gives it with the answer to a send, and takes it with RECALL_MESSAGE: five words with a space
between them, in the URL-safe base64: `v1`, topic, broker, time of delivery in ms, unique id of the message.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from kourou.errors import BadMessageError
from kourou.message import properties as names
from kourou.message.topics import RETRY_PREFIX

_VERSION = "v1"
_WORDS = 5


class RecallHandle(NamedTuple):
    """A timer message, by what names it."""

    topic: str
    broker_name: str
    deliver_ms: str
    unique_id: str

    @classmethod
    def of_stored(cls, properties: dict[str, str], broker_name: str) -> RecallHandle | None:
        """The handle of a message that waits for its time; None if it does not, or cannot be recalled."""
        out_ms = properties.get(names.TIMER_OUT_MS)
        topic = properties.get(names.REAL_TOPIC)
        if not out_ms or not out_ms.isdecimal() or topic is None or topic.startswith(RETRY_PREFIX):
            return None
        # The slot of a time ends with it: one more, and the recall falls into the slot of the message.
        deliver_ms = str(int(out_ms) + 1)
        return cls(topic, broker_name, deliver_ms, properties.get(names.UNIQ_KEY, "null"))

    def encode(self) -> str:
        """The handle as text."""
        return base64.urlsafe_b64encode(" ".join((_VERSION, *self)).encode()).decode()

    @classmethod
    def decode(cls, text: str) -> RecallHandle:
        """A handle from its text; BadMessageError, in Java's words, where it is none."""
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            raw = ""
        words = raw.split(" ")
        if words[0] != _VERSION or len(words) < _WORDS:
            raise BadMessageError("recall handle is invalid")
        return cls(*words[1:_WORDS])
