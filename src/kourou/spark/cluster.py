"""ClusterView: what a reader or writer must know of a cluster: topics, queues, addresses, offsets.

Blocking, for drivers and tasks. Everything is asked anew each time: a stream finds new queues and brokers
that way. Nothing waits here: what is away is an AwayError, or noted where the caller can do without.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kourou.client.routes import MASTER_ID, TopicRoute
from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import SYSTEM_PREFIX, SYSTEM_TOPICS
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import (
    GetMaxOffset,
    PullMessage,
    QueueOfTopic,
    SearchOffset,
    UpdateConsumerOffset,
)
from kourou.spark.channel import (
    AnsweredError,
    AwayError,
    ChannelError,
    NetSettings,
    call,
    call_all,
    channel_to,
)

# Of several name servers the next is asked after so long; all of them share the time of one request.
ASK_NEXT_S = 3.0
# When to read from slaves: also beside a master, when a master is gone, not at all.
SLAVES = ("true", "false", "never")
SUBSCRIPTION_FLAG = 4  # of a pull's sysFlag: the request says itself what it wants


class Bounds(NamedTuple):
    """The offsets of a queue: of the first message, and behind the last."""

    low: int
    high: int


class UnknownTopicError(AwayError):
    """A topic that the name servers do not know: it does not exist, or all its brokers are away."""


class Server(NamedTuple):
    """A process of a broker."""

    address: str
    is_slave: bool


_T = TypeVar("_T")
_answered_last: dict[str, str] = {}  # of a list of name servers the one to begin with


class ClusterView:
    """A cluster, seen through its name servers."""

    def __init__(self, namesrv: str, settings: NetSettings, *, from_slaves: str = "false") -> None:
        self._namesrv = namesrv
        self._name_servers = [part.strip() for part in namesrv.replace(",", ";").split(";") if part.strip()]
        self.settings = settings
        self._from_slaves = from_slaves
        self._addresses: dict[str, Mapping[int, str]] = {}
        self.by_slave: set[str] = set()  # brokers for whom a slave has answered: it may lack the newest

    # Name servers

    def topics(self, pattern: str | None = None) -> list[str]:
        """The topics of users; those whose whole name matches, where a pattern is given.

        Retry and dead-letter topics are among them where the pattern begins with a percent sign.
        """
        answer = self._ask({}, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "the list of topics")
        names = lenient_json.loads(answer.body or b"{}").get("topicList") or []
        wanted = re.compile(pattern or ".*")
        special = (pattern or "").startswith("%")
        return sorted(
            name
            for name in names
            if wanted.fullmatch(name)
            and name not in SYSTEM_TOPICS
            and not name.startswith(SYSTEM_PREFIX)
            and (special or not name.startswith("%"))
            and name not in self._brokers_and_clusters()
        )

    def _brokers_and_clusters(self) -> set[str]:
        """Brokers make topics of their own name and of their cluster's."""
        answer = self._ask({}, RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers")
        info = lenient_json.loads(answer.body or b"{}")
        return {*(info.get("brokerAddrTable") or {}), *(info.get("clusterAddrTable") or {})}

    def masters(self) -> dict[str, str]:
        """The addresses of all masters, by the names of their brokers."""
        answer = self._ask({}, RequestCode.GET_BROKER_CLUSTER_INFO, "the list of brokers")
        found = {}
        for name, broker in (lenient_json.loads(answer.body or b"{}").get("brokerAddrTable") or {}).items():
            self._addresses[name] = {int(number): text for number, text in broker["brokerAddrs"].items()}
            if MASTER_ID in self._addresses[name]:
                found[name] = self._addresses[name][MASTER_ID]
        return found

    def route(self, topic: str) -> TopicRoute:
        """Where a topic is."""
        fields = {"topic": topic, "acceptStandardJsonOnly": "true"}
        try:
            answer = self._ask(fields, RequestCode.GET_ROUTEINFO_BY_TOPIC, f"the route of {topic}")
        except AnsweredError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                raise UnknownTopicError(f"no name server knows topic {topic}") from error
            raise
        route = TopicRoute.decode(topic, answer.body or b"{}")
        self._addresses |= route.addresses
        return route

    def _ask(self, fields: Mapping[str, str], code: int, what: str) -> RemotingCommand:
        """The answer of the first name server that has one; one that has just started knows no topic yet."""
        servers = self._name_servers
        first = _answered_last.get(self._namesrv)
        if first is not None:
            servers = [first, *(server for server in servers if server != first)]
        each_s = min(self.settings.timeout_s / len(servers), ASK_NEXT_S)
        settings = self.settings
        if len(servers) > 1:
            settings = dataclasses.replace(settings, timeout_s=each_s)
        failures: list[KourouError] = []
        for address in servers:
            try:
                answer = call(address, settings, code, fields, what)
            except (ChannelError, AnsweredError) as error:
                failures.append(error)
                continue
            _answered_last[self._namesrv] = address
            return answer
        refused = [failure for failure in failures if isinstance(failure, AnsweredError)]
        raise refused[0] if refused else ChannelError(f"no name server answers: {failures[-1]}")

    # Brokers

    def master(self, broker_name: str) -> str:
        """The address of a broker's master."""
        address = self._addresses.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise ChannelError(f"broker {broker_name} has no master now")
        return address

    def servers(self, broker_name: str, *, master_first: bool = True) -> list[Server]:
        """Where a broker's queues can be read, best first."""
        known = self._addresses.get(broker_name, {})
        masters = [Server(known[MASTER_ID], False)] if MASTER_ID in known else []
        slaves = [Server(known[number], True) for number in sorted(known) if number != MASTER_ID]
        if self._from_slaves == "never":
            slaves = []
        found = [*masters, *slaves] if master_first or self._from_slaves != "true" else [*slaves, *masters]
        if not found:
            raise ChannelError(f"nobody knows the address of broker {broker_name} now")
        return found

    def bounds(
        self, queues: Collection[MessageQueue], away: dict[str, KourouError] | None = None
    ) -> dict[MessageQueue, Bounds]:
        """The offsets of queues. With `away`, brokers that do not answer are noted, their queues left out."""
        found: dict[MessageQueue, Bounds] = {}
        for broker_name, own in _by_broker(queues).items():
            requests: list[tuple[int, Mapping[str, str]]] = []
            for queue in own:
                low = QueueOfTopic(queue.topic, queue.queue_id).fields()
                high = GetMaxOffset(queue.topic, queue.queue_id).fields()
                requests += [(RequestCode.GET_MIN_OFFSET, low), (RequestCode.GET_MAX_OFFSET, high)]
            try:
                answers = self._call_all(broker_name, requests, "the offsets of its queues")
            except (AwayError, AnsweredError) as error:
                if away is None:
                    raise
                away[broker_name] = error
                continue
            for queue, low_text, high_text in zip(own, answers[0::2], answers[1::2]):
                found[queue] = Bounds(max(low_text, 0), high_text)
        return found

    def not_behind(
        self, at: Mapping[MessageQueue, int], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """Where queues end for a reader that is `at` some offsets: a slave may not be there yet."""
        return {
            queue: max(high, at.get(queue, high)) if queue.broker_name in self.by_slave else high
            for queue, (_, high) in bounds.items()
        }

    def offsets_by_time(self, times_ms: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Of each queue the offset of the first message stored at its time or later, else its end."""
        found: dict[MessageQueue, int] = {}
        for broker_name, own in _by_broker(times_ms).items():
            requests: list[tuple[int, Mapping[str, str]]] = [
                (
                    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
                    SearchOffset(queue.topic, queue.queue_id, times_ms[queue]).fields(),
                )
                for queue in own
            ]
            found |= zip(own, self._call_all(broker_name, requests, "offsets by time"))
        return found

    def _call_all(
        self, broker_name: str, requests: list[tuple[int, Mapping[str, str]]], what: str
    ) -> list[int]:
        server, answers = first_of(
            self.servers(broker_name),
            lambda server: call_all(server.address, self.settings, requests, what),
        )
        if server.is_slave:
            self.by_slave.add(broker_name)
        return [int(answer.ext_fields["offset"]) for answer in answers]

    def commit_offsets(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Tell the brokers how far a consumer group is."""
        for broker_name, own in _by_broker(offsets).items():
            requests: list[tuple[int, Mapping[str, str]]] = [
                (
                    RequestCode.UPDATE_CONSUMER_OFFSET,
                    UpdateConsumerOffset(group, queue.topic, queue.queue_id, offsets[queue]).fields(),
                )
                for queue in own
            ]
            what = f"the offsets of group {group}"
            try:
                call_all(self.master(broker_name), self.settings, requests, what)
            except AnsweredError as error:
                if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                self._make_group(group, own[0], offsets[own[0]])
                call_all(self.master(broker_name), self.settings, requests, what)

    def _make_group(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Brokers make a group when its first consumer pulls, unless they are told not to."""
        header = PullMessage(
            group, queue.topic, queue.queue_id, offset, 1, SUBSCRIPTION_FLAG, 0, 0, 0, subscription="*"
        )
        request = RemotingCommand(RequestCode.PULL_MESSAGE, header.fields())
        channel_to(self.master(queue.broker_name), self.settings).call(request)


def first_of(servers: Sequence[Server], work: Callable[[Server], _T]) -> tuple[Server, _T]:
    """The first server that is there, and what `work` gives for it."""
    for server in servers[:-1]:
        try:
            return server, work(server)
        except ChannelError:
            continue
    return servers[-1], work(servers[-1])


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        found.setdefault(queue.broker_name, []).append(queue)
    return found
