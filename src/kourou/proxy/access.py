"""Access: who calls, and whether they may (AuthenticationPipeline, AuthorizationPipeline).

A client signs the time that it writes into the metadata of a call:

    x-mq-date-time: 20261118T083000Z
    authorization: MQv2-HMAC-SHA1 Credential=name[/…], SignedHeaders=x-mq-date-time, Signature=hex

Users and ACLs are the brokers', as the proxy asks them; `kourou.auth.Guard` decides, as at a broker.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from kourou.auth import AccessError, Acl, AuthConfig, Guard, Rights, User
from kourou.auth.model import SUPER, subject_of
from kourou.auth.rules import PUB, SUB, Need, group, popping, sending, topic
from kourou.auth.tables import user_of
from kourou.proxy.calls import Call
from kourou.proxy.cluster import Cluster, Kept
from kourou.proxy.config import ProxyConfig
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import StatusError
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import ACCESS_KEY

MAX_NAME = 255  # no user has a longer one: brokers need not be asked
AUTHORIZATION, DATE_TIME = "authorization", "x-mq-date-time"

CONSUMERS = (
    pb.ClientType.PUSH_CONSUMER, pb.ClientType.SIMPLE_CONSUMER, pb.ClientType.PULL_CONSUMER,
    pb.ClientType.LITE_PUSH_CONSUMER, pb.ClientType.LITE_SIMPLE_CONSUMER,
)  # fmt: skip

_Known = tuple[User | None, Acl | None]


class Access:
    """Stands before the calls."""

    def __init__(self, auth: AuthConfig, config: ProxyConfig, cluster: Cluster) -> None:
        self._auth = auth
        self._cluster = cluster
        self._rights = Rights()  # of users who came and are known
        self._guard = Guard(auth, self._rights, lambda: config.rocket_mq_cluster_name)
        self._known: Kept[_Known] = Kept(
            self._fetch, config.user_cache_refresh_seconds, config.user_cache_expired_seconds
        )

    async def check(self, call: Call, request: Any) -> None:
        """Raises AccessError unless a call is signed and allowed, where that is wanted. Its user is set."""
        if not self._auth.authentication_enabled:
            return
        code = request.DESCRIPTOR.full_name
        name, signature = read_signature(call.metadata.get(AUTHORIZATION, ""))
        date_time = call.metadata.get(DATE_TIME, "")
        if name and not date_time:
            raise AccessError(f"datetime is null: {DATE_TIME} is what is signed")
        await self._learn(name)
        user = self._guard.authenticate(
            code, name, signature, lambda secret: sign(date_time, secret), call.peer
        )
        call.user = "" if user is None else user.name
        self._guard.authorize(code, user, lambda: needs_of(call, request), call.peer)

    def may_send(self, user: str, peer: str, name: str) -> bool:
        """Whether a user may send to a topic, by what is known of it."""
        resource, actions = sending(name)
        return self._guard.may(user, peer, resource, *actions)

    async def check_request(self, request: RemotingCommand, peer: str) -> None:
        """The same of a request that speaks remoting."""
        if self._auth.authentication_enabled:
            await self._learn(request.ext_fields.get(ACCESS_KEY, ""))
            self._guard.check(request, peer)

    async def _learn(self, name: str) -> None:
        """Have the rights of a user, if one is named, as the brokers say."""
        if len(name) > MAX_NAME:
            raise AccessError("check signature failed.")
        if name:
            self._rights.learn(name, *await self._known.get(name))

    async def _fetch(self, name: str) -> _Known:
        value = await self._cluster.ask(RequestCode.AUTH_GET_USER, {"username": name})
        if not value:
            return None, None
        if not value.get("password"):
            raise StatusError(
                pb.Code.INTERNAL_SERVER_ERROR,
                "the brokers do not tell this proxy the secrets of users:"
                " innerClientAuthenticationCredentials must be those of a super user",
            )
        user = user_of(value)
        if user.type == SUPER or not self._auth.authorization_enabled:
            return user, None
        value = await self._cluster.ask(RequestCode.AUTH_GET_ACL, {"subject": subject_of(name)})
        return user, Acl.from_json(value) if value else None


def sign(date_time: str, secret: str) -> str:
    """The signature of a call."""
    return hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()


def read_signature(text: str) -> tuple[str, str | None]:
    """The user of an `authorization`, "" if there is none, and the signature. Raises AccessError."""
    if not text:
        return "", None
    _, _, rest = text.partition(" ")
    pairs = [part.strip().partition("=") for part in rest.split(",")]
    if not all(equals for _, equals, _ in pairs):
        raise AccessError("authentication header is incorrect.")
    values = {key: value for key, _, value in pairs}
    signature = values.get("Signature")
    return values.get("Credential", "").partition("/")[0], None if signature is None else signature.lower()


# What each call needs


def needs_of(call: Call, request: Any) -> Iterable[Need]:
    """What must be allowed for a call."""
    return RULES[request.DESCRIPTOR.name](call, request)


def _route(call: Call, request: Any) -> Iterator[Need]:
    yield Need(topic(call.name_of(request.topic)), (PUB, SUB))


def _messages(call: Call, request: Any) -> Iterator[Need]:
    for message in request.messages:
        yield sending(call.name_of(message.topic))


def _produce(call: Call, request: Any) -> Iterator[Need]:
    yield sending(call.name_of(request.topic))


def _receive(call: Call, request: Any) -> Iterator[Need]:
    return popping(call.name_of(request.message_queue.topic), call.name_of(request.group))


def _consume(call: Call, request: Any) -> Iterator[Need]:
    return popping(call.name_of(request.topic), call.name_of(request.group))


def _heartbeat(call: Call, request: Any) -> Iterator[Need]:
    if request.client_type in CONSUMERS:
        yield Need(group(call.name_of(request.group)), (SUB,))


def _termination(call: Call, request: Any) -> Iterator[Need]:
    if request.group.name:
        yield Need(group(call.name_of(request.group)), (SUB,))


def _telemetry(call: Call, request: Any) -> Iterator[Need]:
    settings = request.settings
    for published in settings.publishing.topics:
        yield sending(call.name_of(published))
    if settings.HasField("subscription"):
        yield Need(group(call.name_of(settings.subscription.group)), (SUB,))
        for entry in settings.subscription.subscriptions:
            yield Need(topic(call.name_of(entry.topic)), (SUB,))


RULES: Mapping[str, Callable[[Call, Any], Iterator[Need]]] = {
    "QueryRouteRequest": _route,
    "QueryAssignmentRequest": _consume,
    "HeartbeatRequest": _heartbeat,
    "NotifyClientTerminationRequest": _termination,
    "TelemetryCommand": _telemetry,
    "SyncLiteSubscriptionRequest": _consume,
    "SendMessageRequest": _messages,
    "RecallMessageRequest": _produce,
    "EndTransactionRequest": _produce,
    "ReceiveMessageRequest": _receive,
    "AckMessageRequest": _consume,
    "ChangeInvisibleDurationRequest": _consume,
    "ForwardMessageToDeadLetterQueueRequest": _consume,
}
