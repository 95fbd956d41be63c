"""Power: what is left of a node's files when its machine loses its power.

The nodes' files are real ones, in memory; the code under test opens, maps and renames them as ever. What is
told here is which of it is on the disk: a file's bytes when fsync or fdatasync of it came back, the names in
a directory when fsync of that came back. At a power cut everything else is drawn by lot: each sector that was
written since may be there or not, or half of it, or with a bit that is wrong, in any order; each new, changed
or removed name too. A process that is killed leaves everything in the memory of its machine, which may still
lose its power later.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

SECTORS = (512, 4096)


class PowerLostError(BaseException):
    """The machine is off: nothing that it would have done next is done."""


class Power:
    """The disks of all nodes, below one directory: `<root>/<node>.<life>`."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self._chance = chance
        self._contents: dict[int, bytes] = {}  # by inode: what is on the disk
        self._names: dict[str, dict[str, int]] = {}  # by directory: the names that are on the disk
        self._directories: dict[str, int] = {}  # by path: the inode of the directory that has these names
        self._lives: Counter[str] = Counter()
        self.failing_syncs: set[str] = set()  # names of nodes
        self.full: set[str] = set()
        self.slow: set[str] = set()  # their syncs take long
        self.syncs_left: dict[
            str, int
        ] = {}  # nodes whose power goes at a sync, and how many they have until then
        self.on_power_lost: Callable[[str], None] = lambda node: None
        self.counts: Counter[str] = Counter()
        self._fsync, self._fdatasync, self._fallocate = os.fsync, os.fdatasync, os.posix_fallocate

    # In place of the system's functions

    def fsync(self, fd: int) -> None:
        """os.fsync, which notes what is on the disk now."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if not path.startswith(f"{self.root}/"):
            self._fsync(fd)
            return
        node = self._node_of(path)
        if not f"{path}/".startswith(f"{self._path(node)}/"):
            raise PowerLostError  # of an earlier life
        if node in self.failing_syncs:
            self.counts["syncs that failed"] += 1
            raise OSError(errno.EIO, "the disk does not answer", path)
        self.counts["syncs"] += 1
        if node in self.syncs_left:
            self.syncs_left[node] -= 1
            if self.syncs_left[node] < 0:
                del self.syncs_left[node]
                self.counts["power cuts in a sync"] += 1
                self.on_power_lost(node)
                raise PowerLostError
        status = os.fstat(fd)
        if os.path.isdir(path):
            self._forget_moved(path)
            self._directories[path] = status.st_ino
            self._names[path] = {
                entry.name: entry.inode()
                for entry in os.scandir(path)
                if entry.is_file(follow_symlinks=False)
            }
        else:
            self._contents[status.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def _forget_moved(self, path: str) -> None:
        """Directories below this one that were renamed or removed are so on the disk now: what was in them
        does not come back in others of the same name."""
        for known, inode in list(self._directories.items()):
            if known.startswith(f"{path}/") and (not os.path.isdir(known) or os.stat(known).st_ino != inode):
                del self._directories[known]
                del self._names[known]

    def fallocate(self, fd: int, offset: int, length: int) -> None:
        """os.posix_fallocate, on a disk that may be full."""
        path = os.readlink(f"/proc/self/fd/{fd}")
        if self._node_of(path) in self.full:
            self.counts["allocations without room"] += 1
            raise OSError(errno.ENOSPC, "no room", path)
        self._fallocate(fd, offset, length)

    def _node_of(self, path: str) -> str:
        if not path.startswith(f"{self.root}/"):
            return ""
        return Path(path).relative_to(self.root).parts[0].rpartition(".")[0]

    # Lives of nodes

    def directory(self, node: str) -> Path:
        """Where a node has its files in this life."""
        path = self._path(node)
        path.mkdir(exist_ok=True)
        return path

    def _path(self, node: str) -> Path:
        return self.root / f"{node}.{self._lives[node]}"

    def next_life(self, node: str, *, lost_power: bool) -> Path:
        """The files of a node that was killed, or lost its power: a copy, so that the dead do not write."""
        old = self.directory(node)
        self._lives[node] += 1
        new = self.directory(node)
        sector = self._chance.choice(SECTORS)
        for directory, subdirectories, _ in os.walk(old):
            subdirectories.sort()
            target = new / os.path.relpath(directory, old)
            target.mkdir(exist_ok=True)
            names = self._names[str(target)] = dict(self._names.get(directory, {}))
            self._directories[str(target)] = os.stat(target).st_ino
            if lost_power:
                names.clear()
            for name, inode, live in self._entries(directory, lost_power):
                on_disk = self._contents.get(inode, b"")
                data = self._mix(on_disk, live, sector) if lost_power or live is None else live
                path = target / name
                path.write_bytes(data)
                copy = os.stat(path).st_ino
                self._contents[copy] = data if lost_power else on_disk
                if lost_power or names.get(name) == inode:
                    names[name] = copy
        shutil.rmtree(old)
        return new

    def _entries(self, directory: str, lost_power: bool) -> list[tuple[str, int, bytes | None]]:
        """Names of a directory after its node has died, with the inode and the bytes that memory had."""
        live = {
            entry.name: (entry.inode(), Path(entry.path).read_bytes())
            for entry in sorted(os.scandir(directory), key=lambda entry: entry.name)
            if entry.is_file(follow_symlinks=False)
        }
        if not lost_power:
            made = sorted(live.items(), key=lambda item: item[1][0])
            return [(name, inode, data) for name, (inode, data) in made]
        bytes_of = dict(live.values())
        names = dict(self._names.get(directory, {}))
        # Journals keep the order of what is done to a directory: the first of the changes are on the disk.
        changes = [(inode, name) for name, (inode, _) in live.items() if names.get(name) != inode]
        changes += [(0, name) for name in names if name not in live]
        changes.sort()
        kept = self._chance.randrange(len(changes) + 1)
        self.counts["names lost"] += len(changes) - kept
        for inode, name in changes[:kept]:
            names.pop(name, None)
            if inode:
                names[name] = inode
        return [(name, names[name], bytes_of.get(names[name])) for name in sorted(names)]

    def _mix(self, on_disk: bytes, live: bytes | None, sector: int) -> bytes:
        """What a file has: of each sector the bytes of the disk, of memory, or both."""
        if live is None or live == on_disk:
            return on_disk
        length = len(live)
        old = on_disk[:length].ljust(length, b"\0")
        if not on_disk and self._chance.random() < 0.3:
            self.counts["files zeroed or empty"] += 1
            return bytes(length) if self._chance.random() < 0.5 else b""
        mixed = bytearray(old)
        for start in range(0, length, sector):
            new = live[start : start + sector]
            if new == old[start : start + sector]:
                continue
            lot = self._chance.random()
            if lot < 0.5:
                self.counts["sectors kept"] += 1
                mixed[start : start + len(new)] = new
            elif lot < 0.6:
                self.counts["sectors torn"] += 1
                part = self._chance.randrange(0, len(new) + 1, 8)
                mixed[start : start + part] = new[:part]
            elif lot < 0.65:
                self.counts["sectors with a flipped bit"] += 1
                mixed[start : start + len(new)] = self._flip(new, old[start : start + sector])
            else:
                self.counts["sectors lost"] += 1
        return bytes(mixed)

    def _flip(self, new: bytes, old: bytes) -> bytes:
        """New bytes of a sector with one bit that is wrong; what the disk had before stays right."""
        places = [at for at, (one, other) in enumerate(zip(new, old)) if one != other]
        at = self._chance.choice(places)
        return new[:at] + bytes([new[at] ^ 1 << self._chance.randrange(8)]) + new[at + 1 :]
