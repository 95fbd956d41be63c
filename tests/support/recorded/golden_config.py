"""The config files of the golden stores, without unpacking the stores."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from functools import cache
from pathlib import PurePath

from support.recorded.golden import FIXTURES, GOLDEN_STORES


@cache
def _config_files() -> list[tuple[str, str, bytes]]:
    found = []
    for store in GOLDEN_STORES:
        with tarfile.open(FIXTURES / "store" / f"{store}.tar.gz") as archive:
            for member in archive:
                path = PurePath(member.name)
                if path.parent.name == "config" and member.isfile():
                    file = archive.extractfile(member)
                    assert file is not None
                    found.append((store, path.name, file.read()))
    return found


def config_files(name: str) -> Iterator[tuple[str, bytes]]:
    """Where Java wrote a file of this name, and what: (store/name, bytes), with the backups."""
    for store, file, data in _config_files():
        if file.removesuffix(".bak") == name:
            yield f"{store}/{file}", data
