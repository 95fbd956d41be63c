"""ActingMaster: a slave that acts for a master that is gone (EscapeBridge).

A slave takes no messages. What is due while it acts goes to a broker of another name that has the topic, with
`enableRemoteEscape`: delayed messages as plain ones, prepared messages of transactions as prepared ones, so
that the other broker asks their producers. How far that has come is in the offsets of the slave, which the
master takes back. Locks of queues need nothing of a master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kourou.errors import KourouError
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import StoredMessage
from kourou.message.properties import encode_properties
from kourou.message.topics import AUTO_CREATE_TOPIC
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.topic_config import PERM_WRITE

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
AT_ONCE = 256  # messages of a kind before others have their turn
SEND_TIMEOUT_S = 3.0
PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"

# What only the broker that kept a message needs to know of it
_OWN = (names.DELAY_TIME_LEVEL, names.REAL_TOPIC, names.REAL_QUEUE_ID, names.TRANSACTION_CHECK_TIMES,
        names.TRANSACTION_PREPARED_QUEUE_OFFSET)  # fmt: skip


class ActingMaster:
    """What a slave does for its master while that is away."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._task: asyncio.Task[None] | None = None
        self.escaped = 0  # messages that went to another broker

    @property
    def is_acting(self) -> bool:
        """Whether it acts."""
        return self._task is not None

    def set_acting(self, acts: bool) -> None:
        """Begin, or leave it to the master."""
        if acts == self.is_acting:
            return
        log.warning("this slave %s for its master", "acts" if acts else "does not act any more")
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if acts:
            self._broker.transactions.learn()
            self._broker.store.look_at_clock().begin()
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Act no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            if self._broker.config.enable_remote_escape:
                try:
                    await self._deliver_delayed()
                    await self._hand_over_halves()
                except (KourouError, ValueError, TypeError, KeyError, AttributeError) as error:
                    log.warning("what is due for the master waits: %s", error)
            await asyncio.sleep(INTERVAL_S)

    async def _deliver_delayed(self) -> None:
        delay = self._broker.delay
        for level in range(1, len(delay.delays_ms) + 1):
            delay.offsets.setdefault(level, 0)
            for number, (queue_offset, message) in enumerate(delay.due(level)):
                if number >= AT_ONCE:
                    break
                await self._escape(message, message.properties, 0)
                delay.move(level, queue_offset + 1)

    async def _hand_over_halves(self) -> None:
        transactions = self._broker.transactions
        for number, half in enumerate(transactions.overdue()):
            if number >= AT_ONCE:
                break
            await self._escape(half, half.properties, sysflag.TRANSACTION_PREPARED)
            transactions.handed_over(half.queue_offset)

    async def _escape(self, message: StoredMessage, properties: Mapping[str, str], kind: int) -> None:
        """Send a message to a broker of another name; KourouError if none takes it."""
        topic = properties.get(names.REAL_TOPIC, "")
        name, address, queues = await self._target(topic)
        queue_id = properties.get(names.REAL_QUEUE_ID, "")
        kept = {key: value for key, value in properties.items() if key not in _OWN}
        fields = {
            "a": kept.get(names.PRODUCER_GROUP, PRODUCER_GROUP), "b": topic, "c": AUTO_CREATE_TOPIC, "d": "8",
            "e": str(int(queue_id) % queues if queue_id.isdecimal() else 0),
            "f": str(message.sys_flag & sysflag.COMPRESSED | kind), "g": str(message.born_timestamp),
            "h": str(message.flag), "i": encode_properties(kept), "j": str(message.reconsume_times),
            "k": "false", "m": "false", "n": name,
        }  # fmt: skip
        request = RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, bytes(message.body))
        answer = await self._broker.client.call(address, request, SEND_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise KourouError(f"{address} does not take a message for {topic}: {answer.code} {answer.remark}")
        self.escaped += 1

    async def _target(self, topic: str) -> tuple[str, str, int]:
        """Name, address and number of queues of another master that a topic can be sent to."""
        config = self._broker.config
        for server in config.name_servers:
            request = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
            answer = await self._broker.client.call(server, request, SEND_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS:
                continue
            route = lenient_json.loads(bytes(answer.body or b"{}"))
            queues = {
                str(data["brokerName"]): int(data["writeQueueNums"])
                for data in route["queueDatas"]
                if data["perm"] & PERM_WRITE and data["writeQueueNums"] > 0
            }
            for data in route["brokerDatas"]:
                name = str(data["brokerName"])
                masters = [str(address) for key, address in data["brokerAddrs"].items() if int(key) == 0]
                if name != config.broker_name and name in queues and masters:
                    return name, masters[0], queues[name]
        raise KourouError(f"no other broker takes messages for {topic}")
