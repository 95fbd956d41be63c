"""Budgets: how much of a server one request, one peer, or all peers together may take.

Each has a name, which is its key in the configuration of a broker or a name server; Java has none of them.
What goes beyond one is refused or closed, and counted in `Refusals` under that name. docs/reliability.md has
a table of all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kourou.errors import ConfigError, KourouError
from kourou.java_config import convert_known, java_keys
from kourou.remoting.codes import RequestCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.connection import Answer, Connection, Handler

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The keys, taken from what a configuration has beside Java's."""

    max_buffered_bytes: int = 256 * MIB  # of all connections: frames that are not complete, answers not taken
    max_buffered_bytes_per_peer: int = 128 * MIB  # of those from one address
    max_request_body_bytes: int = MIB  # of a request that carries no message and no registration
    max_heartbeat_groups: int = 1000  # of a client, producers and consumers
    max_registered_topics: int = 100_000  # of a broker, at a name server
    max_topics_of_brokers: int = 500_000  # of all brokers there, each topic once for each broker
    max_brokers: int = 1000  # addresses there

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Budgets:
        """The keys among others. ConfigError where a value is of no use."""
        found = convert_known(cls, properties)
        keys = {name: key for key, name in java_keys(cls).items()}
        for name, value in found.items():
            if value <= 0:
                raise ConfigError(f"{keys[name]}={value}: a budget is above 0")
        return cls(**found)


class OverBudgetError(KourouError):
    """A request that asks for more than the budget of a name."""

    def __init__(self, budget: str, message: str) -> None:
        super().__init__(f"{message} ({budget})")
        self.budget = budget


class Refusals:
    """What was refused because a budget was spent, by the name of the budget. Names come from the code."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, budget: str, number: int = 1) -> None:
        """Count a refusal, or several."""
        self.counts[budget] = self.counts.get(budget, 0) + number


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
                    raise OverBudgetError(
                        "maxRequestBodyBytes", f"a body of {len(body)} bytes, {limit} may be"
                    )
                return handler(connection, request)
            except OverBudgetError as error:
                refusals.count(error.budget)
                raise

        return checked

    return {code: handler if code in _UNCHECKED else limited(handler) for code, handler in handlers.items()}
