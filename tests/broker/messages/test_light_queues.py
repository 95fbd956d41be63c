"""Light queues (LMQ): a message lies in the queue of its topic and in those that it names."""

from __future__ import annotations

import pytest

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import (
    SUBSCRIPTION,
    SUSPEND,
    Peer,
    messages_in,
    pull_request,
    running,
    send_request,
    until,
)

pytestmark = pytest.mark.configured(
    {
        "enableLmq": "true", "enableMultiDispatch": "true", "autoCreateSubscriptionGroup": "false",
        "autoCreateTopicEnable": "false",
    }
)  # fmt: skip
LONG_MS = 600_000  # longer than any test
GROUP = "%LMQ%g"


def send(peer: Peer, name: str, light: str) -> None:
    properties = {"UNIQ_KEY": name, "INNER_MULTI_DISPATCH": light}
    peer.ask(send_request(body=name.encode(), properties=properties, e="3"))


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [bytes(message.body) for message in messages_in(answer)]


def test_a_message_is_in_every_queue_that_it_names(site, peer):
    send(peer, "one", "%LMQ%a,%LMQ%b")
    send(peer, "two", "%LMQ%a")

    assert bodies(peer.ask(pull_request("%LMQ%a", group=GROUP))) == [b"one", b"two"]
    assert bodies(peer.ask(pull_request("%LMQ%b", group=GROUP))) == [b"one"]
    assert [bytes(message.body) for message in site.stored(queue_id=3)] == [b"one", b"two"]


def test_who_waits_at_a_light_queue_is_told_of_a_message(site, peer):
    held = peer.send(pull_request("%LMQ%a", group=GROUP, flag=SUBSCRIPTION | SUSPEND, suspend_ms=LONG_MS))
    until(lambda: site.broker.puller.held == 1, "a hold")
    sender = site.connect()
    send(sender, "of another", "%LMQ%b")
    assert peer.is_silent()

    send(sender, "news", "%LMQ%b,%LMQ%a")

    assert bodies(peer.answer_to(held)) == [b"news"]


def test_queues_and_groups_are_there_without_being_made_and_leave_nothing(site, peer):
    fields = {"consumerGroup": GROUP, "topic": "%LMQ%a", "queueId": "0", "commitOffset": "5"}
    peer.ask(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields))

    answer = peer.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    assert answer.ext_fields["offset"] == "5"
    assert peer.call(pull_request("%LMQ%never", group=GROUP)).code == ResponseCode.PULL_NOT_FOUND
    assert site.do(lambda: [name for name in site.broker.topics.topics if "LMQ" in name]) == []
    assert site.do(lambda: [name for name in site.broker.groups.groups if "LMQ" in name]) == []


def test_without_them_a_light_queue_is_a_topic_that_there_is_not(tmp_path):
    with running(tmp_path, {"autoCreateTopicEnable": "false"}) as made:
        answer = made.connect().call(pull_request("%LMQ%a"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
