"""Users of the console: a file of names, roles and salted scrypt hashes.

The file is JSON, `{"users": {NAME: {"role": ROLE, "hash": HASH}}}`, for its owner's eyes only. A hash is
`scrypt$n$r$p$salt$key`, the last two in hex. A change of the file counts at once.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
from enum import IntEnum
from pathlib import Path
from typing import Any

import orjson

from kourou.errors import ConfigError

# 16 MiB and some hundredths of a second for each guess; the parameters that RFC 7914 gives for logins
_N, _R, _P = 16384, 8, 1
_SALT_BYTES, _KEY_BYTES = 16, 32
_MOST_MEMORY_BYTES = 64 * 1024 * 1024
MIN_PASSWORD_CHARACTERS = 8
MAX_PASSWORD_CHARACTERS = 1024
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,64}")


class Role(IntEnum):
    """What a user may do; each may do what those before it may."""

    VIEWER = 1  # reads
    OPERATOR = 2  # sends, and resets offsets
    ADMIN = 3  # creates, changes, deletes


def hash_password(password: str) -> str:
    """A password as the file has it, with a salt of its own."""
    salt = secrets.token_bytes(_SALT_BYTES)
    key = _scrypt(password, salt, _N, _R, _P)
    return f"scrypt${_N}${_R}${_P}${salt.hex()}${key.hex()}"


def is_password(password: str, hashed: str) -> bool:
    """Whether a password has this hash."""
    if len(password) > MAX_PASSWORD_CHARACTERS:
        return False
    try:
        kind, n, r, p, salt, key = hashed.split("$")
        found = _scrypt(password, bytes.fromhex(salt), int(n), int(r), int(p))
        return kind == "scrypt" and hmac.compare_digest(found, bytes.fromhex(key))
    except ValueError:
        return False


def _scrypt(password: str, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password.encode(), salt=salt, n=n, r=r, p=p, maxmem=_MOST_MEMORY_BYTES, dklen=_KEY_BYTES
    )


class Users:
    """The users of a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._table: dict[str, dict[str, str]] = {}
        self._nobody = hash_password(secrets.token_hex(8))  # so that an unknown name takes as long

    def verify(self, name: str, password: str) -> bool:
        """Whether a user has this password. It takes its time: call it in a thread."""
        entry = self._load().get(name)
        is_right = is_password(password, self._nobody if entry is None else entry.get("hash", ""))
        return is_right and entry is not None

    def role(self, name: str) -> Role | None:
        """What a user may do now; None for one that is not there any more."""
        entry = self._load().get(name)
        return None if entry is None else Role[entry["role"].upper()]

    def names(self) -> dict[str, Role]:
        """All users and their roles."""
        return {name: Role[entry["role"].upper()] for name, entry in sorted(self._load().items())}

    def put(self, name: str, role: Role, password: str) -> None:
        """Make a user, or give one another role and password."""
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{name!r} is no name for a user: 1 to 64 of letters, digits and . _ @ -")
        if not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
            raise ConfigError(f"a password has at least {MIN_PASSWORD_CHARACTERS} characters")
        table = dict(self._load()) if self._file.exists() else {}
        table[name] = {"role": role.name.lower(), "hash": hash_password(password)}
        self._save(table)

    def remove(self, name: str) -> None:
        """Forget a user."""
        table = dict(self._load())
        if table.pop(name, None) is None:
            raise ConfigError(f"there is no user {name} in {self._file}")
        self._save(table)

    def _save(self, table: dict[str, dict[str, str]]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        number, new = tempfile.mkstemp(dir=self._file.parent, prefix=self._file.name)  # 0600 from the start
        try:
            with os.fdopen(number, "wb") as out:
                out.write(orjson.dumps({"users": table}, option=orjson.OPT_INDENT_2))
                out.flush()
                os.fsync(out.fileno())
            os.replace(new, self._file)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise

    def _load(self) -> dict[str, dict[str, str]]:
        try:
            state = self._file.stat()
            seen = (state.st_mtime_ns, state.st_ino)
            if seen != self._seen:
                self._table = _checked(orjson.loads(self._file.read_bytes()))
                self._seen = seen
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{self._file} is no file of users ({error}): make one with `kourou console add-user`"
            ) from error
        return self._table


def _checked(value: Any) -> dict[str, dict[str, str]]:
    table: dict[str, dict[str, str]] = value["users"]
    for entry in table.values():
        Role[entry["role"].upper()]
        entry["hash"].split("$")
    return table
