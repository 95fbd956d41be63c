"""DelayLevels: whether a broker has a delay level. It takes one that it does not have for its longest.

The levels are a setting of each broker, messageDelayLevel. All have the first 18, unless somebody took some
away: only for one beyond these the broker is asked.
"""

from __future__ import annotations

import logging

from kourou.client.core import ClientCore, ClientError
from kourou.client.produce.publication import Target
from kourou.client.validators import check_delay_level
from kourou.errors import KourouError
from kourou.message import Message
from kourou.properties_file import parse_properties
from kourou.remoting.protocol.codes import RequestCode

log = logging.getLogger(__name__)

USUAL_LEVELS = 18  # 1s 5s 10s 30s 1m … 10m 20m 30m 1h 2h


class DelayLevels:
    """The number of levels that brokers have, as far as they were asked."""

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._counts: dict[str, int] = {}  # by address

    async def check(self, message: Message, target: Target) -> None:
        """Raises ClientError if the broker does not have the level of a message."""
        level = message.delay_level
        check_delay_level(level, least=0)
        if level <= max(USUAL_LEVELS, self._counts.get(target.address, 0)):
            return
        name = target.queue.broker_name
        try:
            count = self._counts[target.address] = await self._ask(target.address)
        except (KourouError, KeyError) as error:  # it may be for administrators only
            self._core.warnings.warn(
                log,
                target.address,
                "whether broker %s has delay level %s is not known: %r",
                name,
                level,
                error,
            )
            return
        if level > count:
            raise ClientError(
                f"delay_level {level} for topic {message.topic}: broker {name} has levels 1 to {count} "
                "(messageDelayLevel)"
            )

    async def _ask(self, address: str) -> int:
        answer = await self._core.ask(address, RequestCode.GET_BROKER_CONFIG)
        return len(parse_properties(str(answer.body or b"", "utf-8"))["messageDelayLevel"].split())
