"""File systems that are small, full, or read only for a while. All of this takes root."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

FILLER = "filler"


def can_mount() -> bool:
    """Whether this process may mount: root may, outside of most containers."""
    if os.geteuid() != 0:
        return False
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return probe.returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs: root and the right to mount file systems")


@contextmanager
def small_disk(path: Path, size_mb: int) -> Iterator[Path]:
    """A file system of its own in memory; it is gone in the end."""
    path.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs", str(path))
    try:
        yield path
    finally:
        _unmount(path)


def fill(disk: Path) -> None:
    """Leave no byte free."""
    with open(disk / FILLER, "ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def make_room(disk: Path) -> None:
    """Take back what `fill` did."""
    (disk / FILLER).unlink(missing_ok=True)


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Have a directory be read only for who opens or makes a file there; open files stay as they are."""
    _run("mount", "--bind", str(path), str(path))
    try:
        _run("mount", "-o", "remount,bind,ro", str(path))
        yield
    finally:
        _unmount(path)


def _unmount(path: Path) -> None:
    _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, f"{command}: {done.stderr}"
