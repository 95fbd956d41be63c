"""Fixtures for the tests of the store."""

from __future__ import annotations

import pytest

from support.stores.fault_disk import FaultDisk
from support.stores.store import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands until it is moved."""
    return ManualClock()


@pytest.fixture
def disk() -> FaultDisk:
    """A disk that fails on demand."""
    return FaultDisk()
