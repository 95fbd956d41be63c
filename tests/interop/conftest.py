"""Tests in this directory are judged by the real Java code of Apache RocketMQ."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.java import Java
from support.java import java as prepare_java

HERE = Path(__file__).resolve().parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def java() -> Java:
    return prepare_java()
