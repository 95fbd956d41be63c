"""Who may do what: every request of a broker and a name server, by everybody who may or may not ask."""

from __future__ import annotations

import os
import stat

import pytest

from kourou.auth import AccessError, AccessTables, Acl, AuthConfig, Guard, Resource
from kourou.auth.model import ALLOW, DENY
from kourou.auth.rules import RULES, needs_of
from kourou.errors import ConfigError
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import Credentials
from support.sites.access import SERVED, request_of

PEER = "127.0.0.1:4711"
SUPER = Credentials("admin", "secret")
APP = Credentials("app", "app-secret")


@pytest.fixture
def tables(tmp_path):
    tables = AccessTables(tmp_path)
    tables.open(AuthConfig(True, True, first_user=SUPER))
    tables.create_user({"username": APP.access_key, "password": APP.secret_key})
    return tables


@pytest.fixture
def guard(tables):
    return Guard(AuthConfig(True, True), tables, lambda: "C")


def allow(tables, *resources, actions=("All",), decision=ALLOW, ips=(), policy="Custom"):
    entries = [
        {"resource": text, "actions": list(actions), "decision": decision, "sourceIps": list(ips)}
        for text in resources
    ]
    tables.put_acl(
        Acl.from_json({"subject": "User:app", "policies": [{"policyType": policy, "entries": entries}]})
    )


def may(guard, request, peer=PEER):
    try:
        guard.check(request, peer)
    except AccessError:
        return False
    return True


def test_every_request_has_a_rule():
    assert [code for code in SERVED if code not in RULES] == []


@pytest.mark.parametrize("code", SERVED, ids=lambda code: RequestCode(code).name)
def test_every_request_is_refused_if_anything_was_changed_after_it_was_signed(guard, code):
    for change in ("field", "new field", "body"):
        request = SUPER.sign(request_of(code))
        if change == "body":
            request.body = bytes(request.body or b"") + b" "
        else:
            request.ext_fields["topic" if change == "field" else "zz"] = "other"
        assert not may(guard, request), change


def test_what_java_leaves_open_is_the_clusters():
    for code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG, 424242):
        assert [str(need.resource) for need in needs_of(RemotingCommand(code, {}), "C")] == ["Cluster:C"]


def test_a_request_that_does_not_say_what_it_is_about_is_refused(guard):
    assert not may(guard, APP.sign(RemotingCommand(RequestCode.SEND_MESSAGE_V2, {})))
    assert not may(guard, APP.sign(RemotingCommand(RequestCode.HEART_BEAT, {}, b"no json")))


def test_a_cluster_that_a_request_names_does_not_help_where_it_is_of_no_use(guard, tables):
    allow(tables, "Cluster:mine")
    assert may(guard, APP.sign(request_of(RequestCode.REGISTER_BROKER, clusterName="mine")))
    assert not may(guard, APP.sign(request_of(RequestCode.PUT_KV_CONFIG, clusterName="mine")))
    assert not may(guard, APP.sign(request_of(RequestCode.UPDATE_BROKER_CONFIG, clusterName="mine")))


def test_the_most_specific_entry_decides(tables, guard):
    send = RequestCode.SEND_MESSAGE_V2
    allow(tables, "*", decision=DENY)
    assert not may(guard, APP.sign(request_of(send)))
    allow(tables, "Topic:*")
    assert may(guard, APP.sign(request_of(send)))
    allow(tables, "Topic:or*", decision=DENY)
    assert not may(guard, APP.sign(request_of(send, b="orders")))
    allow(tables, "Topic:ord*")
    assert may(guard, APP.sign(request_of(send, b="orders")))
    allow(tables, "Topic:orders", decision=DENY)
    assert not may(guard, APP.sign(request_of(send, b="orders")))
    assert may(guard, APP.sign(request_of(send, b="orders2")))


def test_entries_of_the_default_policy_count_where_no_other_fits(tables, guard):
    allow(tables, "Topic:T", policy="Default")
    assert may(guard, APP.sign(request_of(RequestCode.SEND_MESSAGE_V2)))
    allow(tables, "Topic:T", decision=DENY)
    assert not may(guard, APP.sign(request_of(RequestCode.SEND_MESSAGE_V2)))


@pytest.mark.parametrize(
    ("peer", "allowed"),
    [
        ("10.1.2.3:1", True),
        ("11.1.2.3:1", False),
        ("[::ffff:10.0.0.9]:1", True),
        ("[fe80::1]:1", False),
        ("", False),
    ],
)
def test_an_entry_may_be_for_addresses(tables, guard, peer, allowed):
    allow(tables, "Topic:T", ips=["10.0.0.0/8", "192.0.2.7"])
    assert may(guard, APP.sign(request_of(RequestCode.SEND_MESSAGE_V2)), peer) is allowed


def test_a_retry_topic_is_its_groups(tables, guard):
    request = APP.sign(request_of(RequestCode.SEND_MESSAGE_V2, b="%RETRY%G"))
    allow(tables, "Topic:*")
    assert not may(guard, request)
    allow(tables, "Group:G", actions=["Sub"])
    assert may(guard, request)


def test_changes_count_at_once(tables, guard):
    request = APP.sign(request_of(RequestCode.SEND_MESSAGE_V2))
    allow(tables, "Topic:T")
    assert may(guard, request)
    tables.delete_acl("User:app", "Custom", Resource.parse("Topic:T"))
    assert not may(guard, request)
    tables.update_user({"username": "app", "userType": "super"})
    assert may(guard, request)
    tables.update_user({"username": "app", "userStatus": "disable"})
    assert not may(guard, request)
    tables.update_user({"username": "app", "userStatus": "enable", "password": "another"})
    assert not may(guard, request)
    tables.delete_user("app")
    assert not may(guard, Credentials("app", "another").sign(request_of(RequestCode.SEND_MESSAGE_V2)))


def test_requests_of_the_white_lists_are_served_to_anybody(tables):
    route = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    guard = Guard(AuthConfig(True, True, frozenset({route}), frozenset({route})), tables, lambda: "C")
    assert may(guard, request_of(route))
    half = Guard(AuthConfig(True, True, frozenset({route})), tables, lambda: "C")
    assert not may(half, request_of(route))


def test_without_authorisation_whoever_is_known_may_do_everything(tables):
    guard = Guard(AuthConfig(True, False), tables, lambda: "C")
    assert may(guard, APP.sign(request_of(RequestCode.UPDATE_BROKER_CONFIG)))
    assert not may(guard, request_of(RequestCode.SEND_MESSAGE_V2))


def test_users_and_lists_are_on_the_disk_and_nobody_else_reads_them(tables, tmp_path):
    allow(tables, "Topic:T", ips=["10.0.0.1"])
    again = AccessTables(tmp_path)
    again.open(AuthConfig())
    assert again.users == tables.users
    assert again.acls == tables.acls
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600, file
    (tmp_path / "users.json").write_text("[{")
    with pytest.raises(ConfigError, match="repair it"):
        AccessTables(tmp_path).open(AuthConfig())


def test_secrets_are_not_shown():
    config = AuthConfig(True, True, first_user=SUPER, inner=SUPER)
    assert "secret'" not in repr(config) + repr(SUPER)


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"authorizationEnabled": "true"}, "authenticationEnabled"),
        ({"authenticationEnabled": "yes"}, "true or false"),
        ({"authenticationWhitelist": "10,x"}, "x is no request code"),
        ({"initAuthenticationUser": "admin"}, "initAuthenticationUser"),
    ],
)
def test_a_configuration_of_no_use_is_refused(properties, says):
    with pytest.raises(ConfigError, match=says):
        AuthConfig.read(properties)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"resource": "Topic", "actions": ["Pub"], "decision": "Allow"}, "no resource"),
        ({"resource": "Queue:a", "actions": ["Pub"], "decision": "Allow"}, "no resource"),
        ({"resource": "Topic:a", "actions": ["Fly"], "decision": "Allow"}, "actions"),
        ({"resource": "Topic:a", "actions": ["Pub"], "decision": "Maybe"}, "decision"),
        (
            {"resource": "Topic:a", "actions": ["Pub"], "decision": "Deny", "sourceIps": ["10.0.0"]},
            "source ip",
        ),
    ],
)
def test_an_entry_of_no_use_is_refused(entry, says):
    with pytest.raises(AccessError, match=says):
        Acl.from_json({"subject": "User:a", "policies": [{"entries": [entry]}]})
