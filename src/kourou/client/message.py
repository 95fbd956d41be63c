"""Message, as a user makes it: a mistake is an error at once, not a message that nobody finds again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from kourou import message as records
from kourou.client.core import ClientError
from kourou.client.validators import check_delay_level, is_whole

LEAST_DELIVER_MS = 100_000_000_000  # in 1973: a smaller number was meant as seconds


class Message(records.Message):
    """A message to send: topic, body, and properties with their reserved ones by name.

        Message("orders", b"...", {"color": "red"}, tags="paid", keys=["o-1"], sharding_key="c-7")

    tags: one tag, which consumers filter by. keys: each without a blank, or a text of keys with blanks
    between them. It is delivered later with one of: `delay_level`, a level of the broker; `delay_s`, seconds
    from when the broker has it; `deliver_at`, a time, or milliseconds since 1970.
    """

    __slots__ = ()

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview = b"",
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: datetime | int | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise ClientError(f"the topic of a message is a str, not {topic!r}")
        if body.__class__ is not bytes:
            _check_body(body)
        if properties:
            _check_properties(properties)
        if flag != 0 and not (is_whole(flag) and -(2**31) <= flag < 2**31):
            raise ClientError(f"flag is a whole number of 32 bits, not {flag!r}")
        if tags is not None and not isinstance(tags, str):
            raise ClientError(f"tags is a str, the one tag of the message, not {tags!r}")
        if keys is not None and not isinstance(keys, str):
            keys = _check_keys(keys)
        if sharding_key is not None and not isinstance(sharding_key, str):
            raise ClientError(f"sharding_key is a str, not {sharding_key!r}")
        if delay_level is not None:
            check_delay_level(delay_level, least=0)
        if delay_s is not None:
            _check_delay(delay_s)
        if deliver_at is not None:
            _check_time(deliver_at)
        super().__init__(
            topic, body, properties, flag, tags=tags, keys=keys, sharding_key=sharding_key,
            delay_level=delay_level, delay_s=delay_s, deliver_at=deliver_at,
        )  # fmt: skip


def _check_body(body: bytes | bytearray | memoryview) -> None:
    try:
        memoryview(body)
    except TypeError:
        raise ClientError(
            f"the body of a message is bytes (of a text, text.encode()), not {body!r}"
        ) from None


def _check_properties(properties: Mapping[str, str]) -> None:
    try:
        "".join(map("".join, properties.items()))  # hot: a third of the time of checking each one
    except (AttributeError, TypeError):
        raise ClientError(f"properties are a mapping from str to str, not {properties!r}") from None


def _check_keys(keys: Iterable[str]) -> list[str]:
    try:
        found = list(keys)
        is_good = " ".join(found).count(" ") == max(len(found) - 1, 0) and "" not in found
    except TypeError:
        is_good = False
    if not is_good:
        raise ClientError(
            f"keys is a str, or several without a blank, which is what separates them, not {keys!r}"
        )
    return found


def _check_delay(delay_s: float) -> None:
    is_number = isinstance(delay_s, int | float) and not isinstance(delay_s, bool)
    if not is_number or not 0 <= delay_s < float("inf"):
        raise ClientError(f"delay_s is a number of seconds from 0 on, not {delay_s!r}")


def _check_time(deliver_at: datetime | int) -> None:
    if isinstance(deliver_at, datetime):
        return
    if not is_whole(deliver_at):
        raise ClientError(f"deliver_at is a datetime or whole milliseconds since 1970, not {deliver_at!r}")
    if deliver_at and deliver_at < LEAST_DELIVER_MS:  # 0 is at once
        raise ClientError(
            f"deliver_at is in milliseconds since 1970: {deliver_at} is too early, or in seconds"
        )
