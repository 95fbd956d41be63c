"""Rights: users and ACLs; AccessTables: those of a server, in two JSON files that only their owner can read.

Every change is on the disk before it is answered, and counts at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kourou.auth.config import AuthConfig
from kourou.auth.model import (
    NORMAL,
    SUPER,
    USER_STATUSES,
    USER_TYPES,
    AccessError,
    Acl,
    Policy,
    Resource,
    User,
    check_subject,
    one_of,
    subject_of,
)
from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.remoting.protocol import lenient_json

USERS_FILE, ACLS_FILE = "users.json", "acls.json"
_PRIVATE = 0o600


class Rights:
    """Users and ACLs. `changes` counts, so that whoever remembers a decision knows when to forget it."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.acls: dict[str, Acl] = {}
        self.changes = 0

    def is_super(self, name: str) -> bool:
        """Whether this user may do everything."""
        user = self.users.get(name)
        if user is None:
            raise AccessError(f"User:{name} is not found")
        return user.type == SUPER

    def learn(self, name: str, user: User | None, acl: Acl | None) -> None:
        """What another server says of a user; None for what it does not have."""
        subject = subject_of(name)
        if (self.users.get(name), self.acls.get(subject)) == (user, acl):
            return
        self.users.pop(name, None)
        self.acls.pop(subject, None)
        if user is not None:
            self.users[name] = user
        if acl is not None:
            self.acls[subject] = acl
        self.changes += 1


class AccessTables(Rights):
    """The users and ACLs that a server keeps."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        self._directory = Path(directory)

    def open(self, config: AuthConfig) -> None:
        """Read the files, and make the users of the configuration where there are none of their names.

        ConfigError if a file is damaged: a server without its users would be locked.
        """
        for value in self._read(USERS_FILE):
            known = user_of(value)
            self.users[known.name] = known
        for value in self._read(ACLS_FILE):
            acl = Acl.from_json(value)
            self.acls[acl.subject] = acl
        for user in (config.first_user, config.inner):
            if user is not None and user.access_key not in self.users:
                value = {"username": user.access_key, "password": user.secret_key, "userType": SUPER}
                self.create_user(value)

    def _read(self, name: str) -> Iterator[dict[str, Any]]:
        path = self._directory / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        try:
            yield from lenient_json.loads(data)
        except (ValueError, TypeError, AccessError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): repair it, or move it away") from error

    def _save(self, name: str, values: list[dict[str, Any]]) -> None:
        path = self._directory / name
        write_atomically(path, lenient_json.dumps(values), mode=_PRIVATE)
        self.changes += 1

    def _save_users(self) -> None:
        self._save(USERS_FILE, [user.to_json() for user in self.users.values()])

    def _save_acls(self) -> None:
        self._save(ACLS_FILE, [acl.to_json() for acl in self.acls.values()])

    # Users

    def create_user(self, value: dict[str, Any]) -> None:
        """A new user, from Java's UserInfo."""
        user = user_of(value)
        if user.name in self.users:
            raise AccessError("The user is existed")
        self.users[user.name] = user
        self._save_users()

    def update_user(self, value: dict[str, Any]) -> None:
        """Change what is given of a user."""
        old = self.users.get(str(value.get("username") or ""))
        if old is None:
            raise AccessError("The user is not exist")
        self.users[old.name] = user_of(value, old)
        self._save_users()

    def delete_user(self, name: str) -> None:
        """Forget a user and what it was allowed."""
        if self.users.pop(name, None) is not None:
            self._save_users()
        if self.acls.pop(subject_of(name), None) is not None:
            self._save_acls()

    def list_users(self, text: str | None) -> list[User]:
        """Users whose name contains a text."""
        return [user for user in self.users.values() if not text or text in user.name]

    # ACLs

    def put_acl(self, acl: Acl) -> None:
        """Add to what a user is allowed and denied, or change it."""
        self._check_user(acl.subject)
        old = self.acls.get(acl.subject)
        self.acls[acl.subject] = acl if old is None else old.merged(acl)
        self._save_acls()

    def delete_acl(self, subject: str, policy_type: str, resource: Resource | None) -> None:
        """Forget what is said of a resource, or everything."""
        subject = check_subject(subject)
        self._check_user(subject)
        old = self.acls.get(subject)
        if old is None:
            raise AccessError("The acl is not exist.")
        left = old.without(policy_type, resource) if resource is not None else replace(old, policies=())
        if left.policies:
            self.acls[subject] = left
        else:
            del self.acls[subject]
        self._save_acls()

    def get_acl(self, subject: str) -> Acl | None:
        """What is said of a user."""
        subject = check_subject(subject)
        self._check_user(subject)
        return self.acls.get(subject)

    def list_acls(self, subject: str | None, resource: str | None) -> list[Acl]:
        """ACLs of subjects that contain a text, with the entries whose resource contains another."""
        found = []
        for acl in self.acls.values():
            if subject and subject not in acl.subject:
                continue
            policies = tuple(
                Policy(policy.type, entries)
                for policy in acl.policies
                if (entries := tuple(e for e in policy.entries if (resource or "") in str(e.resource)))
            )
            if policies:
                found.append(replace(acl, policies=policies))
        return found

    def _check_user(self, subject: str) -> None:
        if subject.partition(":")[2] not in self.users:
            raise AccessError(f"The subject of {subject} is not exist.")


def user_of(value: Mapping[str, Any], old: User | None = None) -> User:
    """A user from Java's UserInfo, or what it changes of one. Raises AccessError if it is none."""
    name = str(value.get("username") or "").strip()
    password = str(value.get("password") or "")
    if not name:
        raise AccessError("username can not be blank")
    if old is None and not password.strip():
        raise AccessError("password can not be blank")
    kind = one_of(USER_TYPES, value.get("userType"))
    status = one_of(USER_STATUSES, value.get("userStatus"))
    if old is None:
        return User(name, password, kind or NORMAL, status or USER_STATUSES[0])
    return User(name, password or old.password, kind or old.type, status or old.status)
