"""The fixture `kourou_cluster`, which pytest finds by itself where kourou is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kourou.testing import Cluster


@pytest.fixture(scope="session")
def kourou_cluster() -> Iterator[Cluster]:
    """A RocketMQ cluster for the whole run: a name server and a broker, started when first used."""
    from kourou.testing import Cluster  # not before: every run of pytest loads this module

    with Cluster() as cluster:
        yield cluster
