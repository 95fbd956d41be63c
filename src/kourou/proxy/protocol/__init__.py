"""The classes of the interface, made from the descriptors of messaging.proto.

They have a descriptor pool of their own: the official client, which has the same names, may live in the same
process. `pb.Message` is the class of a message, `pb.Code.OK` the number of an enum's value.
"""

from __future__ import annotations

from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = "apache.rocketmq.v2"
FILE = "messaging.proto"


def _load() -> Any:
    pool = DescriptorPool()
    data = files(__package__).joinpath("messaging.binpb").read_bytes()
    for file in FileDescriptorSet.FromString(data).file:
        pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(FILE)
    classes = {name: GetMessageClass(message) for name, message in found.message_types_by_name.items()}
    for name in ("Timestamp", "Duration"):
        classes[name] = GetMessageClass(pool.FindMessageTypeByName(f"google.protobuf.{name}"))
    enums = {
        name: SimpleNamespace(**{value.name: value.number for value in enum.values})
        for name, enum in found.enum_types_by_name.items()
    }
    return SimpleNamespace(**classes, **enums, service=found.services_by_name["MessagingService"])


pb: Any = _load()


def timestamp(milliseconds: int) -> Any:
    """A time."""
    return pb.Timestamp(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def duration(milliseconds: int) -> Any:
    """A span of time."""
    return pb.Duration(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)


def milliseconds(value: Any) -> int:
    """A time or a span of time in milliseconds."""
    return int(value.seconds * 1000 + value.nanos // 1_000_000)
