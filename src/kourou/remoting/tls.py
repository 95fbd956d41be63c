"""TLS for servers and clients: Java's keys, the contexts that follow from them, and their renewal.

The keys are those of Java's tls.properties (TlsSystemConfig, TlsHelper). Java takes `tls.server.mode` and
`tls.enable` from system properties only; here they may stand in the file as well. What differs:

- Java's `tls.test.mode.enable` is true unless it is set, and then puts aside the certificates and checks that
  are configured, without a word. Here they hold, unless the key says true. As in Java a server without a
  certificate makes one for itself, which encrypts and which nobody can verify (`remoting.self_signed`), and
  with false it does not start.
- A client certificate that nobody verifies proves nothing, and OpenSSL cannot ask for one: without
  `tls.server.authClient` clients are not asked.
- A value that Java would take for its default (an unknown mode) is an error.

As in Java a client compares no host name with the server's certificate: it trusts whatever the trusted
certificates signed. TLS is 1.2 or later.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from kourou.errors import ConfigError
from kourou.java_config import convert_known
from kourou.properties_file import read_properties_file
from kourou.remoting.self_signed import load_self_signed

log = logging.getLogger(__name__)

DEFAULT_FILE = "/etc/rocketmq/tls.properties"
HELLO_BYTE = 0x16  # the first byte of a TLS connection; that of a frame this long would be 352 MiB

# Files are looked at when a connection is made, and not more often than this.
RELOAD_CHECK_S = 3.0


class TlsMode(Enum):
    """What a server speaks: plain, either on the same port, or TLS only."""

    disabled = "disabled"
    permissive = "permissive"
    enforcing = "enforcing"


class ClientAuth(Enum):
    """Whether a server asks its clients for a certificate, and whether it insists."""

    none = ssl.CERT_NONE
    optional = ssl.CERT_OPTIONAL
    require = ssl.CERT_REQUIRED


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """The keys of tls.properties. A path or a password that is empty is none."""

    server_mode: TlsMode = field(default=TlsMode.permissive, metadata={"key": "tls.server.mode"})
    enable: bool = field(default=False, metadata={"key": "tls.enable"})  # for clients
    test_mode: bool | None = field(default=None, metadata={"key": "tls.test.mode.enable"})  # None: not set
    ciphers: str = field(default="", metadata={"key": "tls.ciphers"})
    protocols: str = field(default="", metadata={"key": "tls.protocols"})

    server_need_client_auth: ClientAuth = field(
        default=ClientAuth.none, metadata={"key": "tls.server.need.client.auth"}
    )
    server_key_path: str = field(default="", metadata={"key": "tls.server.keyPath"})
    server_key_password: str = field(default="", repr=False, metadata={"key": "tls.server.keyPassword"})
    server_cert_path: str = field(default="", metadata={"key": "tls.server.certPath"})
    server_auth_client: bool = field(default=False, metadata={"key": "tls.server.authClient"})
    server_trust_cert_path: str = field(default="", metadata={"key": "tls.server.trustCertPath"})

    client_key_path: str = field(default="", metadata={"key": "tls.client.keyPath"})
    client_key_password: str = field(default="", repr=False, metadata={"key": "tls.client.keyPassword"})
    client_cert_path: str = field(default="", metadata={"key": "tls.client.certPath"})
    client_auth_server: bool = field(default=False, metadata={"key": "tls.client.authServer"})
    client_trust_cert_path: str = field(default="", metadata={"key": "tls.client.trustCertPath"})

    @classmethod
    def load(cls, path: str | Path | None = None) -> TlsConfig:
        """The configuration in a file. Java's own place for it may be empty: then all is as by default."""
        if path is None and not _is_there(DEFAULT_FILE):
            return cls()
        return cls.from_properties(read_properties_file(path or DEFAULT_FILE))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TlsConfig:
        """The configuration in keys and values; keys of other things are left alone.

        `tls.config.file` names a file whose keys go before the ones beside it, as they do in Java.
        """
        if path := properties.get("tls.config.file"):
            properties = {**properties, **read_properties_file(path)}
        lowered = ("tls.server.mode", "tls.server.need.client.auth")
        given = {key: text.lower() if key in lowered else text for key, text in properties.items()}
        given = {key: text for key, text in given.items() if text.strip()}
        if given.get("tls.server.mode", "").strip() == TlsMode.enforcing.name:
            given.setdefault("tls.enable", "true")  # as Java's NettyClientConfig
        return cls(**convert_known(cls, given))

    @property
    def has_server_certificate(self) -> bool:
        """Whether a server has a certificate that others can verify."""
        return bool(self.server_cert_path) and not self.test_mode

    @property
    def is_self_signed(self) -> bool:
        """Whether a server makes its certificate. Half of a configured one is a mistake, and not nothing."""
        if self.test_mode is None:
            return not (self.server_cert_path or self.server_key_path)
        return self.test_mode

    def server_files(self) -> list[str]:
        """The files that a server's context is made of."""
        paths = (self.server_cert_path, self.server_key_path, self.server_trust_cert_path)
        return [path for path in paths if path]

    def client_files(self) -> list[str]:
        """The files that a client's context is made of."""
        paths = (self.client_cert_path, self.client_key_path, self.client_trust_cert_path)
        return [path for path in paths if path]

    def server_context(self) -> ssl.SSLContext:
        """A context for connections that come. The first that is self-signed takes some 20 ms."""
        context = self.server_checks()
        if self.is_self_signed:
            load_self_signed(context)
        else:
            _load_certificate(context, self.server_cert_path, self.server_key_path, self.server_key_password)
        return context

    def server_checks(self) -> ssl.SSLContext:
        """A server's context but for its certificate. ConfigError if there is none and none may be made."""
        if not self.server_cert_path and not self.is_self_signed:
            raise ConfigError(
                "TLS needs a certificate: set tls.server.certPath and tls.server.keyPath, or leave out both"
                " and tls.test.mode.enable=false, or set tls.server.mode=disabled"
            )
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        if self.test_mode:
            return context
        if self.server_auth_client:
            _load_trust(context, self.server_trust_cert_path, ssl.Purpose.CLIENT_AUTH)
            context.verify_mode = self.server_need_client_auth.value
        elif self.server_need_client_auth is not ClientAuth.none:
            log.warning(
                "tls.server.need.client.auth=%s has no effect without tls.server.authClient=true: clients are"
                " not asked for a certificate that nobody would verify",
                self.server_need_client_auth.name,
            )
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context for connections that are made."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        if self.test_mode or not self.client_auth_server:
            context.verify_mode = ssl.CERT_NONE
        else:
            context.verify_mode = ssl.CERT_REQUIRED
            _load_trust(context, self.client_trust_cert_path, ssl.Purpose.SERVER_AUTH)
        if self.client_cert_path and not self.test_mode:
            _load_certificate(context, self.client_cert_path, self.client_key_path, self.client_key_password)
        return context

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.protocols:
            versions = sorted(_version(name.strip()) for name in self.protocols.split(","))
            context.minimum_version, context.maximum_version = versions[0], versions[-1]
        if self.ciphers:
            names = [_openssl_name(name.strip()) for name in self.ciphers.split(",")]
            try:
                context.set_ciphers(":".join(names))
            except ssl.SSLError:
                raise ConfigError(f"tls.ciphers={self.ciphers}: none of them is known") from None
        return context


class RenewedContext:
    """A context that is made again when its files have changed.

    A renewal writes one file after the other: while they do not fit together, or are gone, the context made
    of the old ones stays.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], paths: list[str]) -> None:
        self._make = make
        self._paths = paths
        self._stamps = _stamps(paths)  # before they are read: a change meanwhile is seen the next time
        self._context = make()
        self._checked = time.monotonic()

    def get(self) -> ssl.SSLContext:
        """The context for the next connection."""
        now = time.monotonic()
        if now - self._checked < RELOAD_CHECK_S:
            return self._context
        self._checked = now
        stamps = _stamps(self._paths)
        if stamps == self._stamps or None in stamps:
            return self._context
        self._stamps = stamps
        try:
            self._context = self._make()
        except ConfigError as error:
            log.warning("certificates have changed and cannot be used, the old ones stay: %s", error)
        else:
            log.info("certificates have changed: new connections get the new ones")
        return self._context


def renewed_server_context(config: TlsConfig) -> ssl.SSLContext:
    """A context for a server that is given one and keeps it: new connections get renewed certificates."""
    renewed = RenewedContext(config.server_context, config.server_files())

    def renew(connection: ssl.SSLObject, server_name: str | None, context: ssl.SSLContext) -> None:
        connection.context = renewed.get()

    context = config.server_context()
    context.sni_callback = renew  # called for each connection, whether it names a server or not
    return context


def _stamps(paths: list[str]) -> list[tuple[int, int, int] | None]:
    """What tells one content of a file from another without reading it; None of a file that is not there."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return stamps


def _is_there(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.R_OK)  # what Java asks of it


def _load_certificate(context: ssl.SSLContext, cert_path: str, key_path: str, password: str) -> None:
    try:
        # A password that is empty, and not None: OpenSSL would ask for it at the terminal.
        context.load_cert_chain(cert_path, key_path or None, password=password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"certificate {cert_path} with key {key_path or cert_path}: {error}") from error


def _load_trust(context: ssl.SSLContext, path: str, purpose: ssl.Purpose) -> None:
    if not path:
        context.load_default_certs(purpose)
        return
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"trusted certificates {path}: {error}") from error


def _version(name: str) -> ssl.TLSVersion:
    try:
        return {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}[name]
    except KeyError:
        raise ConfigError(f"tls.protocols: {name} is neither TLSv1.2 nor TLSv1.3") from None


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a cipher from Java's, AES128-SHA256 of TLS_RSA_WITH_AES_128_CBC_SHA256.

    Those of TLS 1.3 are always on and have no other name.
    """
    name = name.removeprefix("TLS_").removeprefix("RSA_WITH_").replace("_WITH_", "_").replace("_CBC_", "_")
    return re.sub(r"(AES|CAMELLIA)_(\d+)", r"\1\2", name).replace("_", "-")
