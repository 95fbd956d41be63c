"""A certificate that a process makes for itself, where none is configured (Netty's SelfSignedCertificate).

It encrypts and proves nothing: whoever connects cannot tell this server from another that made one, too. The
key lives as long as the process and is never on the disk. Python's standard library makes no keys, and the
libraries that do are larger than the core may become: docs/decisions/0007-tls-without-configuration.md says
why the curve is worked out here, and why that is enough for a key that nobody relies on: this arithmetic is
not constant in time. Handshakes are OpenSSL's.

    Certificate    ::= SEQUENCE { tbs, algorithm, signature BIT STRING }          RFC 5280
    tbs            ::= SEQUENCE { [0] version, serial, algorithm, issuer, validity, subject, public key }
    ECPrivateKey   ::= SEQUENCE { 1, key OCTET STRING, [0] curve, [1] public key }   RFC 5915
"""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import secrets
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NAME = "Kourou, self-signed"

# The curve P-256 (FIPS 186-4): y² = x³ - 3x + b modulo _FIELD. _ORDER times _BASE is the point at infinity.
_FIELD = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

_INTEGER, _BIT_STRING, _OCTET_STRING, _UTF8, _SEQUENCE, _SET = 0x02, 0x03, 0x04, 0x0C, 0x30, 0x31
_COMMON_NAME = bytes.fromhex("0603 550403")
_EC_PUBLIC_KEY = bytes.fromhex("0607 2a8648ce3d0201")
_P256 = bytes.fromhex("0608 2a8648ce3d030107")
_ECDSA_SHA256 = bytes.fromhex("300a 0608 2a8648ce3d040302")

# From 2000 to what RFC 5280 has for no end: it is valid whatever a clock says.
_VALIDITY = b"\x30\x20" + b"\x17\x0d000101000000Z" + b"\x18\x0f99991231235959Z"

_making = threading.Lock()


def load_self_signed(context: ssl.SSLContext) -> None:
    """Give a context the certificate of this process. The first call makes it, which takes some 20 ms."""
    with _making:
        cert, key = self_signed_pair()
    with _as_file(cert) as cert_path, _as_file(key) as key_path:
        context.load_cert_chain(cert_path, key_path)  # it compares the key with the certificate


@functools.cache
def self_signed_pair() -> tuple[bytes, bytes]:
    """The certificate of this process and its key, in PEM."""
    key = 1 + secrets.randbelow(_ORDER - 1)
    x, y = _times_base(key)
    point = _der(_BIT_STRING, b"\x00\x04", x.to_bytes(32, "big"), y.to_bytes(32, "big"))
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME, _der(_UTF8, NAME.encode()))))
    signed = _der(
        _SEQUENCE,
        _der(0xA0, _integer(2)),  # version 3
        _integer(secrets.randbits(127)),
        _ECDSA_SHA256,
        name,
        _VALIDITY,
        name,
        _der(_SEQUENCE, _der(_SEQUENCE, _EC_PUBLIC_KEY, _P256), point),
    )
    cert = _der(_SEQUENCE, signed, _ECDSA_SHA256, _der(_BIT_STRING, b"\x00", _sign(key, signed)))
    private = _der(
        _SEQUENCE,
        _integer(1),
        _der(_OCTET_STRING, key.to_bytes(32, "big")),
        _der(0xA0, _P256),
        _der(0xA1, point),
    )
    return ssl.DER_cert_to_PEM_cert(cert).encode(), (
        b"-----BEGIN EC PRIVATE KEY-----\n" + base64.encodebytes(private) + b"-----END EC PRIVATE KEY-----\n"
    )


def _sign(key: int, data: bytes) -> bytes:
    """ECDSA with SHA-256 (FIPS 186-4, 6.4)."""
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    once = 1 + secrets.randbelow(_ORDER - 1)
    r = _times_base(once)[0] % _ORDER
    s = pow(once, -1, _ORDER) * (digest + r * key) % _ORDER
    return _der(_SEQUENCE, _integer(r), _integer(s))


def _times_base(number: int) -> tuple[int, int]:
    """A multiple of the base point, for 0 < number < _ORDER: then no sum on the way is infinity."""
    total, power = None, _BASE
    while number:
        if number & 1:
            total = power if total is None else _sum(total, power)
        power = _sum(power, power)
        number >>= 1
    assert total is not None
    return total


def _sum(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    if a == b:
        slope = 3 * (a[0] * a[0] - 1) * pow(2 * a[1], -1, _FIELD)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _FIELD)
    x = (slope * slope - a[0] - b[0]) % _FIELD
    return x, (slope * (a[0] - x) - a[1]) % _FIELD


def _integer(value: int) -> bytes:
    return _der(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big"))  # a leading 0 bit: not negative


def _der(tag: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


@contextmanager
def _as_file(data: bytes) -> Iterator[str]:
    """A path for OpenSSL, which reads keys from files only; this one is in memory."""
    descriptor = os.memfd_create("kourou-tls")
    try:
        os.write(descriptor, data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
