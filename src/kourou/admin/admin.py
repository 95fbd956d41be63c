"""Admin: the connection to a cluster, and its parts."""

from __future__ import annotations

from typing import Self

from kourou.admin.access import Access
from kourou.admin.brokers import Brokers
from kourou.admin.clusters import Clusters
from kourou.admin.groups import Groups
from kourou.admin.link import CALL_TIMEOUT_S, Link
from kourou.admin.messages import Messages
from kourou.admin.metadata import Metadata
from kourou.admin.name_servers import NameServers
from kourou.admin.offsets import Offsets
from kourou.admin.pops import Pops
from kourou.admin.producers import Producers
from kourou.admin.topics import Topics
from kourou.client.core import ClientCore, local_ip, make_client_id
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig


class Admin:
    """What an operator can ask of a cluster and do to it. Use it in an `async with`.

    namesrv: addresses of name servers, joined by `;`.
    timeout_s: for one request to one server.
    credentials: who asks, where servers want to know.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
        tls: TlsConfig | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        client_id = make_client_id(local_ip())
        self.core = ClientCore(namesrv, client_id=client_id, tls=tls, credentials=credentials)
        self.link = link = Link(self.core, timeout_s)
        self.name_servers = NameServers(link)
        self.clusters = Clusters(link)
        self.brokers = Brokers(link)
        self.topics = Topics(link)
        self.groups = Groups(link)
        self.pops = Pops(link, self.groups)
        self.producers = Producers(link)
        self.offsets = Offsets(link)
        self.messages = Messages(link)
        self.metadata = Metadata(link)
        self.access = Access(link)

    async def __aenter__(self) -> Self:
        await self.core.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.core.__aexit__()
