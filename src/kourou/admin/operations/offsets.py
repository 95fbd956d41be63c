"""Where groups go on: at a time, after the last message, where another group is, at an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import OPERATOR, Done, Table, Text, columns, operation

if TYPE_CHECKING:
    from kourou.admin import Admin

CHANGES = Table(
    columns("Broker=broker_name, Queue=queue_id:number, Before=old_offset:number-, Offset=offset:number")
)
CLONED = Table(
    columns("Topic=topic, Broker=brokerName, Queue=queueId:number, Offset=offset:number"),
    rows=lambda found: [{**queue.to_json(), "offset": offset} for queue, offset in found.items()],
)


@operation(
    "offset reset",
    CHANGES,
    role=OPERATOR,
    confirm="Let group {group} go on at {to} in {topic}?",
    needs="group",
)
async def reset(
    admin: Admin, group: str, topic: str, to: int, only_back: bool = False, route_of: Text = None
) -> Any:
    """Let a group go on at a time, whether it is online or not: what was sent since then is consumed again.

    \b
    Example: consume the last hour again
      kourou admin offset reset billing orders --to 1h
    """
    return await admin.offsets.reset(group, topic, to, force=not only_back, route_topic=route_of)


@operation(
    "offset skip",
    CHANGES,
    role=OPERATOR,
    confirm="Skip all messages of {topic} that group {group} has not consumed?",
    needs="group",
)
async def skip(admin: Admin, group: str, topic: str, only_back: bool = False, route_of: Text = None) -> Any:
    """Let a group go on after the last message: what has piled up is not consumed."""
    return await admin.offsets.reset(group, topic, -1, force=not only_back, route_topic=route_of)


@operation(
    "offset clone",
    CLONED,
    role=OPERATOR,
    confirm="Let group {target} go on where {source} is?",
    needs="source",
    java="cloneGroupOffset s!srcGroup=source d!destGroup=target t!topic o:offline=",
)
async def clone(admin: Admin, source: str, target: str, topic: Text = None) -> Any:
    """Let a group go on where another one is, in one topic or in all of its topics."""
    return await admin.offsets.clone(source, target, topic)


@operation(
    "offset set",
    Done("{group} goes on at {offset} in queue {queue} of {topic} at {broker}"),
    role=OPERATOR,
    confirm="Let group {group} go on at {offset} in queue {queue} of {topic} at {broker}?",
    needs="group",
    options="broker offset",
)
async def set_offset(admin: Admin, group: str, topic: str, broker: str, queue: int, offset: int) -> Any:
    """Let a group go on at an offset of one queue."""
    return await admin.offsets.set(group, topic, broker, queue, offset)
