"""Budgets: how much of a server one request, one peer, or all peers together may take.

Each has a name, which is its key in the configuration of a broker or a name server; Java has none of them.
What goes beyond one is refused or closed, and counted in `Refusals` under that name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kourou.errors import ConfigError
from kourou.java_config import convert_known


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The keys, taken from what a configuration has beside Java's."""

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> Budgets:
        """The keys among others. ConfigError where a value is of no use."""
        found = convert_known(cls, properties)
        for name, value in found.items():
            if value <= 0:
                raise ConfigError(f"{name}={value}: a budget is above 0")
        return cls(**found)


class Refusals:
    """What was refused because a budget was spent, by the name of the budget. Names come from the code."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def count(self, budget: str, number: int = 1) -> None:
        """Count a refusal, or several."""
        self.counts[budget] = self.counts.get(budget, 0) + number
