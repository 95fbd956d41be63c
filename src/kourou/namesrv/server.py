"""NameServer: the server around the route table and the KV config."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine
from functools import partial
from typing import Any

from kourou.auth import AccessTables, AuthConfig, Guard
from kourou.clock import Clock, SystemClock
from kourou.errors import KourouError
from kourou.namesrv.config import NameServerConfig
from kourou.namesrv.handlers import Context, make_handlers
from kourou.namesrv.kv import KvConfig
from kourou.namesrv.metrics import NameServerMetrics
from kourou.namesrv.routes import MinBrokerIdChange, RouteTable
from kourou.remoting.budgets import Bound, Budgets, BudgetSpentError, Refusals, within
from kourou.remoting.buffers import Buffers
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection
from kourou.remoting.metrics import WatchConfig, exports
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from kourou.remoting.timing import RequestWatch, TimedConnection
from kourou.remoting.tls import TlsConfig

log = logging.getLogger(__name__)

NOTICE_TIMEOUT_S = 3.0  # to reach a broker that is told of another lowest id
DEFAULT_CLUSTER = "DefaultCluster"
MAX_NOTICES = 1000  # under way at once; brokers learn the same from their next registration


class NameServer:
    """A name server: `start`, `stop`, and what it knows in between."""

    def __init__(
        self,
        config: NameServerConfig | None = None,
        *,
        clock: Clock | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self.config = config or NameServerConfig()
        clock = clock or SystemClock()
        self.budgets, self.refusals = Budgets.read(self.config.others), Refusals()
        bound = partial(Bound.of, self.budgets, self.refusals)
        self.routes = RouteTable(
            self.config,
            clock,
            on_min_broker_id_change=self._notify,
            brokers=bound("maxBrokers"),
            routes=bound("maxRoutes"),
        )
        self.kv = KvConfig(self.config.kv_config_path, bound=bound("maxKvConfigBytes"))
        self.auth = AuthConfig.read(self.config.others)
        kept = self.auth.directory or os.path.dirname(os.path.abspath(self.config.kv_config_path))
        self.access = AccessTables(kept)
        guard = Guard(self.auth, self.access, lambda: self.config.others.get("clusterName", DEFAULT_CLUSTER))
        context = Context(
            self.config,
            self.routes,
            self.kv,
            clock,
            clock.elapsed_ms(),
            guard,
            self.budgets,
            self._answer_later,
        )
        handlers = within(self.budgets, self.refusals, guard.guard(make_handlers(context)))
        self.metrics: NameServerMetrics | None = None
        watched = WatchConfig.read(self.config.others)
        if exports(watched.metrics_exporter_type):
            self.metrics = NameServerMetrics(self, watched)
        self.watch: RequestWatch | None = None  # None if no request is timed
        slow_ms = watched.slow_request_threshold_ms
        if slow_ms > 0 or self.metrics is not None:
            self.watch = RequestWatch(slow_ms, None if self.metrics is None else self.metrics.rpc)
        self._server = RemotingServer(
            handlers,
            on_close=self.routes.connection_lost,
            tls=tls,
            make_connection=Connection if self.watch is None else partial(TimedConnection, self.watch),
            buffers=Buffers(self.budgets, self.refusals),
        )
        self._client = RemotingClient(tls=tls, credentials=self.auth.inner)
        self._tasks: set[asyncio.Task[None]] = set()  # expiry, notices to brokers, deferred answers
        self._notices = 0
        self._pending_bytes = 0  # bodies of requests with a deferred answer
        self.port = 0

    async def start(self) -> None:
        """Listen; `port` says where, also if the system chose it."""
        self.access.open(self.auth)
        self.port = await self._server.start(self.config.bind_address, self.config.listen_port)
        if self.metrics is not None:
            try:
                await self.metrics.start()
            except BaseException:
                await self._server.stop()
                raise
        self._spawn(self._expire())

    async def stop(self) -> None:
        """Close everything."""
        if self.metrics is not None:
            await self.metrics.stop()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._client.close()
        await self._server.stop()

    @property
    def connections(self) -> int:
        """How many clients and brokers are connected."""
        return len(self._server.connections)

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(self.config.scan_not_active_broker_interval / 1000)
            self.routes.expire()

    def _notify(self, change: MinBrokerIdChange) -> None:
        fields = {
            "minBrokerId": str(change.min_broker_id),
            "minBrokerAddr": change.min_broker_address,
            "offlineBrokerAddr": change.offline_address,
            "haBrokerAddr": change.ha_address,
        }
        present = {name: value for name, value in fields.items() if value is not None}
        for address in change.notify:
            if self._notices >= MAX_NOTICES:
                log.warning("too many brokers to tell of another lowest id: %s is left out", address)
                continue
            self._notices += 1
            self._spawn(
                self._tell(address, RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, present))
            )

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed: %s", task.get_coro(), exc_info=error)

    def _answer_later(
        self, connection: Connection, request: RemotingCommand, work: Coroutine[Any, Any, RemotingCommand]
    ) -> None:
        self._spawn(self._answer(connection, request, len(request.body or b""), work))

    async def _answer(
        self,
        connection: Connection,
        request: RemotingCommand,
        size: int,
        work: Coroutine[Any, Any, RemotingCommand],
    ) -> None:
        self._pending_bytes += size
        try:
            if self._pending_bytes > self.budgets.max_buffered_bytes:
                work.close()
                raise BudgetSpentError("too many registrations are being read", "maxBufferedBytes")
            answer = await work
        except Exception as error:
            if isinstance(error, BudgetSpentError):
                self.refusals.count_for(error)
            answer = connection.failure(request, error)
        finally:
            self._pending_bytes -= size
        connection.reply(request, answer)

    async def _tell(self, address: str, request: RemotingCommand) -> None:
        try:
            with contextlib.suppress(KourouError, TimeoutError):  # its next registration tells it the same
                async with asyncio.timeout(NOTICE_TIMEOUT_S):
                    await self._client.send_oneway(address, request)
        finally:
            self._notices -= 1
