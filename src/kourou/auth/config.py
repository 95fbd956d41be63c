"""AuthConfig: Java's keys of authentication and authorisation, from a server's properties."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from kourou.errors import ConfigError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.signing import Credentials

KEYS = frozenset(
    (
        "authenticationEnabled", "authorizationEnabled", "authenticationWhitelist", "authorizationWhitelist",
        "initAuthenticationUser", "innerClientAuthenticationCredentials", "authConfigPath",
        "haAuthenticationEnable", "haTrustedSlaves",
    )
)  # fmt: skip


SECRETS = frozenset(
    (
        "initAuthenticationUser", "innerClientAuthenticationCredentials", "tls.server.keyPassword",
        "tls.client.keyPassword", "metricsGrpcExporterHeader",
    )
)  # fmt: skip
STARS = "******"
_MESSAGES = "apache.rocketmq.v2."


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """What a server was told."""

    authentication_enabled: bool = False
    authorization_enabled: bool = False
    authentication_whitelist: frozenset[int | str] = frozenset()  # codes; names of messages, for a proxy
    authorization_whitelist: frozenset[int | str] = frozenset()
    first_user: Credentials | None = field(default=None, repr=False)
    inner: Credentials | None = field(default=None, repr=False)  # what this server asks others with
    directory: str | None = None
    # Master and slave prove who they are. False at a slave with access control: its master cannot, as Java's
    ha_authentication_enabled: bool = False
    ha_trusted_slaves: tuple[str, ...] = ()  # addresses and networks of slaves that are taken without it

    @classmethod
    def read(cls, properties: Mapping[str, str]) -> AuthConfig:
        """From properties; ConfigError names the key that is wrong."""
        enabled = is_true(properties, "authenticationEnabled")
        config = cls(
            enabled,
            is_true(properties, "authorizationEnabled"),
            _codes(properties, "authenticationWhitelist"),
            _codes(properties, "authorizationWhitelist"),
            _credentials(properties, "initAuthenticationUser", "username", "password"),
            _credentials(properties, "innerClientAuthenticationCredentials", "accessKey", "secretKey"),
            properties.get("authConfigPath") or None,
            is_true(properties, "haAuthenticationEnable", enabled),
            _networks(properties, "haTrustedSlaves"),
        )
        if config.authorization_enabled and not config.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true needs authenticationEnabled=true: else users are not checked"
            )
        return config


def is_true(properties: Mapping[str, str], key: str, default: bool = False) -> bool:
    """A key that is true or false; raises ConfigError if it is neither."""
    text = properties.get(key, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{key}={text}: it is true or false")
    return text == "true"


def _codes(properties: Mapping[str, str], key: str) -> frozenset[int | str]:
    found = [text.strip() for text in properties.get(key, "").split(",") if text.strip()]
    for text in found:
        if not text.isdecimal() and not text.startswith(_MESSAGES):
            raise ConfigError(
                f"{key}: {text} is no request code, such as 105, and no {_MESSAGES}QueryRouteRequest or such"
            )
    return frozenset(int(text) if text.isdecimal() else text for text in found)


def _networks(properties: Mapping[str, str], key: str) -> tuple[str, ...]:
    found = tuple(text.strip() for text in properties.get(key, "").split(",") if text.strip())
    for text in found:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise ConfigError(
                f"{key}: {text} is no address or network, such as 10.0.0.7,10.1.0.0/16"
            ) from error
    return found


def _credentials(properties: Mapping[str, str], key: str, name: str, secret: str) -> Credentials | None:
    text = properties.get(key, "").strip()
    if not text:
        return None
    try:
        value = lenient_json.loads(text.encode())
        return Credentials(str(value[name]), str(value[secret]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f'{key}: write {{"{name}":"…","{secret}":"…"}}') from error
