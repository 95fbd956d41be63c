"""ConsoleConfig: how a console is run, and what of that is refused."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from kourou.auth.model import is_loopback
from kourou.errors import ConfigError
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig

DEFAULT_PORT = 8088


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """How a console is run.

    namesrv: addresses of name servers, joined by `;`.
    users_file: who may log in; without one nobody has to, and only this machine is listened to.
    allowed_hosts: names that the console is called by, besides localhost, addresses and `host`.
    trusted_proxies: addresses and networks of proxies whose X-Forwarded-For is believed.
    cluster_tls, credentials: how and as whom the cluster is asked.
    stores: store directories that may be looked into, whoever asks.
    jobs_directory: where Spark jobs write; without one there are none.
    """

    namesrv: str
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    users_file: Path | None = None
    read_only: bool = False
    insecure: bool = False
    allowed_hosts: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    cluster_tls: TlsConfig | None = None
    credentials: Credentials | None = None
    stores: tuple[Path, ...] = ()
    jobs_directory: Path | None = None
    trusted_proxies: tuple[str, ...] = ()

    def check(self) -> None:
        """ConfigError if this would be unsafe, or cannot be."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key belong together: give both, or none")
        for file in (self.tls_cert, self.tls_key):
            if file is not None and not file.is_file():
                raise ConfigError(f"{file} is not there: give a certificate and its key in PEM files")
        for text in self.trusted_proxies:
            try:
                ipaddress.ip_network(text, strict=False)
            except ValueError as error:
                raise ConfigError(
                    f"--trust-proxy {text}: it is an address or a network, such as 10.0.0.7 or 10.1.0.0/16"
                ) from error
        if self.users_file is None and not self.insecure and not is_loopback(self.host):
            raise ConfigError(
                f"without users the console listens on 127.0.0.1 only, not on {self.host}: make users with"
                " `kourou console add-user` and give --users FILE (or --insecure, to let everybody in)"
            )
