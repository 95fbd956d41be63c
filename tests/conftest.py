"""Fixtures for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support.proof import PROOF, proof
from support.recorded import golden

# The time that an example takes says something about the machine, and what else runs on it.
settings.register_profile(
    PROOF,
    max_examples=proof(quick=40, full=150),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile(PROOF)

pytest_plugins = ["support.ci", "support.tools", "support.loops", "pytester"]


@pytest.fixture
def golden_store(tmp_path: Path) -> Callable[[str], golden.GoldenStore]:
    """`golden_store(name)` gives (path, expected): a private copy, and what Java reads in it.

    All names are in `support.recorded.golden.GOLDEN_STORES`.
    """

    def unpack(name: str) -> golden.GoldenStore:
        return golden.unpack(name, Path(tempfile.mkdtemp(prefix="golden-", dir=tmp_path)))

    return unpack


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is such a file system: for tests that copy stores by the hundred."""
    shared_memory = Path("/dev/shm")
    if not os.access(shared_memory, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="kourou-test-", dir=shared_memory))
    yield path
    shutil.rmtree(path)
