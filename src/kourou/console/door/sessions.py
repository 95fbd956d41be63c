"""Sessions: who is logged in, and who may do what.

A session is a random token in a cookie, known to this process alone: a restart ends all of them.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kourou.console.door.users import Role, Users
from kourou.errors import KourouError

IDLE_S = 8 * 3600.0
MAX_SESSIONS = 10_000


class ForbiddenError(KourouError):
    """Something that this user may not do, or this console does not."""


@dataclass(slots=True)
class Session:
    """Somebody who is logged in; without users, everybody."""

    user: str
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    last_seen_s: float = 0.0
    is_ended: bool = False


class Access:
    """What sessions may do. Without users everybody may do everything that the console does."""

    def __init__(
        self,
        users: Users | None,
        *,
        read_only: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.users = users
        self.read_only = read_only
        self._now_s = now_s
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._everybody = Session("")

    def open(self, user: str) -> Session:
        """A session of a user who has said the password."""
        session = Session(user, last_seen_s=self._now_s())
        self._sessions[session.token] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)[1].is_ended = True
        return session

    def find(self, token: str | None) -> Session | None:
        """The session of a token, if it still counts; everybody's where there are no users."""
        if self.users is None:
            return self._everybody
        session = self._sessions.get(token or "")
        if session is None or self.role(session) is None:
            return None
        session.last_seen_s = self._now_s()
        return session

    def close(self, token: str | None) -> None:
        """Log out."""
        session = self._sessions.pop(token or "", None)
        if session is not None:
            session.is_ended = True

    def role(self, session: Session) -> Role | None:
        """What a session may do now; None for one that does not count any more."""
        if self.users is None:
            return Role.ADMIN
        if session.is_ended or self._now_s() - session.last_seen_s > IDLE_S:
            return None
        try:
            return self.users.role(session.user)
        except KourouError:
            return None  # a file that cannot be read lets nobody in

    def may(self, session: Session, role: Role) -> bool:
        """Whether a session may do what needs a role; nobody may change what is read-only."""
        held = self.role(session)
        return held is not None and held >= role and (role is Role.VIEWER or not self.read_only)

    def check(self, session: Session, role: Role) -> None:
        """ForbiddenError unless a session may do what needs a role."""
        if self.may(session, role):
            return
        held = self.role(session)
        if held is None:
            raise ForbiddenError("the session has ended: log in again")
        if self.read_only and role is not Role.VIEWER:
            raise ForbiddenError("this console is read-only: it was started with --read-only")
        raise ForbiddenError(
            f"this needs the role {role.name.lower()}, and {session.user} is {held.name.lower()}:"
            " ask an administrator of the console"
        )
