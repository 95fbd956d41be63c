"""Brokers: figures, configuration, replication, and what is to be cleaned up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kourou.admin.groups import read_progress
from kourou.admin.link import Link
from kourou.admin.model import GroupProgress
from kourou.admin.name_servers import decode_table, properties_text
from kourou.properties_file import parse_properties
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import (
    GetConsumeStatsInBroker,
    ResetMasterFlushOffset,
    ViewBrokerStatsData,
)

STATS_TIMEOUT_S = 50.0  # a broker of many groups takes its time

CLEAN_UPS = {
    "queues": RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    "topics": RequestCode.CLEAN_UNUSED_TOPIC,
    "log": RequestCode.DELETE_EXPIRED_COMMITLOG,
}


class Brokers:
    """Single brokers. `broker` is an address, or a name for its master."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def runtime(self, broker: str) -> dict[str, str]:
        """All figures of a broker and its store, by Java's keys."""
        address = await self._link.address_of(broker)
        answer = await self._link.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(decode_table(answer.body).items()))

    async def config(self, broker: str) -> dict[str, str]:
        """All configuration keys and values."""
        address = await self._link.address_of(broker)
        answer = await self._link.ask(address, RequestCode.GET_BROKER_CONFIG)
        return parse_properties(str(answer.body or b"", "utf-8"))

    async def set_config(
        self, changes: Mapping[str, str], *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Change keys at a broker, or at the masters of a cluster; the addresses."""
        addresses = await self._link.targets(cluster, broker)
        body = properties_text(changes)
        await self._link.each(
            addresses, lambda address: self._link.ask(address, RequestCode.UPDATE_BROKER_CONFIG, None, body)
        )
        return addresses

    async def consume_stats(self, broker: str, *, only_ordered: bool = False) -> list[GroupProgress]:
        """How far all groups are in all their topics at one broker; one entry a group and topic."""
        address = await self._link.address_of(broker)
        found = await self._link.ask_json(
            address,
            RequestCode.GET_BROKER_CONSUME_STATS,
            GetConsumeStatsInBroker(only_ordered),
            timeout_s=STATS_TIMEOUT_S,
        )
        return [
            read_progress(group, stats)
            for entry in found.get("consumeStatsList") or ()
            for group, parts in entry.items()
            for stats in parts
        ]

    async def view_stats(self, address: str, name: str, key: str) -> dict[str, Any]:
        """What was counted under a name and a key: {statsMinute, statsHour, statsDay}."""
        header = ViewBrokerStatsData(name, key)
        return await self._link.ask_json(address, RequestCode.VIEW_BROKER_STATS_DATA, header)

    async def clean(self, what: str, *, broker: str | None = None, cluster: str | None = None) -> list[str]:
        """Have `queues` without messages, queues of `topics` that are no more, or expired `log` files
        removed; the addresses of the brokers that do so."""
        addresses = await self._link.targets(cluster, broker)
        await self._link.each(addresses, lambda address: self._link.ask(address, CLEAN_UPS[what]))
        return addresses

    async def switch_timer_engine(
        self, engine: str, *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Have timers on the time wheel in files (F) or in RocksDB (R); the addresses."""
        addresses = await self._link.targets(cluster, broker)
        fields = {"E_T": engine}
        await self._link.each(
            addresses, lambda address: self._link.ask(address, RequestCode.SWITCH_TIMER_ENGINE, fields)
        )
        return addresses

    async def cold_data_info(self, broker: str) -> str:
        """What a broker knows of reads that are not in memory (JSON)."""
        address = await self._link.address_of(broker)
        answer = await self._link.ask(address, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
        return str(answer.body or b"", "utf-8")

    async def set_cold_limit(
        self, group: str, bytes_per_s: int | None, *, broker: str | None = None, cluster: str | None = None
    ) -> list[str]:
        """Limit what a group may read that is not in memory, or limit it no more (None); the addresses."""
        addresses = await self._link.targets(cluster, broker)
        is_set = bytes_per_s is not None
        body = properties_text({group: str(bytes_per_s)}) if is_set else group.encode()
        code = (
            RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG
            if is_set
            else RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG
        )
        await self._link.each(addresses, lambda address: self._link.ask(address, code, None, body))
        return addresses

    async def set_read_ahead(self, broker: str, mode: str) -> str:
        """Have the system read ahead in the log as usual (0), or not (1); what the broker says."""
        address = await self._link.address_of(broker)
        fields = {"READ_AHEAD_MODE": mode}
        return (await self._link.ask(address, RequestCode.SET_COMMITLOG_READ_MODE, fields)).remark or ""

    # Replication

    async def ha_status(self, broker: str) -> dict[str, Any]:
        """How replication is, at a master or a slave (HARuntimeInfo)."""
        return await self._link.ask_json(
            await self._link.address_of(broker), RequestCode.GET_BROKER_HA_STATUS
        )

    async def reset_master_flush_offset(self, broker: str, offset: int) -> None:
        """Tell a slave how far its master's disk is."""
        address = await self._link.address_of(broker)
        await self._link.ask(address, RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffset(offset))
