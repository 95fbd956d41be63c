"""Every way to spell a place leads to the same directory: a decision that is written down is found again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from kourou.errors import ConfigError
from kourou.spark.jobs.archive import archive
from kourou.spark.jobs.inputs import Input
from kourou.spark.places import local_place
from kourou.spark.write.once import Journal

SPELLINGS = (
    "{0}", "{0}/", "file:{0}", "file://{0}", "file://localhost{0}", "file:{0}/", "FILE:{0}",
    "{0}/../{1}", "file:{0}/./",
)  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("name", ["checkpoint", "with blanks", "50%20", "~", "a:b"])
def test_a_place_is_the_same_however_it_is_spelled(tmp_path: Path, spelling: str, name: str) -> None:
    place = tmp_path / name
    text = spelling.format(place, name)
    assert local_place(text, "checkpointLocation") == place


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_decision_is_found_again_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Tasks run elsewhere than the driver: with `file:/…` they looked below their own directory."""
    place = tmp_path / "checkpoint"
    (place / "rocketmq").mkdir(parents=True)
    (place / "rocketmq" / "3.done").touch()
    (tmp_path / "worker").mkdir()
    monkeypatch.chdir(tmp_path / "worker")
    log = Journal(spelling.format(place, "checkpoint"))
    assert log.decided(3)
    assert not log.decided(4)


def test_a_relative_place_is_below_the_directory_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert local_place("a/b", "checkpointLocation") == tmp_path / "a/b"
    assert local_place("~/b", "checkpointLocation") == tmp_path / "~/b"


def test_a_link_leads_to_the_same_files(tmp_path: Path) -> None:
    (tmp_path / "real" / "rocketmq").mkdir(parents=True)
    os.symlink(tmp_path / "real", tmp_path / "link")
    (tmp_path / "real" / "rocketmq" / "0.done").touch()
    assert Journal(str(tmp_path / "link")).done(0)


@pytest.mark.parametrize("text", ["s3://bucket/x", "s3a://bucket/x", "hdfs:///x", "gs:/x", "abfss://c@a/x"])
def test_a_place_that_is_not_mounted_is_refused_in_one_line(text: str) -> None:
    expected = f"checkpointLocation={text}: .* is no mounted file system"
    with pytest.raises(ConfigError, match=expected) as refused:
        Journal(text)
    assert "\n" not in str(refused.value)


def test_two_slashes_begin_the_name_of_a_machine() -> None:
    """So Hadoop reads it, and refuses it."""
    with pytest.raises(ConfigError, match="write file:///data/x"):
        local_place("file://data/x", "checkpointLocation")


def test_jobs_refuse_a_place_that_is_not_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kourou spark archive … s3://bucket/archive` made a directory `s3:` here and said that it was done."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    target: str | Path
    for target in ("s3://bucket/archive", Path("s3://bucket/archive")):
        with pytest.raises(ConfigError, match="no mounted file system"):
            archive(cast(Any, None), "store", target)
    with pytest.raises(ConfigError, match="no mounted file system"):
        Input.parse("s3://bucket/store")
    with pytest.raises(ConfigError, match="neither a directory nor name servers"):
        Input.parse("localhost:x")
    assert os.listdir(tmp_path) == ["store"]
    assert Input.parse(f"file:{tmp_path}/store").paths == (str(tmp_path / "store"),)
