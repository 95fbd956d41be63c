"""Sessions: who is logged in, who may do what, and how often somebody may guess.

A session is a random token in a cookie, known to this process alone: a restart ends all of them.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kourou.console.users import Role, Users
from kourou.errors import KourouError

IDLE_S = 8 * 3600.0
MAX_SESSIONS = 10_000
MAX_FAILURES = 5  # of one address, or for one name, in the time below
FAILURES_S = 300.0
MAX_TRACKED = 10_000


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


class Guesses:
    """How often a login failed lately, by address and by name."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """How long the next try has to wait; 0 if it need not."""
        now = self._now_s()
        waits = [0.0]
        for key in keys:
            times = self._failures.get(key)
            while times and now - times[0] > FAILURES_S:
                times.popleft()
            if times is not None and len(times) >= MAX_FAILURES:
                waits.append(FAILURES_S - (now - times[0]))
        return max(waits)

    def failed(self, *keys: str) -> None:
        """Note that a try failed."""
        for key in keys:
            self._failures.setdefault(key, deque(maxlen=MAX_FAILURES)).append(self._now_s())
            self._failures.move_to_end(key)
        while len(self._failures) > MAX_TRACKED:
            self._failures.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        """Forget what failed before."""
        for key in keys:
            self._failures.pop(key, None)
