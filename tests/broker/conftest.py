"""A broker for each test of this directory: on a disk that fails if the test takes `disk`, by a clock that
stands if it takes `clock`, and with the keys of `@pytest.mark.configured({…})`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.sites.broker import Peer, Site, running
from support.stores.fault_disk import FaultDisk
from support.stores.store import ManualClock


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "configured(keys): the configuration of the fixture `site`")


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands until it is moved."""
    return ManualClock()


@pytest.fixture
def disk() -> FaultDisk:
    """A disk that fails on demand."""
    return FaultDisk()


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """With a topic `t` of four queues."""
    keys = {
        key: value for mark in request.node.iter_markers("configured") for key, value in mark.args[0].items()
    }
    given = {
        name: request.getfixturevalue(name) for name in ("disk", "clock") if name in request.fixturenames
    }
    with running(tmp_path, keys, **given) as made:
        made.make_topic("t")
        yield made


@pytest.fixture
def peer(site: Site) -> Peer:
    """A connection to it."""
    return site.connect()
