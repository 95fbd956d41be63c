"""Replication: the log of a master on the disks of its slaves, by Java's HA protocol (DefaultHAService).

A slave connects to the `haListenPort` of its master. All numbers are big-endian and signed.

From the slave, at once, after each read, and every `haSendHeartbeatInterval`:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | where its log ends: all before is there |

From the master, blocks of at most `haTransferBatchSize` bytes of the log, and signs of life:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | physical offset of the first byte |
| 8      | 4    | number of bytes, 0 for a sign of life |
| 12     | n    | bytes of the log |

The first number of a slave is where it wants to go on. One with an empty log, 0, gets the log from the begin
of the master's last file (or of its first, with `from_start`). A record may be cut by the end of a block.

Before that, between Kourou's own, master and slave may prove who they are (`replication_proof`; Java does
not know this). The slave sends a hello, which no report can be, for it is below 0, and waits:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | ff, `KOUROU`, 01: the version |

The master answers with a challenge:

| offset | size | field |
|--------|------|-------|
| 0      | 8    | fe, `KOUROU`, 01 |
| 8      | 32   | nonce of the master |

The slave answers with its proof, and its first report follows at once:

| offset | size | field |
|--------|------|-------|
| 0      | 32   | nonce of the slave |
| 32     | 1    | length of the user's name, u |
| 33     | 1    | length of the broker's name, b |
| 34     | u    | name of the user, whose secret both know |
| 34 + u | b    | name and id of the broker, for the master's log |
| 34+u+b | 32   | HMAC-SHA256, by the secret, of `Kourou HA 1: slave`, LF, the master's nonce and all above |

The master closes the connection, or answers with its own proof, and blocks follow:

| offset | size | field |
|--------|------|-------|
| 0      | 32   | the same HMAC, of `Kourou HA 1: master` instead |

The master's side is `replication_master`, the slave's `replication_slave`. Both belong to the thread that
owns the store, and that thread runs an event loop. Addresses of masters, and what else a slave takes from its
master, are the broker's business.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kourou.store.config import BrokerRole
from kourou.store.replication.master import CLOSE_TIMEOUT_S, Acceptor, SlaveConnection
from kourou.store.replication.proof import ANYBODY, Admission, Identity
from kourou.store.replication.slave import MasterCheck, ReplicationClient
from kourou.store.replication.waits import AckWaits
from kourou.store.status import PutCallback

if TYPE_CHECKING:
    from kourou.store.message_store import MessageStore


@dataclass(slots=True)
class SlaveStatus:
    """What a master knows of a slave (HAConnectionRuntimeInfo)."""

    address: str
    ack_offset: int
    diff: int
    in_sync: bool
    transferred_bytes_in_second: int
    transfer_from: int


@dataclass(slots=True)
class ClientStatus:
    """How a slave is connected to its master (HAClientRuntimeInfo)."""

    master_address: str = ""
    max_offset: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    transferred_bytes_in_second: int = 0
    is_connected: bool = False


@dataclass(slots=True)
class ReplicationStatus:
    """The state of replication at a broker (HARuntimeInfo)."""

    is_master: bool
    max_offset: int = 0
    in_sync_slaves: int = 0
    slaves: list[SlaveStatus] = field(default_factory=list)
    client: ClientStatus = field(default_factory=ClientStatus)


class Replication:
    """Both sides of replication for one store: `start`, `stop`, and what others ask in between.

    `from_start`: an empty slave gets the log from its begin, not from its last file. `server_tls` and
    `client_tls` put the connection into TLS, which Java cannot; the latter is asked for a context for each
    connection. `check_master` looks at a master before its bytes are taken. `admission` says which slaves are
    taken, anybody without it; with an `identity` a slave proves who it is, and wants its master to.
    """

    def __init__(
        self,
        store: MessageStore,
        *,
        from_start: bool = False,
        server_tls: ssl.SSLContext | None = None,
        client_tls: Callable[[], ssl.SSLContext] | None = None,
        check_master: MasterCheck | None = None,
        admission: Admission = ANYBODY,
        identity: Identity | None = None,
    ) -> None:
        self._store = store
        self._config = store.config
        self.waits = AckWaits(store.config, self._slaves)
        self._acceptor = Acceptor(
            store, from_start=from_start, tls=server_tls, admission=admission, on_change=self.waits.refresh
        )
        self._push_due = False
        self.client: ReplicationClient | None = None
        if store.config.broker_role is BrokerRole.SLAVE:
            self.client = ReplicationClient(
                store, tls=client_tls, check_master=check_master, identity=identity
            )

    # Life

    async def start(self, host: str, port: int) -> int:
        """Listen for slaves and, as a slave, look for the master; the port that is listened on."""
        bound = await self._acceptor.start(host, port)
        self._store.replication = self
        self.configure()
        if self.client is not None:
            self.client.start()
        return bound

    def configure(self) -> None:
        """Take what is needed of the configuration; again after it changed."""
        config, putter = self._config, self._store.putter
        counts = config.broker_role is BrokerRole.SYNC_MASTER and config.min_in_sync_replicas > 1
        putter.lacks_replicas = self._lacks_replicas if counts else None
        self.waits.refresh()

    def _lacks_replicas(self) -> bool:
        return not self.waits.has_enough_replicas(self._store.commit_log.files.max_wrote)

    async def stop(self) -> None:
        """Let go of masters and slaves. Sends that wait for slaves longer than a moment are told so."""
        if self.client is not None:
            await self.client.stop()
        self.appended()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self.waits.waiting and self.slaves and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self.waits.stop()
        await self._acceptor.stop()
        self._store.replication = None
        self._store.putter.lacks_replicas = None

    # Master

    def _slaves(self) -> Collection[SlaveConnection]:
        return self._acceptor.connections

    @property
    def slaves(self) -> list[SlaveConnection]:
        """The slaves that have said how far they are."""
        return list(self._acceptor.connections)

    def wait_for(self, offset: int, callback: PutCallback) -> None:
        """Have `callback` called when enough slaves have everything before `offset`, or too late. What a turn
        of the loop puts goes to the slaves when it ends, in one write."""
        self.waits.wait_for(offset, callback)
        if not self._push_due:
            self._push_due = True
            asyncio.get_running_loop().call_soon(self.appended)

    def appended(self) -> None:
        """There is more in the log: send it to the slaves that have all the rest."""
        self._push_due = False
        for slave in tuple(self._acceptor.connections):
            slave.push()

    # Questions

    def status(self) -> ReplicationStatus:
        """How replication is."""
        if self.client is not None:
            client = self.client
            return ReplicationStatus(
                False,
                client=ClientStatus(
                    client.address,
                    self._store.commit_log.files.max_wrote,
                    client.last_read_ms,
                    client.last_write_ms,
                    client.flow.bytes_in_second(),
                    client.is_connected,
                ),
            )
        end = self._store.commit_log.max_offset
        slaves = [
            SlaveStatus(
                slave.peer,
                slave.ack_offset,
                end - slave.ack_offset,
                self.waits.is_in_sync(slave, end),
                slave.flow.bytes_in_second(),
                slave.next_offset,
            )
            for slave in sorted(self.slaves, key=lambda slave: slave.peer)
        ]
        return ReplicationStatus(True, end, sum(slave.in_sync for slave in slaves), slaves)
