"""ConsumerFilters: what groups filter by, how long it is kept, and the file it is kept in."""

from __future__ import annotations

import json

import pytest

from kourou.broker.messages.bloom import BloomFilter
from kourou.broker.messages.filter_data import DEAD_BEFORE_LOAD_MS, FILE_NAME, ConsumerFilters, FilterData
from kourou.broker.state.state_file import StateDamagedError, StateFile
from kourou.remoting.protocol.subscription import SQL92, SubscriptionData
from support.stores.store import START_MS, ManualClock

DAY_MS = 24 * 3_600_000


def make(clock: ManualClock, expected: int = 32) -> ConsumerFilters:
    return ConsumerFilters(clock, BloomFilter(20, expected), DAY_MS)


@pytest.fixture
def filters(clock: ManualClock) -> ConsumerFilters:
    return make(clock)


def sql(expression: str = "a > 5", version: int = 1, topic: str = "t", kind: str = SQL92) -> SubscriptionData:
    return SubscriptionData(topic, expression, version, expression_type=kind)


def find(filters: ConsumerFilters, topic: str = "t", group: str = "g") -> FilterData:
    data = filters.get(topic, group)
    assert data is not None
    return data


def test_a_subscription_by_an_expression_is_kept(filters):
    assert filters.register("g", sql("a > 5", 7))

    data = find(filters)
    assert (data.sql.expression, data.client_version, data.born_time_ms) == ("a > 5", 7, START_MS)
    assert not data.is_dead
    assert data.bloom == filters.bloom.data_of("g", "t")
    assert list(filters.of_topic("t")) == [data]
    assert filters.dirty


def test_tags_and_nothing_are_not(filters):
    assert not filters.register("g", SubscriptionData("t", "TagA"))
    assert not filters.register("g", sql(""))
    assert filters.get("t", "g") is None
    assert not filters.dirty


def test_a_bad_expression_hinders_no_other(filters):
    filters.register_group("g", [sql("a >", topic="bad"), sql(kind="XPATH", topic="odd"), sql(topic="good")])

    assert filters.get("bad", "g") is filters.get("odd", "g") is None
    assert filters.get("good", "g") is not None


def test_a_newer_version_changes_the_expression_and_an_older_one_does_not(filters, clock):
    filters.register("g", sql("a > 5", 7))
    clock.advance(10)

    assert not filters.register("g", sql("a > 6", 6))
    assert not filters.register("g", sql("a > 6", 7))
    assert find(filters).sql.expression == "a > 5"
    assert filters.register("g", sql("a > 6", 8))

    data = find(filters)
    assert (data.sql.expression, data.client_version) == ("a > 6", 8)
    assert data.born_time_ms == START_MS + 10  # maps of messages before know nothing of it


def test_a_newer_version_of_the_same_expression_stays_born_when_it_was(filters, clock):
    filters.register("g", sql("a > 5", 7))
    clock.advance(10)

    assert filters.register("g", sql("a > 5", 8))

    data = find(filters)
    assert (data.client_version, data.born_time_ms) == (8, START_MS)


def test_a_newer_bad_expression_removes_the_old_one(filters):
    filters.register("g", sql("a > 5", 7))

    assert not filters.register("g", sql("a >", 8))
    assert filters.get("t", "g") is None


def test_a_topic_that_is_left_out_and_a_group_that_goes_are_dead_until_they_are_back(filters, clock):
    filters.register_group("g", [sql(topic="t"), sql(topic="u")])
    filters.register_group("h", [sql(topic="t")])
    clock.advance(10)

    filters.register_group("g", [sql(topic="t")])
    assert not find(filters).is_dead
    assert find(filters, "u", "g").is_dead
    filters.unregister("g")
    assert find(filters).is_dead
    assert not find(filters, "t", "h").is_dead

    assert filters.register("g", sql(topic="t"))  # the same version again
    assert not find(filters).is_dead


def test_the_dead_are_forgotten_after_a_day(filters, clock):
    filters.register_group("g", [sql(topic="t"), sql(topic="u")])
    filters.register("h", sql(topic="t"))
    filters.unregister("g")
    filters.dirty = False

    clock.advance(DAY_MS - 1)
    filters.expire()
    assert filters.get("u", "g") is not None
    assert not filters.dirty
    clock.advance(1)
    filters.expire()

    assert filters.get("t", "g") is filters.get("u", "g") is None
    assert filters.get("t", "h") is not None
    assert filters.dirty


def test_a_bit_map_has_the_bits_of_the_groups_that_want_the_message(filters):
    filters.register("five", sql("a > 5"))
    filters.register("seven", sql("a > 7"))
    five, seven = find(filters, "t", "five").bloom, find(filters, "t", "seven").bloom

    def bitmap(**properties: str) -> bytes:
        found: bytes = filters.bitmap_of("t", properties, START_MS)
        return found

    assert (five.is_hit(bitmap(a="6")), seven.is_hit(bitmap(a="6"))) == (True, False)
    assert bitmap(a="8") == filters.bloom.bitmap(five.mask | seven.mask)
    assert bitmap() == bitmap(a="x") == bytes(14)
    assert filters.bitmap_of("u", {}, START_MS) == b""


def test_the_file_is_javas(filters):
    filters.register("g1", sql("a > 5 and 'é' <> b", 12, "topic1"))

    assert json.loads(filters.encode()) == {
        "filterDataByTopic": {
            "topic1": {
                "groupFilterData": {
                    "g1": {
                        "bloomFilterData": {"bitNum": 112, "bitPos": [77, 19, 27]},
                        "bornTime": START_MS,
                        "clientVersion": 12,
                        "consumerGroup": "g1",
                        "dead": False,
                        "deadTime": 0,
                        "expression": "a > 5 and 'é' <> b",
                        "expressionType": "SQL92",
                        "topic": "topic1",
                    }
                },
                "topic": "topic1",
            }
        }
    }


def test_after_a_restart_all_consumers_are_gone_and_messages_are_still_mapped(filters, clock, tmp_path):
    filters.register("g", sql(version=7))
    StateFile(tmp_path / FILE_NAME, filters).save()
    clock.advance(DEAD_BEFORE_LOAD_MS * 2)

    again = make(clock)
    assert StateFile(tmp_path / FILE_NAME, again).load()

    data = find(again)
    assert data.dead_time_ms == clock.now_ms() - DEAD_BEFORE_LOAD_MS
    assert again.bitmap_of("t", {"a": "6"}, clock.now_ms()) == again.bloom.bitmap(data.bloom.mask)
    assert again.register("g", sql(version=8))
    assert not find(again).is_dead
    assert find(again).born_time_ms == START_MS


def test_maps_of_another_bloom_filter_are_void(filters, clock):
    filters.register("g", sql())
    again = make(clock, expected=64)

    again.decode(json.loads(filters.encode()))

    assert again.get("t", "g") is None


def test_an_expression_in_the_file_that_cannot_be_used_is_left_out(filters, clock):
    filters.register_group("g", [sql(topic="t"), sql("a > 77", topic="u")])
    again = make(clock)

    again.decode(json.loads(filters.encode().replace(b"a > 77", b"a > >7")))

    assert again.get("t", "g") is not None
    assert again.get("u", "g") is None


@pytest.mark.parametrize(
    "text", ["[]", '{"filterDataByTopic": 1}', '{"filterDataByTopic": {"t": {"groupFilterData": 1}}}']
)
def test_a_damaged_file_changes_nothing(filters, tmp_path, text):
    filters.register("g", sql())
    (tmp_path / FILE_NAME).write_text(text)

    with pytest.raises(StateDamagedError):
        StateFile(tmp_path / FILE_NAME, filters).load()
    assert filters.get("t", "g") is not None
