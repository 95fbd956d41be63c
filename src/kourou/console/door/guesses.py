"""Guesses: how often somebody may try to log in, and where a try comes from.

Who guesses is slowed down, and nobody is locked out. An address that has tried a user's password in vain
waits longer each time before it may try that user again; the same user from elsewhere, and others from that
address, do not. Guesses at one user from ever more addresses make each of them take a moment longer, no more.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from kourou.auth.model import is_in

FREE_TRIES = 5  # of one address for one user, before it has to wait
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 300.0  # it doubles with each try
FORGET_S = 3600.0
MANY_TRIES = 20  # for one user, from all addresses, before each takes longer
DRAIN_PER_S = MANY_TRIES / 300  # how fast these are forgotten
SLOW_STEP_S, MAX_SLOW_S = 0.1, 2.0
MOST_TRIES = MANY_TRIES + MAX_SLOW_S / SLOW_STEP_S  # that count: more of them slow nobody down for longer
MAX_AT_ONCE = 8  # tries of one address: a password takes 16 MiB and some hundredths of a second
BUSY_WAIT_S = 1.0
MAX_TRACKED = 10_000
MAX_NAME = 64

_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class _Tries:
    number: float
    last_s: float


class _Table(OrderedDict[_K, _Tries], Generic[_K]):
    """Tries in vain; the oldest are forgotten where there are too many."""

    def put(self, key: _K, tries: _Tries) -> None:
        self[key] = tries
        self.move_to_end(key)
        while len(self) > MAX_TRACKED:
            self.popitem(last=False)


class Guesses:
    """The tries of late, by address and user."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._pairs: _Table[tuple[str, str]] = _Table()
        self._users: _Table[str] = _Table()
        self._running: dict[str, int] = {}  # by address

    def begin(self, address: str, user: str) -> float:
        """A try; how long it has to wait before it may come again, or 0 if it goes on. Then it has failed
        until `succeeded` is told: tries that are sent at once count as those do that are sent one by one."""
        pair, now_s = _pair(address, user), self._now_s()
        tries = self._pairs.get(pair)
        if tries is None or now_s - tries.last_s > FORGET_S:
            tries = _Tries(0, now_s)
        wait_s = 0.0
        if tries.number >= FREE_TRIES:
            doubled = FIRST_WAIT_S * 2 ** min(tries.number - FREE_TRIES, 30)
            wait_s = tries.last_s + min(doubled, MAX_WAIT_S) - now_s
        if wait_s > 0:
            return wait_s
        if self._running.get(pair[0], 0) >= MAX_AT_ONCE:
            return BUSY_WAIT_S
        self._running[pair[0]] = self._running.get(pair[0], 0) + 1
        self._pairs.put(pair, _Tries(tries.number + 1, now_s))
        self._users.put(pair[1], _Tries(min(self._level(pair[1]) + 1, MOST_TRIES), now_s))
        return 0.0

    def slow_s(self, user: str) -> float:
        """How long a try for a user is held up, right or wrong."""
        return min(max(self._level(user[:MAX_NAME]) - MANY_TRIES, 0.0) * SLOW_STEP_S, MAX_SLOW_S)

    def end(self, address: str) -> None:
        """A try that went on is over."""
        network = network_of(address)
        self._running[network] -= 1
        if not self._running[network]:
            del self._running[network]

    def succeeded(self, address: str, user: str) -> None:
        """It was right: what this address did before is forgotten. What others do to this user is not."""
        pair = _pair(address, user)
        self._pairs.pop(pair, None)
        self._users.put(pair[1], _Tries(max(self._level(pair[1]) - 1, 0), self._now_s()))

    def _level(self, user: str) -> float:
        tries = self._users.get(user)
        return 0.0 if tries is None else max(tries.number - (self._now_s() - tries.last_s) * DRAIN_PER_S, 0)


def _pair(address: str, user: str) -> tuple[str, str]:
    return network_of(address), user[:MAX_NAME]


def network_of(address: str) -> str:
    """Who has an address has its network: of IPv6 that is 64 bits."""
    try:
        known = ipaddress.ip_address(address)
    except ValueError:
        return address[:MAX_NAME]
    if isinstance(known, ipaddress.IPv4Address):
        return str(known)
    return str(known.ipv4_mapped or ipaddress.IPv6Network((known, 64), strict=False))


def origin_of(peer: str, forwarded: Sequence[str], trusted: Sequence[str]) -> str:
    """Where a request comes from: the peer, or, if that is a proxy that is trusted, whom it says that it has
    it from (X-Forwarded-For), the last one first. What others write into that header is not believed."""
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    while hops and any(is_in(peer, network) for network in trusted):
        peer = hops.pop()
    return peer
