"""Topics and groups that are deleted at a broker: processes that are killed, slaves, offsets, clean-up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from kourou.broker import Broker
from kourou.message.topics import DELETION_TOPIC, DLQ_PREFIX, RETRY_PREFIX
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import DeleteSubscriptionGroup, TopicName, UpdateConsumerOffset
from kourou.testing import Cluster
from support.forked import start_broker
from support.recorded.wire import free_ports
from support.sites.broker import Peer, Site, messages_in, pull_request, running, send_request, until
from support.sites.servers import SMALL_STORE

OLD, NEW = 100, 60


class KilledBroker:
    """A broker in a process of its own, which is killed with SIGKILL at the end of each of its lives."""

    def __init__(self, directory: Path, **config: str) -> None:
        self._port = free_ports(-2, 0)
        self._conf = directory / "broker.conf"
        lines = {
            "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1", "listenPort": self._port,
            "storePathRootDir": directory / "store", **SMALL_STORE, **config,
        }  # fmt: skip
        self._conf.write_text("".join(f"{key}={value}\n" for key, value in lines.items()), encoding="utf-8")

    @contextmanager
    def life(self) -> Iterator[Peer]:
        process = start_broker(self._conf)
        peer = Peer(self._port)
        try:
            yield peer
        finally:
            process.kill()
            process.join()
            peer.close()


def send(peer: Peer, topic: str, *bodies: bytes) -> list[int]:
    """Send messages that must be acknowledged; their queue offsets."""
    offsets = []
    for body in bodies:
        offsets.append(int(peer.ask(send_request(topic, body)).ext_fields["queueOffset"]))
    return offsets


def read(peer: Peer, topic: str) -> list[bytes]:
    """The bodies of the first queue of a topic."""
    found: list[bytes] = []
    while True:
        answer = peer.call(pull_request(topic, len(found)))
        if answer.code != ResponseCode.SUCCESS:
            return found
        found += [bytes(message.body) for message in messages_in(answer)]


def delete(topic: str) -> RemotingCommand:
    return RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, TopicName(topic).fields())


def commit(group: str, topic: str, offset: int) -> RemotingCommand:
    fields = UpdateConsumerOffset(group, topic, 0, offset).fields()
    return RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def make_group(name: str) -> RemotingCommand:
    body = lenient_json.dumps({"groupName": name})
    return RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)


def offset_of(peer: Peer, group: str, topic: str) -> int:
    """-1 where there is none."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "setZeroIfNotFound": "false"}
    answer = peer.call(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields))
    return int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else -1


@pytest.mark.parametrize("topic", ["t", f"{RETRY_PREFIX}g", f"{DLQ_PREFIX}g"])
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_messages_of_a_topic_that_was_made_again_survive_a_kill(tmp_path, flush, topic):
    broker = KilledBroker(tmp_path, flushDiskType=flush)
    new = [b"new %d" % number for number in range(NEW)]
    with broker.life() as peer:
        peer.ask(make_group("g"))
        send(peer, topic, *[b"old %d" % number for number in range(OLD)])
        peer.ask(delete(topic))
        assert send(peer, topic, *new) == list(range(NEW))
    for _ in range(2):
        with broker.life() as peer:
            assert read(peer, topic) == new


def test_a_topic_that_a_send_made_survives_a_kill_with_its_message(tmp_path):
    """The process dies before it has saved the topic."""
    broker = KilledBroker(tmp_path)
    for life in range(5):
        with broker.life() as peer:
            send(peer, f"t{life}", b"acknowledged")
            peer.ask(send_request(f"t{life}", b"in the last queue", e="3"))
    with broker.life() as peer:
        for life in range(5):
            assert read(peer, f"t{life}") == [b"acknowledged"]


def test_what_was_deleted_is_not_back_after_a_kill(tmp_path):
    broker = KilledBroker(tmp_path)
    with broker.life() as peer:
        send(peer, "t", *[b"old"] * OLD)
        peer.ask(delete("t"))
    with broker.life() as peer:
        assert send(peer, "t", b"new") == [0]
        assert read(peer, "t") == [b"new"]


def test_offsets_go_with_their_topic_and_with_their_group(tmp_path):
    """A group that was at 90 would not see a topic of 60 messages at all."""
    broker = KilledBroker(tmp_path, flushConsumerOffsetInterval="50")
    with broker.life() as peer:
        peer.ask(make_group("g"))
        peer.ask(make_group("other"))
        send(peer, "t", *[b"old"] * OLD)
        send(peer, "stays", b"message")
        for group in ("g", "other"):
            peer.ask(commit(group, "t", 90))
            peer.ask(commit(group, "stays", 1))
        offsets = tmp_path / "store" / "config" / "consumerOffset.json"
        until(lambda: offsets.exists() and b"stays@other" in offsets.read_bytes())
        peer.ask(delete("t"))
        peer.ask(
            RemotingCommand(
                RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroup("other", True).fields()
            )
        )
        send(peer, "t", b"new")
    with broker.life() as peer:
        peer.ask(make_group("other"))
        assert offset_of(peer, "g", "t") == -1
        assert offset_of(peer, "g", "stays") == 1
        assert offset_of(peer, "other", "stays") == -1


def test_a_consumer_that_ran_all_the_while_is_given_the_new_topic(tmp_path):
    """It goes on where it was in the old one, which is behind the end of the new one."""
    broker = KilledBroker(tmp_path)
    with broker.life() as peer:
        send(peer, "t", *[b"old"] * OLD)
        peer.ask(delete("t"))
        send(peer, "t", *[b"new"] * NEW)
    with broker.life() as peer:
        moved = peer.call(pull_request("t", OLD))
        assert moved.code == ResponseCode.PULL_OFFSET_MOVED
        assert moved.ext_fields["nextBeginOffset"] == "0"


def test_offsets_that_were_saved_before_the_deletion_do_not_count_after_a_crash(tmp_path):
    """The process dies before it can save them without the topic."""
    path = tmp_path / "store" / "config" / "consumerOffset.json"
    with running(tmp_path) as site:
        peer = site.connect()
        for life in range(2):
            send(peer, "t", b"a", b"b", b"c")
            site.do(site.broker.offsets.commit, "test", "g", "t", 0, 3)
            site.do(site.broker.offsets.commit, "test", "g", "stays", 0, 7 + life)
            site.run(site.broker.save())
            before = path.read_bytes()
            peer.ask(delete("t"))
            send(peer, "t", b"new")
    path.write_bytes(before)
    (tmp_path / "store" / "abort").touch()
    with running(tmp_path) as site:
        assert site.broker.offsets.query("g", "t", 0) == -1
        assert site.broker.offsets.query("g", "stays", 0) == 8
        site.do(site.broker.offsets.commit, "test", "g", "t", 0, 1)
    (tmp_path / "store" / "abort").touch()
    with running(tmp_path) as site:
        assert site.broker.offsets.query("g", "t", 0) == 1  # of the new topic, and saved after the deletion


WAITS = {"delay level": {"DELAY": "1"}, "timer": {"TIMER_DELAY_MS": "1500"}}
WAIT_S = 3.0  # until a message of WAITS that waits has come


def send_later(peer: Peer, topic: str, waits: dict[str, str], *bodies: bytes) -> None:
    for number, body in enumerate(bodies):
        peer.ask(send_request(topic, body, {"UNIQ_KEY": f"LATER{number}", **waits}))


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("had_queue", [True, False], ids=["others were there", "none was there"])
def test_messages_that_wait_go_with_their_topic(tmp_path, waits, had_queue):
    """They were sent to the topic that was deleted, not to the one that is made again."""
    broker = KilledBroker(tmp_path, messageDelayLevel="2s")
    with broker.life() as peer:
        if had_queue:
            send(peer, "t", b"old")
        send_later(peer, "t", waits, b"later 0", b"later 1")
        peer.ask(delete("t"))
        assert send(peer, "t", b"new") == [0]
        send_later(peer, "t", waits, b"new later")
    with broker.life() as peer:
        until(lambda: read(peer, "t") == [b"new", b"new later"], "the message of the new topic")
        time.sleep(1)
        assert read(peer, "t") == [b"new", b"new later"]


@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_what_had_waited_and_was_deleted_does_not_come_again_after_a_kill(tmp_path, waits):
    """How far delays and timers are delivered is saved now and then only."""
    broker = KilledBroker(tmp_path, messageDelayLevel="1s", timerFlushIntervalMs="60000")
    with broker.life() as peer:
        send_later(peer, "t", waits, b"later")
        until(lambda: read(peer, "t") == [b"later"], "the message that waits")
        peer.ask(delete("t"))
        send(peer, "t", b"new")
    with broker.life() as peer:
        time.sleep(WAIT_S)
        assert read(peer, "t") == [b"new"]


def test_what_was_committed_and_deleted_is_not_committed_again_after_a_kill(tmp_path):
    """That it was committed is written a little later than its message."""
    broker = KilledBroker(tmp_path)
    half = {"UNIQ_KEY": "HALF", "TRAN_MSG": "true", "PGROUP": "p"}
    with broker.life() as peer:
        prepared = peer.ask(send_request("t", b"committed", half, f="4"))
        fields = {
            "producerGroup": "p", "tranStateTableOffset": prepared.ext_fields["queueOffset"],
            "commitLogOffset": str(int(prepared.ext_fields["msgId"][16:], 16)), "commitOrRollback": "8",
            "msgId": "HALF", "fromTransactionCheck": "true",
        }  # fmt: skip
        peer.ask(RemotingCommand(RequestCode.END_TRANSACTION, fields))
        assert read(peer, "t") == [b"committed"]
        peer.ask(delete("t"))
        send(peer, "t", b"new")
    with broker.life() as peer:
        peer.ask(RemotingCommand(RequestCode.END_TRANSACTION, fields))  # as when it is asked for it
        assert read(peer, "t") == [b"new"]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running(tmp_path) as made:
        yield made


def test_clients_cannot_say_that_a_topic_was_deleted(site):
    peer = site.connect()
    send(peer, "t", b"kept")
    properties = {"KEYS": "t", "UNIQ_KEY": "A" * 32}
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        answer = peer.call(send_request(DELETION_TOPIC, b"t", properties, code=code))
        assert answer.code != ResponseCode.SUCCESS
    assert read(peer, "t") == [b"kept"]


def test_a_deletion_that_the_log_cannot_take_is_refused_and_changes_nothing(site):
    peer = site.connect()
    send(peer, "t", b"kept")
    site.do(setattr, site.broker.store, "refusal", "no room on the disk")
    answer = peer.call(delete("t"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no room on the disk" in (answer.remark or "")
    assert site.broker.topics.get("t") is not None
    assert read(peer, "t") == [b"kept"]


def test_queues_of_topics_that_are_no_more_stay_cleaned(tmp_path):
    with running(tmp_path) as site:
        peer = site.connect()
        send(peer, "unused", b"old", b"old")
        site.do(site.broker.topics.delete, "unused")
        peer.ask(RemotingCommand(RequestCode.CLEAN_UNUSED_TOPIC))
        assert site.max_offset("unused") == 0
        assert send(peer, "unused", b"new") == [0]
    (tmp_path / "store" / "abort").touch()
    with running(tmp_path) as site:
        assert [bytes(message.body) for message in site.stored("unused")] == [b"new"]


def test_an_expired_queue_of_a_topic_that_is_used_keeps_its_offset(tmp_path):
    """Else its next message would have offset 0, and groups that are further would pass over it."""
    with running(tmp_path, {"mappedFileSizeCommitLog": str(64 * 1024)}) as site:
        peer = site.connect()
        send(peer, "idle", b"1", b"2", b"3")
        send(peer, "gone", b"1")
        send(peer, "busy", *[bytes(30_000)] * 6)
        site.do(site.broker.topics.delete, "gone")
        files = site.broker.store.commit_log.files
        site.do(lambda: files.remove_files(files.files[:1]))
        peer.ask(RemotingCommand(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
        assert "gone" not in site.broker.store.queues.table
        assert send(peer, "idle", b"4") == [3]


def test_a_slave_has_what_was_acknowledged_after_a_deletion_and_nothing_of_before(tmp_path):
    master_config = {"brokerRole": "SYNC_MASTER", "haSyncFromStart": "true"}
    with Cluster(slaves=1, directory=tmp_path, config=master_config) as cluster, ExitStack() as stack:
        cluster.create_topic("t")
        master, slave = cluster.brokers[0], cluster.slaves[0]
        until(lambda: master.replication.slaves, "the slave to connect")
        peer = stack.enter_context(closing(Peer(master.config.listen_port)))
        peer.ask(make_group("g"))
        send(peer, "t", *[b"old %d" % number for number in range(OLD)])
        peer.ask(commit("g", "t", 90))
        assert slave.slave is not None
        cluster.run(slave.slave.synchronize())
        assert slave.offsets.query("g", "t", 0) == 90
        peer.ask(delete("t"))
        new = [b"new %d" % number for number in range(NEW)]
        for body in new:
            assert peer.call(send_request("t", body)).code == ResponseCode.SUCCESS
        end = master.store.commit_log.max_offset
        until(lambda: slave.store.dispatcher.dispatched_offset == end, "the slave to dispatch")
        assert slave.offsets.query("g", "t", 0) == -1
        assert stored(slave) == new

        with closing(Peer(slave.config.listen_port)) as other:
            refused = other.call(delete("t"))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert "slave" in (refused.remark or "")
        assert stored(slave) == new

        root = Path(slave.config.store.store_path_root_dir)
        cluster.stop_broker(slave)
        (root / "abort").touch()  # as if it had crashed
        assert stored(cluster.restart_broker(slave)) == new


def stored(broker: Broker) -> list[bytes]:
    """The bodies of the first queue, whether or not the topic is known there yet."""
    store = broker.store
    queue = store.queues.get("t", 0)
    entries = () if queue is None else queue.iterate(queue.min_offset)
    found = [store.look_message(entry.physical_offset) for entry in entries]
    return [bytes(message.body) for message in found if message is not None]
