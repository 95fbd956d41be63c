"""Store statistics: totals, rates, latency classes, under Java's names."""

from __future__ import annotations

import threading

import pytest

from kourou.message.topics import DELETION_TOPIC
from kourou.store import FlushDiskType
from kourou.store.stats import BUCKETS, DISTRIBUTION_NAMES, StoreStats
from support.stores.store import START_MS, ManualClock, message, open_store, put, small_config


@pytest.fixture
def stats(clock: ManualClock) -> StoreStats:
    return StoreStats(clock)


@pytest.mark.parametrize(
    ("elapsed", "name"),
    [
        (-5, "[<=0ms]"), (0, "[<=0ms]"), (1, "[0~10ms]"), (9, "[0~10ms]"), (10, "[10~50ms]"),
        (49, "[10~50ms]"), (50, "[50~100ms]"), (99, "[50~100ms]"), (100, "[100~200ms]"), (199, "[100~200ms]"),
        (200, "[200~500ms]"), (499, "[200~500ms]"), (500, "[500ms~1s]"), (999, "[500ms~1s]"),
        (1000, "[1~2s]"), (1999, "[1~2s]"), (2000, "[2~3s]"), (3000, "[3~4s]"), (4000, "[4~5s]"),
        (5000, "[5~10s]"), (9999, "[5~10s]"), (10_000, "[10s~]"), (10**9, "[10s~]"),
    ],
)  # fmt: skip
def test_a_time_falls_into_javas_class(stats, elapsed, name):
    stats.record_put_time(elapsed)
    counts = dict(zip(DISTRIBUTION_NAMES, stats.put_distribution, strict=True))
    assert {label: count for label, count in counts.items() if count} == {name: 1}


def test_the_finer_classes_are_javas():
    """PUT_MESSAGE_ENTIRE_TIME_BUCKETS of StoreStatsService: how many of which width in ms."""
    expected, bound = [], 0
    for step, count in ((1, 20), (2, 15), (5, 10), (10, 10), (50, 6), (100, 5), (1000, 9)):
        for _ in range(count):
            bound += step
            expected.append(bound)
    assert list(BUCKETS) == expected
    assert expected[-1] == 10_000


def test_percentiles(stats):
    assert stats.put_time_percentile(0.99) == 0.0
    for elapsed in range(1, 101):
        stats.record_put_time(elapsed)
    assert stats.put_time_percentile(0.5) == pytest.approx(50, abs=2)
    assert stats.put_time_percentile(0.99) == pytest.approx(99, abs=5)
    assert stats.put_time_max_ms == 100


def test_a_time_beyond_all_classes_counts_in_the_last(stats):
    stats.record_put_time(123_456)
    assert stats.put_time_percentile(1.0) == 10_000
    assert stats.put_time_max_ms == 123_456


def test_rates_over_windows(stats, clock):
    for second in range(1, 61):
        clock.advance(1000)
        stats.topic("a").count += 10 if second <= 50 else 100
        stats.get_found += 2
        stats.get_missed += 1
        stats.get_transferred += 64
        stats.sample()
    assert stats.rates(10) == {"put": 100.0, "get_found": 2.0, "get_missed": 1.0, "get_transferred": 64.0}
    assert stats.rates(60)["put"] == pytest.approx(25.0)
    assert stats.rates(600)["put"] == pytest.approx(25.0)  # as far as there are samples


def test_samples_are_kept_for_ten_minutes(stats, clock):
    for second in range(2000):
        clock.advance(1000)
        stats.topic("a").count += 1 if second < 1000 else 5
        stats.sample()
    assert stats.rates(600)["put"] == 5.0
    assert len(stats._samples) == 601


def test_rates_before_any_time_has_passed(stats):
    stats.topic("a").count += 10
    stats.sample()
    assert stats.rates(10)["put"] == 0.0


def test_runtime_information_under_javas_names(stats, clock):
    stats.topic("a").count += 4
    stats.topic("a").size_bytes += 400
    stats.put_failed += 1
    stats.record_put_time(3)
    clock.advance(1000)
    stats.sample()
    info = stats.runtime_info()
    assert set(info) == {
        "bootTimestamp", "putMessageEntireTimeMax", "putMessageTimesTotal", "putMessageFailedTimes",
        "putMessageSizeTotal", "putMessageDistributeTime", "putMessageAverageSize", "putLatency99",
        "putLatency999", "getMessageEntireTimeMax", "putTps", "getFoundTps", "getMissTps", "getTotalTps",
        "getTransferredTps",
    }  # fmt: skip
    assert info["bootTimestamp"] == str(START_MS)
    assert (info["putMessageTimesTotal"], info["putMessageSizeTotal"]) == ("4", "400")
    assert (info["putMessageAverageSize"], info["putMessageFailedTimes"]) == ("100.0", "1")
    assert info["putTps"] == "4.0 4.0 4.0"
    assert "[0~10ms]:1" in info["putMessageDistributeTime"].split()


def test_deleting_a_topic_does_not_undo_what_was_put(tmp_path, clock):
    """A total that shrinks makes negative rates."""
    with open_store(small_config(tmp_path), clock=clock) as store:
        put(store, *[message("gone") for _ in range(10)], message("stays"))
        clock.advance(1000)
        store.stats.sample()
        size = store.stats.put_size_total
        store.delete_topics({"gone"})
        clock.advance(1000)
        store.stats.sample()
        assert store.stats.put_times_total == 12  # the log says that the topic was deleted
        assert store.stats.put_size_total > size
        assert store.stats.rates(10)["put"] >= 0
        assert set(store.stats.topics) == {"stays", DELETION_TOPIC}


def test_sampling_while_topics_appear(stats):
    """One thread samples, another puts to topics that nobody has seen before."""
    stop = threading.Event()
    failures: list[Exception] = []

    def sample() -> None:
        while not stop.is_set():
            try:
                stats.sample()
            except RuntimeError as error:
                failures.append(error)

    thread = threading.Thread(target=sample)
    thread.start()
    for number in range(20_000):
        stats.topic(f"topic-{number}").count += 1
        if failures:
            break
    stop.set()
    thread.join()
    assert failures == []
    assert stats.put_times_total == 20_000


def test_a_store_counts_what_passes_through_it(tmp_path, clock):
    config = small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    with open_store(config, clock=clock) as store:
        sent = message()
        store.when_stored(store.put_message(sent), sent, lambda _: None)
        clock.advance(120)
        store.flusher.flush()
        store.wait(0)
        assert store.stats.put_distribution[4] == 1  # 100 to 200 ms
        assert sum(store.stats.put_distribution) == 1


def test_without_waiting_every_put_counts_as_immediate(tmp_path, clock):
    with open_store(small_config(tmp_path), clock=clock) as store:
        put(store, message(), message(), message())
        assert store.stats.put_distribution[0] == 3
