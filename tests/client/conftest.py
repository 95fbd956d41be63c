"""The clients are judged twice: by a cluster of ours, and by Java's own name server and brokers.

A test that takes `target` runs against both, with the same configuration.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from support.sites.clients import numbers
from support.targets import Target, start_target

HERE = Path(__file__).resolve().parent

_running: dict[str, tuple[Target, ExitStack]] = {}


@pytest.fixture(params=["kourou", pytest.param("java", marks=pytest.mark.interop)])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A cluster for all tests of this directory; see `pytest_runtest_teardown`."""
    kind: str = request.param
    if kind not in _running:
        stack = ExitStack()
        try:
            _running[kind] = start_target(kind, tmp_path_factory.mktemp(kind), stack), stack
        except BaseException:
            stack.close()
            raise
    return _running[kind][0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the clusters behind the last of these tests.

    Brokers that check transactions all the time would take the machine from the tests that follow.
    """
    if nextitem is None or HERE not in nextitem.path.parents:
        while _running:
            _, (_, stack) = _running.popitem()
            stack.close()


@pytest.fixture
def topic(target: Target, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own, of two queues on each of the two brokers."""
    return target.create_topic(f"t{next(numbers)}_{request.node.originalname}"[:100], queues=2)
