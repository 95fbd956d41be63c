"""Atomic replacement of small files: after a crash a file is the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: str | Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file; what it held before is in `<name>.bak`. `mode`, less the umask, is for both; who could
    not read the file before cannot read it afterwards."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        mode &= path.stat().st_mode
        _write_one(path.with_name(path.name + ".bak"), path.read_bytes(), mode)
    _write_one(path, data, mode)


def _write_one(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # a leftover of a crash may have other permissions
    with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_dir(path.parent)  # so that the rename is on the disk


def sync_dir(path: str | Path) -> None:
    """fsync a directory."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
