"""House rules, checked by a test and not by memory."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "kourou"
MODULES = sorted(PACKAGE.rglob("*.py"))

MAX_LINES = 700  # a reader's patience; at 600 think about where the file would split

# What users and the installed command import; everything else must be used by one of these.
ENTRY_POINTS = {
    "kourou", "kourou.cli", "kourou.client", "kourou.sync", "kourou.testing", "kourou.testing.pytest_plugin",
}  # fmt: skip

MAX_FILES = 16  # of a folder
MAX_PREFIX = 3  # files of a folder that share a prefix: four are a folder

# Functions that frameworks and users call by name
CALLED_FROM_OUTSIDE = {
    "ByConfig", "ByMachineRoom", "MachineRoomNearby", "_render_404", "_render_error", "capture_signals",
    "delivery_attempt", "evaluate", "first_pop_time_ms", "getDefaultReadLimit", "initialOffset",
    "latestOffset", "of_topic", "onQueryIdle", "onQueryProgress", "onQueryStarted", "onQueryTerminated",
    "prepareForTriggerAvailableNow", "pushFilters", "put_and_wait", "reportLatestOffset", "restart_broker",
    "send_async", "slave_addresses", "stop_broker", "streamReader", "streamWriter", "try_lock",
    "unsent_bytes",
}  # fmt: skip

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
MACHINE_PATH = re.compile(r"(?<![\w.])/(work|tmp|home|root|Users)/")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_there_is_something_to_check():
    assert len(MODULES) > 1


@pytest.mark.parametrize("package", sorted(p.parent for p in MODULES if p.name == "__init__.py"), ids=name)
def test_a_package_says_what_lives_in_it(package):
    assert ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))


def test_every_directory_of_modules_is_a_package():
    directories = {module.parent for module in MODULES}
    assert [name(d) for d in sorted(directories) if not (d / "__init__.py").exists()] == []


def test_no_file_is_too_long():
    lengths = {name(m): len(m.read_text(encoding="utf-8").splitlines()) for m in MODULES}
    assert {file: lines for file, lines in lengths.items() if lines > MAX_LINES} == {}


def folders() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / line for line in listed.stdout.splitlines() if "fixtures/" not in line]
    return sorted({file.parent for file in files if file.suffix == ".py" and file.exists()})


def test_no_folder_is_crowded():
    files = {
        name(folder): [f for f in folder.iterdir() if f.is_file()] for folder in folders() if folder != ROOT
    }
    assert {folder: len(found) for folder, found in files.items() if len(found) > MAX_FILES} == {}


def test_a_prefix_that_four_files_share_is_a_folder():
    found: dict[str, int] = {}
    for folder in {module.parent for module in MODULES}:
        prefixes = Counter(file.stem.split("_")[0] for file in folder.glob("*.py") if file.stem[0] != "_")
        found |= {name(folder / prefix): count for prefix, count in prefixes.items() if count > MAX_PREFIX}
    assert found == {}


def test_no_function_is_dead():
    """A name that is said once in the whole package is nobody's; verbs of the command have a decorator."""
    trees = [ast.parse(module.read_text(encoding="utf-8")) for module in MODULES]
    said = Counter(re.findall(r"\w+", "\n".join(module.read_text(encoding="utf-8") for module in MODULES)))
    dead = {
        node.name
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not (node.decorator_list and isinstance(node.decorator_list[0], ast.Call))
        and not node.name.startswith("__")
        and said[node.name] == 1
    }
    assert dead - CALLED_FROM_OUTSIDE == set()


def test_nothing_is_left_unfinished():
    assert lines_with(UNFINISHED) == []


def test_no_path_of_a_developer_machine():
    assert lines_with(MACHINE_PATH) == []


def test_arrows_between_packages_point_down():
    run([Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"])


def test_no_module_is_dead():
    graph = grimp.build_graph("kourou", cache_dir=None)
    dead = []
    for module in sorted(graph.modules - ENTRY_POINTS):
        if module.endswith(".__main__"):
            continue
        own = {module} | graph.find_descendants(module)
        importers = {user for part in own for user in graph.find_modules_that_directly_import(part)}
        if not importers - own:
            dead.append(module)
    assert dead == []


def test_the_core_runs_without_the_extras():
    """Libraries of the extras are imported only by the functions that need them."""
    program = f"""
import importlib, sys
for extra in ("pyarrow", "pandas", "pyspark", "nicegui"):
    sys.modules[extra] = None  # importing it now raises ImportError
for module in {[m for m in core_packages() if m != "kourou"]}:
    importlib.import_module(module)
"""
    run([sys.executable, "-c", program])


def test_links_in_the_documentation_lead_somewhere():
    run([sys.executable, ROOT / "scripts" / "check_links.py"])


@pytest.mark.spark  # options of the source and the sink are part of it
def test_the_reference_is_up_to_date():
    run([sys.executable, ROOT / "scripts" / "make_reference.py", "--check"])


def core_packages() -> list[str]:
    needing_extras = {"spark", "console"}
    packages = [p.parent.name for p in PACKAGE.glob("*/__init__.py")]
    return sorted(f"kourou.{package}" for package in packages if package not in needing_extras)


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name(module)}:{number}: {line.strip()}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]


def run(command: list[str | Path]) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
