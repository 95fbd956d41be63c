"""Who holds the lock of a store, asked without taking it.

POSIX locks have a trap: a process that closes any descriptor of the lock file gives up its own lock on
it. So the file is not opened where this very process has it open.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct

# struct flock: type, whence, start, length, process id
_FLOCK = struct.Struct("@hhqqi0q")


def lock_holder(path: str) -> str | None:
    """The process that has locked the file: its id, or `another process` where that is not told."""
    if own_descriptor(path) is not None:
        return f"process {os.getpid()}"
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    except OSError as error:
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            return None  # a file system without locks
        raise
    finally:
        os.close(fd)
    if kind == fcntl.F_UNLCK:
        return None
    return f"process {pid}" if pid > 0 else "another process"


def own_descriptor(path: str) -> int | None:
    """The descriptor by which this process has the file open; None if it has not."""
    try:
        wanted = os.stat(path)
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return None
    for name in descriptors:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(int(name)), wanted):
                return int(name)
    return None
