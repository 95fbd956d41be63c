"""A broker that wants signed requests, in a thread of the test's process, and users who sign."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from kourou.auth import Acl
from kourou.broker.state.groups import SubscriptionGroupConfig
from kourou.namesrv import NameServer
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import Credentials
from support.sites.broker import Peer, Site, run_on, running
from support.sites.name_server import name_server_config, started

_T = TypeVar("_T")

GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin"}',
}


class NameServerSite:
    """A name server that runs."""

    def __init__(self, server: NameServer, loop: asyncio.AbstractEventLoop, stack: ExitStack) -> None:
        self.server = server
        self._loop = loop
        self._stack = stack

    def connect(self) -> Peer:
        peer = Peer(self.server.port)
        self._stack.callback(peer.close)
        return peer

    def do(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Call something on the name server's loop."""

        async def call() -> _T:
            return function(*arguments)

        return run_on(self._loop, call())


class User:
    """Somebody on a connection of their own, whose name is the secret."""

    def __init__(self, site: Site | NameServerSite, name: str) -> None:
        self._site = site
        self._access = site.broker.access if isinstance(site, Site) else site.server.access
        self.name = name
        self.peer: Peer = site.connect()
        if name not in self._access.users:
            site.do(self._access.create_user, {"username": name, "password": name})

    def sign(self, request: RemotingCommand) -> RemotingCommand:
        return Credentials(self.name, self.name).sign(request)

    def call(self, request: RemotingCommand) -> RemotingCommand:
        return self.peer.call(self.sign(request))

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """The answer to a request that must succeed."""
        return self.peer.ask(self.sign(request))

    def allow(self, rights: Mapping[str, list[str]]) -> None:
        """Exactly these actions on these resources; Pub on `Topic:a` is {"Topic:a": ["Pub"]}."""
        self._site.do(self._access.acls.pop, f"User:{self.name}", None)
        entries = [
            {"resource": resource, "actions": actions, "decision": "Allow"}
            for resource, actions in rights.items()
        ]
        if entries:
            acl = Acl.from_json({"subject": f"User:{self.name}", "policies": [{"entries": entries}]})
            self._site.do(self._access.put_acl, acl)
        else:
            self._access.changes += 1


@contextmanager
def guarded_site(directory: Path, **config: str) -> Iterator[Site]:
    """A broker with the super user `admin`, and the topics and groups `mine` and `theirs`."""
    with running(directory, {**GUARDED, **config}) as site:
        for name in ("mine", "theirs"):
            site.make_topic(name)
            site.do(site.broker.groups.update, SubscriptionGroupConfig(name))
        yield site


@contextmanager
def guarded_name_server(directory: Path, **more: str) -> Iterator[NameServerSite]:
    """A name server with the super user `admin`."""
    config = name_server_config(directory, {**GUARDED, **more})
    with started(config) as (server, loop), ExitStack() as stack:
        yield NameServerSite(server, loop, stack)
