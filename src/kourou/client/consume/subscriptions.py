"""Subscriptions: the topics that a consumer reads, and what it wants of each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from kourou.client.core import ClientCore, ClientError
from kourou.client.validators import check_topic
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.subscription import SQL92, TAG, SubscriptionData

Subscribe = str | Sequence[str] | Mapping[str, str]


class Sql(str):
    """A subscription by an SQL92 expression over properties: `subscribe={"orders": Sql("amount > 10")}`."""

    __slots__ = ()


def as_subscriptions(subscribe: Subscribe) -> dict[str, str]:
    """Topics and the expressions that they are subscribed with. Raises ClientError if they are not valid."""
    if isinstance(subscribe, str):
        found = {subscribe: "*"}
    elif isinstance(subscribe, Mapping):
        found = dict(subscribe)
    elif isinstance(subscribe, Iterable):
        found = dict.fromkeys(subscribe, "*")
    else:
        raise ClientError(f"subscribe is a topic, several, or a mapping to expressions, not {subscribe!r}")
    for topic, expression in found.items():
        check_topic(topic)
        if not isinstance(expression, str):
            raise ClientError(
                f'topic {topic} is subscribed with "*", tags joined by || or Sql("…"), not {expression!r}'
            )
    return found


def build_subscription(topic: str, expression: str) -> SubscriptionData:
    """A subscription as of now, by tags or by an Sql expression."""
    kind = SQL92 if isinstance(expression, Sql) else TAG
    return SubscriptionData.build(topic, str(expression), kind, time.time_ns() // 1_000_000)


async def check_expressions(
    core: ClientCore, group: str, namespace: str | None, subscriptions: Mapping[str, SubscriptionData]
) -> None:
    """Let brokers check the SQL92 expressions first: their error says what is wrong with one."""
    for topic, subscription in subscriptions.items():
        if subscription.expression_type == TAG:
            continue
        body = {
            "clientId": core.client_id,
            "group": group,
            "namespace": namespace,
            "subscriptionData": subscription.to_json(),
        }
        for broker_name in (await core.route(topic)).addresses:
            address = core.broker_address(broker_name)
            if address is not None:
                await core.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, lenient_json.dumps(body))
