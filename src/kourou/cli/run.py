"""What the commands that talk to a cluster have in common: options, the event loop, confirmation."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kourou.cli.output import echo, quiet_log

if TYPE_CHECKING:
    from kourou.admin import Admin
    from kourou.remoting.signing import Credentials
    from kourou.remoting.tls import TlsConfig

DEFAULT_NAMESRV = "127.0.0.1:9876"

Namesrv = Annotated[
    str,
    typer.Option(
        "-n",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        metavar="ADDRESS",
        help="The name servers, joined by ';'.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")]

_T = TypeVar("_T")


def run(namesrv: str, work: Callable[[Admin], Awaitable[_T]]) -> _T:
    """The result of some work with a cluster."""
    import asyncio

    from kourou.admin import Admin

    async def main() -> _T:
        async with Admin(namesrv, tls=client_tls(), credentials=credentials()) as admin:
            return await work(admin)

    with quiet_log("kourou.client"):  # what matters of it is in the error
        return asyncio.run(main())


def credentials() -> Credentials | None:
    """Who asks, by KOUROU_ACCESS_KEY and KOUROU_SECRET_KEY of the environment: not by options, which others
    can see in the list of processes."""
    from kourou.remoting.signing import Credentials

    access_key, secret_key = os.environ.get("KOUROU_ACCESS_KEY"), os.environ.get("KOUROU_SECRET_KEY")
    if not access_key or not secret_key:
        return None
    return Credentials(access_key, secret_key)


def client_tls() -> TlsConfig | None:
    """How servers are spoken to, by KOUROU_TLS of the environment: a tls.properties, `true` for TLS that
    compares no certificate, `false` for none. Without it, Java's own place for the file counts."""
    from dataclasses import replace

    from kourou.cli.servers.serve import load_tls
    from kourou.remoting.tls import TlsConfig

    given = os.environ.get("KOUROU_TLS", "").strip()
    if not given:
        return load_tls(None, {})
    if given.lower() in ("0", "false"):
        return None
    if given.lower() in ("1", "true"):
        return TlsConfig(enable=True, test_mode=True)
    return replace(TlsConfig.load(given), enable=True)  # who names a file does not want to speak plain


def confirm(question: str, yes: bool) -> None:
    """Ask before something is deleted; without a terminal to ask at, --yes has to be there."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{question} Say so with --yes: there is no terminal to ask at")
    typer.confirm(question, abort=True)


def said(text: str) -> None:
    """Tell what was done."""
    echo(text, err=True)


def pairs(texts: list[str]) -> dict[str, str]:
    """key=value arguments."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise typer.BadParameter(f"{text!r} is no key=value")
        found[key.strip()] = value
    return found
