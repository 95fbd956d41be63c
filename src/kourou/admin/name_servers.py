"""Name servers: their configuration, their key-value table, and where messages may be sent."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.admin.link import Link
from kourou.properties_file import parse_properties
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode

ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"


class NameServers:
    """The name servers of a cluster. What changes something goes to each of them, for they do not talk."""

    def __init__(self, link: Link) -> None:
        self._link = link

    @property
    def _addresses(self) -> list[str]:
        return list(self._link.core.name_servers)

    async def config(self) -> dict[str, dict[str, str]]:
        """Address -> keys and values."""

        async def ask(address: str) -> dict[str, str]:
            answer = await self._link.ask(address, RequestCode.GET_NAMESRV_CONFIG)
            return parse_properties(str(answer.body or b"", "utf-8"))

        return await self._link.each(self._addresses, ask)

    async def set_config(self, changes: Mapping[str, str]) -> list[str]:
        """Change keys at all of them; the addresses."""
        body = properties_text(changes)
        found = await self._link.each(
            self._addresses,
            lambda address: self._link.ask(address, RequestCode.UPDATE_NAMESRV_CONFIG, None, body),
        )
        return list(found)

    # The table of keys and values

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Set a value."""
        await self._tell(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Forget a value."""
        await self._tell(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})

    async def get_kv(self, namespace: str, key: str) -> str:
        """A value; RefusedError with QUERY_NOT_FOUND if there is none."""
        fields = {"namespace": namespace, "key": key}
        answer = await self._link.ask_name_server(RequestCode.GET_KV_CONFIG, fields)
        return answer.ext_fields.get("value", "")

    async def list_kv(self, namespace: str) -> dict[str, str]:
        """All keys and values of a namespace."""
        fields = {"namespace": namespace}
        found = await self._link.name_server_json(RequestCode.GET_KVLIST_BY_NAMESPACE, fields)
        return {str(key): str(value) for key, value in sorted((found.get("table") or {}).items())}

    async def _tell(self, code: RequestCode, fields: Mapping[str, str]) -> None:
        await self._link.each(self._addresses, lambda address: self._link.ask(address, code, fields))

    # Permission to write

    async def wipe_write(self, broker_name: str) -> dict[str, int]:
        """Have nothing sent to a broker any more; address of the name server -> topics that changed."""
        return await self._permit(RequestCode.WIPE_WRITE_PERM_OF_BROKER, broker_name, "wipeTopicCount")

    async def add_write(self, broker_name: str) -> dict[str, int]:
        """Have a broker sent to again; address of the name server -> topics that changed."""
        return await self._permit(RequestCode.ADD_WRITE_PERM_OF_BROKER, broker_name, "addTopicCount")

    async def _permit(self, code: RequestCode, broker_name: str, count: str) -> dict[str, int]:
        async def ask(address: str) -> int:
            answer = await self._link.ask(address, code, {"brokerName": broker_name})
            return int(answer.ext_fields.get(count, 0))

        return await self._link.each(self._addresses, ask)


def properties_text(changes: Mapping[str, str]) -> bytes:
    """The body that changes configuration keys."""
    lines = []
    for key, value in changes.items():
        escaped = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        lines.append(f"{key}={escaped}\n")
    return "".join(lines).encode()


def order_config(brokers: Mapping[str, int]) -> str:
    """How many queues of a topic in order are on each broker: `broker-a:8;broker-b:8`."""
    return ";".join(f"{name}:{queues}" for name, queues in brokers.items())


def decode_table(body: bytes | memoryview | None) -> dict[str, str]:
    """The table in a KVTable body."""
    found = lenient_json.loads(body) if body else {}
    return {str(key): str(value) for key, value in (found.get("table") or {}).items()}
