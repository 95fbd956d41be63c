"""What a broker says of itself and its topics: the body of REGISTER_BROKER, in its three forms.

JSON, of brokers since 3.0.11 (RegisterBrokerBody), and of those before, the inner wrapper alone:

    {"filterServerList": […], "topicConfigSerializeWrapper": {"dataVersion": {…}, "topicConfigTable": {…},
     "topicQueueMappingInfoMap": {…}}}

Compressed: zlib of a sequence of big-endian lengths and what they announce:

| size | field |
|------|-------|
| 4, n | data version, JSON |
| 4    | number of topics, for each: 4 length, "name readQueues writeQueues perm filterType attributes" |
| 4, n | filter servers, JSON array |
| 4    | number of queue mappings (brokers since 5.0), for each: 4 length, JSON |
"""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kourou.errors import KourouError
from kourou.remoting.budgets import BudgetSpentError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig, as_long, texts

# Positions in Java's MQVersion
V3_0_11 = 37
V4_9_4 = 401
V5_0_0 = 413

# A body has at most 16 MiB; one that inflates to more than this is no list of topics.
MAX_TOKENS = 1_000_000  # of one that is not strict JSON
MAX_INFLATED_BYTES = 64 * 1024 * 1024


class BadRegistrationError(KourouError):
    """A body that does not say which topics a broker has."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The topics of a broker and how old they are."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    queue_mappings: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # of static topics
    filter_servers: list[str] | None = None


def decode_registration(
    body: bytes | None, *, compressed: bool, version: int, max_topics: int = sys.maxsize
) -> Registration:
    """The registration of a body; an empty one where there is none. Slow where topics are many."""
    if body is None:
        return Registration(filter_servers=[] if version >= V3_0_11 else None)
    try:
        if version < V3_0_11:
            return _from_wrapper(lenient_json.loads(body, MAX_TOKENS), None, max_topics)
        if compressed:
            return _from_compressed(body, version, max_topics)
        value = lenient_json.loads(body, MAX_TOKENS)
        wrapper = value["topicConfigSerializeWrapper"]
        return _from_wrapper(wrapper, value.get("filterServerList") or [], max_topics)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, zlib.error) as error:
        raise BadRegistrationError(f"Failed to decode RegisterBrokerBody: {error}") from error


def encode_registration(registration: Registration, *, compressed: bool) -> bytes:
    """The body for a registration, as brokers of this version send it."""
    version = registration.data_version.to_json()
    servers = registration.filter_servers or []
    if not compressed:
        wrapper = {
            "dataVersion": version,
            "mappingDataVersion": DataVersion().to_json(),
            "topicConfigTable": {name: topic.to_json() for name, topic in registration.topics.items()},
            "topicQueueMappingDetailMap": {},
            "topicQueueMappingInfoMap": dict(registration.queue_mappings),
        }
        return lenient_json.dumps({"filterServerList": servers, "topicConfigSerializeWrapper": wrapper})
    blocks: list[bytes | int] = [lenient_json.dumps(version), len(registration.topics)]
    blocks += [_line_of_topic(topic) for topic in registration.topics.values()]
    blocks += [lenient_json.dumps(servers), len(registration.queue_mappings)]
    blocks += [lenient_json.dumps(info) for info in registration.queue_mappings.values()]
    return zlib.compress(b"".join(_block(item) for item in blocks))


def _block(item: bytes | int) -> bytes:
    if isinstance(item, int):
        return item.to_bytes(4, "big")
    return len(item).to_bytes(4, "big") + item


def _line_of_topic(topic: TopicConfig) -> bytes:
    numbers = f"{topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
    attributes = lenient_json.dumps(dict(topic.attributes)).decode()
    return f"{topic.name} {numbers} {topic.topic_filter_type} {attributes}".encode()


def _check_number(number: int, max_topics: int) -> None:
    if number > max_topics:
        raise BudgetSpentError(f"a registration of more than {max_topics} topics", "maxRegisteredTopics")


def _from_wrapper(
    wrapper: Mapping[str, Any], filter_servers: list[str] | None, max_topics: int
) -> Registration:
    topics = {}
    table = wrapper.get("topicConfigTable") or {}
    _check_number(len(table), max_topics)
    for key, entry in table.items():
        name = entry.get("topicName") or key
        topics[name] = TopicConfig.from_json(entry, name)
    mappings = wrapper.get("topicQueueMappingInfoMap") or {}
    _check_number(len(mappings), max_topics)
    return Registration(
        DataVersion.from_json(wrapper.get("dataVersion") or {}),
        topics,
        {topic: _mapping(info) for topic, info in mappings.items()},
        filter_servers,
    )


def _from_compressed(body: bytes, version: int, max_topics: int) -> Registration:
    inflater = zlib.decompressobj()
    reader = _Reader(inflater.decompress(body, MAX_INFLATED_BYTES))
    if inflater.unconsumed_tail:
        raise ValueError(f"more than {MAX_INFLATED_BYTES} bytes")
    data_version = DataVersion.from_json(lenient_json.loads(reader.block()))
    topics = {}
    for _ in range(reader.count(max_topics)):
        config = _topic_of_line(str(reader.block(), "utf-8"))
        topics[config.name] = config
    filter_servers = lenient_json.loads(reader.block())
    mappings = {}
    if version >= V5_0_0:
        for _ in range(reader.count(max_topics)):
            info = _mapping(lenient_json.loads(reader.block()))
            mappings[info["topic"]] = info
    return Registration(data_version, topics, mappings, filter_servers)


def _topic_of_line(line: str) -> TopicConfig:
    name, read_queues, write_queues, perm, filter_type, *attributes = line.split(" ", 5)
    kept: dict[str, str] = {}
    if attributes and attributes[0]:
        with contextlib.suppress(ValueError, TypeError):  # as Java: the topic is good without them
            kept = texts(lenient_json.loads(attributes[0].encode()))
    return TopicConfig(
        name,
        as_long(read_queues),
        as_long(write_queues),
        as_long(perm),
        attributes=kept,
        topic_filter_type=filter_type,
    )


def _mapping(info: dict[str, Any]) -> dict[str, Any]:
    """A TopicQueueMappingInfo; the queues in it are numbers again."""
    queues = {int(logical): physical for logical, physical in (info.get("currIdMap") or {}).items()}
    return dict(sorted({**info, "currIdMap": queues}.items()))


class _Reader:
    """Lengths and what follows them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def count(self, max_topics: int) -> int:
        number = self.number()
        _check_number(number, max_topics)
        return number

    def block(self) -> bytes:
        return self._take(self.number())

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError("End of compressed data has reached")
        self._at += size
        return self._data[self._at - size : self._at]
