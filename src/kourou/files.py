"""Small files that are either the old ones or the new ones, whenever the machine stops."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace a file; what it held before is in `<name>.bak`."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        _write_one(path.with_name(path.name + ".bak"), path.read_bytes())
    _write_one(path, data)


def _write_one(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # the rename is on the disk too
    finally:
        os.close(directory)
