"""A Spark for all tests of a process; where there is no Java they are skipped (under CI=true they fail)."""

from __future__ import annotations

import os
import shutil

import pytest

from support.spark import local_spark


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        if os.environ.get("CI") == "true":
            pytest.fail("Spark needs Java 17 or later")
        pytest.skip("Spark needs Java 17 or later")
    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
