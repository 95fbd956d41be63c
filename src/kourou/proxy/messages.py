"""Messages of the interface to what a broker is sent, and records to messages (GrpcConverter)."""

from __future__ import annotations

import hashlib
from typing import Any

from kourou.client.namespace import unwrap_any, wrap
from kourou.message import properties as names
from kourou.message import sysflag
from kourou.message.codec import StoredMessage
from kourou.message.host import format_host
from kourou.proxy.config import ProxyConfig
from kourou.proxy.protocol import duration, milliseconds, pb, timestamp
from kourou.proxy.statuses import StatusError

_DELAYS = (names.DELAY_TIME_LEVEL, names.TIMER_DELIVER_MS, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS)
# What the property of a tag or a key may not have in it: it separates tags, keys or properties
_BREAKS = (names.NAME_VALUE_SEPARATOR, names.PROPERTY_SEPARATOR)


def type_name(found: dict[str, str]) -> str:
    """The type that a message has by its properties, whatever it says that it is (TopicMessageType)."""
    if found.get(names.TRANSACTION_PREPARED, "").lower() == "true":
        return "TRANSACTION"
    if any(name in found for name in _DELAYS):
        return "DELAY"
    if names.LITE_TOPIC in found:
        return "LITE"
    if names.SHARDING_KEY in found:
        return "FIFO"
    return "PRIORITY" if names.PRIORITY in found else "NORMAL"


def sent_properties(message: Any, config: ProxyConfig, peer: str, now_ms: int) -> dict[str, str]:
    """The properties of a message on its way to a broker. Raises StatusError where it is not right."""
    system = message.system_properties
    found = dict(message.user_properties)
    _check_user_properties(found, config)
    if not system.message_id:
        raise StatusError(pb.Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    found[names.UNIQ_KEY] = system.message_id
    if system.tag:
        _check_text(pb.Code.ILLEGAL_MESSAGE_TAG, "tag", system.tag, "|")
        found[names.TAGS] = system.tag
    if system.keys:
        for key in system.keys:
            _check_text(pb.Code.ILLEGAL_MESSAGE_KEY, "key", key)
        found[names.KEYS] = names.KEY_SEPARATOR.join(system.keys)
    if system.HasField("message_group"):
        group = system.message_group
        _check_text(pb.Code.ILLEGAL_MESSAGE_GROUP, "message group", group)
        if len(group.encode()) >= config.max_message_group_size:
            raise StatusError(
                pb.Code.ILLEGAL_MESSAGE_GROUP,
                f"message group exceed the max size {config.max_message_group_size}",
            )
        found[names.SHARDING_KEY] = group
    if system.HasField("delivery_timestamp"):
        found[names.TIMER_DELIVER_MS] = str(_due_ms(system.delivery_timestamp, config, now_ms))
    if system.HasField("priority"):
        found[names.PRIORITY] = str(system.priority)
    if system.HasField("lite_topic"):
        found[names.LITE_TOPIC] = system.lite_topic
    if system.message_type == pb.MessageType.TRANSACTION:
        found[names.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            most = config.max_transaction_recovery_second
            if not 0 < seconds <= most:
                raise StatusError(
                    pb.Code.BAD_REQUEST, f"transaction recovery time must be between 0 and {most} s"
                )
            found[names.CHECK_IMMUNITY_TIME_IN_SECONDS] = str(seconds)
    if system.HasField("trace_context"):
        found[names.TRACE_CONTEXT] = system.trace_context
    found[names.PRODUCER_GROUP] = topic_of(message)
    found[names.BORN_HOST] = system.born_host or peer
    born_ms = milliseconds(system.born_timestamp)
    found[names.BORN_TIMESTAMP] = str(born_ms or now_ms)
    return found


def topic_of(message: Any) -> str:
    """The topic of a message on the wire."""
    return wrap(message.topic.resource_namespace, message.topic.name)


def sys_flag_of(message: Any) -> int:
    """The bits that the record of a message has."""
    system = message.system_properties
    compressed = sysflag.COMPRESSED if system.body_encoding == pb.Encoding.GZIP else 0
    is_half = system.message_type == pb.MessageType.TRANSACTION
    return compressed | (sysflag.TRANSACTION_PREPARED if is_half else 0)


def _check_user_properties(found: dict[str, str], config: ProxyConfig) -> None:
    if len(found) > config.user_property_max_num:
        raise StatusError(
            pb.Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"too many user properties, max is {config.user_property_max_num}",
        )
    size = 0
    for name, value in found.items():
        if name in names.RESERVED_NAMES:
            raise StatusError(pb.Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        _check_text(pb.Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "the key of property", name)
        if any(mark in value for mark in _BREAKS):
            raise StatusError(
                pb.Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the value of property {name} cannot have control characters",
            )
        size += len(name.encode()) + len(value.encode())
    if size > config.max_user_property_size:
        raise StatusError(
            pb.Code.MESSAGE_PROPERTIES_TOO_LARGE,
            f"the total size of user property is too large, max is {config.max_user_property_size}",
        )


def _check_text(code: int, what: str, text: str, *banned: str) -> None:
    if not text.strip():
        raise StatusError(code, f"{what} cannot be the char sequence of whitespace")
    if any(not mark.isprintable() for mark in text):
        raise StatusError(code, f"{what} cannot contain control character")
    for mark in banned:
        if mark in text:
            raise StatusError(code, f"{what} cannot contain '{mark}'")


def _due_ms(value: Any, config: ProxyConfig, now_ms: int) -> int:
    due_ms = milliseconds(value)
    if config.max_delay_time_mills and due_ms - now_ms > config.max_delay_time_mills:
        raise StatusError(
            pb.Code.ILLEGAL_DELIVERY_TIME,
            f"the max delay time of message is too large, max is {config.max_delay_time_mills}",
        )
    return due_ms


# Records


def to_message(record: StoredMessage, handle: str | None = None, invisible_ms: int = 0) -> Any:
    """The message that a record is, as clients see it."""
    found = record.properties
    message = pb.Message(
        topic=resource(record.topic),
        user_properties={name: value for name, value in found.items() if name not in names.RESERVED_NAMES},
        body=bytes(record.body),
    )
    system = message.system_properties
    if found.get(names.TAGS):
        system.tag = found[names.TAGS]
    system.keys.extend(found.get(names.KEYS, "").split())
    system.message_id = record.message_id
    system.body_digest.type = pb.DigestType.MD5
    system.body_digest.checksum = hashlib.md5(record.body, usedforsecurity=False).hexdigest().upper()
    is_compressed = record.sys_flag & sysflag.COMPRESSED
    system.body_encoding = pb.Encoding.GZIP if is_compressed else pb.Encoding.IDENTITY
    system.message_type = getattr(pb.MessageType, type_name(found))
    system.born_timestamp.CopyFrom(timestamp(record.born_timestamp))
    system.born_host = format_host(record.born_host)
    system.store_timestamp.CopyFrom(timestamp(record.store_timestamp))
    system.store_host = format_host(record.store_host)
    if found.get(names.TIMER_DELIVER_MS, "").isdecimal():
        system.delivery_timestamp.CopyFrom(timestamp(int(found[names.TIMER_DELIVER_MS])))
    if handle is not None:
        system.receipt_handle = handle
        system.invisible_duration.CopyFrom(duration(invisible_ms))
    system.queue_id = record.queue_id
    system.queue_offset = record.queue_offset
    system.delivery_attempt = record.reconsume_times + 1
    for name, field in (
        (names.SHARDING_KEY, "message_group"),
        (names.TRACE_CONTEXT, "trace_context"),
        (names.LITE_TOPIC, "lite_topic"),
    ):
        if found.get(name):
            setattr(system, field, found[name])
    if found.get(names.PRIORITY, "").isdecimal():
        system.priority = int(found[names.PRIORITY])
    if found.get(names.DLQ_ORIGIN_TOPIC) and found.get(names.DLQ_ORIGIN_MESSAGE_ID):
        system.dead_letter_queue.topic = found[names.DLQ_ORIGIN_TOPIC]
        system.dead_letter_queue.message_id = found[names.DLQ_ORIGIN_MESSAGE_ID]
    return message


def resource(name: str) -> Any:
    """A topic or group as clients see it."""
    own = unwrap_any(name)
    namespace = name[: -len(own)].rstrip("%").rpartition("%")[2] if own != name else ""
    return pb.Resource(resource_namespace=namespace, name=own)
