"""Who may do what: users and their passwords, sessions, roles, read-only, and how often one may guess."""

from __future__ import annotations

import json
import stat

import pytest

from kourou.console.config import ConsoleConfig
from kourou.console.door.sessions import IDLE_S, Access, ForbiddenError
from kourou.console.door.users import Role, Users, hash_password, is_password
from kourou.errors import ConfigError


class Time:
    """A clock that is set."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


# Users


def test_a_password_is_known_by_a_salted_hash():
    one, other = hash_password("correct horse"), hash_password("correct horse")
    assert one != other
    assert "correct" not in one
    assert is_password("correct horse", one)
    assert is_password("correct horse", other)
    assert not is_password("correct hors", one)


@pytest.mark.parametrize("damaged", ["", "scrypt", "md5$1$1$1$00$00", "scrypt$16384$8$1$zz$00"])
def test_a_hash_of_no_use_lets_nobody_in(damaged):
    assert not is_password("", damaged)
    assert not is_password("correct horse", damaged)


def test_users_are_kept_in_a_file_for_its_owner_alone(tmp_path):
    file = tmp_path / "users.json"
    users = Users(file)
    users.put("ann", Role.OPERATOR, "correct horse")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "correct horse" not in file.read_text()
    assert users.verify("ann", "correct horse")
    assert not users.verify("ann", "wrong password")
    assert not users.verify("bob", "correct horse")
    assert Users(file).names() == {"ann": Role.OPERATOR}


def test_a_change_of_the_file_counts_at_once(tmp_path):
    file = tmp_path / "users.json"
    seen = Users(file)
    Users(file).put("ann", Role.VIEWER, "correct horse")
    assert seen.role("ann") is Role.VIEWER
    Users(file).put("ann", Role.ADMIN, "another horse")
    assert seen.role("ann") is Role.ADMIN
    assert not seen.verify("ann", "correct horse")
    Users(file).remove("ann")
    assert seen.role("ann") is None


@pytest.mark.parametrize(
    ("name", "password"), [("a b", "correct horse"), ("", "correct horse"), ("ann", "short")]
)
def test_names_and_passwords_of_no_use_are_refused(tmp_path, name, password):
    with pytest.raises(ConfigError):
        Users(tmp_path / "users.json").put(name, Role.VIEWER, password)


@pytest.mark.parametrize("text", ["", "{}", '{"users": {"ann": {"role": "king", "hash": "x"}}}', "[1]"])
def test_a_file_that_is_none_of_users_is_refused(tmp_path, text):
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match="add-user"):
        Users(file).names()


# Sessions and roles


@pytest.fixture
def users(tmp_path) -> Users:
    found = Users(tmp_path / "users.json")
    for role in Role:
        found.put(role.name.lower(), role, "correct horse")
    return found


def test_each_role_may_do_what_those_before_it_may(users):
    access = Access(users)
    allowed = {
        role: [wanted for wanted in Role if access.may(access.open(role.name.lower()), wanted)]
        for role in Role
    }
    assert allowed == {
        Role.VIEWER: [Role.VIEWER],
        Role.OPERATOR: [Role.VIEWER, Role.OPERATOR],
        Role.ADMIN: [Role.VIEWER, Role.OPERATOR, Role.ADMIN],
    }
    with pytest.raises(ForbiddenError, match="needs the role admin"):
        access.check(access.open("operator"), Role.ADMIN)


@pytest.mark.parametrize("with_users", [True, False])
def test_read_only_refuses_every_change(users, with_users):
    access = Access(users if with_users else None, read_only=True)
    session = access.open("admin") if with_users else access.find(None)
    assert session is not None
    access.check(session, Role.VIEWER)
    for role in (Role.OPERATOR, Role.ADMIN):
        with pytest.raises(ForbiddenError, match="read-only"):
            access.check(session, role)


def test_a_session_ends_with_its_logout_its_user_and_idleness(users):
    time = Time()
    access = Access(users, now_s=time)
    session = access.open("viewer")
    assert access.find(session.token) is session
    assert access.find("guessed") is None
    assert access.find(None) is None
    time.now_s += IDLE_S - 1
    assert access.find(session.token) is session
    time.now_s += IDLE_S + 1
    assert access.find(session.token) is None

    session = access.open("viewer")
    access.close(session.token)
    assert access.find(session.token) is None
    assert not access.may(session, Role.VIEWER)  # nor does a tab that is still open

    session = access.open("viewer")
    users.remove("viewer")
    assert access.find(session.token) is None
    with pytest.raises(ForbiddenError, match="log in again"):
        access.check(session, Role.VIEWER)


def test_without_a_file_that_can_be_read_nobody_is_let_in(users, tmp_path):
    access = Access(users)
    session = access.open("admin")
    (tmp_path / "users.json").write_text("damaged")
    assert access.find(session.token) is None


def test_without_users_everybody_may_do_everything():
    access = Access(None)
    session = access.find(None)
    assert session is not None
    assert access.may(session, Role.ADMIN)


# What is refused at the start


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com"])
def test_without_users_it_listens_to_this_machine_only(host, tmp_path):
    with pytest.raises(ConfigError, match="--users"):
        ConsoleConfig("127.0.0.1:9876", host).check()
    ConsoleConfig("127.0.0.1:9876", host, insecure=True).check()
    ConsoleConfig("127.0.0.1:9876", host, users_file=tmp_path / "users.json").check()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost"])
def test_this_machine_needs_no_users(host):
    ConsoleConfig("127.0.0.1:9876", host).check()


def test_a_certificate_needs_its_key(tmp_path):
    with pytest.raises(ConfigError, match="belong together"):
        ConsoleConfig("127.0.0.1:9876", tls_cert=tmp_path / "cert.pem").check()
    with pytest.raises(ConfigError, match="not there"):
        ConsoleConfig("a:1", tls_cert=tmp_path / "cert.pem", tls_key=tmp_path / "key.pem").check()


def test_a_proxy_is_an_address_or_a_network():
    ConsoleConfig("a:1", trusted_proxies=("10.0.0.7", "2001:db8::/32")).check()
    with pytest.raises(ConfigError, match="--trust-proxy my-proxy"):
        ConsoleConfig("a:1", trusted_proxies=("my-proxy",)).check()


def test_the_file_of_users_is_json(users, tmp_path):
    found = json.loads((tmp_path / "users.json").read_text())
    assert set(found["users"]) == {"viewer", "operator", "admin"}
