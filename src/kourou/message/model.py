"""Message: what a user sends."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kourou.message import properties as names


@dataclass(slots=True)
class Message:
    """A message before it is sent: topic, body, and properties with their reserved ones by name."""

    topic: str
    body: bytes | bytearray | memoryview = b""
    properties: dict[str, str] = field(default_factory=dict)
    flag: int = 0

    @property
    def tags(self) -> str | None:
        """The tag that consumers filter by."""
        return self.properties.get(names.TAGS)

    @tags.setter
    def tags(self, value: str) -> None:
        self.properties[names.TAGS] = value

    @property
    def keys(self) -> list[str]:
        """The keys that the index finds this message by."""
        return self.properties.get(names.KEYS, "").split()

    @keys.setter
    def keys(self, value: str | Iterable[str]) -> None:
        self.properties[names.KEYS] = value if isinstance(value, str) else names.KEY_SEPARATOR.join(value)

    @property
    def delay_time_level(self) -> int:
        """The delay level, 0 for none."""
        return int(self.properties.get(names.DELAY_TIME_LEVEL, 0))

    @delay_time_level.setter
    def delay_time_level(self, value: int) -> None:
        self.properties[names.DELAY_TIME_LEVEL] = str(value)

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for the disk and the slaves where the broker is set so."""
        return self.properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"

    @wait_store_msg_ok.setter
    def wait_store_msg_ok(self, value: bool) -> None:
        self.properties[names.WAIT_STORE_MSG_OK] = "true" if value else "false"
