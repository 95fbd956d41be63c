"""Producers: who sends."""

from __future__ import annotations

from typing import Any

from kourou.admin.groups import read_connections
from kourou.admin.link import Link
from kourou.admin.model import ClientConnection, version_name
from kourou.client.core import RefusedError
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import ProducerGroupName


class Producers:
    """The producers that are connected to brokers."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def connections(self, group: str, topic: str) -> list[ClientConnection]:
        """The clients of a producer group at the brokers of a topic; RefusedError if none knows it."""
        brokers = await self._link.topic_brokers(topic)
        found: dict[str, ClientConnection] = {}
        refusal: RefusedError | None = None
        for address in brokers.values():
            try:
                answer = await self._link.ask_json(
                    address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroupName(group)
                )
            except RefusedError as error:  # this broker has none of the group
                refusal = error
                continue
            found |= {one.client_id: one for one in read_connections(answer)}
        if not found and refusal is not None:
            raise refusal
        return [found[name] for name in sorted(found)]

    async def at_broker(self, broker: str) -> dict[str, list[dict[str, Any]]]:
        """Group -> its clients at one broker (ProducerInfo)."""
        address = await self._link.address_of(broker)
        answer = await self._link.ask_json(address, RequestCode.GET_ALL_PRODUCER_INFO)
        return {
            group: [{**client, "versionDesc": version_name(int(client["version"]))} for client in clients]
            for group, clients in sorted((answer.get("data") or {}).items())
        }
