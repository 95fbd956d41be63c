"""Tests in this directory are judged by the real Java code of Apache RocketMQ."""

from __future__ import annotations

import pytest

from support.java import Java
from support.java import java as prepare_java


@pytest.fixture(scope="session")
def java() -> Java:
    return prepare_java()
