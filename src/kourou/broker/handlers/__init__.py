"""What each request asks of a broker: one function a request code (Java's processors).

A handler is `f(broker, connection, request)`; it reads its header, answers from the tables or the store, and
returns the response, or None if it answers later (`Broker.answer_later`). Each module has its own in
HANDLERS. Sends and pulls, the hot ones, are in `broker.send` and `broker.pull`.

Where Java's response has a header of its own, extFields are there even if empty; otherwise they are not.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kourou.broker.handlers import (
    access,
    admin,
    clients,
    groups,
    offsets,
    queries,
    replication,
    retries,
    statistics,
    timers,
    topics,
    transactions,
)
from kourou.broker.messages.pull import MessagePuller
from kourou.broker.messages.send import MessageSender
from kourou.broker.pop import acks, modes, peek
from kourou.broker.pop.popper import Popper
from kourou.remoting.connection import Handler

if TYPE_CHECKING:
    from kourou.broker.server import Broker

MODULES = (
    access,
    queries,
    clients,
    offsets,
    topics,
    groups,
    retries,
    transactions,
    timers,
    statistics,
    replication,
    admin,
    acks,
    modes,
    peek,
)


PARTS = (MessageSender, MessagePuller, Popper)  # whose methods are handlers
SERVED = frozenset(int(code) for part in (*MODULES, *PARTS) for code in part.HANDLERS)


def make_handlers(broker: Broker) -> dict[int, Handler]:
    """The handlers by request code."""
    handlers: dict[int, Handler] = {}
    for module in MODULES:
        for code, handler in module.HANDLERS.items():
            assert int(code) not in handlers, code
            handlers[int(code)] = partial(handler, broker)
    for part in (broker.sender, broker.puller, broker.popper):
        for code, name in part.HANDLERS.items():
            assert int(code) not in handlers, code
            handlers[int(code)] = getattr(part, name)
    return handlers
