"""Fixtures for all tests."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from support import golden

pytest_plugins = ["support.ci", "pytester"]


@pytest.fixture
def golden_store(tmp_path: Path) -> Callable[[str], golden.GoldenStore]:
    """`golden_store(name)` gives (path, expected): a private copy, and what Java reads in it.

    All names are in `support.golden.GOLDEN_STORES`.
    """

    def unpack(name: str) -> golden.GoldenStore:
        return golden.unpack(name, Path(tempfile.mkdtemp(prefix="golden-", dir=tmp_path)))

    return unpack
