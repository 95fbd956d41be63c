"""Options of the clients: each is declared here once, with its default and what it may be.

`kourou.client` and `kourou.sync` take them as keyword arguments. A wrong one is a ClientError that names it,
when the client is made and not when it runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from kourou.client.consume.stats import ConsumeEvent
from kourou.client.consume.strategies import AVERAGE, Strategy
from kourou.client.consume.subscriptions import Subscribe, as_subscriptions
from kourou.client.core import ClientCore, ClientError
from kourou.client.produce.receipts import OnSend
from kourou.client.produce.transactions import Checker
from kourou.client.validators import check_group, is_whole
from kourou.message.compression import CompressionType
from kourou.message.model import MessageQueue
from kourou.message.topics import AUTO_CREATE_TOPIC
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.signing import Credentials
from kourou.remoting.tls import TlsConfig

DEFAULT_GROUP = "kourou-producer"
DEFAULT_QUEUES = 4  # of a topic that its first message makes
COMPRESS_FROM_BYTES = 4096
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_PULL = 1024  # messages of one pull; Java's limit
MAX_POP = 32  # messages of one pop; Java's limit
MAX_INVISIBLE_S = 12 * 3600.0
# When popped messages come again that a handler failed on (Java's popDelayLevel)
POP_RETRY_DELAYS_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_BROKER_STRATEGIES = ("AVG", "AVG_BY_CIRCLE")
START_TIMEOUT_S = 10.0

# Answers after which another broker may take the message (DefaultMQProducer.retryResponseCodes)
RETRY_CODES: frozenset[int] = frozenset(
    (
        ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY, ResponseCode.NO_PERMISSION, ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)  # fmt: skip

_P = ParamSpec("_P")
_S = TypeVar("_S")


class _Rule(NamedTuple):
    """What an option may be, as a check and in words."""

    allows: Callable[[Any], bool]
    words: str


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(least: int, most: int | None = None) -> _Rule:
    words = f"a whole number from {least} on" if most is None else f"a whole number, {least} to {most}"
    return _Rule(lambda value: is_whole(value) and least <= value <= (most or value), words)


def _either(rule: _Rule) -> _Rule:
    return _Rule(lambda value: value is None or rule.allows(value), f"{rule.words}, or None")


def _a(kind: type, words: str) -> _Rule:
    return _Rule(lambda value: isinstance(value, kind), words)


_FLAG = _a(bool, "True or False")
_TEXT = _either(_a(str, "a str"))
_CALL = _either(_Rule(callable, "a function"))
_SECONDS = _Rule(lambda value: _is_number(value) and value > 0, "a number of seconds above 0")
_INVISIBLE = _Rule(
    lambda value: _is_number(value) and 0 < value <= MAX_INVISIBLE_S,
    f"a number of seconds above 0, at most {MAX_INVISIBLE_S:g}",
)


@dataclass(kw_only=True, eq=False)
class ClientOptions:
    """What all clients have.

    namesrv: addresses of name servers, `host:port`, joined by `;`.
    namespace, instance, ip: as in Java; parts of names and of the client id.
    """

    namesrv: str = field(kw_only=False)
    group: str
    namespace: str | None = None
    instance: str | None = None
    ip: str | None = None
    tls: TlsConfig | None = None
    credentials: Credentials | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, rule in {**_CLIENT_RULES, **self._rules()}.items():
            value = getattr(self, name)
            if not rule.allows(value):
                raise ClientError(f"{name} is {rule.words}, not {value!r}")
        check_group(self.group)

    def _rules(self) -> Mapping[str, _Rule]:
        return {}


_CLIENT_RULES = {
    "namesrv": _a(str, "a str: an address, or several joined by ';'"),
    "group": _a(str, "a str"),
    "namespace": _TEXT,
    "instance": _TEXT,
    "ip": _TEXT,
    "tls": _either(_a(TlsConfig, "a TlsConfig")),
    "credentials": _either(_a(Credentials, "Credentials")),
}


@dataclass(kw_only=True, eq=False)
class ProducerOptions(ClientOptions):
    """Options of a Producer.

    group: the name of the sender in tools; producers of transactions need a group of their own.
    core: connections and routes of another client, which are shared; that client closes them.
    unit, unit_mode: as in Java.
    timeout_s: for a message in all, with its `retries`; `timeout_per_try_s` for each but the last.
    retry_not_stored: whether a message that is stored, but not on all disks and slaves that it should be on,
        is sent again, to another broker.
    create_topic_key, default_queues: the template topic that brokers create new topics from, and the number
        of their queues.
    latency_fault_tolerance: whether slow brokers are left out for a while.
    checker: says what became of a transaction when the broker asks.
    on_send: called for each try to send; it must be quick, and its exceptions are only logged.
    trace: whether messages are traced, and in which topic if it is not the usual one.
    """

    namesrv: str = field(default="", kw_only=False)
    group: str = DEFAULT_GROUP
    core: ClientCore | None = None
    unit: str | None = None
    unit_mode: bool = False
    timeout_s: float = 3.0
    timeout_per_try_s: float | None = None
    retries: int = 2
    retry_codes: Collection[int] = RETRY_CODES
    retry_not_stored: bool = False
    compression: CompressionType = CompressionType.ZLIB
    compress_level: int = 5
    compress_from_bytes: int = COMPRESS_FROM_BYTES
    max_message_bytes: int = MAX_MESSAGE_BYTES
    create_topic_key: str = AUTO_CREATE_TOPIC
    default_queues: int = DEFAULT_QUEUES
    latency_fault_tolerance: bool = False
    checker: Checker | None = None
    on_send: OnSend | None = None
    trace: bool | str = False

    def _rules(self) -> Mapping[str, _Rule]:
        return _PRODUCER_RULES


_TRACE = _Rule(lambda value: isinstance(value, bool | str), "True, False or the name of a topic")
_PRODUCER_RULES = {
    "core": _either(_a(ClientCore, "the core of another client")),
    "unit": _TEXT,
    "unit_mode": _FLAG,
    "timeout_s": _SECONDS,
    "timeout_per_try_s": _either(_SECONDS),
    "retries": _whole(0),
    "retry_codes": _Rule(
        lambda value: isinstance(value, Collection) and all(isinstance(code, int) for code in value),
        "a collection of response codes",
    ),
    "retry_not_stored": _FLAG,
    "compression": _a(CompressionType, "a CompressionType"),
    "compress_level": _whole(0, 9),
    "compress_from_bytes": _whole(0),
    "max_message_bytes": _whole(1),
    "create_topic_key": _a(str, "a str"),
    "default_queues": _whole(1),
    "latency_fault_tolerance": _FLAG,
    "checker": _CALL,
    "on_send": _CALL,
    "trace": _TRACE,
}


@dataclass(kw_only=True, eq=False)
class ReaderOptions(ClientOptions):
    """What Consumer and PullConsumer have in common.

    consume_from: where a group that has no offsets yet begins: "first", "last" or a datetime.
    max_cached_messages, max_cached_bytes: of a queue, how much is pulled and not consumed.
    start_timeout_s: how long the start waits for name servers and topics before it fails. With None it never
        fails: topics are read whenever they are there.
    stop_on_signals: whether Ctrl-C and SIGTERM stop the consumer, rather than the program: `run` returns,
        `for` ends, and the consumer closes as it always does. A second signal ends the program.
    on_rebalance: called with a topic and the queues of it that are read from now on.
    """

    consume_from: str | datetime = "last"
    strategy: Strategy = AVERAGE
    pull_batch_size: int = 32
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 * 1024 * 1024
    start_timeout_s: float | None = START_TIMEOUT_S
    stop_on_signals: bool = False
    on_rebalance: Callable[[str, list[MessageQueue]], None] | None = None

    def _rules(self) -> Mapping[str, _Rule]:
        return _READER_RULES


_READER_RULES = {
    "consume_from": _Rule(
        lambda value: isinstance(value, datetime) or value in ("first", "last"),
        '"first", "last" or a datetime',
    ),
    "strategy": _Rule(callable, "one of kourou.client.consume.strategies"),
    "pull_batch_size": _whole(1, MAX_PULL),
    "max_cached_messages": _whole(1),
    "max_cached_bytes": _whole(1),
    "start_timeout_s": _either(_SECONDS),
    "stop_on_signals": _FLAG,
    "on_rebalance": _CALL,
}


@dataclass(kw_only=True, eq=False)
class ConsumerOptions(ReaderOptions):
    """Options of a Consumer.

    subscribe: topics, each with the tags that are wanted ("*", "paid || refunded") or an Sql expression.
    broadcast: every client has every message; what it consumed is remembered in a file of its own.
    concurrency: how many calls of the handler are under way at once. Handlers that are no coroutines run in
        as many threads.
    batch_size: with more than one, the handler is given a list of up to this many messages.
    max_reconsume_times: how often a message comes again, None for 16, or in order for ever.
    max_span: offsets between the oldest that is not consumed and the newest pulled.
    trace: whether what the handler does is traced, and in which topic if it is not the usual one.
    on_consume: called after each call of the handler.
    client_rebalance: whether the clients share the queues among themselves, and pull them. Else a broker
        shares them, and says for each topic whether the group pulls or pops it (`setConsumeMode`).
    pop_invisible_s, pop_batch_size: of a pop, how long its messages are invisible to other clients, and how
        many they are at most. A handler that takes longer has its message again, or another client has it.
    pop_max_unacked: of a broker, how much is popped and not acknowledged before no more is popped.
    pop_retry_delays_s: when a popped message comes again that the handler failed on, by how often it came
        before; the last one from then on. ReconsumeLater(n) chooses the n-th after the first.
    """

    subscribe: Subscribe
    broadcast: bool = False
    orderly: bool = False
    concurrency: int = 20
    batch_size: int = 1
    max_reconsume_times: int | None = None
    consume_timeout_s: float = 15 * 60.0
    suspend_s: float = 1.0
    max_span: int = 2000
    close_timeout_s: float = 10.0
    offsets_directory: str | Path | None = None
    trace: bool | str = False
    on_consume: Callable[[ConsumeEvent], None] | None = None
    client_rebalance: bool = True
    pop_invisible_s: float = 60.0
    pop_batch_size: int = MAX_POP
    pop_max_unacked: int = 96
    pop_retry_delays_s: Sequence[float] = POP_RETRY_DELAYS_S

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.client_rebalance and self.strategy.name not in _BROKER_STRATEGIES:
            raise ClientError(
                f"brokers share queues by {' or '.join(_BROKER_STRATEGIES)}, not by {self.strategy.name}: "
                f"client_rebalance=False needs one of these"
            )
        if not as_subscriptions(self.subscribe):
            raise ClientError("subscribe needs a topic: a consumer without one has nothing to read")

    def _rules(self) -> Mapping[str, _Rule]:
        return _READER_RULES | _CONSUMER_RULES


_CONSUMER_RULES = {
    "broadcast": _FLAG,
    "orderly": _FLAG,
    "concurrency": _whole(1),
    "batch_size": _whole(1),
    "max_reconsume_times": _either(_whole(0)),
    "consume_timeout_s": _SECONDS,
    "suspend_s": _SECONDS,
    "max_span": _whole(1),
    "close_timeout_s": _SECONDS,
    "offsets_directory": _either(_Rule(lambda value: isinstance(value, str | Path), "a path")),
    "trace": _TRACE,
    "on_consume": _CALL,
    "client_rebalance": _FLAG,
    "pop_invisible_s": _INVISIBLE,
    "pop_batch_size": _whole(1, MAX_POP),
    "pop_max_unacked": _whole(1),
    "pop_retry_delays_s": _Rule(
        lambda value: (
            isinstance(value, Sequence) and len(value) > 0 and all(_INVISIBLE.allows(one) for one in value)
        ),
        "a list of seconds above 0",
    ),
}


@dataclass(kw_only=True, eq=False)
class PullConsumerOptions(ReaderOptions):
    """Options of a PullConsumer: `subscribe` as for a Consumer, or the queues to `assign`.

    auto_commit: whether what `poll` gave is kept every five seconds; else only `commit` keeps anything.
    """

    subscribe: Subscribe | None = None
    assign: Iterable[MessageQueue] | None = None
    auto_commit: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subscribe is not None and self.assign is not None:
            raise ClientError("either subscribe, and share the queues of the group, or assign queues")
        as_subscriptions(self.subscribe or {})
        if self.assign is not None:
            self.assign = check_queues("assign", self.assign)

    def _rules(self) -> Mapping[str, _Rule]:
        return _READER_RULES | {"auto_commit": _FLAG}


@dataclass(kw_only=True, eq=False)
class SimpleConsumerOptions(ClientOptions):
    """Options of a SimpleConsumer.

    subscribe: as for a Consumer: topics, each with the tags that are wanted or an Sql expression.
    consume_from: where a group that has no offsets yet begins, "first" or "last". A broker begins a topic
        that is new with its first message in both cases.
    orderly: the messages of a queue are given out in order, and no more of it before those are acknowledged.
    invisible_s: how long a message that was received is invisible to others.
    await_s: how long `receive` waits for a message.
    start_timeout_s, stop_on_signals: as for a Consumer; `stop_on_signals` ends a `receive` that waits.
    """

    subscribe: Subscribe
    consume_from: str = "last"
    orderly: bool = False
    invisible_s: float = 60.0
    await_s: float = 15.0
    start_timeout_s: float | None = START_TIMEOUT_S
    stop_on_signals: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not as_subscriptions(self.subscribe):
            raise ClientError("subscribe needs a topic: a consumer without one has nothing to receive")

    def _rules(self) -> Mapping[str, _Rule]:
        return _SIMPLE_CONSUMER_RULES


_SIMPLE_CONSUMER_RULES = {
    "consume_from": _Rule(lambda value: value in ("first", "last"), '"first" or "last"'),
    "orderly": _FLAG,
    "invisible_s": _INVISIBLE,
    "await_s": _SECONDS,
    "start_timeout_s": _either(_SECONDS),
    "stop_on_signals": _FLAG,
}


def check_queues(name: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
    """Queues that a user gave, as a list. Raises ClientError if they are not valid."""
    is_one = isinstance(queues, MessageQueue) or not isinstance(queues, Iterable)
    found = [] if is_one else list(queues)
    if is_one or not all(isinstance(queue, MessageQueue) for queue in found):
        raise ClientError(f"{name} takes several MessageQueue, as fetch_queues gives them, not {queues!r}")
    return found


def check_seconds(name: str, value: float | None) -> None:
    """Raises ClientError if a timeout of a call is no number of seconds above 0. None is the default."""
    if value is not None and not _SECONDS.allows(value):
        raise ClientError(f"{name} is {_SECONDS.words}, not {value!r}")


def check_invisible(name: str, value: float | None) -> None:
    """Raises ClientError if messages cannot be invisible for so long. None is the default."""
    if value is not None and not _INVISIBLE.allows(value):
        raise ClientError(f"{name} is {_INVISIBLE.words}, not {value!r}")


def keywords(options: ClientOptions) -> dict[str, Any]:
    """Options as the keyword arguments that make them."""
    return {one.name: getattr(options, one.name) for one in fields(options)}


def takes(
    options: Callable[_P, ClientOptions],
) -> Callable[[Callable[[_S, Any], None]], Callable[Concatenate[_S, _P], None]]:
    """Have an __init__ that is written for an options object called with its keyword arguments instead."""

    def decorate(init: Callable[[_S, Any], None]) -> Callable[Concatenate[_S, _P], None]:
        @functools.wraps(init)
        def call(self: _S, /, *args: _P.args, **kwargs: _P.kwargs) -> None:
            init(self, options(*args, **kwargs))

        # for help() and editors
        own = inspect.signature(init).parameters["self"]
        wanted = inspect.signature(options)
        call.__signature__ = wanted.replace(parameters=[own, *wanted.parameters.values()])  # type: ignore[attr-defined]
        return call

    return decorate
