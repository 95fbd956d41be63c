"""SimLoop: an event loop whose time is a number, and nodes whose callbacks stop when they are killed.

Nothing waits: where all callbacks wait for a later time, the clock jumps there. The order of everything is
that of the loop's own heap, so that the same seed gives the same run. Work for threads runs on the loop too,
a little later. Callbacks belong to the node in whose context they were made; those of a node that was killed
never run.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from simulator.power import PowerLostError

TURN_S = 1e-6  # what a turn of the loop takes: nobody can stop the time by being busy
EXECUTOR_S = (0.0002, 0.01)  # how long work in a thread takes


class Node:
    """A machine with one process: its name, its address, and whether this life of the process goes on."""

    def __init__(self, name: str, host: str) -> None:
        self.name = name
        self.host = host
        self.is_alive = True

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


NODE: contextvars.ContextVar[Node | None] = contextvars.ContextVar("node", default=None)


class DeadlockError(AssertionError):
    """Everybody waits, and nothing will ever happen."""


def context_of(node: Node) -> contextvars.Context:
    """A context in which everything belongs to a node."""
    context = contextvars.copy_context()
    context.run(NODE.set, node)
    return context


class SimLoop(asyncio.base_events.BaseEventLoop):
    """The loop of a world."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._chance = chance
        self._selector = self
        self.network: Any = None
        self.set_exception_handler(self._note_error)
        self.errors: list[str] = []

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """Instead of waiting for sockets."""
        if timeout is None:
            raise DeadlockError("everybody waits, and nothing will ever happen")
        self._now += timeout if timeout > 0 else TURN_S
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def _note_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, PowerLostError):
            self.errors.append(f"{context['message']}: {type(error).__name__}: {error}")

    # Callbacks of nodes

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        context = contextvars.copy_context() if context is None else context
        return super().call_soon(_guarded(callback, context), *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        return super().call_at(when, _guarded(callback, context), *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(result)

        self.call_later(self._chance.uniform(*EXECUTOR_S), work)
        return future

    # Sockets

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any
    ) -> Any:
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.serve(protocol_factory, host, port)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **_: Any) -> Any:
        protocol = protocol_factory()
        sock.transport.attach(protocol)
        return sock.transport, protocol

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., Any], *args: Any
    ) -> None:
        fd.watch(partial(callback, *args))

    def remove_reader(self, fd: Any) -> bool:
        fd.watch(None)
        return True


def _guarded(callback: Callable[..., Any], context: contextvars.Context) -> Callable[..., Any]:
    node = context.get(NODE)
    return callback if node is None else partial(_run_if_alive, node, callback)


def _run_if_alive(node: Node, callback: Callable[..., Any], *args: Any) -> None:
    if node.is_alive:
        callback(*args)
