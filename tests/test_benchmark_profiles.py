"""The table of profiles says what was measured, and whether a profile is in effect."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.beside_java import profiles
from benchmarks.beside_java.broker_processes import CannotRunError, build_generator
from benchmarks.beside_java.brokers import awake
from benchmarks.beside_java.profile_rows import PROFILES
from benchmarks.beside_java.profile_sites import Site, check, running_site


def report(rate: float, cpu_us: float = 10.0, *, ok: bool = True) -> dict:
    return {"ok": ok, "msgs_per_s": rate, "broker": {"cpu_us_per_msg": cpu_us}}


def results(**rows: tuple[list[dict], list[dict]]) -> profiles.Results:
    """Of the pipelined sends of some rows: the rounds of Kourou and of Java."""
    found = profiles.Results()
    for row, both in rows.items():
        for broker, reports in zip(("kourou", "java"), both, strict=True):
            found.reports[row, "send", broker] = reports
    return found


def send_lines(row: str, found: profiles.Results) -> dict[str, profiles.Line]:
    lines = profiles.all_lines([row], found)
    return {line.metric: line for line in lines if "pipelined" in line.what}


def test_a_ratio_is_the_median_of_those_of_the_rounds():
    found = results(plain=([report(100), report(30), report(90)], [report(50), report(10), report(60)]))

    rate = send_lines("plain", found)["rate"]

    assert rate.ratio == pytest.approx(2.0)  # of 2, 3 and 1.5; that of the medians is 1.8
    assert (rate.kourou, rate.java) == (90, 50)


def test_a_round_in_which_one_broker_failed_is_in_no_ratio():
    found = results(plain=([report(100), report(900)], [report(50), report(1, ok=False)]))

    assert send_lines("plain", found)["rate"].ratio == pytest.approx(2.0)


def test_tls_has_to_be_as_fast_as_java_and_the_others_faster():
    rounds = ([report(110)], [report(100)])
    found = results(tls=rounds, metrics=rounds)

    assert send_lines("tls", found)["rate"].met is True
    assert send_lines("metrics", found)["rate"].met is False


def test_the_cost_of_a_profile_stands_beside_that_of_a_plain_message():
    found = results(
        plain=([report(1, 10.0)], [report(1, 30.0)]),
        rich=([report(1, 14.0)], [report(1, 30.0)]),
        acl=([report(1, 17.0)], [report(1, 30.0)]),
    )

    assert send_lines("rich", found)[profiles.COST].met is False
    assert send_lines("acl", found)[profiles.COST].met is True
    assert profiles.COST not in send_lines("plain", found)


def test_without_the_plain_row_there_is_no_such_goal():
    found = results(rich=([report(1, 14.0)], [report(1, 30.0)]))

    assert profiles.COST not in send_lines("rich", found)


def test_brokers_are_shared_by_rows_that_configure_them_alike_only():
    plain = PROFILES["plain"]

    alike = {name for name, profile in PROFILES.items() if profile.shares_brokers_with(plain)}

    assert alike == {"plain", "binary", "rich", "tls", "transactions", "delayed", "tag", "sql"}
    assert not PROFILES["acl"].shares_brokers_with(PROFILES["production"])


@pytest.fixture(scope="module")
def plain_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("plain")
    with running_site("kourou", root / "kourou", PROFILES["plain"], "") as site, awake(site.broker):
        yield site


def test_a_plain_broker_is_in_order(plain_site):
    check(plain_site, "bench_first")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("acl", "a request of None is answered by"),
        ("metrics", "no metrics at"),
        ("flush", "flushDiskType is ASYNC_FLUSH, not SYNC_FLUSH"),
        ("crc", "enabledAppendPropCRC is false, not true"),
        ("light", "enableLmq is false, not true"),
        ("ext", "enableConsumeQueueExt is false, not true"),
    ],
)
def test_a_profile_that_is_not_in_effect_is_an_error(plain_site, row, said):
    with pytest.raises(CannotRunError, match=said):
        check(plain_site._replace(profile=PROFILES[row]), "bench_first")


@pytest.mark.slow
@pytest.mark.go
def test_every_kind_of_profile_runs_and_is_in_effect_on_a_broker_of_ours(tmp_path):
    rows = ["transactions", "sql", "ext", "production", "light"]
    build_generator()
    # A busy machine may stand still for a second, and what measures nothing is a failure.
    short = ["--seconds", "3", "--rounds", "1", "--warmup", "2", "--only", "kourou", "--dir", str(tmp_path)]

    found = profiles.run(profiles.parse([*short, "--rows", *rows]))

    assert found.failures == []
    assert {(row, load) for row, load, _ in found.reports} == {
        (row, load) for row in rows for load in PROFILES[row].loads
    }
    assert list(tmp_path.iterdir()) == []
