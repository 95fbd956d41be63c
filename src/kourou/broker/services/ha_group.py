"""BrokerGroup: the brokers of one name under `enableSlaveActingMaster`: who is there, and who acts for whom.

Every second each of them tells the name servers that it lives (`registrar`). A slave asks who else does, and
hears from the name server when that changes (NOTIFY_MIN_BROKER_ID_CHANGE). Where the master is gone, the
slave with the lowest id acts for it (`slave_acting`). A master that comes back takes over how far its slave
has come in the meantime, before it begins (BrokerPreOnlineService).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from kourou.broker.config import MASTER_ID
from kourou.broker.services.slave_acting import ActingMaster
from kourou.broker.state.offsets import table_of
from kourou.errors import KourouError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import NotifyMinBrokerIdChange

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

INTERVAL_S = 1.0  # Java's syncBrokerMemberGroupPeriod
CALL_TIMEOUT_S = 1.0
_UNUSABLE = (KourouError, ValueError, TypeError, KeyError, AttributeError)


class BrokerGroup:
    """A broker among those of its name."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.acting = ActingMaster(broker)
        self.min_broker_id = MASTER_ID
        self._min_broker_address = ""

    async def run(self) -> None:
        """Of a slave: look who lives."""
        while True:
            members = await self.members()
            if members:
                lowest = min(members)
                offline = self._min_broker_address if lowest > self.min_broker_id else None
                self._lowest_is(lowest, members[lowest], offline, None)
            await asyncio.sleep(INTERVAL_S)

    async def members(self) -> dict[int, str]:
        """The brokers of this name by their ids, as the first name server that answers knows them."""
        async for found in self._broker.registrar.members(CALL_TIMEOUT_S):
            return found
        return {}

    def changed(self, header: NotifyMinBrokerIdChange) -> None:
        """A name server says that another broker has the lowest id."""
        if header.min_broker_id is not None and self._broker.slave is not None:
            self._lowest_is(
                header.min_broker_id,
                header.min_broker_addr or "",
                header.offline_broker_addr,
                header.ha_broker_addr,
            )

    def _lowest_is(self, broker_id: int, address: str, offline: str | None, ha_address: str | None) -> None:
        slave = self._broker.slave
        assert slave is not None
        if (broker_id, address) == (self.min_broker_id, self._min_broker_address):
            return
        log.info("the lowest broker id is %d at %s, it was %d", broker_id, address, self.min_broker_id)
        self.min_broker_id, self._min_broker_address = broker_id, address
        self.acting.set_acting(broker_id == self._broker.config.broker_id)
        if offline is not None and offline == slave.master_address:
            slave.master_is_gone()
        if broker_id == MASTER_ID and address and ha_address:
            slave.master_is(address, ha_address)  # else the slave, which has no master, soon finds it

    # A master that comes back

    async def take_back(self) -> None:
        """Take from the slave that acted for this master how far groups, delays and transactions are."""
        members = await self.members()
        slaves = sorted(broker_id for broker_id in members if broker_id != MASTER_ID)
        if not slaves:
            return
        address = members[slaves[0]]
        try:
            offsets = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
            delays = await self._ask(address, RequestCode.GET_ALL_DELAY_OFFSET)
            self._broker.offsets.advance(table_of(offsets.get("offsetTable") or {}))
            self._broker.delay.advance(
                {int(level): int(offset) for level, offset in (delays.get("offsetTable") or {}).items()}
            )
        except _UNUSABLE as error:
            log.warning("nothing is taken back from the slave at %s: %s", address, error)

    async def _ask(self, address: str, code: RequestCode) -> dict[str, Any]:
        answer = await self._broker.client.call(address, RemotingCommand(code), CALL_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise KourouError(f"request {code.name} was answered with {answer.code}: {answer.remark}")
        return dict(lenient_json.loads(bytes(answer.body or b"{}")))
