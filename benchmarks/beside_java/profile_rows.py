"""The rows of `python -m benchmarks profiles`: messages, the configuration of brokers, and the goals."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.beside_java.brokers import SYNC_FLUSH

LOADS = ("send", "sendsync", "batch", "pull")  # modes of `python -m benchmarks brokers`
SINGLE = ("send", "sendsync", "pull")  # where Java takes no batches
RATE_AT_LEAST = {"send": 1.2, "sendsync": 1.2, "batch": 1.0, "pull": 1.3}
CPU_AT_MOST = {"send": 0.7, "sendsync": 0.7}
PLAIN = "plain"

BASE = {"enablePropertyFilter": "true"}  # of all brokers; only pulls by SQL look at it
EXT = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}
LIGHT = {"enableLmq": "true", "enableMultiDispatch": "true"}

# mqload's rich messages are of four variants, each with its tag and amount; either expression chooses one.
CHOSEN = 1 / 4
BY_TAG = {"expr": "tag2", "expect": "TAGS\x01tag2"}
SQL = {"expr": "amount BETWEEN 20.0 AND 30.0", "expr-type": "SQL92"}
BY_SQL = {**SQL, "expect": "amount\x0122.50"}


class Profile(NamedTuple):
    """A row: how a broker is used, and what is asked of Kourou there."""

    title: str
    options: dict[str, Any] = {}  # noqa: RUF012  # of mqload
    pull: dict[str, Any] = {}  # noqa: RUF012  # more of them, for pulls
    config: dict[str, str] = {}  # noqa: RUF012  # of the broker
    access_control: bool = False
    metrics: bool = False
    loads: tuple[str, ...] = LOADS
    pulled_part: float = 1.0  # of the messages that pulls go over
    rate_at_least: float | None = None  # of Java's, for each load, instead of RATE_AT_LEAST
    cost_at_most: float = 1.35  # times the CPU of a plain message

    def shares_brokers_with(self, other: Profile) -> bool:
        """Whether brokers that were started for one serve the other too."""
        own, others = ((profile.config, profile.access_control, profile.metrics) for profile in (self, other))
        return own == others


RICH = {"shape": "rich"}
PROFILES = {
    PLAIN: Profile("plain"),
    "binary": Profile("binary headers", {"header": "rocketmq"}),
    "rich": Profile("rich properties", RICH),
    "ext": Profile(
        "queue ext, filter bit maps", {**RICH, **SQL, "subscribe": "true"}, BY_SQL, EXT, pulled_part=CHOSEN,
        cost_at_most=1.5,
    ),
    "metrics": Profile("metrics for Prometheus", metrics=True),
    "acl": Profile("access control, signed", access_control=True, cost_at_most=1.8),
    "production": Profile(
        "access control, metrics, rich", RICH, access_control=True, metrics=True, cost_at_most=1.8
    ),
    "flush": Profile("SYNC_FLUSH", config=SYNC_FLUSH),
    "tls": Profile("TLS", {"tls": "true"}, rate_at_least=1.0, cost_at_most=1.8),
    "crc": Profile("property CRC", {"expect": "__CRC32#\x01"}, config={"enabledAppendPropCRC": "true"}),
    "light": Profile("light queues", {"shape": "lmq"}, config=LIGHT, loads=SINGLE),
    "transactions": Profile("transactions", {"shape": "transaction"}, loads=SINGLE),
    "delayed": Profile("delayed by 1 s", {"shape": "delay", "expect": "REAL_TOPIC\x01"}, loads=SINGLE),
    "tag": Profile("filter by tag", RICH, BY_TAG, loads=("pull",), pulled_part=CHOSEN),
    "sql": Profile("filter by SQL", RICH, BY_SQL, loads=("pull",), pulled_part=CHOSEN),
}  # fmt: skip
