"""Guard: stands before the handlers of a server, and lets through what is signed and allowed.

A request without a user, with a wrong signature or of a user who may not do this is answered NO_PERMISSION,
and nothing of it is done. Each request is checked by itself; what a user may do is decided once for the same
resource, actions and address, until users or ACLs change.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable

from kourou.auth.config import AuthConfig
from kourou.auth.model import ALLOW, DISABLE, SUPER, TOPIC, AccessError, Resource, User, is_in, subject_of
from kourou.auth.rules import ALL_TOPICS, PUB, Need, needs_of
from kourou.auth.tables import Rights
from kourou.remoting.connection import Answer, Connection, Handler
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import ACCESS_KEY, SIGNATURE, signature_of

log = logging.getLogger(__name__)

MAX_DECISIONS = 10_000


class Guard:
    """Checks requests. `cluster` says which cluster the server is of."""

    def __init__(self, config: AuthConfig, tables: Rights, cluster: Callable[[], str]) -> None:
        self._config = config
        self._tables = tables
        self._cluster = cluster
        self._decisions: dict[tuple[str, Need, str], bool] = {}
        self._changes = -1

    @property
    def authorizes(self) -> bool:
        """Whether rights are looked at."""
        return self._config.authentication_enabled and self._config.authorization_enabled

    def guard(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handlers, each with a check before it; unchanged if access control is off."""
        if not self._config.authentication_enabled:
            return handlers
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def checked(connection: Connection, request: RemotingCommand) -> Answer:
            self.check(request, connection.peer)
            return handler(connection, request)

        return checked

    def check(self, request: RemotingCommand, peer: str) -> None:
        """Raises AccessError unless a request may be served."""
        fields = request.ext_fields

        def sign(secret: str) -> str:
            return signature_of(fields, request.body, secret)

        user = self.authenticate(request.code, fields.get(ACCESS_KEY), fields.get(SIGNATURE), sign, peer)
        self._authorize(user, request, peer)

    def authenticate(
        self,
        code: int | str,
        name: str | None,
        signature: str | None,
        sign: Callable[[str], str],
        peer: str,
    ) -> User | None:
        """The user who signed a request; `sign` makes the signature of a secret. None if nobody has to.

        Raises AccessError if nobody did, or not with that user's secret.
        """
        if code in self._config.authentication_whitelist:
            return None
        if not name:
            raise AccessError("username cannot be null: this server wants requests that are signed")
        user = self._tables.users.get(name)
        # An unknown user costs the same time, so that timing does not reveal which users exist.
        wanted = sign(user.password if user is not None else "")
        if user is None or signature is None or not hmac.compare_digest(wanted.encode(), signature.encode()):
            log.warning("request %s of %r from %s has a wrong signature", code, name, peer)
            raise AccessError("check signature failed.")
        if user.status == DISABLE:
            raise AccessError(f"User:{name} is disabled.")
        return user

    def check_again(self, request: RemotingCommand, peer: str) -> None:
        """Raises AccessError unless a request that has waited may still be served."""
        name = self.user_of(request)
        if name is None:
            return
        user = self._enabled(name)
        if user is None:
            raise AccessError(f"User:{name} is not known any more, or disabled.")
        self._authorize(user, request, peer)

    def _authorize(self, user: User | None, request: RemotingCommand, peer: str) -> None:
        self.authorize(request.code, user, lambda: needs_of(request, self._cluster()), peer)

    def authorize(
        self, code: int | str, user: User | None, needs: Callable[[], Iterable[Need]], peer: str
    ) -> None:
        """Raises AccessError unless a user may have all that a request needs."""
        if not self._config.authorization_enabled or code in self._config.authorization_whitelist:
            return
        if user is None:
            raise AccessError("a request that is served without a user is not allowed anything: name one")
        if self._tables.is_super(user.name):
            return
        source_ip = _ip_of(peer)
        for need in needs():
            if not self._is_allowed(user.name, need, source_ip):
                raise _refusal(code, user.name, need, source_ip)

    def require(self, request: RemotingCommand, peer: str, resource: Resource, *actions: str) -> None:
        """Raises AccessError unless who asks may do one of these with a resource that the request itself
        does not name: what is touched is known only when it is found. The request has been checked before."""
        if not self.allows(request, peer, resource, *actions):
            raise _refusal(request.code, self.user_of(request), Need(resource, actions), _ip_of(peer))

    def require_found(
        self, request: RemotingCommand, peer: str, what: str, resource: Resource | None, *actions: str
    ) -> None:
        """As `require`, for something that was looked for; without a resource, there is none.

        Both refusals are the same, so that nobody learns by asking what is where. Who may do this with all
        topics goes on, and is told.
        """
        if not self.allows(request, peer, resource or ALL_TOPICS, *actions):
            log.info("request %d of %s: no %s, or not allowed", request.code, self.user_of(request), what)
            raise AccessError(f"there is no {what}, or its topic is not allowed")

    def allows(self, request: RemotingCommand, peer: str, resource: Resource, *actions: str) -> bool:
        """Whether who asks may do one of these with a resource. The request has been checked before."""
        if not self.authorizes or request.code in self._config.authorization_whitelist:
            return True
        return self.may(self.user_of(request), peer, resource, *actions)

    def may(self, user: str | None, peer: str, resource: Resource, *actions: str) -> bool:
        """Whether a user may do one of these with a resource from where it is."""
        if not self.authorizes:
            return True
        known = self._enabled(user)
        if known is None:
            return False
        return known.type == SUPER or self._is_allowed(known.name, Need(resource, actions), _ip_of(peer))

    def may_send(self, user: str | None, peer: str) -> bool:
        """Whether a user may send to some topic, whichever it is."""
        if not self.authorizes:
            return True
        known = self._enabled(user)
        if known is None or known.type == SUPER:
            return known is not None
        acl = self._tables.acls.get(subject_of(known.name))
        return acl is not None and acl.allows_some(TOPIC, PUB, _ip_of(peer))

    def _enabled(self, name: str | None) -> User | None:
        user = self._tables.users.get(name or "")
        return None if user is None or user.status == DISABLE else user

    def user_of(self, request: RemotingCommand) -> str | None:
        """The user who signed a request that has been checked; None if nobody has to."""
        if not self._config.authentication_enabled or request.code in self._config.authentication_whitelist:
            return None
        return request.ext_fields.get(ACCESS_KEY)

    # Slaves, which read the whole log

    def secret_of_slave(self, name: str) -> str | None:
        """The secret of a user who may copy the log: a super user, or the one that servers sign as; None for
        anybody else."""
        user, inner = self._enabled(name), self._config.inner
        if user is None:
            return None
        is_inner = inner is not None and inner.access_key == name
        return user.password if is_inner or user.type == SUPER else None

    def takes_unproven_slave(self, address: str) -> bool:
        """Whether a slave from an address need not prove who it is."""
        config = self._config
        wants_proofs = config.authentication_enabled or config.ha_authentication_enabled
        return not wants_proofs or any(is_in(address, network) for network in config.ha_trusted_slaves)

    def _is_allowed(self, user: str, need: Need, source_ip: str) -> bool:
        if self._changes != self._tables.changes or len(self._decisions) > MAX_DECISIONS:
            self._decisions.clear()
            self._changes = self._tables.changes
        key = user, need, source_ip
        allowed = self._decisions.get(key)
        if allowed is None:
            acl = self._tables.acls.get(subject_of(user))
            decision = None if acl is None else acl.decide(need.resource, need.actions, source_ip)
            allowed = self._decisions[key] = decision == ALLOW
        return allowed


def _refusal(code: int | str, user: str | None, need: Need, source_ip: str) -> AccessError:
    text = f"{subject_of(user or '')} has no permission to access {need.resource} from {source_ip}"
    log.info("%s (%s for request %s)", text, "/".join(need.actions), code)
    return AccessError(f"{text}: one of {', '.join(need.actions)} must be allowed")


def _ip_of(peer: str) -> str:
    """The address of a peer without its port."""
    return peer.rpartition(":")[0].strip("[]")
