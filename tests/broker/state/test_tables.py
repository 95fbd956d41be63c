"""Tables that requests fill: names of nothing take no place in them, a budget bounds the rest, and a consumer
that was there before goes on all the while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kourou.broker.names import PREDEFINED_GROUPS
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.topic_config import TopicConfig
from support.sites.broker import (
    COMMIT,
    SUBSCRIPTION,
    Peer,
    Site,
    heartbeat,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)

MANY = 300
SMALL = {
    "maxTopics": "60",
    "maxSubscriptionGroups": "40",
    "maxConsumerOffsets": "50",
    "maxQueueLocks": "30",
    "maxGroupTopics": "20",
    "maxConsumerFilters": "10",
    "maxClients": "60",
    "maxGroupsPerClient": "25",
    "maxSubscriptionsPerGroup": "15",
    "enablePropertyFilter": "true",
}
BROKER = "broker-a"
pytestmark = [pytest.mark.configured(SMALL), pytest.mark.usefixtures("clock")]


class Bystander:
    """A consumer in order, with a producer, as a Java client is one."""

    def __init__(self, site: Site) -> None:
        self.site, self.peer, self.offset = site, site.connect(), 0
        self.peer.ask(heartbeat("bystander", "steady", [subscription("t")], producers=("steady-producer",)))
        self.work()

    def work(self) -> None:
        """Everything that it does: send, lock, pull, commit, send back."""
        self.peer.ask(heartbeat("bystander", "steady", [subscription("t")], producers=("steady-producer",)))
        self.peer.ask(send_request("t"))
        assert lock(self.peer, "steady", "bystander", ("t", 0), ("t", 1)) == {("t", 0), ("t", 1)}
        pull = pull_request("t", self.offset, group="steady", flag=COMMIT, commitOffset=str(self.offset))
        found = messages_in(self.peer.ask(pull))
        self.offset += len(found)
        assert found
        assert commit(self.peer, "steady", "t", 0, self.offset) == ResponseCode.SUCCESS
        back = {"group": "steady", "offset": str(found[-1].physical_offset), "delayLevel": "0"}
        self.peer.ask(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, back))
        unlock(self.peer, "steady", "bystander", ("t", 1))


@pytest.fixture
def bystander(site: Site) -> Bystander:
    return Bystander(site)


def subscription(topic: str, sql: str | None = None) -> dict[str, Any]:
    kind = "TAG" if sql is None else "SQL92"
    return {"topic": topic, "subString": sql or "*", "subVersion": 1, "expressionType": kind}


def lock(peer: Peer, group: str, client: str, *queues: tuple[str, int], broker: str = BROKER) -> set[Any]:
    answer = peer.call(lock_request(RequestCode.LOCK_BATCH_MQ, group, client, queues, broker))
    if answer.code != ResponseCode.SUCCESS:
        return set()
    found = lenient_json.loads(bytes(answer.body or b"{}"))["lockOKMQSet"]
    return {(queue["topic"], queue["queueId"]) for queue in found}


def unlock(peer: Peer, group: str, client: str, *queues: tuple[str, int]) -> None:
    peer.ask(lock_request(RequestCode.UNLOCK_BATCH_MQ, group, client, queues, BROKER))


def lock_request(
    code: RequestCode, group: str, client: str, queues: tuple[tuple[str, int], ...], broker: str
) -> RemotingCommand:
    wanted = [{"topic": topic, "brokerName": broker, "queueId": number} for topic, number in queues]
    body = {"consumerGroup": group, "clientId": client, "mqSet": wanted}
    return RemotingCommand(code, {}, lenient_json.dumps(body))


def group_by_lock(peer: Peer, name: str) -> None:
    lock(peer, name, "c", ("t", 2))
    unlock(peer, name, "c", ("t", 2))


# Requests that make a group
MAKERS: dict[str, Callable[[Peer, str], object]] = {
    "pull": lambda peer, name: peer.call(pull_request("t", group=name)),
    "heartbeat": lambda peer, name: peer.call(heartbeat("c", name, [subscription("t")])),
    "lock": group_by_lock,
    "question": lambda peer, name: peer.call(
        RemotingCommand(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
    ),
    "admin": lambda peer, name: peer.call(
        RemotingCommand(
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, lenient_json.dumps({"groupName": name})
        )
    ),
    "retry": lambda peer, name: peer.call(send_request(f"%RETRY%{name}", j="1")),
}


def commit(peer: Peer, group: str, topic: str, queue_id: int, offset: int) -> int:
    fields = {
        "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)
    }  # fmt: skip
    return peer.call(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code


def refused(site: Site, budget: str) -> int:
    return site.broker.refusals.counts.get(budget, 0)


# Locks


def test_queues_that_are_not_there_are_not_locked(site, bystander):
    """Given locks of topics, queues and brokers that there are not, then nobody gets them."""
    peer, before = site.connect(), site.broker.locks.count
    for number in range(MANY):
        assert lock(peer, "steady", "c", (f"none-{number}", 0), ("t", 4 + number), ("t", -1)) == set()
        assert lock(peer, "steady", "c", ("t", 3), broker=f"b-{number}") == set()
    assert site.broker.locks.count == before
    bystander.work()


def test_locks_are_bounded_and_those_that_are_not_renewed_make_room(site, bystander, clock):
    """Given a client that locks all there is for many groups, then there are no more locks than the budget,
    who holds one renews it, and in a minute there is room again."""
    site.make_topic("wide", 10)
    peer = site.connect()
    for number in range(10):
        lock(peer, f"g-{number}", "c", *(("wide", queue) for queue in range(10)))
    assert site.broker.locks.count == 30
    assert refused(site, "maxQueueLocks") > 0
    assert lock(bystander.peer, "steady", "bystander", ("t", 0)) == {("t", 0)}
    clock.advance(61_000)
    site.run(site.broker._expire())
    assert site.broker.locks.count == 0
    Bystander(site).work()


def test_a_client_keeps_what_it_has_of_a_topic_that_has_fewer_queues_now(site, bystander):
    """Given a consumer in order, when its topic gets fewer queues, then it may renew its lock, commit what it
    has consumed, and give the lock back; a queue that never was is refused."""
    peer = bystander.peer
    assert lock(peer, "steady", "bystander", ("t", 3)) == {("t", 3)}
    assert commit(peer, "steady", "t", 3, 5) == ResponseCode.SUCCESS
    site.make_topic("t", 1)
    assert lock(peer, "steady", "bystander", ("t", 3)) == {("t", 3)}
    assert commit(peer, "steady", "t", 3, 6) == ResponseCode.SUCCESS
    unlock(peer, "steady", "bystander", ("t", 3))
    assert lock(peer, "steady", "bystander", ("t", 3)) == set()
    assert commit(peer, "steady", "t", 2, 5) == ResponseCode.INVALID_PARAMETER
    assert site.broker.offsets.query("steady", "t", 3) == 6


def test_a_new_group_locks_before_its_first_heartbeat(site):
    """Given a group that nobody heard of, when its client locks at a broker that its route has just shown,
    then it gets the lock, as groups make themselves."""
    assert lock(site.connect(), "new", "c", ("t", 0)) == {("t", 0)}


# Offsets


def test_offsets_of_what_is_not_there_are_refused(site, bystander):
    peer, offsets = site.connect(), site.broker.offsets
    before = offsets._count
    for number in range(MANY):
        assert commit(peer, "steady", f"none-{number}", 0, 1) == ResponseCode.TOPIC_NOT_EXIST
        assert commit(peer, f"none-{number}", "t", 0, 1) == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert commit(peer, "steady", "t", 4 + number, 1) == ResponseCode.INVALID_PARAMETER
    assert commit(peer, "steady", "t", -1, 1) == ResponseCode.INVALID_PARAMETER
    assert offsets._count == before
    bystander.work()


def test_offsets_are_bounded_by_commits_and_by_pulls(site, bystander):
    """Given groups that commit all queues there are, then there are no more offsets than the budget, and who
    has one moves it."""
    site.make_topic("wide", 10)
    peer, offsets = site.connect(), site.broker.offsets
    for number in range(10):
        peer.call(pull_request("wide", group=f"g-{number}", flag=SUBSCRIPTION | COMMIT))
        for queue in range(10):
            commit(peer, f"g-{number}", "wide", queue, 1)
            peer.call(pull_request("wide", queue_id=queue, group=f"g-{number}"))
    assert sum(map(len, offsets.table.values())) == offsets._count == 50
    assert sum(map(len, offsets.pull_table.values())) == offsets._pull_count <= 50
    assert refused(site, "maxConsumerOffsets") > 0
    bystander.work()
    peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "wide"}))
    assert offsets._count < 10
    site.make_topic("other", 1)
    assert commit(peer, "steady", "other", 0, 1) == ResponseCode.SUCCESS


def test_offsets_of_light_queues_are_bounded(tmp_path):
    """Given light queues, of which there is one for any name, then their offsets are bounded too."""
    with running(tmp_path, {**SMALL, "enableLmq": "true", "enableMultiDispatch": "true"}) as site:
        peer = site.connect()
        for number in range(MANY):
            commit(peer, f"%LMQ%{number}", f"%LMQ%{number}", 0, 1)
            peer.call(pull_request(f"%LMQ%{number}", group=f"%LMQ%{number}", flag=SUBSCRIPTION | COMMIT))
        assert len(site.broker.offsets.lmq_table) == 50
        assert len(site.broker.offsets.pull_table) <= 50
        assert commit(peer, "%LMQ%7", "%LMQ%7", 0, 9) == ResponseCode.SUCCESS
        assert site.broker.offsets.query("%LMQ%7", "%LMQ%7", 0) == 9


@pytest.mark.configured({**SMALL, "useServerSideResetOffset": "true"})
def test_resets_and_clones_make_no_offsets_without_end(site):
    bystander, peer = Bystander(site), site.connect()
    reset = {"topic": "t", "group": "steady", "timestamp": "-1", "isForce": "true"}
    for number in range(MANY):
        wrong = {**reset, "queueId": str(4 + number)}
        answer = peer.call(RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wrong))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        clone = {"srcGroup": "steady", "destGroup": f"c-{number}", "topic": "t", "offline": "true"}
        peer.call(RemotingCommand(RequestCode.CLONE_GROUP_OFFSET, clone))
    assert site.broker.offsets._count <= 50
    assert refused(site, "maxConsumerOffsets") > 0
    bystander.work()


# Groups and topics


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_groups_are_bounded_whatever_makes_them(site, bystander, make):
    """Given requests that make groups, then there are no more than the budget and, of retry topics, no more
    than groups; groups that are there go on, and one that is deleted makes room."""
    peer = site.connect()
    topics = len(site.broker.topics.topics)
    for number in range(MANY):
        make(peer, f"made-{number}")
    groups = site.broker.groups.groups
    assert len(groups) == 40 > len(PREDEFINED_GROUPS)
    assert refused(site, "maxSubscriptionGroups") >= MANY - 40
    assert len(site.broker.topics.topics) <= topics + 40
    bystander.work()
    peer.ask(RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "made-0"}))
    make(peer, "after")
    assert "after" in groups


def test_topics_are_bounded_but_not_those_of_retries(site, bystander):
    """Given topics that sends and operators make, then there are no more than the budget; one that is there
    may still be changed, and a new group has its retry topic and its dead letters."""
    peer, topics = site.connect(), site.broker.topics
    for number in range(MANY):
        peer.call(send_request(f"sent-{number}"))
        peer.call(send_request(f"%DLQ%sent-{number}"))
        fields = {
            "topic": f"made-{number}", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "defaultTopic": "TBW102", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        peer.call(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
    assert len(topics.topics) == 60
    assert refused(site, "maxTopics") > 2 * MANY
    bystander.work()
    site.make_topic("t", 8)
    peer.ask(heartbeat("late", "late", [subscription("t")]))
    assert "%RETRY%late" in topics.topics


def test_a_retry_topic_is_that_of_a_group(tmp_path):
    """Given a broker where groups are made by operators only, then nobody makes retry topics of others."""
    with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as site:
        peer, before = site.connect(), len(site.broker.topics.topics)
        for number in range(MANY):
            answer = peer.call(send_request(f"%RETRY%none-{number}"))
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert len(site.broker.topics.topics) == before


def test_what_is_forbidden_is_of_a_group_and_a_topic(site, bystander):
    peer, forbidden = site.connect(), site.broker.groups.forbidden

    def forbid(group: str, topic: str, readable: str = "false") -> int:
        fields = {"group": group, "topic": topic, "readable": readable}
        return peer.call(RemotingCommand(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)).code

    site.do(site.broker.topics.update_all, [TopicConfig(f"a-{number}", 1, 1) for number in range(25)])
    for number in range(MANY):
        assert forbid("steady", f"none-{number}") == ResponseCode.TOPIC_NOT_EXIST
        forbid("steady", f"a-{number % 25}")
    assert sum(map(len, forbidden.values())) == 20
    assert refused(site, "maxGroupTopics") > 0
    assert forbid("steady", "a-0", "true") == ResponseCode.SUCCESS
    bystander.work()


# Clients


def test_a_client_is_in_no_more_groups_than_the_budget(site, bystander):
    """Given a connection that says that it is in ever more groups, then it is in as many as the budget says,
    and in none when it is gone."""
    clients, peer = site.broker.clients, site.connect()
    for number in range(MANY):
        group = f"g-{number % 30}"
        peer.call(heartbeat("c", group, [subscription("t")], producers=(f"p-{number}",)))
    room = clients.producers._room
    assert room.count == 2 + 25
    assert refused(site, "maxGroupsPerClient") > 0
    assert len(clients.producers.groups) + len(clients.consumers.groups) == 2 + 25
    bystander.work()
    peer.close()
    until(lambda: room.count == 2)
    assert set(clients.producers.groups) == {"steady-producer"}
    assert set(clients.consumers.groups) == {"steady"}


def test_clients_of_all_connections_are_bounded(site, bystander):
    peers = [site.connect() for _ in range(5)]
    for place, peer in enumerate(peers):
        peer.ask(heartbeat(f"c-{place}", "", producers=tuple(f"p-{number}" for number in range(20))))
    assert site.broker.producers._room.count == 60
    assert refused(site, "maxClients") > 0
    bystander.work()


def test_a_group_subscribes_to_no_more_topics_than_the_budget(site, bystander):
    peer = site.connect()
    peer.call(heartbeat("c", "greedy", [subscription(f"t-{number}") for number in range(MANY)]))
    assert site.broker.consumers.get("greedy") is None
    assert refused(site, "maxSubscriptionsPerGroup") == 1
    peer.ask(heartbeat("c", "greedy", [subscription(f"t-{number}") for number in range(15)]))
    assert site.broker.consumers.get("greedy") is not None
    bystander.work()


def test_filters_are_bounded_and_counted(site, bystander):
    peer = site.connect()
    for number in range(30):
        peer.ask(heartbeat("c", f"g-{number}", [subscription("t", "a > 5")]))
    assert site.broker.filters._count == 10
    assert refused(site, "maxConsumerFilters") > 0
    bystander.work()


# Pairs of a group and a topic


def test_pairs_that_pull_are_bounded_and_forgotten_after_a_day(site, bystander, clock):
    """Given groups that pull all topics, then the statistics of those beyond the budget are kept together,
    their subscriptions are not remembered, and after a day without a message there is room again."""
    broker, peer = site.broker, site.connect()
    site.do(broker.topics.update_all, [TopicConfig(f"a-{number}", 1, 1) for number in range(25)])
    for topic in range(25):
        for group in range(10):
            peer.call(pull_request(f"a-{topic}", group=f"g-{group}"))
    assert len(broker.stats.groups) == 20 + 1
    assert len(broker.consumers._remembered) == 20
    assert refused(site, "maxGroupTopics") > 0
    bystander.work()
    got = broker.stats.get_total
    clock.advance(601_000)
    site.run(broker._expire())
    assert len(broker.consumers._remembered) == 0
    for _ in range(26):
        clock.advance(3_600_000)
        site.run(broker._expire())
    assert len(broker.stats.groups) <= 1
    again = Bystander(site)
    assert ("t", "steady") in broker.stats.groups
    assert broker.stats.get_total == got + again.offset
