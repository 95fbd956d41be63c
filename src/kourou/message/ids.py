"""The two ids of a message.

Offset message id (MessageDecoder.createMessageId): where the record lies. Upper-case hex of

| size    | field |
|---------|-------|
| 4 or 16 | IP of the store host |
| 4       | its port |
| 8       | physical offset in the commit log |

so 32 characters for IPv4, 56 for IPv6.

Unique id (MessageClientIDSetter, property UNIQ_KEY): given by the client, the same on every resend.
Upper-case hex of

| size    | field |
|---------|-------|
| 4 or 16 | IP of the client |
| 2       | process id, low 16 bits |
| 4       | a number of the class loader; here one drawn per process |
| 4       | milliseconds since the month began |
| 2       | a counter |

also 32 or 56 characters.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address

from kourou.errors import BadMessageError
from kourou.message.host import unpack_host


@dataclass(frozen=True, slots=True)
class MessageId:
    """What an offset message id says: which broker, and where in its log."""

    ip: str
    port: int
    physical_offset: int


@dataclass(frozen=True, slots=True)
class UniqueId:
    """What a unique id says of the client that made it."""

    ip: str
    pid: int
    millis_of_month: int
    counter: int


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The id by which a broker finds the record again."""
    return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()


def decode_offset_message_id(message_id: str) -> MessageId:
    """The broker's address and the physical offset in an offset message id."""
    raw = _from_hex(message_id, "offset message id")
    ip, port = unpack_host(raw[:-8])
    return MessageId(ip, port, int.from_bytes(raw[-8:], "big", signed=True))


def decode_unique_id(unique_id: str) -> UniqueId:
    """The parts of a UNIQ_KEY."""
    raw = _from_hex(unique_id, "unique id")
    ip, rest = raw[:-12], raw[-12:]
    return UniqueId(
        unpack_host(ip + bytes(4))[0],
        int.from_bytes(rest[0:2], "big"),
        int.from_bytes(rest[6:10], "big"),
        int.from_bytes(rest[10:12], "big"),
    )


def _from_hex(text: str, what: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise BadMessageError(f"{text!r} is no {what}: it needs 32 or 56 hexadecimal characters")
    return raw


class UniqueIdGenerator:
    """Makes UNIQ_KEY values for one client process."""

    def __init__(
        self,
        ip: str,
        pid: int | None = None,
        instance: int | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        pid = os.getpid() if pid is None else pid
        instance = secrets.randbits(32) if instance is None else instance
        prefix = ip_address(ip).packed + (pid & 0xFFFF).to_bytes(2, "big") + instance.to_bytes(4, "big")
        self._prefix = prefix.hex().upper()
        self._now_ms = now_ms
        self._counter = itertools.count()
        self._month_start_ms = self._next_month_ms = 0

    def __call__(self) -> str:
        """The next id. Two clients with the same address and process id still differ by `instance`."""
        now_ms = self._now_ms()
        if not self._month_start_ms <= now_ms < self._next_month_ms:
            self._set_month(now_ms)
        return (
            f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}"
            f"{next(self._counter) & 0xFFFF:04X}"
        )

    def _set_month(self, now_ms: int) -> None:
        start = datetime.fromtimestamp(now_ms / 1000).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        following = (start + timedelta(days=32)).replace(day=1)  # both local: a month may have a clock change
        self._month_start_ms = int(start.timestamp()) * 1000
        self._next_month_ms = int(following.timestamp()) * 1000
