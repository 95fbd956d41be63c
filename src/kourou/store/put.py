"""InnerMessage: a message on its way into the store, with what the broker knows of it."""

from __future__ import annotations

from collections.abc import Mapping

from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.properties import decode_properties, encode_properties

LOCAL_HOST = b"\x7f\x00\x00\x01\x00\x00\x00\x00"  # 127.0.0.1:0


class InnerMessage:
    """What `MessageStore.put_message` takes. Hot: a plain class with slots.

    Properties are given as the string of the request, or as a mapping; the other is made when asked
    for. Hosts are packed (message.host). For `put_messages`, `body` is a batch body.
    """

    __slots__ = (
        "_properties",
        "body",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties_raw",
        "queue_id",
        "reconsume_times",
        "store_host",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: str | Mapping[str, str] = "",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: bytes = LOCAL_HOST,
        store_host: bytes = LOCAL_HOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        if isinstance(properties, str):
            self.properties_raw = properties
            self._properties: dict[str, str] | None = None
        else:
            self.properties_raw = encode_properties(properties)
            self._properties = decode_properties(self.properties_raw)
        self.flag = flag
        # The address families are facts of the bytes, whatever the sender's flag says.
        if len(born_host) == 20:
            sys_flag |= sysflag.BORN_HOST_V6
        elif sys_flag & sysflag.BORN_HOST_V6:
            sys_flag &= ~sysflag.BORN_HOST_V6
        if len(store_host) == 20:
            sys_flag |= sysflag.STORE_HOST_V6
        elif sys_flag & sysflag.STORE_HOST_V6:
            sys_flag &= ~sysflag.STORE_HOST_V6
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name."""
        if self._properties is None:
            self._properties = decode_properties(self.properties_raw)
        return self._properties

    def set_property(self, name: str, value: str) -> None:
        """Set a property, in both forms."""
        properties = self.properties
        if name in properties:
            properties[name] = value
            self.properties_raw = encode_properties(properties)
        else:
            properties[name] = value
            raw = self.properties_raw
            separator = "" if not raw or raw.endswith(names.PROPERTY_SEPARATOR) else names.PROPERTY_SEPARATOR
            self.properties_raw = f"{raw}{separator}{name}\x01{value}\x02"

    @property
    def wait_store_msg_ok(self) -> bool:
        """Whether the sender waits for disk and slaves where the broker is set so."""
        return self.properties.get(names.WAIT_STORE_MSG_OK, "true").lower() == "true"
