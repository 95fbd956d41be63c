"""Budgets: how much of a server one request, one peer, or all peers together may take.

Each has a name, which is its key in the configuration of a broker or a name server; Java has none of them.
A request over a budget is refused, or its connection closed, and counted in `Refusals` under that name.
docs/reliability.md has a table of all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from kourou.errors import ConfigError, KourouError
from kourou.java_config import convert_known, java_keys
from kourou.remoting.connection import Answer, Connection, Handler
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The keys, taken from what a configuration has beside Java's."""

    # What peers make a server keep, and what one request may ask
    max_buffered_bytes: int = 256 * MIB  # of all connections: frames that are not complete, answers not taken
    max_buffered_bytes_per_peer: int = 128 * MIB  # of those from one address
    max_request_body_bytes: int = MIB  # of a request that carries no message and no registration
    max_registered_topics: int = 100_000  # of a broker, at a name server

    # Tables of a broker that requests fill
    max_topics: int = 100_000  # retry topics and dead letters come on top, two for each group
    max_subscription_groups: int = 100_000
    max_consumer_offsets: int = 1_000_000  # one for each queue that a group consumes
    max_queue_locks: int = 100_000
    max_group_topics: int = 50_000  # pairs with statistics, a subscription of a pull, or that are forbidden
    max_consumer_filters: int = 100_000  # some 100 MB
    max_clients: int = 500_000  # pairs of a connection and a group
    max_groups_per_client: int = 1_000
    max_subscriptions_per_group: int = 5_000

    # Tables of a name server
    max_brokers: int = 10_000
    max_routes: int = 500_000  # pairs of a topic and a broker
    max_kv_config_bytes: int = 4 * MIB  # names and values

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Budgets:
        """The keys among others. ConfigError if a value is invalid."""
        found = convert_known(cls, properties)
        keys = {name: key for key, name in java_keys(cls).items()}
        for name, value in found.items():
            if value <= 0:
                raise ConfigError(f"{keys[name]}={value}: a budget is above 0")
        return cls(**found)


class BudgetSpentError(KourouError):
    """A request that asks for more than a budget has; the message names it. `uncounted` does where that is
    left to who answers."""

    def __init__(self, message: str, uncounted: str = "") -> None:
        super().__init__(f"{message} ({uncounted})" if uncounted else message)
        self.uncounted = uncounted


class Refusals:
    """What was refused because a budget was spent, by the name of the budget. Names come from the code."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, budget: str, number: int = 1) -> None:
        """Count a refusal, or several."""
        self.counts[budget] = self.counts.get(budget, 0) + number

    def count_for(self, error: BudgetSpentError) -> None:
        """Count what is answered with an error, unless it was."""
        if error.uncounted:
            self.count(error.uncounted)


# Messages and topics, which have limits of their own, and pulls, which have no body.
_UNCHECKED = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.REGISTER_BROKER,
)


def within(budgets: Budgets, refusals: Refusals, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """The handlers, each of which sees no larger body than it may."""

    def limited(handler: Handler) -> Handler:
        def checked(connection: Connection, request: RemotingCommand) -> Answer:
            body, limit = request.body, budgets.max_request_body_bytes
            try:
                if body is not None and len(body) > limit:
                    message = f"a body of {len(body)} bytes, {limit} may be"
                    raise BudgetSpentError(message, "maxRequestBodyBytes")
                return handler(connection, request)
            except BudgetSpentError as error:
                refusals.count_for(error)
                raise

        return checked

    return {code: handler if code in _UNCHECKED else limited(handler) for code, handler in handlers.items()}


class Bound:
    """The size limit of a table; without a name, no limit."""

    __slots__ = ("_refusals", "most", "name")

    def __init__(self, name: str = "", most: int = sys.maxsize, refusals: Refusals | None = None) -> None:
        self.name, self.most, self._refusals = name, most, refusals

    @classmethod
    def of(cls, budgets: Budgets, refusals: Refusals, name: str) -> Bound:
        """The bound of a key, what is refused for it to be counted."""
        return cls(name, getattr(budgets, java_keys(Budgets)[name]), refusals)

    def fits(self, size: int) -> bool:
        """Whether a table may have so many entries. If not, a refusal is counted."""
        if size <= self.most:
            return True
        if self._refusals is not None:
            self._refusals.count(self.name)
        return False

    def check(self, size: int) -> None:
        """Raises BudgetSpentError unless a table may have so many entries."""
        if not self.fits(size):
            raise BudgetSpentError(f"there may be no more than {self.name}={self.most}")


UNBOUND = Bound()
