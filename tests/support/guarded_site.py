"""A broker that wants signed requests, in a thread of the test's process, and users who sign."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kourou.auth import Acl
from kourou.broker.groups import SubscriptionGroupConfig
from kourou.remoting.command import RemotingCommand
from kourou.remoting.signing import Credentials
from support.broker import Peer, Site, running

GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin"}',
}


class User:
    """Somebody on a connection of their own, whose name is the secret."""

    def __init__(self, site: Site, name: str) -> None:
        self._site = site
        self.name = name
        self.peer: Peer = site.connect()
        if name != "admin" and name not in site.broker.access.users:
            site.do(site.broker.access.create_user, {"username": name, "password": name})

    def sign(self, request: RemotingCommand) -> RemotingCommand:
        return Credentials(self.name, self.name).sign(request)

    def call(self, request: RemotingCommand) -> RemotingCommand:
        return self.peer.call(self.sign(request))

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """The answer to a request that must succeed."""
        return self.peer.ask(self.sign(request))

    def allow(self, rights: Mapping[str, list[str]]) -> None:
        """Exactly these actions on these resources; Pub on `Topic:a` is {"Topic:a": ["Pub"]}."""
        self._site.do(self._site.broker.access.acls.pop, f"User:{self.name}", None)
        entries = [
            {"resource": resource, "actions": actions, "decision": "Allow"}
            for resource, actions in rights.items()
        ]
        if entries:
            acl = Acl.from_json({"subject": f"User:{self.name}", "policies": [{"entries": entries}]})
            self._site.do(self._site.broker.access.put_acl, acl)
        else:
            self._site.broker.access.changes += 1


@contextmanager
def guarded_site(directory: Path, **config: str) -> Iterator[Site]:
    """A broker with the super user `admin`, and the topics and groups `mine` and `theirs`."""
    with running(directory, {**GUARDED, **config}) as site:
        for name in ("mine", "theirs"):
            site.make_topic(name)
            site.do(site.broker.groups.update, SubscriptionGroupConfig(name))
        yield site
