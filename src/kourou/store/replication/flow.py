"""FlowMonitor: how much a replication connection moves in a second, and how much it may (FlowMonitor)."""

from __future__ import annotations

import time

from kourou.store.config import MessageStoreConfig

UNLIMITED = 0x7FFFFFFF


class FlowMonitor:
    """Counts bytes by whole seconds."""

    def __init__(self, config: MessageStoreConfig) -> None:
        self._config = config
        self._second = int(time.monotonic())
        self._bytes = 0
        self._bytes_before = 0

    def add(self, count: int) -> None:
        """So many bytes were moved."""
        self._move_on()
        self._bytes += count

    def bytes_in_second(self) -> int:
        """What was moved in the last whole second."""
        self._move_on()
        return self._bytes_before

    def allowance(self) -> int:
        """How many bytes may be moved before this second ends."""
        if not self._config.ha_flow_control_enable:
            return UNLIMITED
        self._move_on()
        return max(self._config.max_ha_transfer_byte_in_second - self._bytes, 0)

    def until_next_second_s(self) -> float:
        """How long this second still lasts."""
        return int(time.monotonic()) + 1 - time.monotonic()

    def _move_on(self) -> None:
        second = int(time.monotonic())
        if second != self._second:
            self._bytes_before = self._bytes if second == self._second + 1 else 0
            self._second, self._bytes = second, 0
