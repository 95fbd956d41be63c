"""The property string of a record, the reserved names in it, and Java's string hash.

Layout (MessageDecoder.messageProperties2String): `name U+0001 value U+0002`, repeated, in UTF-8. The
last U+0002 may be missing. Java's reader skips a segment shorter than three characters, one without
a name, and one with an empty value; a name that comes twice keeps its last value.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

NAME_VALUE_SEPARATOR = "\x01"
PROPERTY_SEPARATOR = "\x02"
KEY_SEPARATOR = " "

# Reserved names (MessageConst). A user's own property must not use one of these.
KEYS = "KEYS"
TAGS = "TAGS"
WAIT_STORE_MSG_OK = "WAIT"
DELAY_TIME_LEVEL = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_GROUP = "ORIGIN_GROUP"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE_ID = "REAL_QID"
TRANSACTION_PREPARED = "TRAN_MSG"
PRODUCER_GROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
BUYER_ID = "BUYER_ID"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG = "TRANSFER_FLAG"
CORRECTION_FLAG = "CORRECTION_FLAG"
MQ2_FLAG = "MQ2_FLAG"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_SWITCH = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
TRANS_OFFSET = "TRANS_OFFSET"
EXTEND_UNIQ_INFO = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"
PRIORITY = "_SYS_MSG_PRIORITY_"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID = "INSTANCE_ID"
CORRELATION_ID = "CORRELATION_ID"
REPLY_TO_CLIENT = "REPLY_TO_CLIENT"
TTL = "TTL"
ARRIVE_TIME = "ARRIVE_TIME"
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
CLUSTER = "CLUSTER"
MESSAGE_TYPE = "MSG_TYPE"
POP_CK = "POP_CK"
POP_CK_OFFSET = "POP_CK_OFFSET"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
LITE_TOPIC = "__LITE_TOPIC"
FORWARD_QUEUE_ID = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT = "REDIRECT"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT = "TRACE_CONTEXT"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
TIMER_ROLL_LABEL = "TIMER_ROLL_LABEL"
TIMER_DELAY_LEVEL = "TIMER_DELAY_LEVEL"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
CRC32 = "__CRC32#"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
TRANSIENT_PREFIX = "__RMQ.TRANSIENT."
TRANSIENT_TOPIC_CONFIG = TRANSIENT_PREFIX + "TOPIC_SYS_FLAG"
TRANSIENT_GROUP_CONFIG = TRANSIENT_PREFIX + "GROUP_SYS_FLAG"

RESERVED_NAMES = frozenset(
    value
    for name, value in dict(globals()).items()
    if name.isupper() and isinstance(value, str) and not name.endswith(("_SEPARATOR", "_PREFIX"))
)


def encode_properties(properties: Mapping[str, str | None]) -> str:
    """The property string; a property whose value is None is left out, as in Java."""
    return "".join(
        [
            f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}"
            for name, value in properties.items()
            if value is not None
        ]
    )


def decode_properties(text: str) -> dict[str, str]:
    """The properties in a property string, by Java's rules for damaged segments."""
    return read_properties(text)[0]


def read_properties(text: str) -> tuple[dict[str, str], bool]:
    """The same, and whether the string says just that: nothing damaged or twice. Hot: a string as senders
    write it is taken apart by three calls."""
    segments = text.split(PROPERTY_SEPARATOR)
    if not segments[-1]:
        segments.pop()  # what follows the last separator
    try:
        found = dict([segment.split(NAME_VALUE_SEPARATOR) for segment in segments])
        if len(found) == len(segments) and "" not in found and "" not in found.values():
            return found, True
    except ValueError:
        pass  # a segment without a value, or a value with a separator in it
    properties: dict[str, str] = {}
    for segment in segments:
        name, separator, value = segment.partition(NAME_VALUE_SEPARATOR)
        if separator and name and value:
            properties[name] = value
    return properties, False


def read_property(text: str, name: str) -> str | None:
    """One property of a string: a search from the end, where the last of two wins."""
    text = f"\x02{text}\x02"
    at = text.rfind(f"\x02{name}\x01")
    if at < 0:
        return None
    at += len(name) + 2
    return text[at : text.index("\x02", at)] or decode_properties(text).get(name)


def read_keys(text: str) -> tuple[str | None, str | None, str | None]:
    """Unique id, keys and tags of a property string, which are all that most messages are asked for. Hot in
    batches: three searches from the end, where the last of two wins."""
    text = f"\x02{text}\x02"
    at, keys_at, tags_at = (
        text.rfind("\x02UNIQ_KEY\x01"),
        text.rfind("\x02KEYS\x01"),
        text.rfind("\x02TAGS\x01"),
    )
    unique_id = None if at < 0 else text[at + 10 : text.index("\x02", at + 10)]
    keys = None if keys_at < 0 else text[keys_at + 6 : text.index("\x02", keys_at + 6)]
    tags = None if tags_at < 0 else text[tags_at + 6 : text.index("\x02", tags_at + 6)]
    if (
        unique_id == "" or keys == "" or tags == ""
    ):  # no value is no property: one before it may have the name
        properties = decode_properties(text)
        return properties.get(UNIQ_KEY), properties.get(KEYS), properties.get(TAGS)
    return unique_id, keys, tags


def java_hash(text: str) -> int:
    """java.lang.String.hashCode: a signed 32-bit number over UTF-16 code units."""
    value = 0
    if text.isascii():
        for byte in text.encode():
            value = value * 31 + byte
    else:
        units = memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H")
        for unit in units:
            value = value * 31 + unit
    value &= 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


@lru_cache(maxsize=4096)  # brokers see few distinct tags, and see them for every message
def tags_code(tags: str | None) -> int:
    """What a ConsumeQueue entry holds to filter by tag: the hash of TAGS, or 0 without."""
    return java_hash(tags) if tags else 0
