"""The comparison of brokers says what was measured."""

from __future__ import annotations

import pytest
from benchmarks.beside_java import brokers
from benchmarks.beside_java.broker_processes import CannotRunError


def report(rate: float, cpu_us: float = 10.0, memory_mib: int = 100) -> dict:
    broker = {"cpu_us_per_msg": cpu_us, "rss_anon_mb": memory_mib}
    return {"ok": True, "msgs_per_s": rate, "p50_ms": 1.0, "p99_ms": 2.0, "broker": broker}


@pytest.fixture
def options():
    options = brokers.default_options()
    options.modes, options.sizes = ["batch"], [1024]
    return options


def lines_of(options, kourou, java):
    results = brokers.Results({("kourou", "batch", 1024): kourou, ("java", "batch", 1024): java})
    return {line.metric: line for line in brokers.all_lines(options, results) if "batch" in line.what}


def test_a_figure_is_the_median_of_the_rounds_and_stands_beside_its_target(options):
    lines = lines_of(options, [report(r) for r in (50, 120, 900)], [report(r) for r in (100, 90, 400)])

    assert (lines["rate"].kourou, lines["rate"].java) == (120, 100)
    assert lines["rate"].ratio == pytest.approx(1.2)
    assert lines["rate"].met is True
    assert lines["CPU"].met is False  # as much as Java, where 0.6 of it is asked


def test_memory_is_the_most_of_all_rounds_in_decimal_megabytes(options):
    lines = lines_of(options, [report(1, memory_mib=m) for m in (10, 115, 20)], [report(1)])

    assert lines["memory"].kourou == pytest.approx(120.6, abs=0.1)
    assert lines["memory"].met is False


def test_a_failed_round_counts_for_nothing(options):
    lines = lines_of(options, [report(10), {"ok": False, "error": "refused"}], [{"ok": False, "error": "x"}])

    assert lines["rate"].kourou == 10
    assert lines["rate"].java is None
    assert lines["rate"].met is None


def test_a_disk_without_room_is_refused_before_anything_starts(options, tmp_path):
    options.seconds = 1e9

    with pytest.raises(CannotRunError, match="GB until it is 70% full"):
        brokers._check_disk(tmp_path, options, ["kourou"])
