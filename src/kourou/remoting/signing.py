"""Credentials: who asks, signed as Java's AclClientRPCHook does.

A signature is the HMAC-SHA1 of the values of all fields, in the order of their names, and of the body, with
the secret as its key. It tells who asks and that nothing was changed on the way; it does not keep anybody
from sending the same request again, nor from reading it: that is what TLS is for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from kourou.remoting.protocol.command import RemotingCommand

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"


def signature_of(fields: Mapping[str, str], body: bytes | memoryview | None, secret_key: str) -> str:
    """The signature of a request with these fields and this body."""
    names = sorted(name for name in fields if name != SIGNATURE)
    content = "".join([fields[name] for name in names]).encode()
    digest = hmac.new(secret_key.encode(), content, hashlib.sha1)
    if body:
        digest.update(body)
    return base64.b64encode(digest.digest()).decode()


def unsigned(request: RemotingCommand) -> dict[str, str]:
    """The fields of a request without who signed it, to be handed on.

    A signature in the hands of another peer is as good as its user: it does not cover the code of a request.
    """
    own = (ACCESS_KEY, SECURITY_TOKEN, SIGNATURE)
    return {name: value for name, value in request.ext_fields.items() if name not in own}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, request: RemotingCommand) -> RemotingCommand:
        """The request with who asks in it."""
        fields = dict(request.ext_fields)
        if not fields:  # its header may be put together of bytes
            fields = orjson.loads(request.encode_header()).get("extFields") or {}
        fields[ACCESS_KEY] = self.access_key
        if self.security_token is not None:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature_of(fields, request.body, self.secret_key)
        return RemotingCommand(
            request.code, fields, request.body, opaque=request.opaque, flag=request.flag,
            language=request.language, version=request.version,
        )  # fmt: skip
