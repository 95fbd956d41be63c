"""A Spark for all tests of a process. Where pyspark is not installed there is nothing to collect here."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from support.spark import local_spark

if find_spec("pyspark") is None:
    collect_ignore_glob = ["*"]
elif find_spec("deltalake") is None:
    collect_ignore = ["test_lake.py"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    with local_spark(tmp_path_factory.mktemp("spark")) as session:
        yield session
