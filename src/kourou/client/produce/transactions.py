"""Transactions: a message that consumers see if, and only if, the sender's own work is done.

The message is stored as a half message that nobody sees; the work is done; END_TRANSACTION says what became
of it. Where that is not known, or its notice was lost, the broker asks a client of the group some time later
(CHECK_TRANSACTION_STATE), whose checker looks it up.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from kourou.client.background import Background
from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import ClientCore, ClientError
from kourou.client.namespace import unwrap
from kourou.client.produce.receipts import SendReceipt
from kourou.message import Message, properties, sysflag
from kourou.message.codec import decode
from kourou.message.model import MessageQueue
from kourou.remoting.connection import Connection
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CheckTransactionState, EndTransaction

log = logging.getLogger(__name__)

# Checks at a time. A broker asks again for those that are dropped. Java's checkRequestHoldMax is the same.
MAX_CHECKS = 2000


_M = TypeVar("_M", bound=Message | ReceivedMessage)
_Sent = TypeVar("_Sent", bound=Message)


class TransactionState(Enum):
    """What became of a transaction; the values are Java's names."""

    COMMIT = "COMMIT_MESSAGE"
    ROLLBACK = "ROLLBACK_MESSAGE"
    UNKNOWN = "UNKNOW"  # the spelling is Java's

    @property
    def sys_flag(self) -> int:
        """The bits that END_TRANSACTION says it by."""
        return _FLAGS[self]


_FLAGS = {
    TransactionState.COMMIT: sysflag.TRANSACTION_COMMIT,
    TransactionState.ROLLBACK: sysflag.TRANSACTION_ROLLBACK,
    TransactionState.UNKNOWN: sysflag.TRANSACTION_NOT,
}

# Plain or async. A plain one is called on the event loop: it must not block.
Execute = Callable[[_Sent], TransactionState | Awaitable[TransactionState]]
Checker = Callable[[ReceivedMessage], TransactionState | Awaitable[TransactionState]]
# Message, address of the broker, state
OnEnd = Callable[[ReceivedMessage, str, TransactionState], None]


class TransactionReceipt(NamedTuple):
    """How a transaction went: `error` is what the caller's work raised, and then the state is UNKNOWN."""

    receipt: SendReceipt
    state: TransactionState
    error: Exception | None = None


async def find_state(
    work: Callable[[_M], TransactionState | Awaitable[TransactionState]], message: _M
) -> tuple[TransactionState, Exception | None]:
    """What the work of a caller says of a transaction; UNKNOWN, and why, where it fails."""
    try:
        state: Any = work(message)
        if inspect.isawaitable(state):
            state = await state
        if state is not None and not isinstance(state, TransactionState):
            raise ClientError(f"a transaction ends with a TransactionState, not {state!r}")
    except Exception as error:
        log.exception("the state of a transaction of topic %s is not known", message.topic)
        return TransactionState.UNKNOWN, error
    return state or TransactionState.UNKNOWN, None


def end_request(header: EndTransaction, broker_name: str, remark: str | None) -> RemotingCommand:
    """The notice that a transaction has ended."""
    fields = {**header.fields(), "bname": broker_name}
    return RemotingCommand(RequestCode.END_TRANSACTION, fields, remark=remark)


class Checks:
    """Answers a broker that asks what became of the transactions of a group."""

    def __init__(
        self, core: ClientCore, group: str, namespace: str | None, checker: Checker, on_end: OnEnd
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._checker = checker
        self._on_end = on_end
        self._background = Background()
        self._core = core
        groups = _checks.setdefault(core, {})
        groups[group] = self
        core.add_handler(RequestCode.CHECK_TRANSACTION_STATE, partial(_on_check, groups))

    async def close(self) -> None:
        """Answer nothing any more."""
        groups = _checks.get(self._core, {})
        if groups.get(self._group) is self:
            del groups[self._group]
        await self._background.close()

    def start(self, connection: Connection, header: CheckTransactionState, message: ReceivedMessage) -> None:
        """Look up a transaction, and tell the broker."""
        if len(self._background) >= MAX_CHECKS:
            log.warning(
                "%s checks of %s are running: %s is dropped, the broker will ask again",
                MAX_CHECKS, self._group, message.message_id,
            )  # fmt: skip
            return
        message.topic = unwrap(self._namespace, message.topic)
        what = f"the check of transaction {message.message_id}"
        self._background.start(self._check(connection, header, message), what)

    async def _check(
        self, connection: Connection, header: CheckTransactionState, message: ReceivedMessage
    ) -> None:
        state, error = await find_state(self._checker, message)
        answer = EndTransaction(
            self._group,
            header.tran_state_table_offset,
            header.commit_log_offset,
            state.sys_flag,
            message.message_id,
            topic=header.topic,
            from_transaction_check=True,
            transaction_id=header.transaction_id,
        )
        self._on_end(message, connection.peer, state)
        remark = None if error is None else f"checkLocalTransactionState Exception: {error!r}"
        connection.send_oneway(end_request(answer, header.bname or "", remark))


# By core and group: producers that share a core share the one handler that it has for a request.
_checks: WeakKeyDictionary[ClientCore, dict[str, Checks]] = WeakKeyDictionary()


def _on_check(groups: dict[str, Checks], connection: Connection, request: RemotingCommand) -> None:
    """CHECK_TRANSACTION_STATE (39). Nobody waits for an answer to it: END_TRANSACTION is sent later."""
    header = CheckTransactionState.read(request)
    message = decode(request.body or b"", into=ReceivedMessage)
    message.open_body()
    message.queue = MessageQueue(message.topic, header.bname or "", message.queue_id)
    group = message.properties.get(properties.PRODUCER_GROUP)
    checks = groups.get(group or "")
    if checks is None:
        log.info("no producer of group %s is here; %s asks for its transaction", group, connection.peer)
        return
    checks.start(connection, header, message)
