"""The brokers of `python -m benchmarks profiles`, and whether what a profile asks for is in effect."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.beside_java.broker_processes import HOST, Broker, CannotRunError, ask, free_ports, running
from benchmarks.beside_java.profile_rows import BASE, EXT, Profile
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.signing import Credentials

ADMIN = Credentials("admin", "bench-admin-secret")
USER = Credentials("bench", "bench-user-secret")
_PROVIDERS = "org.apache.rocketmq.auth"
_EXT_UNIT_HEAD_BYTES = 20
HTTP_TIMEOUT_S = 10


class Site(NamedTuple):
    """A broker that runs as a profile says, or some that share it."""

    broker: Broker
    profile: Profile
    root: Path
    config: dict[str, Any]

    def ask(self, code: RequestCode, body: Any = None, **fields: str) -> bytes:
        """The body of an answer, which must be one of success."""
        credentials = ADMIN if self.profile.access_control else None
        text = None if body is None else json.dumps(body).encode()
        answer = ask(self.broker.address, code, text, credentials, **fields)
        if answer.code != ResponseCode.SUCCESS:
            raise self.wrong(f"{code.name} is answered by {answer.code}, {answer.remark}")
        return bytes(answer.body or b"")

    def wrong(self, what: str) -> CannotRunError:
        """The error that says so."""
        return CannotRunError(f"{self.profile.title}: {self.broker.name}: {what}")


@contextlib.contextmanager
def running_site(name: str, root: Path, profile: Profile, java_options: str) -> Iterator[Site]:
    """A broker of a profile, paused."""
    config: dict[str, Any] = {**BASE, **profile.config}
    if profile.access_control:
        config |= _access_config(root)
    if profile.metrics:
        config |= {
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": HOST,
            "metricsPromExporterPort": free_ports(0),
        }
    credentials = ADMIN if profile.access_control else None
    with running(name, root, java_options, config, credentials=credentials, stop_timeout_s=0) as broker:
        site = Site(broker, profile, root, config)
        if profile.access_control:
            _add_user(site)
        broker.pause()
        yield site


def _access_config(root: Path) -> dict[str, Any]:
    known, allowed = f"{_PROVIDERS}.authentication.provider", f"{_PROVIDERS}.authorization.provider"
    secrets = {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationProvider": f"{known}.DefaultAuthenticationProvider",
        "authenticationMetadataProvider": f"{known}.LocalAuthenticationMetadataProvider",
        "authorizationProvider": f"{allowed}.DefaultAuthorizationProvider",
        "authorizationMetadataProvider": f"{allowed}.LocalAuthorizationMetadataProvider",
        "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps(secrets),
        "authConfigPath": root / "auth",
    }


def _add_user(site: Site) -> None:
    """A normal user, whose rights are looked up for each request; a super user's are not."""
    user = {"username": USER.access_key, "password": USER.secret_key, "userType": "Normal"}
    site.ask(RequestCode.AUTH_CREATE_USER, user, username=USER.access_key)
    entries = [
        {"resource": resource, "actions": ["All"], "sourceIps": [], "decision": "Allow"}
        for resource in ("Topic:*", "Group:*")
    ]
    subject = f"User:{USER.access_key}"
    rights = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
    site.ask(RequestCode.AUTH_CREATE_ACL, rights, subject=subject)


# ---------------------------------------------------------------- whether it is in effect


def check(site: Site, topic: str) -> None:
    """CannotRunError unless what the profile asks for is in effect, after some load on a topic.

    What shows in the messages themselves mqload has checked.
    """
    _check_config(site)
    if site.profile.access_control:
        _check_access(site)
    if site.profile.metrics:
        _check_metrics(site, topic)
    if EXT.items() <= site.profile.config.items():
        _check_ext(site, topic)


def _check_config(site: Site) -> None:
    lines = site.ask(RequestCode.GET_BROKER_CONFIG).decode().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    for key, value in {**BASE, **site.profile.config}.items():
        if found.get(key) != value:
            raise site.wrong(f"{key} is {found.get(key)}, not {value}")


def _check_access(site: Site) -> None:
    wrong = Credentials(USER.access_key, "not its secret")
    for credentials in (None, wrong):
        answer = ask(
            site.broker.address, RequestCode.GET_MAX_OFFSET, None, credentials, topic="TBW102", queueId="0"
        )
        if answer.code != ResponseCode.NO_PERMISSION:
            raise site.wrong(f"a request of {credentials} is answered by {answer.code}, {answer.remark}")


def _check_metrics(site: Site, topic: str) -> None:
    url = f"http://{HOST}:{site.config.get('metricsPromExporterPort')}/metrics"
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as answer:
            lines = answer.read().decode().splitlines()
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise site.wrong(f"no metrics at {url}: {error}") from error
    counted = [
        float(line.rpartition("}")[2].split()[0])
        for line in lines
        if line.startswith("rocketmq_messages_in_total{") and f'topic="{topic}"' in line
    ]
    if sum(counted) < 1:
        raise site.wrong(f"{url} counts no messages of {topic}")


def _check_ext(site: Site, topic: str) -> None:
    """The first unit of each queue has a bit map (the layout is in store/queue/consume_queue_ext.py)."""
    files = sorted((site.root / "store" / "consumequeue_ext" / topic).glob("*/*"))
    if not files:
        raise site.wrong(f"no consumequeue_ext of {topic}")
    for path in files:
        with path.open("rb") as file:
            head = file.read(_EXT_UNIT_HEAD_BYTES)
        if int.from_bytes(head[18:20], "big") == 0:
            raise site.wrong(f"no bit map in {path}")
