"""Proofs at the begin of a replication connection: master and slave show each other that they know the secret
of a user, without telling it. The bytes are in the tables of `replication`.

A proof is the HMAC-SHA256 of a text that begins with the side it comes from and has the nonces of both: it is
of no use on another connection, nor sent back to where it came from. The slave goes first: whoever comes to
a master without the secret gets nothing from it that was made with the secret.

No sockets here: both classes take what was read and return what is to be written.
"""

from __future__ import annotations

import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from kourou.errors import KourouError

# The slave sends the hello alone and waits for the challenge. Java's master reads it as a report below 0,
# which acknowledges nothing, and may send it back as the offset of a block: the challenge is another number.
HELLO = b"\xffKOUROU\x01"
CHALLENGE = b"\xfeKOUROU\x01"
NONCE_BYTES = PROOF_BYTES = 32
MAX_NAME_BYTES = 255

_HEAD = struct.Struct(f">{NONCE_BYTES}sBB")
_OF_SLAVE, _OF_MASTER = b"Kourou HA 1: slave\n", b"Kourou HA 1: master\n"


class ProofError(KourouError):
    """The other side has not shown that it is who it should be; `advice` says what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(f"{reason}: {advice}")
        self.reason, self.advice = reason, advice


@dataclass(frozen=True, slots=True)
class Admission:
    """Which slaves a master takes.

    `secret_of` has the secret of a user who may copy the log, and None for anybody else. `takes_unproven`
    says whether a slave from an address is taken without a proof, as all of Java's come.
    """

    secret_of: Callable[[str], str | None]
    takes_unproven: Callable[[str], bool]


ANYBODY = Admission(lambda user: None, lambda host: True)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a slave is: a user, and a name for the master's log."""

    user: str
    secret: str = field(repr=False)
    name: str


class Entrance:
    """The master's side: `receive` until `passed`; then `rest` has the reports that have come too."""

    def __init__(self, admission: Admission, host: str) -> None:
        self._admission = admission
        self._host = host
        self._nonce = b""
        self._secret: str | None = None
        self.user = self.name = ""  # of a slave without a proof
        self.passed = False
        self.rest = b""

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the slave; what to answer. ProofError if it is not taken."""
        self.rest += data
        if self._nonce:
            return self._take_proof()
        if len(self.rest) < len(HELLO):
            return b""
        if self.rest.startswith(HELLO):
            self.rest = self.rest[len(HELLO) :]
            self._nonce = secrets.token_bytes(NONCE_BYTES)
            return CHALLENGE + self._nonce
        if not self._admission.takes_unproven(self._host):
            raise ProofError(
                "it does not prove who it is",
                "Kourou's slaves need authenticationEnabled=true (or haAuthenticationEnable=true) and"
                " innerClientAuthenticationCredentials; for Java's, add their addresses to haTrustedSlaves of"
                " this master",
            )
        self.passed = True
        return b""

    def _take_proof(self) -> bytes:
        if len(self.rest) < _HEAD.size:
            return b""
        _, user_size, name_size = _HEAD.unpack_from(self.rest)
        named = _HEAD.size + user_size + name_size
        if len(self.rest) < named + PROOF_BYTES:
            return b""
        said, given = self.rest[:named], self.rest[named : named + PROOF_BYTES]
        self.user = str(said[_HEAD.size : _HEAD.size + user_size], "utf-8", "replace")
        self.name = str(said[_HEAD.size + user_size :], "utf-8", "replace")
        self._secret = self._admission.secret_of(self.user)
        # The same work for a user who is not there, so that time does not tell who is.
        secret = secrets.token_hex() if self._secret is None else self._secret
        is_right = hmac.compare_digest(_proof(secret, _OF_SLAVE, self._nonce, said), given)
        if self._secret is None or not is_right:
            raise ProofError(
                "its user is not accepted",
                f"{self.user!r} of {self.name!r} must be enabled here, be a super user or that of"
                " innerClientAuthenticationCredentials, and have the same secret on both sides",
            )
        self.rest = self.rest[named + PROOF_BYTES :]
        self.passed = True
        return _proof(secret, _OF_MASTER, self._nonce, said)

    @property
    def still_holds(self) -> bool:
        """Whether a slave that passed would pass again: its user may have changed since."""
        return not self.user or self._admission.secret_of(self.user) == self._secret


class Introduction:
    """The slave's side: send HELLO, `receive` until `passed`; then `rest` has the blocks that have come too.

    `failure` says what it means if the connection ends before that.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._wanted = b""  # the master's proof
        self.passed = False
        self.rest = b""
        self.failure = ProofError(
            "the master does not prove who it is",
            "Kourou's does, with the same innerClientAuthenticationCredentials; for Java's, or one without"
            " access control, set haAuthenticationEnable=false here",
        )

    def receive(self, data: bytes) -> bytes:
        """Take bytes of the master; what to answer. ProofError if it is not the right one."""
        self.rest += data
        if self._wanted:
            self._check_master()
            return b""
        size = len(CHALLENGE)
        if not self.rest.startswith(CHALLENGE[: len(self.rest)]):
            raise self.failure
        if len(self.rest) < size + NONCE_BYTES:
            return b""
        nonce, self.rest = self.rest[size : size + NONCE_BYTES], self.rest[size + NONCE_BYTES :]
        user, name = _limited(self._identity.user), _limited(self._identity.name)
        said = _HEAD.pack(secrets.token_bytes(NONCE_BYTES), len(user), len(name)) + user + name
        self._wanted = _proof(self._identity.secret, _OF_MASTER, nonce, said)
        self.failure = ProofError(
            f"the master does not accept user {self._identity.user!r}",
            "its log says why; innerClientAuthenticationCredentials must be the same on both sides. If it has"
            " no access control, set haAuthenticationEnable=false here",
        )
        return said + _proof(self._identity.secret, _OF_SLAVE, nonce, said)

    def _check_master(self) -> None:
        if len(self.rest) < PROOF_BYTES:
            return
        given, self.rest = self.rest[:PROOF_BYTES], self.rest[PROOF_BYTES:]
        if not hmac.compare_digest(given, self._wanted):
            raise ProofError(
                f"the master does not know the secret of user {self._identity.user!r}",
                "it is a false one, or has other innerClientAuthenticationCredentials",
            )
        self.passed = True


def _proof(secret: str, side: bytes, master_nonce: bytes, said: bytes) -> bytes:
    return hmac.digest(secret.encode("utf-8", "surrogatepass"), side + master_nonce + said, "sha256")


def _limited(name: str) -> bytes:
    return name.encode("utf-8", "replace")[:MAX_NAME_BYTES]
