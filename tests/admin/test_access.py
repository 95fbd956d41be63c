"""`kourou admin user` and `kourou admin acl`, at brokers that want to know who asks: ours and Java's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from kourou.cli import app
from support.guarded import ADMIN, SECRET, guarded_broker
from support.java import java


class Guarded:
    """A guarded broker, and the command line of its super user."""

    def __init__(self, namesrv: str) -> None:
        self._namesrv = namesrv

    def run(self, *arguments: str, user: tuple[str, str] | None = (ADMIN, SECRET)) -> Any:
        environment = {"NAMESRV_ADDR": self._namesrv}
        if user is not None:
            environment |= {"KOUROU_ACCESS_KEY": user[0], "KOUROU_SECRET_KEY": user[1]}
        return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.fixture(scope="module", params=["kourou", pytest.param("java", marks=pytest.mark.interop)])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if request.param == "java":
        java()
    with guarded_broker(request.param, tmp_path_factory.mktemp(request.param)) as (name_server, _):
        yield Guarded(name_server.address)


def admin(guarded: Guarded, *arguments: str, code: int = 0) -> str:
    done = guarded.run("admin", *arguments)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def rows(guarded: Guarded, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in admin(guarded, *arguments, "--json").splitlines()]


def test_users(guarded: Guarded) -> None:
    admin(guarded, "user", "create", "app", "--password", "app-secret")
    admin(guarded, "user", "create", "boss", "--password", "x", "--super")
    assert {(one["user"], one["type"], one["status"]) for one in rows(guarded, "user", "list")} == {
        (ADMIN, "Super", "enable"),
        ("app", "Normal", "enable"),
        ("boss", "Super", "enable"),
    }
    assert "app-secret" not in admin(guarded, "user", "list", "app")
    admin(guarded, "user", "create", "app", "--password", "again", code=1)
    admin(guarded, "user", "update", "boss", "--type", "Normal", "--status", "disable")
    (boss,) = rows(guarded, "user", "list", "boss")
    assert (boss["type"], boss["status"]) == ("Normal", "disable")
    admin(guarded, "user", "update", "boss", code=2)
    admin(guarded, "user", "delete", "boss", code=2)
    admin(guarded, "user", "delete", "boss", "--yes")
    assert rows(guarded, "user", "list", "boss") == []


def test_lists_count_for_whoever_asks(guarded: Guarded) -> None:
    admin(guarded, "user", "create", "maker", "--password", "maker-secret")
    maker = "maker", "maker-secret"
    cluster = ("-c", "DefaultCluster")
    assert guarded.run("admin", "topic", "create", "mine", *cluster, user=maker).exit_code == 1
    assert guarded.run("admin", "topic", "create", "mine", *cluster, user=None).exit_code == 1
    admin(guarded, "acl", "allow", "maker", "Topic:mine*", "Create", "--from", "127.0.0.0/8")
    assert guarded.run("admin", "topic", "create", "mine", *cluster, user=maker).exit_code == 0
    admin(guarded, "acl", "deny", "maker", "Topic:mine-too", "Create")
    refused = guarded.run("admin", "topic", "create", "mine-too", *cluster, user=maker)
    assert refused.exit_code == 1
    assert "rights of the user" in refused.stderr
    found = {one["resource"]: one for one in rows(guarded, "acl", "list", "maker")}
    assert found["Topic:mine*"]["from"] == "127.0.0.0/8"
    assert (found["Topic:mine-too"]["decision"], found["Topic:mine-too"]["actions"]) == ("Deny", "Create")
    admin(guarded, "acl", "delete", "maker", "Topic:mine-too", "--yes")
    assert [one["resource"] for one in rows(guarded, "acl", "list", "maker")] == ["Topic:mine*"]
    admin(guarded, "acl", "delete", "maker", "--yes")
    assert rows(guarded, "acl", "list", "maker") == []
