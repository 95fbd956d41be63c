"""Call: who calls, and until when; the metadata of a gRPC call (GrpcConstants)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kourou.auth import AccessError
from kourou.client.namespace import wrap
from kourou.errors import BadMessageError
from kourou.proxy.door import Door
from kourou.proxy.protocol import pb
from kourou.proxy.statuses import StatusError
from kourou.remoting.connection import CallTimeoutError
from kourou.remoting.protocol.header import BadRequestError

CLIENT_ID, LANGUAGE, VERSION, NAMESPACE = (
    f"x-mq-{name}" for name in ("client-id", "language", "client-version", "namespace")
)
NO_DEADLINE_MS = 3_600_000  # of a client that sets none

Owner = tuple[str, str]  # user, id of the client


@dataclass(slots=True)
class Call:
    """What is known of a call before its request is looked at."""

    client_id: str
    language: str
    version: str
    namespace: str
    authority: str  # the address that the client called
    peer: str  # where the client is, host:port
    metadata: dict[str, str]
    context: Any  # of grpc.aio
    user: str = ""  # who signed it, where somebody has to

    @classmethod
    def of(cls, context: Any, door: Door) -> Call:
        """The call of a context. Raises StatusError without the id of a client."""
        metadata = {
            key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)
        }
        client_id = metadata.get(CLIENT_ID, "")
        if not client_id:
            raise StatusError(pb.Code.CLIENT_ID_REQUIRED, "client id cannot be empty")
        return cls(
            client_id, metadata.get(LANGUAGE, ""), metadata.get(VERSION, ""), metadata.get(NAMESPACE, ""),
            metadata.get(":authority", ""), door.address(context.peer()), metadata, context,
        )  # fmt: skip

    @property
    def owner(self) -> Owner:
        """Whose settings and messages these are. The id alone is no secret: it is another client's if another
        user says it."""
        return self.user, self.client_id

    def remaining_ms(self) -> int:
        """How long the client waits."""
        left_s = self.context.time_remaining()
        return NO_DEADLINE_MS if left_s is None else max(0, int(left_s * 1000))

    def name_of(self, resource: Any) -> str:
        """The name of a topic or group on the wire."""
        return wrap(resource.resource_namespace, resource.name)


def as_status(error: Exception) -> Any:
    """The status that an error of a call becomes."""
    if isinstance(error, StatusError):
        return error.status
    code = pb.Code.INTERNAL_SERVER_ERROR
    if isinstance(error, AccessError):
        code = pb.Code.UNAUTHORIZED
    elif isinstance(error, BadRequestError | BadMessageError):
        code = pb.Code.BAD_REQUEST
    elif isinstance(error, TimeoutError | CallTimeoutError):
        code = pb.Code.PROXY_TIMEOUT
    return pb.Status(code=code, message=str(error) or type(error).__name__)
