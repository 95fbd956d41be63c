"""A slave broker: what it takes from its master, what it serves, and what it leaves to its master."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kourou.broker import Broker, BrokerConfig
from kourou.errors import ConfigError, KourouError
from kourou.message.codec import decode
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import UpdateConsumerOffset
from kourou.remoting.protocol.topic_config import TopicConfig
from kourou.remoting.tls import TlsConfig
from kourou.store import BrokerRole, InnerMessage
from kourou.testing import Cluster
from support import loops
from support.recorded.wire import Caller
from support.sites.broker import broker_config, pull_request, send_request
from support.sites.certificates import Authority, needs_openssl

WAIT_S = 20.0


def until(condition: Callable[[], Any], what: str = "") -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        time.sleep(0.01)


class Pair:
    """A master and its slave, and requests to both."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    @property
    def master(self) -> Broker:
        return self.cluster.brokers[0]

    @property
    def slave(self) -> Broker:
        return self.cluster.slaves[0]

    def ask(self, broker: Broker, request: RemotingCommand) -> RemotingCommand:
        with Caller(broker.config.listen_port) as caller:
            return caller.call(request)

    def send(self, count: int = 1, topic: str = "t", **properties: str) -> None:
        for number in range(count):
            key = f"{time.monotonic_ns():032X}"
            request = send_request(topic, b"body %d" % number, {"UNIQ_KEY": key, **properties})
            answer = self.ask(self.master, request)
            assert answer.code == ResponseCode.SUCCESS, answer

    def replicated(self) -> None:
        def same() -> bool:
            return self.end(self.slave) == self.end(self.master)

        until(same, "the slave to have the log")
        until(
            lambda: self.slave.store.dispatcher.dispatched_offset == self.end(self.master),
            "the slave to dispatch",
        )

    def end(self, broker: Broker) -> int:
        return broker.store.commit_log.files.max_wrote

    def synchronize(self) -> None:
        assert self.slave.slave is not None
        self.cluster.run(self.slave.slave.synchronize())

    def commit(self, broker: Broker, offset: int, queue_id: int = 0) -> None:
        header = UpdateConsumerOffset("g", "t", queue_id, offset)
        answer = self.ask(broker, RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header.fields()))
        assert answer.code == ResponseCode.SUCCESS, answer


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with Cluster(slaves=1, directory=tmp_path) as cluster:
        cluster.create_topic("t")
        cluster.call(
            cluster.broker_addresses[0],
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            body=lenient_json.dumps({"groupName": "g"}),
        )
        yield Pair(cluster)


def test_a_slave_serves_the_messages_of_its_master_and_takes_none(pair):
    pair.send(5, KEYS="k")
    pair.replicated()
    pair.synchronize()
    request = pull_request("t", 0, group="g")
    answer = pair.ask(pair.slave, request)
    assert answer.code == ResponseCode.SUCCESS
    same = pair.ask(pair.master, request)
    assert bytes(answer.body or b"") == bytes(same.body or b"x")
    query = RemotingCommand(
        RequestCode.QUERY_MESSAGE,
        {"topic": "t", "key": "k", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(1 << 62)},
    )
    assert bytes(pair.ask(pair.slave, query).body or b"") == bytes(pair.ask(pair.master, query).body or b"x")
    refused = pair.ask(pair.slave, send_request("t", b"no"))
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "slave" in (refused.remark or "")
    assert pair.end(pair.slave) == pair.end(pair.master)


def test_a_slave_takes_topics_groups_offsets_and_delay_offsets(pair):
    pair.cluster.create_topic("later", queues=3)
    group = lenient_json.dumps({"groupName": "made-on-master", "retryMaxTimes": 5})
    pair.cluster.call(
        pair.cluster.broker_addresses[0], RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group
    )
    pair.commit(pair.master, 7)
    pair.send(1, DELAY="1")
    until(lambda: pair.master.delay.offsets.get(1) == 1)
    pair.synchronize()
    slave, master = pair.slave, pair.master
    assert slave.topics.topics == master.topics.topics
    assert slave.topics.data_version == master.topics.data_version
    assert slave.groups.groups["made-on-master"].retry_max_times == 5
    assert slave.offsets.query("g", "t", 0) == 7
    assert slave.delay.offsets == master.delay.offsets
    config = Path(slave.config.store.store_path_root_dir) / "config"
    for name in ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json"):
        assert (config / name).exists()
    pair.cluster.call(
        pair.cluster.broker_addresses[0], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "later"}
    )
    pair.synchronize()
    assert slave.topics.get("later") is None


def test_a_topic_that_was_deleted_and_made_again_begins_anew_at_the_slave(pair):
    pair.send(3)
    pair.replicated()
    pair.synchronize()  # it has to know the topic to see that it is gone
    pair.cluster.call(pair.cluster.broker_addresses[0], RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"})
    pair.synchronize()
    pair.replicated()
    assert pair.slave.store.max_offset("t", 0) == 0
    pair.cluster.create_topic("t")
    pair.send(1)
    pair.replicated()
    assert pair.slave.store.max_offset("t", 0) == pair.master.store.max_offset("t", 0) == 1


def test_everything_is_taken_without_being_asked_for(pair):
    service = pair.slave.slave
    assert service is not None
    until(lambda: service.synchronized > 0)


def test_delayed_messages_are_delivered_by_the_master_alone(pair):
    pair.send(1, DELAY="1")
    until(lambda: pair.master.store.max_offset("t", 0) == 1)
    pair.replicated()
    assert pair.slave.store.max_offset("t", 0) == 1
    assert pair.slave.store.max_offset("SCHEDULE_TOPIC_XXXX", 0) == 1


def test_a_slave_enters_timers_that_its_master_entered_and_delivers_none(pair):
    deliver_ms = pair.master.clock.now_ms() + 3_600_000
    pair.send(3, TIMER_DELIVER_MS=str(deliver_ms))
    until(lambda: pair.master.timers.queue_offset == 3)
    pair.replicated()
    pair.synchronize()
    until(lambda: pair.slave.timers.queue_offset == 3)
    assert pair.slave.timers.pending == pair.master.timers.pending == 3
    assert pair.slave.timers.metrics.count("t") == 3


def test_offsets_committed_at_a_slave_reach_the_master_when_it_is_back(pair):
    pair.send(5)
    pair.commit(pair.master, 2)
    pair.replicated()
    pair.synchronize()
    master, slave = pair.master, pair.slave
    pair.cluster.stop_broker(master)
    until(lambda: not slave.master_is_up)
    pair.commit(slave, 4)
    pair.commit(slave, 3, queue_id=1)
    back = pair.cluster.restart_broker(master)
    pair.cluster.run(slave.registrar.register_all())
    until(lambda: slave.master_is_up)
    until(lambda: back.offsets.query("g", "t", 0) == 4, "the master to have the offset")
    assert back.offsets.query("g", "t", 1) == 3
    until(lambda: slave.slave is not None and not slave.slave.offsets.table)


def test_a_slave_forgets_the_offsets_of_a_group_that_was_deleted_and_made_again(pair):
    """Between two looks of the slave: the group is there as before, and its offsets are not."""
    pair.send(3)
    pair.commit(pair.master, 3)
    pair.synchronize()
    assert pair.slave.offsets.query("g", "t", 0) == 3
    gone = {"groupName": "g", "cleanOffset": "true"}
    pair.ask(pair.master, RemotingCommand(RequestCode.DELETE_SUBSCRIPTIONGROUP, gone))
    again = lenient_json.dumps({"groupName": "g"})
    pair.ask(pair.master, RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, again))
    pair.synchronize()
    assert pair.master.offsets.query("g", "t", 0) == -1
    assert pair.slave.offsets.query("g", "t", 0) == -1


def test_a_slave_forgets_the_offsets_in_a_light_queue_that_was_deleted(tmp_path):
    light = {"enableLmq": "true", "enableMultiDispatch": "true"}
    with Cluster(slaves=1, directory=tmp_path, config=light) as cluster:
        cluster.create_topic("t")
        pair = Pair(cluster)
        pair.send(3, INNER_MULTI_DISPATCH="%LMQ%light")
        cluster.run(_call(pair.master.offsets.commit, "test", "%LMQ%group", "%LMQ%light", 0, 3))
        pair.synchronize()
        assert pair.slave.offsets.query("%LMQ%group", "%LMQ%light", 0) == 3
        pair.ask(pair.master, RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "%LMQ%light"}))
        pair.replicated()
        assert pair.slave.offsets.query("%LMQ%group", "%LMQ%light", 0) == -1
        # What a look that was under way at the deletion has brought goes with the next one.
        cluster.run(_call(pair.slave.offsets.commit, "test", "%LMQ%group", "%LMQ%light", 0, 3))
        pair.synchronize()
        assert pair.slave.offsets.query("%LMQ%group", "%LMQ%light", 0) == -1


async def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def test_offsets_that_a_master_has_further_on_stay(pair):
    pair.send(5)
    pair.commit(pair.master, 2)
    pair.synchronize()
    master, slave = pair.master, pair.slave
    assert slave.slave is not None
    pair.cluster.stop_broker(master)
    until(lambda: not slave.master_is_up)
    pair.commit(slave, 3)
    slave.slave.master_address = ""  # nothing is taken until the master has moved on
    back = pair.cluster.restart_broker(master)
    pair.commit(back, 5)
    pair.cluster.run(slave.registrar.register_all())
    until(lambda: slave.slave is not None and not slave.slave.offsets.table)
    pair.synchronize()
    assert back.offsets.query("g", "t", 0) == slave.offsets.query("g", "t", 0) == 5


def test_a_reset_on_the_master_is_not_undone_by_a_slave(pair):
    pair.send(5)
    pair.commit(pair.master, 5)
    pair.synchronize()
    pair.commit(pair.master, 1)
    pair.synchronize()
    assert pair.master.offsets.query("g", "t", 0) == pair.slave.offsets.query("g", "t", 0) == 1


def test_the_status_of_replication(pair):
    pair.send(3)
    pair.replicated()
    until(lambda: pair.master.replication.status().slaves[0].diff == 0)
    answer = pair.ask(pair.master, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
    status = lenient_json.loads(bytes(answer.body or b""))
    assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
    assert status["haConnectionInfo"][0]["slaveAckOffset"] == pair.end(pair.master)
    answer = pair.ask(pair.slave, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
    status = lenient_json.loads(bytes(answer.body or b""))
    assert status["master"] is False
    assert status["haClientRuntimeInfo"]["masterAddr"] == pair.master.config.ha_address
    assert status["haClientRuntimeInfo"]["maxOffset"] == pair.end(pair.master)


def test_where_the_master_is_can_be_asked_and_told(pair):
    exchange = RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO)
    told = pair.ask(pair.master, exchange).ext_fields
    assert told["masterHaAddress"] == pair.master.config.ha_address
    assert told["masterAddress"] == pair.master.config.address
    assert pair.ask(pair.slave, exchange).ext_fields == {}
    # Once it has its master's topics it does not register again by itself, which would tell it the truth.
    until(lambda: pair.slave.master_is_up and pair.slave.slave.synchronized)
    pair.synchronize()
    elsewhere = {"masterHaAddress": "127.0.0.1:9", "masterAddress": "127.0.0.1:10"}
    answer = pair.ask(pair.slave, RemotingCommand(RequestCode.EXCHANGE_BROKER_HA_INFO, elsewhere))
    assert answer.code == ResponseCode.SUCCESS
    until(lambda: not pair.slave.master_is_up)
    reset = RemotingCommand(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "77"})
    assert pair.ask(pair.slave, reset).code == ResponseCode.SUCCESS
    answer = pair.ask(pair.slave, RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
    assert lenient_json.loads(bytes(answer.body or b""))["haClientRuntimeInfo"]["masterFlushOffset"] == 77
    pair.cluster.run(pair.slave.registrar.register_all())
    until(lambda: pair.slave.master_is_up)


def test_a_sync_master_answers_by_what_its_slave_does(tmp_path):
    config = {"brokerRole": "SYNC_MASTER", "slaveTimeout": "30000"}
    with Cluster(slaves=1, directory=tmp_path, config=config) as cluster:
        cluster.create_topic("t")
        pair = Pair(cluster)
        pair.send(3)
        assert pair.end(pair.slave) == pair.end(pair.master)
        batch = send_request("t", b"one", {"UNIQ_KEY": "A1", "WAIT": "false"})
        assert pair.ask(pair.master, batch).code == ResponseCode.SUCCESS
        pair.cluster.stop_broker(pair.slave)
        until(lambda: not pair.master.replication.slaves)
        alone = pair.ask(pair.master, send_request("t", b"two", {"UNIQ_KEY": "A2"}))
        assert alone.code == ResponseCode.SLAVE_NOT_AVAILABLE
        assert alone.ext_fields["queueOffset"] == "4"
        unasked = send_request("t", b"three", {"UNIQ_KEY": "A3", "WAIT": "false"})
        assert pair.ask(pair.master, unasked).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("slave_read", [True, False])
def test_a_master_suggests_its_slave_for_what_is_not_in_memory(tmp_path, slave_read):
    config = {"slaveReadEnable": str(slave_read).lower(), "accessMessageInMemoryMaxRatio": "0"}
    with Cluster(slaves=1, directory=tmp_path, config=config) as cluster:
        cluster.create_topic("t")
        pair = Pair(cluster)
        pair.send(3)
        answer = pair.ask(pair.master, pull_request("t", 0, group="g"))
        assert answer.ext_fields["suggestWhichBrokerId"] == ("1" if slave_read else "0")


def test_a_slave_sends_consumers_back_to_a_master_that_is_there(pair):
    pair.send(2)
    pair.replicated()
    pair.synchronize()
    at_end = pair.ask(pair.slave, pull_request("t", 2, group="g"))
    assert at_end.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert at_end.ext_fields["suggestWhichBrokerId"] == "0"
    pair.cluster.stop_broker(pair.master)
    until(lambda: not pair.slave.master_is_up)
    at_end = pair.ask(pair.slave, pull_request("t", 2, group="g"))
    assert at_end.code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("kind", ["ahead", "other", "file size"])
def test_a_slave_does_not_follow_a_master_of_another_log(tmp_path, kind, caplog):
    more = {"brokerRole": "SLAVE", "brokerId": "1", "storePathRootDir": str(tmp_path / "other")}
    if kind == "file size":
        more["mappedFileSizeCommitLog"] = str(1024 * 1024)
    else:
        with Cluster(directory=tmp_path / "first") as first:
            first.create_topic("t")
            Pair(first).send(3 if kind == "ahead" else 1)
        (tmp_path / "first" / "broker-a").rename(tmp_path / "other")
    with Cluster(directory=tmp_path / "second") as cluster:
        cluster.create_topic("t")
        Pair(cluster).send(2)
        properties = {**_properties(cluster), **more}
        stranger = Broker(BrokerConfig.from_properties(properties))
        cluster.run(stranger.start())
        cluster.slaves.append(stranger)
        wanted = {
            "ahead": "is ahead of its master",
            "other": "has another record at",
            "file size": "log files",
        }
        until(lambda: wanted[kind] in caplog.text, kind)
        assert not cluster.brokers[0].replication.slaves


def _properties(cluster: Cluster) -> dict[str, str]:
    from kourou.testing.cluster import HOST, SMALL_STORE

    return {
        **SMALL_STORE,
        "brokerName": "broker-a",
        "brokerIP1": HOST,
        "brokerIP2": HOST,
        "bindAddress": HOST,
        "listenPort": "0",
        "namesrvAddr": cluster.namesrv,
    }


def test_role_and_id_of_a_broker_belong_together(tmp_path):
    with pytest.raises(ConfigError, match="brokerId must be > 0"):
        Broker(broker_config(tmp_path, {"brokerRole": "SLAVE"}))
    assert Broker(broker_config(tmp_path, {"brokerId": "3"})).config.broker_id == 0


def test_a_role_changes_by_a_new_start_only(pair):
    def update(broker: Broker, role: str) -> int:
        body = f"brokerRole={role}\n".encode()
        return pair.ask(broker, RemotingCommand(RequestCode.UPDATE_BROKER_CONFIG, {}, body)).code

    assert update(pair.slave, "ASYNC_MASTER") == ResponseCode.SYSTEM_ERROR
    assert update(pair.master, "SLAVE") == ResponseCode.SYSTEM_ERROR
    assert update(pair.master, "SYNC_MASTER") == ResponseCode.SUCCESS
    pair.send(1)
    assert pair.end(pair.slave) == pair.end(pair.master)


def test_a_link_in_tls_needs_a_certificate(tmp_path):
    """A configured one: nobody could tell one that the master makes for itself from somebody else's."""

    async def main(tls: TlsConfig | None) -> None:
        broker = Broker(broker_config(tmp_path, {"haTlsEnable": "true"}), tls=tls)
        with pytest.raises(KourouError, match=r"haTlsEnable=true needs tls.server.certPath"):
            await broker.start()

    for tls in (None, TlsConfig(), TlsConfig(test_mode=True, server_cert_path="put aside")):
        loops.run("uvloop", main(tls))


@needs_openssl
async def test_a_pair_in_tls_without_a_name_server(tmp_path):
    authority = Authority(tmp_path, "authority")
    certificate = authority.sign("broker")
    tls = TlsConfig(
        server_cert_path=certificate.cert, server_key_path=certificate.key,
        client_auth_server=True, client_trust_cert_path=authority.cert,
    )  # fmt: skip

    master = Broker(broker_config(tmp_path / "m", {"haTlsEnable": "true"}), tls=tls)
    await master.start()
    master.topics.update(TopicConfig("t", 4, 4))
    role = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": master.config.ha_address}
    slave = Broker(broker_config(tmp_path / "s", {"haTlsEnable": "true", **role}), tls=tls)
    await slave.start()
    assert master.put(InnerMessage.of("t", 0, b"secret")).ok
    await loops.until(lambda: slave.store.max_offset("t", 0) == 1)
    await slave.stop()
    await master.stop()


def test_a_slave_that_becomes_the_master_has_all_and_takes_more(pair):
    pair.send(3, KEYS="k")
    pair.replicated()
    pair.synchronize()
    slave = pair.slave
    pair.cluster.stop_broker(slave)
    pair.cluster.stop_broker(pair.master)
    slave.config.store.broker_role, slave.config.broker_id = BrokerRole.ASYNC_MASTER, 0
    pair.cluster.restart_broker(slave)
    pair.send(1, KEYS="k")
    assert pair.master.store.max_offset("t", 0) == 4
    found = pair.cluster.run(_query(pair.master, "k"))
    assert found == 4


async def _query(broker: Broker, key: str) -> int:
    return len(broker.store.query_message("t", key).records)


def test_a_slave_hears_from_the_name_server_that_it_has_the_lowest_id(tmp_path):
    with Cluster(slaves=1, directory=tmp_path, config={"enableSlaveActingMaster": "true"}) as cluster:
        pair = Pair(cluster)
        master, slave = pair.master, pair.slave
        cluster.stop_broker(master)
        fields = {
            "minBrokerId": "1",
            "minBrokerAddr": slave.config.address,
            "offlineBrokerAddr": master.config.address,
        }
        notice = RemotingCommand(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, fields)
        assert pair.ask(slave, notice).code == ResponseCode.SUCCESS
        assert slave.group is not None
        assert slave.group.acting.is_acting
        assert slave.slave is not None
        assert slave.slave.master_address == ""


def test_a_slave_acts_for_a_master_that_is_gone_until_it_is_back(tmp_path):
    config = {
        "enableSlaveActingMaster": "true", "enableRemoteEscape": "true", "messageDelayLevel": "3s 5s",
        "transactionTimeOut": "500", "transactionCheckInterval": "600000",
    }  # fmt: skip
    with Cluster(brokers=2, slaves=1, directory=tmp_path, config=config) as cluster:
        cluster.create_topic("t")
        pair = Pair(cluster)
        master, slave, other = cluster.brokers[0], cluster.slaves[0], cluster.brokers[1]
        pair.send(1, DELAY="1", KEYS="delayed")
        pair.send(1, TRAN_MSG="true", PGROUP="pg", KEYS="prepared")
        pair.replicated()
        pair.synchronize()
        cluster.stop_broker(master)
        until(lambda: slave.group is not None and slave.group.acting.is_acting, "the slave to act")
        until(lambda: delivered_to(other, "t") == ["delayed"], "the delayed message at the other broker")
        half_topic = "RMQ_SYS_TRANS_HALF_TOPIC"
        until(lambda: delivered_to(other, half_topic) == ["prepared"], "the half at the other broker")
        lock = {"consumerGroup": "g", "clientId": "c", "mqSet": [QUEUE]}
        request = RemotingCommand(RequestCode.LOCK_BATCH_MQ, {}, lenient_json.dumps(lock))
        locked = lenient_json.loads(bytes(pair.ask(slave, request).body or b""))
        assert locked["lockOKMQSet"] == [QUEUE]

        back = cluster.restart_broker(master)
        until(lambda: slave.group is not None and not slave.group.acting.is_acting, "the slave to leave it")
        until(lambda: slave.master_is_up)
        assert back.delay.offsets[1] == 1
        cluster.run(back.transactions.check())
        assert back.store.max_offset("t", 0) == 0
        assert back.store.max_offset(half_topic, 0) == 1
        assert delivered_to(other, "t") == ["delayed"]


QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "t"}


def delivered_to(broker: Broker, topic: str) -> list[str]:
    """The keys of the messages of a topic."""
    found = []
    for queue_id in range(4):
        result = broker.store.get_message(topic, queue_id, 0, 32)
        found += [decode(bytes(record)).properties["KEYS"] for record in result.records]
    return found


def _begin_of(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(4096)


def test_up_runs_a_pair(tmp_path):
    command = [sys.executable, "-m", "kourou", "up", "--dir", str(tmp_path), "--slaves", "1", "--no-console"]
    with (
        subprocess.Popen(
            [*command, "--port", "0", "--broker-port", "0"], stdout=subprocess.PIPE, encoding="utf-8"
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(process.kill)  # before the process is waited for
        assert process.stdout is not None
        lines = list(
            iter(process.stdout.readline, "Ctrl-C stops it; what was sent is there again next time.\n")
        )
        ports = {
            line.split()[0]: int(line.rpartition(":")[2])
            for line in lines
            if line.startswith("  ") and ":" in line
        }
        with Caller(ports["broker"]) as caller:
            assert caller.call(send_request("t", b"copied")).code == ResponseCode.SUCCESS

        def status() -> dict[str, Any]:
            with Caller(ports["slave"]) as caller:
                answer = caller.call(RemotingCommand(RequestCode.GET_BROKER_HA_STATUS))
            found: dict[str, Any] = lenient_json.loads(bytes(answer.body or b""))
            return found

        until(lambda: status()["haClientRuntimeInfo"]["maxOffset"] > 0, "the slave to have the message")
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 0
    logs = [tmp_path / name / "commitlog" / f"{0:020d}" for name in ("broker-0", "broker-0-slave-1")]
    first, second = map(_begin_of, logs)
    assert first == second
    assert b"copied" in first
