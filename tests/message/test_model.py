"""Message: what its arguments become."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from kourou.errors import BadMessageError
from kourou.message import Message

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "properties"),
    [
        ({}, {}),
        ({"tags": "paid"}, {"TAGS": "paid"}),
        ({"keys": "o-1"}, {"KEYS": "o-1"}),
        ({"keys": ["o-1", "o-2"]}, {"KEYS": "o-1 o-2"}),
        ({"sharding_key": "c-7"}, {"__SHARDINGKEY": "c-7"}),
        ({"delay_level": 3}, {"DELAY": "3"}),
        ({"delay_s": 5}, {"TIMER_DELAY_SEC": "5"}),
        ({"delay_s": 5.0}, {"TIMER_DELAY_SEC": "5"}),
        ({"delay_s": 0.25}, {"TIMER_DELAY_MS": "250"}),
        ({"deliver_at": 1_767_355_200_000}, {"TIMER_DELIVER_MS": "1767355200000"}),
        ({"deliver_at": NOON}, {"TIMER_DELIVER_MS": "1767355200000"}),
        (
            {"deliver_at": NOON.astimezone(timezone(timedelta(hours=8)))},
            {"TIMER_DELIVER_MS": "1767355200000"},
        ),
    ],
)
def test_an_argument_is_a_property(given, properties):
    assert Message("T", b"x", **given).properties == properties
    both = Message("T", b"x", {"color": "red"}, 1, **given)
    assert both.properties == {"color": "red", **properties}
    for name, value in given.items():
        if name != "deliver_at":
            assert getattr(both, name) == ([value] if value == "o-1" else value)
    assert both.deliver_at_ms == int(properties.get("TIMER_DELIVER_MS", 0))


def test_a_message_has_one_delay():
    for given in ({"delay_level": 1, "delay_s": 1}, {"delay_s": 1, "deliver_at": NOON}):
        with pytest.raises(BadMessageError, match="one of delay_level, delay_s and deliver_at"):
            Message("T", b"x", **given)


def test_properties_may_use_reserved_names_and_are_copied():
    given = {"TAGS": "paid", "DELAY": "2"}
    message = Message("T", b"x", given)
    assert (message.tags, message.delay_level, message.keys, message.delay_s) == ("paid", 2, [], 0)
    message.tags = "sent"
    assert given["TAGS"] == "paid"
    assert message == Message("T", b"x", {"DELAY": "2"}, tags="sent")
    assert message != Message("T", b"y", message.properties)
