"""The operator's tools are judged twice: at a cluster of ours, and at Java's. `scene` is either, with topics,
groups and clients in it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from support.scenes import Scene, set_scene
from support.targets import start_target

HERE = Path(__file__).resolve().parent

_running: dict[str, tuple[Scene, ExitStack, ExitStack]] = {}


def _scene(kind: str, factory: pytest.TempPathFactory) -> Scene:
    if kind not in _running:
        servers, clients = ExitStack(), ExitStack()
        try:
            target = start_target(kind, factory.mktemp(kind), servers)
            _running[kind] = set_scene(target, clients), servers, clients
        except BaseException:
            clients.close()
            servers.close()
            raise
    return _running[kind][0]


@pytest.fixture(params=["kourou", pytest.param("java", marks=pytest.mark.interop)])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A cluster for all tests of this directory, ours and Java's."""
    return _scene(request.param, tmp_path_factory)


@pytest.fixture
def our_scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The cluster of ours."""
    return _scene("kourou", tmp_path_factory)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Stop the clusters behind the last of these tests."""
    if nextitem is None or HERE not in nextitem.path.parents:
        while _running:
            _, (scene, servers, clients) = _running.popitem()
            clients.close()
            if scene.target.kind == "java":
                for server in scene.target.brokers.values():
                    server.process.terminate()  # all at once: such a broker takes ten seconds to end
            servers.close()
