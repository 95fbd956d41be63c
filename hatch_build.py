"""The build step that compiles the inner loop of batches, where the machine can (docs/decisions/0009).

Without a C compiler, or with KOUROU_PURE=1, the package is pure Python and does the same, only slower.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/kourou/message/_batch_records.pyx")


class CompileHook(BuildHookInterface[Any]):
    """Puts the compiled module into a wheel, or beside its source in an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        if os.environ.get("KOUROU_PURE") == "1":
            return
        self._made = Path(tempfile.mkdtemp(prefix="kourou-build-"))
        try:
            compiled = _compile(Path(self.root), self._made)
        except (Exception, SystemExit) as error:  # setuptools ends the process where there is no compiler
            self.app.display_warning(
                f"Batches are encoded in Python: {SOURCE.name} was not compiled: {error}"
            )
            return
        if version == "editable":
            shutil.copy(compiled, Path(self.root) / SOURCE.parent)
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"][str(compiled)] = f"kourou/message/{compiled.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Called when the wheel is there."""
        shutil.rmtree(getattr(self, "_made", ""), ignore_errors=True)


def _compile(root: Path, made: Path) -> Path:
    """Compile the module into a directory; its file."""
    from Cython.Build import cythonize
    from setuptools import Distribution, Extension

    extension = Extension("kourou.message._batch_records", [str(root / SOURCE)])
    modules = cythonize([extension], build_dir=str(made), quiet=True)
    command = Distribution({"ext_modules": modules}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(made / "lib"), str(made / "temp")
    command.ensure_finalized()
    command.run()
    (compiled,) = (made / "lib" / "kourou" / "message").glob("_batch_records*")
    return compiled
