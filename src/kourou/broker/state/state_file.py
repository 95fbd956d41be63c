"""StateFile: a table of the broker in a JSON file of Java's form, with the one before it in `<name>.bak`.

The owner of the table encodes it, any thread may write what was encoded:

    write = file.pending()          # owner: None if nothing changed
    if write is not None:
        await loop.run_in_executor(None, write)

One write of a file must be over before the next is taken.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from kourou.errors import KourouError
from kourou.files import sync_dir, write_atomically
from kourou.remoting.protocol import lenient_json

log = logging.getLogger(__name__)


class StateDamagedError(KourouError):
    """A state file and its backup cannot be read: what they held is not known."""


class StateTable(Protocol):
    """A table that is kept in a file."""

    dirty: bool  # changed since it was encoded for the file

    def encode(self) -> bytes:
        """The JSON of the table."""
        ...

    def decode(self, value: Any) -> None:
        """Take what a file holds; with an error of conversion the table stays as it was."""
        ...


class StateFile:
    """The file of one table."""

    def __init__(self, path: str | Path, table: StateTable) -> None:
        self.path = Path(path)
        self._table = table

    @property
    def backup(self) -> Path:
        """Where the version before is."""
        return self.path.with_name(self.path.name + ".bak")

    def load(self) -> bool:
        """Fill the table from the file or, with a warning, from its backup; False if there is neither.

        StateDamagedError if there is something and none of it can be read: a broker that started without
        its topics would answer, and wrongly.
        """
        found = [file for file in (self.path, self.backup) if file.exists()]
        if not found:
            return False
        for file in found:
            try:
                self._table.decode(lenient_json.loads(file.read_bytes()))
            except (OSError, ValueError, KeyError, TypeError, AttributeError, KourouError) as error:
                log.warning("cannot read %s: %s", file, error or type(error).__name__)
                continue
            if file != self.path:
                self._fall_back()
            return True
        names = " nor ".join(str(file) for file in found)
        neither = "neither " if len(found) > 1 else ""
        raise StateDamagedError(
            f"{neither}{names} can be read: repair what is there, or move it away to start without it"
        )

    def _fall_back(self) -> None:
        """The backup counts: it must not be replaced by the damaged file when the table is saved."""
        log.warning("took %s, which may be older than what was lost", self.backup)
        if self.path.exists():
            os.replace(self.path, self.path.with_name(self.path.name + ".damaged"))
            sync_dir(self.path.parent)
        self._table.dirty = True

    def pending(self, before: Callable[[], None] | None = None) -> Callable[[], None] | None:
        """What is to be written now, as a function for a worker; None if nothing changed.

        `before` is done first, by the worker: what the table speaks of must be on the disk before it is.
        """
        if not self._table.dirty:
            return None
        data = self._table.encode()
        self._table.dirty = False

        def write() -> None:
            try:
                if before is not None:
                    before()
                write_atomically(self.path, data)
            except OSError:
                self._table.dirty = True  # the next round tries again
                raise

        return write

    def save(self) -> None:
        """Write what changed, here and now."""
        write = self.pending()
        if write is not None:
            write()
