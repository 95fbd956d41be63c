"""A broker that wants to know who asks, Java's or ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.sites.servers import Server, java_broker, kourou_broker, kourou_name_server

BROKERS = {"kourou": kourou_broker, "java": java_broker}
KNOWN = "org.apache.rocketmq.auth.authentication.provider"
ALLOWED = "org.apache.rocketmq.auth.authorization.provider"
ADMIN, SECRET = "admin", "12345678"


@contextmanager
def guarded_broker(kind: str, directory: Path) -> Iterator[tuple[Server, Server]]:
    """A name server, and a broker whose super user is ADMIN."""
    config: dict[str, Any] = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProvider": f"{KNOWN}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{KNOWN}.LocalAuthenticationMetadataProvider",
        "authorizationProvider": f"{ALLOWED}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{ALLOWED}.LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": f'{{"username":"{ADMIN}","password":"{SECRET}"}}',
        "innerClientAuthenticationCredentials": f'{{"accessKey":"{ADMIN}","secretKey":"{SECRET}"}}',
        "authConfigPath": directory / "auth",
    }
    with (
        kourou_name_server(directory) as name_server,
        BROKERS[kind](directory, name_server.port, config) as broker,
    ):
        yield name_server, broker
