"""Registrar: tells every name server that this broker lives and which topics it has (BrokerOuterAPI).

All topics at the start and every 30 s; the topics that changed as soon as they change. Name servers are
told side by side, and one that does not answer holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING

from kourou.errors import KourouError
from kourou.remoting import lenient_json
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.remoting.registration import PERM_READ, PERM_WRITE, Registration, TopicConfig, encode_registration

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

UNREGISTER_TIMEOUT_S = 3.0
_MIN_PERIOD_MS, _MAX_PERIOD_MS = 10_000, 60_000  # Java's bounds of registerNameServerPeriod
_RETRY_PERIOD_MS = 3_000


class Registrar:
    """One broker's standing at its name servers."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._changed: set[str] = set()
        self._unreachable: set[str] = set()  # those whose absence was logged
        self.registered_at: set[str] = set()  # the name servers that took the last registration
        self._leaving = False

    def topic_changed(self, names: set[str]) -> None:
        """Topics to tell of with the next `register_changed`."""
        self._changed |= names

    async def run(self) -> None:
        """Register now and then every period."""
        while True:
            try:
                await self.register_all()
            except Exception:
                log.exception("the registration failed; it is tried again")
            period = self._broker.config.register_name_server_period
            period = min(max(period, _MIN_PERIOD_MS), _MAX_PERIOD_MS)
            if self._unreachable:  # one that is back knows nobody: it is told soon
                period = min(period, _RETRY_PERIOD_MS)
            await asyncio.sleep(period / 1000)

    async def register_all(self) -> None:
        """Tell all name servers of all topics."""
        self._changed.clear()
        await self._register(dict(self._broker.topics.topics))

    async def members(self, timeout_s: float) -> AsyncIterator[dict[int, str]]:
        """The brokers of this name by their ids, as each name server that answers knows them."""
        config = self._broker.config
        fields = {"clusterName": config.broker_cluster_name, "brokerName": config.broker_name}
        for server in config.name_servers:
            request = RemotingCommand(RequestCode.GET_BROKER_MEMBER_GROUP, fields)
            try:
                answer = await self._broker.client.call(server, request, timeout_s)
                group = lenient_json.loads(bytes(answer.body or b"{}")).get("brokerMemberGroup") or {}
                found = {int(key): str(address) for key, address in (group.get("brokerAddrs") or {}).items()}
            except (KourouError, ValueError, TypeError, AttributeError) as error:
                log.debug("name server %s does not say who is there: %s", server, error)
                continue
            yield found

    async def register_changed(self) -> None:
        """Tell all name servers of the topics that changed since the last time."""
        changed, self._changed = self._changed, set()
        topics = self._broker.topics.topics
        await self._register({name: topics[name] for name in changed if name in topics})

    async def _register(self, topics: dict[str, TopicConfig]) -> None:
        servers = self._broker.config.name_servers
        if not servers or self._leaving:
            return
        permission = self._broker.config.broker_permission
        if permission & (PERM_READ | PERM_WRITE) != PERM_READ | PERM_WRITE:
            topics = {name: replace(topic, perm=topic.perm & permission) for name, topic in topics.items()}
        registration = Registration(self._broker.topics.data_version, topics, filter_servers=[])
        body = encode_registration(registration, compressed=self._broker.config.compressed_register)
        answers = await asyncio.gather(*(self._register_at(server, body) for server in servers))
        known = [answer for answer in answers if answer is not None]
        if known and self._broker.slave is not None:
            fields = known[0].ext_fields  # as Java, the first name server that answers
            self._broker.slave.master_is(fields.get("masterAddr"), fields.get("haServerAddr"))

    async def _register_at(self, server: str, body: bytes) -> RemotingCommand | None:
        """Register at a name server; what it answers, None if nothing of use."""
        config = self._broker.config
        fields = self._identity() | {
            "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
            "compressed": str(config.compressed_register).lower(),
            "enableActingMaster": str(config.enable_slave_acting_master).lower(),
            "haServerAddr": config.ha_address,
        }
        if config.enable_slave_acting_master:
            fields["heartbeatTimeoutMillis"] = str(config.broker_not_active_timeout_millis)
        request = RemotingCommand(RequestCode.REGISTER_BROKER, fields, body)
        try:
            answer = await self._broker.client.call(
                server, request, config.register_broker_timeout_mills / 1000
            )
        except KourouError as error:
            if server not in self._unreachable:
                log.warning("not registered at name server %s, which is tried again: %s", server, error)
            self._unreachable.add(server)
            self.registered_at.discard(server)
            return None
        if answer.code != ResponseCode.SUCCESS:
            self.registered_at.discard(server)
            log.warning("name server %s refused the registration: %s %s", server, answer.code, answer.remark)
            return None
        self.registered_at.add(server)
        if server in self._unreachable:
            log.warning("registered at name server %s again", server)
            self._unreachable.discard(server)
        if answer.body:
            try:
                ordered = list(lenient_json.loads(answer.body).get("table") or ())
            except (ValueError, TypeError, AttributeError) as error:
                log.warning("name server %s does not say which topics are ordered: %s", server, error)
                return answer
            if self._broker.slave is None:  # a slave has its master's topics
                self._broker.topics.update_order(ordered)
        return answer

    async def unregister(self) -> None:
        """Tell all name servers that this broker leaves; from now on it is not registered any more."""
        self._leaving = True
        requests = [
            self._broker.client.call(
                server,
                RemotingCommand(RequestCode.UNREGISTER_BROKER, self._identity()),
                UNREGISTER_TIMEOUT_S,
            )
            for server in self._broker.config.name_servers
        ]
        for outcome in await asyncio.gather(*requests, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.info("a name server was not told that this broker leaves: %s", outcome)

    def _identity(self) -> dict[str, str]:
        config = self._broker.config
        return {
            "brokerAddr": config.address,
            "brokerId": str(config.broker_id),
            "brokerName": config.broker_name,
            "clusterName": config.broker_cluster_name,
        }
