"""Users and lists at brokers that want to know who asks, ours and Java's: `kourou admin user` and
`kourou admin acl`, the verbs of `kourou mqadmin`, and Java's own at our broker."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kourou.cli import app
from kourou.cli.mqadmin.commands import verbs
from support.java import java
from support.sites.guarded import ADMIN, SECRET, guarded_broker
from support.sites.servers import mqadmin as java_mqadmin


class Guarded:
    """A guarded broker, and the command line of its super user."""

    def __init__(self, namesrv: str, broker: str, directory: Path) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.directory = directory

    def run(self, *arguments: str, user: tuple[str, str] | None = (ADMIN, SECRET)) -> Any:
        environment = {"NAMESRV_ADDR": self.namesrv, "COLUMNS": "200"}
        if user is not None:
            environment |= {"KOUROU_ACCESS_KEY": user[0], "KOUROU_SECRET_KEY": user[1]}
        return CliRunner().invoke(app, list(arguments), env=environment)


@pytest.fixture(scope="module")
def guarded_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Guarded]]:
    """The guarded broker of a kind, started when it is first asked for."""
    running: dict[str, Guarded] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Guarded:
            if kind not in running:
                if kind == "java":
                    java()
                directory = tmp_path_factory.mktemp(kind)
                name_server, broker = stack.enter_context(guarded_broker(kind, directory))
                running[kind] = Guarded(name_server.address, broker.address, directory)
            return running[kind]

        yield get


@pytest.fixture(params=["kourou", pytest.param("java", marks=pytest.mark.interop)])
def guarded(request: pytest.FixtureRequest, guarded_of: Callable[[str], Guarded]) -> Guarded:
    return guarded_of(request.param)


def admin(guarded: Guarded, *arguments: str, code: int = 0) -> str:
    done = guarded.run("admin", *arguments)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def rows(guarded: Guarded, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in admin(guarded, *arguments, "--json").splitlines()]


def test_users(guarded: Guarded) -> None:
    admin(guarded, "user", "create", "app", "--password", "app-secret")
    admin(guarded, "user", "create", "boss", "--password", "x", "--super")
    assert {(one["user"], one["type"], one["status"]) for one in rows(guarded, "user", "list")} >= {
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
    admin(guarded, "acl", "put", "maker", "Topic:a,Topic:b", "Pub", "--decision", "deny")
    assert {(one["resource"], one["decision"]) for one in rows(guarded, "acl", "list", "maker")} == {
        ("Topic:a", "Deny"),
        ("Topic:b", "Deny"),
    }
    admin(guarded, "acl", "put", "maker", "Topic:a", "Read", code=2)


# mqadmin


def plan(where: tuple[str, str], broker: str, user: str) -> list[tuple[list[str], str]]:
    """The verbs with their flags, in an order in which each finds what it needs, and what they must print."""
    subject, on = ("-s", f"User:{user}"), list(where)
    entry = ["-r", "Topic:orders*,Group:billing", "-a", "Pub,Sub", "-d", "Allow"]
    both = ["-f", broker, "-t", broker]
    return [
        (["createUser", *on, "-u", user, "-p", f"{user}-secret"], r"create user to \S+ success\."),
        (
            ["getUser", *on, "-u", user],
            rf"(?m)^#UserName +#Password +#UserType +#UserStatus *\n{user} .* Normal",
        ),
        (["updateUser", *on, "-u", user, "-s", "disable"], r"update user to \S+ success\."),
        (["listUser", *on, "-f", user], rf"(?m)^{user} .* Normal +disable"),
        (["updateUser", *on, "-u", user, "-t", "Super"], r"update user to \S+ success\."),
        (["updateUser", *on, "-u", user, "-p", "another"], r"update user to \S+ success\."),
        (["copyUser", *both, "-u", user], rf"copy user of {user} from {broker} to {broker} success\."),
        (["createAcl", *on, *subject, *entry], r"create acl to \S+ success\."),
        (["updateAcl", *on, *subject, *entry, "-i", "10.0.0.0/8"], r"update acl to \S+ success\."),
        (
            ["getAcl", *on, *subject],
            rf"(?m)^#Subject +#PolicyType +#Resource +#Actions +#SourceIp +#Decision *\nUser:{user} +Custom +"
            r"(Topic:orders\*|Group:billing) +\[Pub, Sub\] +\[10\.0\.0\.0/8\] +Allow",
        ),
        (["listAcl", *on, *subject, "-r", "billing"], rf"(?m)^User:{user} +Custom +Group:billing "),
        (["copyAcl", *both, *subject], rf"copy acl of User:{user} from {broker} to {broker} success\."),
        (["deleteAcl", *on, *subject, "-r", "Topic:orders*"], r"delete acl to \S+ success\."),
        (["getAcl", *on, *subject], r"\A(?!.*orders)(?s:.*)Group:billing"),
        (["deleteAcl", *on, *subject], r"delete acl to \S+ success\."),
        (["listAcl", *on, *subject], r"\A\Z"),
        (["deleteUser", *on, "-u", user], r"delete user to \S+ success\."),
        (["getUser", *on, "-u", user], r"\A\Z"),
    ]


@pytest.mark.parametrize("where", ["-b", "-c"])
def test_every_verb_of_mqadmin(guarded: Guarded, where: str) -> None:
    place = ("-b", guarded.broker) if where == "-b" else ("-c", "DefaultCluster")
    steps = plan(place, guarded.broker, f"by-verbs{where}")
    assert {arguments[0] for arguments, _ in steps} == {
        name for name, verb in verbs().items() if verb.run.__module__ == "kourou.cli.mqadmin.access"
    }
    for arguments, pattern in steps:
        done = guarded.run("mqadmin", *arguments)
        assert done.exit_code == 0, (arguments, done.output)
        assert re.search(pattern, done.stdout), (arguments, done.stdout)
        assert "secret" not in done.stdout
    wrong = guarded.run("mqadmin", "updateUser", *place, "-u", "x")
    assert (wrong.exit_code, "one of -p, -t, -s" in wrong.stderr) == (2, True)
    refused = guarded.run("mqadmin", "listUser", *place, user=None)
    assert (refused.exit_code, refused.stdout) == (1, "")


@pytest.mark.interop
def test_javas_own_verbs_work_at_our_broker(guarded_of: Callable[[str], Guarded]) -> None:
    """It signs as tools.yml says; and both print the same."""
    java()
    ours = guarded_of("kourou")
    conf = ours.directory / "home" / "conf"
    conf.mkdir(parents=True)
    (conf / "tools.yml").write_text(f"accessKey: {ADMIN}\nsecretKey: {SECRET}\n")
    steps = plan(("-b", ours.broker), ours.broker, "by-java")
    flags = ["-n", ours.namesrv]
    theirs = java_mqadmin(ours.directory, *([*arguments, *flags] for arguments, _ in steps))
    for (arguments, pattern), printed in zip(steps, theirs):
        shown = "\n".join(line for line in printed.splitlines() if " |-" not in line)  # of its logging
        assert re.search(pattern, shown.strip()), (arguments, printed)
        mine = ours.run("mqadmin", *arguments)
        assert words(mine.stdout) == words(shown), arguments


def words(text: str) -> list[list[str]]:
    """The words of each line, but for the secret of a user, which Java shows."""
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return sorted([*line[:1], *line[2:]] if line[0] == "by-java" else line for line in lines)


@pytest.mark.interop
@pytest.mark.parametrize(("source", "target"), [("java", "kourou"), ("kourou", "java")])
def test_users_and_lists_move_between_javas_brokers_and_ours(
    guarded_of: Callable[[str], Guarded], source: str, target: str
) -> None:
    old, new = guarded_of(source), guarded_of(target)
    name, topic = f"moves-from-{source}", f"moved-{target}"
    admin(old, "user", "create", name, "--password", "its-secret")
    admin(old, "acl", "allow", name, f"Topic:{topic}", "Create")
    way = ["-f", old.broker, "-t", new.broker]
    for verb, flags in (("copyUser", ["-u", f"{name},nobody"]), ("copyAcl", ["-s", f"User:{name}"])):
        for _ in range(2):  # to one that is not there, and to one that is
            done = old.run("mqadmin", verb, *way, *flags)
            assert done.exit_code == 0, done.output
            assert done.stdout.count("success.") == 1
    made = new.run("admin", "topic", "create", topic, "-b", new.broker, user=(name, "its-secret"))
    assert made.exit_code == 0, made.output
    assert new.run("mqadmin", "copyUser", *way, "-u", "nobody").stdout == ""
