"""What `pip install` gives: a wheel, a small core that works alone, extras, and a newcomer's first steps."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

import kourou
from support.browser import seen_in_browser
from support.walkthrough import Reader

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CORE_LIMIT_BYTES = 30_000_000
TIMEOUT_S = 400

pytestmark = pytest.mark.slow


def run(*command: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    """What a command prints; it must end well."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=env, encoding="utf-8", timeout=TIMEOUT_S, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An sdist, and the wheel that is built of it."""
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", directory, ROOT)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def core_wheels(dist: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels that `pip install kourou` brings."""
    directory = tmp_path_factory.mktemp("wheels")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "download", "--quiet", "--only-binary=:all:", "--dest", directory, wheel)
    return directory


@pytest.fixture(scope="module")
def clean_venv(core_wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the core and nothing else; its bin."""
    directory = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", directory)
    pip = directory / "bin" / "pip"
    run(
        pip,
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--find-links",
        core_wheels,
        "kourou",
    )
    return directory / "bin"


def environment(bin_directory: Path) -> dict[str, str]:
    """Nothing of the environment that runs the tests."""
    left_out = ("VIRTUAL_ENV", "PYTHON", "PIP_", "PYTEST")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    path = [part for part in os.environ["PATH"].split(os.pathsep) if part != str(Path(sys.executable).parent)]
    return {**kept, "PATH": os.pathsep.join([str(bin_directory), *path]), "NO_COLOR": "1", "COLUMNS": "120"}


def test_the_wheel_has_all_of_the_package(wheel: Path) -> None:
    source = ROOT / "src"
    wanted = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.parent.name.endswith(".egg-info")
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"kourou/py.typed", "pyspark_rocketmq.py"} <= wanted
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_the_sdist_has_what_a_build_needs(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        tops = {Path(name).parts[1] for name in files.getnames() if len(Path(name).parts) > 1}
    assert tops >= {"src", "pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"}
    assert not tops & {"tests", ".venv", "build"}


def test_the_metadata_names_extras_and_commands(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        (info,) = {name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name}
        metadata = email.message_from_bytes(files.read(f"{info}/METADATA"))
        entry_points = files.read(f"{info}/entry_points.txt").decode()
    assert metadata["Version"] == kourou.__version__
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    core = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert len(core) == len(PROJECT["dependencies"])
    assert metadata.get_payload().startswith("# Kourou")  # type: ignore[union-attr]  # a page of one part
    assert "kourou = kourou.cli:main" in entry_points
    assert "kourou = kourou.testing.pytest_plugin" in entry_points


def test_the_core_is_small(core_wheels: Path) -> None:
    sizes = {path.name: path.stat().st_size for path in core_wheels.iterdir()}
    assert len(sizes) > len(PROJECT["dependencies"]) // 2
    assert not [name for name in sizes if re.match(r"(pyarrow|pandas|pyspark|nicegui|numba)-", name)]
    assert sum(sizes.values()) < CORE_LIMIT_BYTES, sizes


def test_the_core_alone_sends_and_consumes(clean_venv: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(CORE_PAGE, encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    with Reader(empty, environment(clean_venv)) as reader:
        *_, consumed = reader.follow(page)
    assert "b'order 2'" in consumed


# Followed like a page of the documentation
CORE_PAGE = """
```sh
kourou --help
kourou up
```
```text
RocketMQ is up
console      not installed: pip install 'kourou[console]'
```
```sh
kourou send orders 'order 1' 'order 2'
kourou tail orders --from first --count 2
kourou store info kourou-data/broker-0
```
```python
import kourou
from kourou.sync import Consumer

assert "site-packages" in kourou.__file__
with Consumer("127.0.0.1:9876", group="billing", subscribe="orders", consume_from="first") as consumer:
    messages = iter(consumer)
    print(sorted(bytes(next(messages).body) for _ in range(2)))
```
"""


@pytest.mark.parametrize(
    ("command", "extra"), [(("console",), "console"), (("spark", "sql", "select 1", "127.0.0.1:1"), "spark")]
)
def test_what_needs_an_extra_says_so(
    clean_venv: Path, tmp_path: Path, command: tuple[str, ...], extra: str
) -> None:
    done = subprocess.run(
        [clean_venv / "kourou", *command], env=environment(clean_venv), cwd=tmp_path, capture_output=True,
        encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"pip install 'kourou[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def linked_libraries(directory: Path) -> Path:
    """The libraries of the environment that runs the tests, without kourou itself and pip."""
    directory.mkdir()
    for path in Path(pytest.__file__).parent.parent.iterdir():
        if not re.match(
            r"_*(editable_+impl_+)?(kourou|pip|pyspark_rocketmq|__editable__)\b|__pycache__", path.name
        ):
            (directory / path.name).symlink_to(path)
    return directory


@pytest.mark.browser
@pytest.mark.spark
def test_a_newcomer_gets_from_nothing_to_a_query(dist: Path, tmp_path: Path) -> None:
    """The tutorial to the letter: a fresh virtual environment, pip, and what the page says.

    pip finds the libraries of the extras installed already, so that half a gigabyte is not loaded each time.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n', encoding="utf-8")  # type: ignore[attr-defined]
    python.chmod(0o755)
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    (home,) = tmp_path.glob("kourou-*")
    settings = {
        **environment(programs),
        "HOME": str(home),
        "PYTHONPATH": str(linked_libraries(tmp_path / "libraries")),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    page = ROOT / "docs" / "tutorial.md"
    links = re.findall(r"<(http://127.0.0.1:8088/[^>]*)>", page.read_text(encoding="utf-8"))
    assert len(links) == 2
    with Reader(home, settings, installs=True) as reader:
        steps = 0
        for printed in reader.follow(page):
            steps += 1
            if "orders billed" in printed:  # the console is looked at next
                for link in links:
                    assert "broker-0" in seen_in_browser(reader.here(link), link.rpartition("/")[2])
    assert steps == 7
    installed = list((home / "tutorial" / "lib").glob("python*/site-packages/kourou/__init__.py"))
    assert len(installed) == 1
