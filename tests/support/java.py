"""Runs the real Java code of Apache RocketMQ (the programs in interop/) from tests.

The first use gets the jars and compiles; where no registry answers, the test is skipped with the reason.
Every test that comes here has the mark `interop` (support.tools).
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

INTEROP = Path(__file__).resolve().parent.parent.parent / "interop"
RUN = INTEROP / "run.sh"

FETCH_TIMEOUT_S = 600  # a hundred jars over a slow line
COMPILE_TIMEOUT_S = 600
RUN_TIMEOUT_S = 600  # a golden store takes two seconds; a loaded build machine may need many times that

# MessageStoreConfig key -> option of StoreDump
SIZE_OPTIONS = {
    "mappedFileSizeCommitLog": "--commitlog-file-size",
    "mappedFileSizeConsumeQueue": "--cq-file-size",
    "maxHashSlotNum": "--hash-slots",
    "maxIndexNum": "--index-num",
}
SWITCH_OPTIONS = {"enabledAppendPropCRC": "--append-prop-crc", "enableLmq": "--lmq"}


class Verdict(NamedTuple):
    """Java's answer to "is this what you read?"."""

    match: bool
    differences: int
    first: list[str]


class Java:
    """The compiled programs of interop/, ready to run. Make one with `java()`."""

    def store_dump(self, store: Path, config: Mapping[str, Any], *options: str) -> dict[str, Any]:
        """All that Java reads in `store`, which it never changes, and under `recovered` what
        DefaultMessageStore.load() makes of a copy.

        `config` holds Java's keys (as in `expected["config"]`); `options` may be --raw-only or --start.
        """
        with tempfile.TemporaryDirectory(prefix="kourou-java-") as scratch:
            out = Path(scratch, "dump.json")
            self._run("StoreDump", store, *config_options(config), *options, "--out", out, scratch=scratch)
            dump: dict[str, Any] = json.loads(out.read_bytes())
        return dump

    def compare(
        self, store: Path, config: Mapping[str, Any], expected: Path | Mapping[str, Any], *options: str
    ) -> Verdict:
        """Whether everything in `expected` (a JSON file, also gzipped, or a mapping) is what Java reads in
        `store`. What `expected` leaves out is not compared."""
        with tempfile.TemporaryDirectory(prefix="kourou-java-") as scratch:
            if not isinstance(expected, Path):
                file = Path(scratch, "expected.json")
                file.write_text(json.dumps(expected), encoding="utf-8")
                expected = file
            arguments: list[str | Path] = [store, *config_options(config), *options, "--expect", expected]
            stdout = self._run("StoreDump", *arguments, scratch=scratch, accepted=(0, 1))
        return Verdict(**json.loads(stdout.splitlines()[-1]))

    def store_write(self, store: Path, config: Mapping[str, Any], topic: str, count: int) -> list[list[int]]:
        """Has Java open `store` in place, append messages and close it; [physicalOffset, queueId,
        queueOffset] of each."""
        sizes = [str(config[key]) for key in SIZE_OPTIONS]
        with tempfile.TemporaryDirectory(prefix="kourou-java-") as scratch:
            stdout = self._run("StoreWrite", store, *sizes, topic, str(count), scratch=scratch)
        lines = stdout.splitlines()
        assert lines[-1] == "closed"
        return [[int(number) for number in line.split()[1:]] for line in lines if line.startswith("put ")]

    def _run(
        self, program: str, *arguments: str | Path, scratch: str, accepted: tuple[int, ...] = (0,)
    ) -> str:
        """Runs a program with its logs and copies in `scratch`; returns its standard output."""
        environment = {**os.environ, "TMPDIR": scratch, "INTEROP_HOME": str(Path(scratch, "home"))}
        done = _command(program, *arguments, timeout_s=RUN_TIMEOUT_S, environment=environment)
        if done.returncode not in accepted:
            pytest.fail(f"{program} ended with status {done.returncode}:\n{_tail(done)}", pytrace=False)
        return done.stdout


def java() -> Java:
    """Gets the jars and compiles where needed. Safe to call from several processes at once."""
    with _one_at_a_time():
        _fetch()
        done = _command("compile", timeout_s=COMPILE_TIMEOUT_S)
    if done.returncode != 0:
        pytest.fail(f"interop/*.java do not compile:\n{_tail(done)}", pytrace=False)
    return Java()


def config_options(config: Mapping[str, Any]) -> list[str]:
    """The options of StoreDump for a store that was written with `config`."""
    options = []
    for key, option in SIZE_OPTIONS.items():
        if key in config:
            options += [option, str(config[key])]
    return options + [option for key, option in SWITCH_OPTIONS.items() if config.get(key)]


def _fetch() -> None:
    jars = os.environ.get("ROCKETMQ_LIB")
    if jars is not None and not any(Path(jars).glob("rocketmq-store-*.jar")):
        pytest.skip(f"ROCKETMQ_LIB={jars} holds no jars of RocketMQ")
    try:
        done = _command("fetch", timeout_s=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"Maven did not fetch the jars of RocketMQ within {FETCH_TIMEOUT_S} s")
    if done.returncode != 0:
        pytest.skip(f"Maven cannot fetch the jars of RocketMQ: {_tail(done, lines=3)}")


@contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Test workers start together: one of them prepares, the others wait and find it done."""
    target = INTEROP / "target"
    target.mkdir(exist_ok=True)
    with open(target / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _command(
    *arguments: str | Path, timeout_s: float, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [RUN, *arguments],
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=timeout_s,
        env=environment,
        check=False,
    )


def _tail(done: subprocess.CompletedProcess[str], lines: int = 20) -> str:
    return "\n".join((done.stdout + done.stderr).strip().splitlines()[-lines:])
