"""`kourou console`: the web console, and its users."""

from __future__ import annotations

import sys
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from kourou.cli.run import DEFAULT_NAMESRV, Namesrv, credentials, said
from kourou.cli.servers.serve import load_tls, run, set_up_logging
from kourou.errors import KourouError

DEFAULT_USERS = Path("kourou-users.json")

app = typer.Typer(name="console", help="The web console.", invoke_without_command=True)

UsersFile = Annotated[Path, typer.Option("--users", metavar="FILE", help="The file of users.")]


class _Role(StrEnum):
    viewer = "viewer"
    operator = "operator"
    admin = "admin"


@app.callback()
def console(
    context: typer.Context,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than 127.0.0.1 need --users.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: a free one.")] = 8088,
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="Who may log in: a file that `kourou console add-user` writes.",
            show_default=False,
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse every change.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without users, let everybody in who reaches the address.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A name that browsers call the console by; again for more.",
            show_default=False,
        ),
    ] = None,
    trust_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS",
            help="A proxy, or a network of them, whose X-Forwarded-For says who logs in; again for more.",
            show_default=False,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A certificate (PEM), for HTTPS.", show_default=False)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Its key (PEM).", show_default=False)
    ] = None,
    store: Annotated[
        list[Path] | None,
        typer.Option(
            "--store",
            metavar="DIRECTORY",
            help="A store directory of this machine to look into; again for more.",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        Path | None,
        typer.Option(
            "--jobs",
            metavar="DIRECTORY",
            help="Allow Spark jobs, which write below this directory.",
            show_default=False,
        ),
    ] = None,
    while_stdin: Annotated[
        bool, typer.Option("--while-stdin", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Serve the web console of a cluster, Java's or Kourou's, until Ctrl-C.

    Without --users it is for this machine alone, and nobody has to log in. KOUROU_ACCESS_KEY and
    KOUROU_SECRET_KEY are who the console is for the cluster.
    """
    if context.invoked_subcommand is not None:
        return
    if find_spec("nicegui") is None:
        raise KourouError("the console needs NiceGUI: pip install 'kourou[console]'")
    from kourou.console.config import ConsoleConfig
    from kourou.console.server import serve

    config = ConsoleConfig(
        namesrv,
        host,
        port,
        users,
        read_only,
        insecure,
        tuple(allow_host or ()),
        tls_cert,
        tls_key,
        load_tls(None, {}),
        credentials(),
        tuple(store or ()),
        jobs,
        tuple(trust_proxy or ()),
    )
    config.check()
    set_up_logging(None)
    run(serve(config, lambda url: print(f"listening on {url}", flush=True), while_stdin=while_stdin))


@app.command()
def add_user(
    name: Annotated[str, typer.Argument(help="The name to log in with.")],
    role: Annotated[
        _Role,
        typer.Option(help="viewer reads; operator also sends and resets offsets; admin does everything."),
    ] = _Role.viewer,
    users: UsersFile = DEFAULT_USERS,
) -> None:
    """Make a user, or give one another role and password.

    The password is asked for; without a terminal it is the first line of standard input.
    """
    from kourou.console.door.users import Role, Users

    if sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    Users(users).put(name, Role[role.value.upper()], password)
    said(f"{name} is {role.value} in {users}; serve with --users {users}")


@app.command()
def remove_user(
    name: Annotated[str, typer.Argument(help="The name.")], users: UsersFile = DEFAULT_USERS
) -> None:
    """Forget a user."""
    from kourou.console.door.users import Users

    Users(users).remove(name)
    said(f"{name} is no user of {users} any more")


@app.command()
def list_users(users: UsersFile = DEFAULT_USERS) -> None:
    """List users and their roles."""
    from kourou.console.door.users import Users

    for name, role in Users(users).names().items():
        typer.echo(f"{name}\t{role.name.lower()}")
