"""What a signature of RocketMQ holds, and what it does not: it has neither time nor number in it, and covers
the values of fields and the body, not the code of a request nor the names of its fields."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.auth import Acl
from kourou.remoting.protocol import headers
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import Header, plan_of
from kourou.remoting.signing import Credentials, signature_of
from support.sites.broker import Peer, Site, running, send_request

ADMIN, APP = Credentials("admin", "admin-secret"), Credentials("app", "app-secret")
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
}
MINE = {"resource": "Topic:mine", "actions": ["Pub"], "decision": "Allow"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A broker that wants signatures, and a user who may send to one topic."""
    directory: Path = tmp_path_factory.mktemp("signed")
    with running(directory, GUARDED) as made:
        for topic in ("mine", "theirs"):
            made.make_topic(topic)
        tables = made.broker.access
        made.do(tables.create_user, {"username": "app", "password": "app-secret"})
        acl = Acl.from_json({"subject": "User:app", "policies": [{"entries": [MINE]}]})
        made.do(tables.put_acl, acl)
        yield made


def ask(site: Site, request: RemotingCommand) -> int:
    """The code of the answer, on a connection of its own."""
    with contextlib.closing(Peer(site.port)) as peer:
        return peer.call(request).code


def changed(request: RemotingCommand, **values: str) -> RemotingCommand:
    return RemotingCommand(request.code, {**request.ext_fields, **values}, request.body)


def test_a_copy_is_as_good_as_the_first_until_the_user_is_changed(site):
    """From another connection, and as often as somebody likes: only TLS keeps it from who listens."""
    signed = APP.sign(send_request("mine"))
    for _ in range(3):
        copy = RemotingCommand(signed.code, dict(signed.ext_fields), signed.body)
        assert ask(site, copy) == ResponseCode.SUCCESS
    site.do(site.broker.access.update_user, {"username": "app", "password": "renewed"})
    assert ask(site, changed(signed)) == ResponseCode.NO_PERMISSION
    site.do(site.broker.access.update_user, {"username": "app", "password": "app-secret"})
    assert ask(site, changed(signed)) == ResponseCode.SUCCESS
    site.do(site.broker.access.update_user, {"username": "app", "userStatus": "disable"})
    assert ask(site, changed(signed)) == ResponseCode.NO_PERMISSION
    site.do(site.broker.access.update_user, {"username": "app", "userStatus": "enable"})


def test_a_copy_does_nothing_that_its_user_may_not_do(site):
    """The code is not signed: another one is let through to the lists, which do not allow it."""
    signed = APP.sign(send_request("mine"))
    before = site.log_end()
    for code in (
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.DELETE_TOPIC_IN_BROKER,
    ):
        other = RemotingCommand(code, dict(signed.ext_fields), signed.body)
        assert signature_of(other.ext_fields, other.body, APP.secret_key) == other.ext_fields["Signature"]
        assert ask(site, other) == ResponseCode.NO_PERMISSION
    assert site.log_end() == before


@pytest.mark.parametrize(
    "values",
    [
        {"b": "theirs"},
        {"b": "theirs", "a": "p"},
        {"AccessKey": "admin"},
        {"accessKey": "admin"},
        {"SecurityToken": "x"},
        {"Signature": ""},
        {"Signature": "x"},
        {"Signature": "\U0001f600"},
        {"new": "field"},
    ],
    ids=str,
)
def test_whatever_is_changed_of_a_signed_request_is_seen(site, values):
    signed = APP.sign(send_request("mine"))
    before = site.log_end()
    assert ask(site, changed(signed, **values)) == ResponseCode.NO_PERMISSION
    assert site.log_end() == before


def test_a_body_that_is_changed_is_seen(site):
    signed = APP.sign(send_request("mine", b"one"))
    for body in (b"two", b"", None, b"one" * 1000):
        request = RemotingCommand(signed.code, dict(signed.ext_fields), body)
        assert ask(site, request) == ResponseCode.NO_PERMISSION


def test_names_of_users_are_compared_as_they_are(site):
    for name in ("Admin", "admin ", " admin", "admin\x00", "ADMIN", "admin\n", ""):
        assert (
            ask(site, Credentials(name, "admin-secret").sign(send_request("mine")))
            == ResponseCode.NO_PERMISSION
        )


HEADERS = sorted(
    (found for found in vars(headers).values() if isinstance(found, type) and issubclass(found, Header)),
    key=lambda found: found.__name__,
)


@pytest.mark.parametrize("header", [found for found in HEADERS if found is not Header])
def test_an_empty_field_that_is_added_decides_nothing(header):
    """It adds nothing to what is signed: a text that is empty is as one that is missing."""
    values = {"str": "x", "Int": "1", "Long": "1", "bool": "true"}
    given = {
        wire: str(header._allowed.get(name, (values[kind],))[0])
        for name, wire, kind, required, _ in plan_of(header)
        if required
    }
    plain = header.read(RemotingCommand(1, given))
    for _, wire, _, required, _ in plan_of(header):
        if not required:
            assert header.read(RemotingCommand(1, {**given, wire: ""})) == plain, wire
