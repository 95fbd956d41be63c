"""Guard: stands before the handlers of a server, and lets through what is signed and allowed.

A request without a user, with a wrong signature or of a user who may not do this is answered NO_PERMISSION,
and nothing of it is done. Each request is checked by itself; what a user may do is decided once for the same
resource, actions and address, until users or ACLs change.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable

from kourou.auth.config import AuthConfig
from kourou.auth.model import ALLOW, DISABLE, SUPER, TOPIC, AccessError, Resource, User, is_in, subject_of
from kourou.auth.rules import ALL_TOPICS, PUB, Need, needs_of
from kourou.auth.tables import AccessTables
from kourou.remoting.connection import Answer, Connection, Handler
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import ACCESS_KEY, SIGNATURE, signature_of

log = logging.getLogger(__name__)

MAX_DECISIONS = 10_000


class Guard:
    """Checks requests. `cluster` says which cluster the server is of."""

    def __init__(self, config: AuthConfig, tables: AccessTables, cluster: Callable[[], str]) -> None:
        self._config = config
        self._tables = tables
        self._cluster = cluster
        self._decisions: dict[tuple[str, Need, str], bool] = {}
        self._changes = -1

    def guard(self, handlers: dict[int, Handler]) -> dict[int, Handler]:
        """The handlers, with a check before each; as they are where nothing is to be checked."""
        if not self._config.authentication_enabled:
            return handlers
        return {code: self._guarded(handler) for code, handler in handlers.items()}

    def _guarded(self, handler: Handler) -> Handler:
        def checked(connection: Connection, request: RemotingCommand) -> Answer:
            self.check(request, connection.peer)
            return handler(connection, request)

        return checked

    def check(self, request: RemotingCommand, peer: str) -> None:
        """AccessError unless a request may be served."""
        user: User | None = None
        if request.code not in self._config.authentication_whitelist:
            user = self._authenticate(request, peer)
        self._authorize(user, request, peer)

    def check_again(self, request: RemotingCommand, peer: str) -> None:
        """AccessError unless a request that has waited may still be served."""
        name = self.user_of(request)
        if name is None:
            return
        user = self._enabled(name)
        if user is None:
            raise AccessError(f"User:{name} is not known any more, or disabled.")
        self._authorize(user, request, peer)

    def _authorize(self, user: User | None, request: RemotingCommand, peer: str) -> None:
        if not self._config.authorization_enabled or request.code in self._config.authorization_whitelist:
            return
        if user is None:
            raise AccessError("a request that is served without a user is not allowed anything: name one")
        if self._tables.is_super(user.name):
            return
        source_ip = _ip_of(peer)
        for need in needs_of(request, self._cluster()):
            if not self._is_allowed(user.name, need, source_ip):
                raise _refusal(request, user.name, need, source_ip)

    def require(self, request: RemotingCommand, peer: str, resource: Resource, *actions: str) -> None:
        """AccessError unless who asks may do one of these with a resource that the request itself does not
        name: what is touched is known only when it is found. The request has been checked before."""
        if not self.allows(request, peer, resource, *actions):
            raise _refusal(request, self.user_of(request), Need(resource, actions), _ip_of(peer))

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
        if request.code in self._config.authorization_whitelist:
            return True
        return self.may(self.user_of(request), peer, resource, *actions)

    def may(self, user: str | None, peer: str, resource: Resource, *actions: str) -> bool:
        """Whether a user may do one of these with a resource from where it is."""
        if not self._config.authentication_enabled or not self._config.authorization_enabled:
            return True
        known = self._enabled(user)
        if known is None:
            return False
        return known.type == SUPER or self._is_allowed(known.name, Need(resource, actions), _ip_of(peer))

    def may_send(self, user: str | None, peer: str) -> bool:
        """Whether a user may send to some topic, whichever it is."""
        if not self._config.authentication_enabled or not self._config.authorization_enabled:
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
        """The user who signed a request that has been checked; None where nobody has to."""
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

    # Requests

    def _authenticate(self, request: RemotingCommand, peer: str) -> User:
        fields = request.ext_fields
        name = fields.get(ACCESS_KEY)
        if not name:
            raise AccessError("username cannot be null: this server wants requests that are signed")
        user = self._tables.users.get(name)
        given = fields.get(SIGNATURE)
        # The same work for a user who is not there, so that time does not tell who is.
        wanted = signature_of(fields, request.body, user.password if user is not None else "")
        if user is None or given is None or not hmac.compare_digest(wanted.encode(), given.encode()):
            log.warning("request %d of %r from %s has a wrong signature", request.code, name, peer)
            raise AccessError("check signature failed.")
        if user.status == DISABLE:
            raise AccessError(f"User:{name} is disabled.")
        return user

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


def _refusal(request: RemotingCommand, user: str | None, need: Need, source_ip: str) -> AccessError:
    text = f"{subject_of(user or '')} has no permission to access {need.resource} from {source_ip}"
    log.info("%s (%s for request %d)", text, "/".join(need.actions), request.code)
    return AccessError(f"{text}: one of {', '.join(need.actions)} must be allowed")


def _ip_of(peer: str) -> str:
    """The address of a peer without its port."""
    return peer.rpartition(":")[0].strip("[]")
