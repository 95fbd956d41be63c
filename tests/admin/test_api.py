"""`kourou.admin`: what the commands do not show, and clusters that are set otherwise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from kourou import sync
from kourou.admin import Admin, AdminError
from kourou.admin.model import version_name
from kourou.admin.tools.traces import read_traces
from kourou.cli import app
from kourou.client import Message, RefusedError
from kourou.client.trace import TraceBean, TraceContext, TraceType
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.headers import TopicName
from kourou.testing import Cluster
from support.sites.clients import run


@pytest.fixture(scope="module")
def pair() -> Iterator[Cluster]:
    """A master and a slave; resets go by way of clients, as with older brokers."""
    with Cluster(slaves=1, config={"useServerSideResetOffset": "false"}) as cluster:
        yield cluster


def kourou(cluster: Cluster, *arguments: str) -> str:
    result = CliRunner(env={"NAMESRV_ADDR": cluster.namesrv}).invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_a_slave_is_seen_from_both_sides(pair: Cluster) -> None:
    (master,), (slave,) = pair.broker_addresses, pair.slave_addresses

    async def wait() -> None:
        async with Admin(pair.namesrv) as admin:
            while not (await admin.brokers.ha_status(master))["haConnectionInfo"]:
                pass

    run(wait())
    assert re.search(r"#SlaveNum\t1\n", kourou(pair, "mqadmin", "haStatus", "-b", master))
    assert re.search(
        r"#MasterAddr\t127.0.0.1:\d+\n#CommitLogMaxOffset\t\d+",
        kourou(pair, "mqadmin", "haStatus", "-b", slave),
    )
    assert "1 slaves in sync" in kourou(pair, "admin", "ha", "status")
    assert "slave of" in kourou(pair, "admin", "ha", "status", slave)
    kourou(pair, "mqadmin", "resetMasterFlushOffset", "-b", slave, "-o", "7")
    listed = kourou(pair, "mqadmin", "clusterList")
    assert [line.split()[2] for line in listed.splitlines() if "broker-a" in line] == ["0", "1"]
    both = kourou(pair, "mqadmin", "getBrokerConfig", "-c", "DefaultCluster")
    assert f"============My Master: {master}=====Slave: {slave}============" in both


def test_a_group_offline_has_its_offsets_written(pair: Cluster) -> None:
    pair.create_topic("offline", queues=1)

    async def check() -> None:
        async with Admin(pair.namesrv) as admin:
            for number in range(5):
                await admin.messages.send(Message("offline", b"%d" % number))
            await admin.groups.create("sleeper")
            await admin.offsets.set("sleeper", "offline", "broker-a", 0, 4)
            (change,) = await admin.offsets.reset("sleeper", "offline", 0)
            assert (change.old_offset, change.offset, change.broker_offset) == (4, 0, 5)
            (change,) = await admin.offsets.reset("sleeper", "offline", -1, force=False)
            assert change.offset == 0  # without force it never goes forward
            (change,) = await admin.offsets.skip("sleeper", "offline")
            assert change.offset == 5
            assert (await admin.groups.progress("sleeper", "offline")).lag == 0

    run(check())
    printed = kourou(pair, "mqadmin", "resetOffsetByTime", "-g", "sleeper", "-t", "offline", "-s", "0")
    assert re.search(r"#timestampOffset +#resetOffset *\nbroker-a +0 +5 +5 +0 +0", printed)


def test_an_offset_that_clients_would_commit_over_is_refused(pair: Cluster) -> None:
    pair.create_topic("online", queues=1)

    async def check() -> None:
        async with Admin(pair.namesrv) as admin:
            with pytest.raises(AdminError, match="stop its clients"):
                await admin.offsets.set("awake", "online", "broker-a", 0, 0)

    with sync.Consumer(pair.namesrv, group="awake", subscribe="online"):
        run(check())


def test_an_export_goes_to_brokers_of_other_names(pair: Cluster) -> None:
    topic = {"topicName": "elsewhere", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    document = {
        "format": "kourou-metadata/1",
        "brokers": {
            "far-away": {"topics": {"elsewhere": topic}, "groups": {}, "offsets": {"t": {"g": {"0": 1}}}}
        },
    }

    async def check() -> None:
        async with Admin(pair.namesrv) as admin:
            done = await admin.metadata.import_all(document)
            assert (done.topics, done.offsets) == (1, 0)
            assert "far-away" in done.notes[0]
            assert (await admin.topics.config("elsewhere"))["broker-a"].read_queue_nums == 2
            with pytest.raises(AdminError, match="no export"):
                await admin.metadata.import_all({"format": "other"})

    run(check())


def test_configuration_is_taken_over_without_what_belongs_to_a_machine(pair: Cluster) -> None:
    async def check() -> None:
        async with Admin(pair.namesrv) as admin:
            document = await admin.metadata.export(parts=["config"])
            config = document["brokers"]["broker-a"]["config"]
            config |= {"fileReservedTime": "31", "brokerName": "other", "storePathRootDir": "/elsewhere"}
            done = await admin.metadata.import_all(document, parts=["config"])
            assert done.config_keys == 1
            now = await admin.brokers.config("broker-a")
            assert (now["fileReservedTime"], now["brokerName"]) == ("31", "broker-a")

    run(check())


def test_mistakes_are_told(pair: Cluster) -> None:
    async def check() -> None:
        async with Admin(pair.namesrv) as admin:
            with pytest.raises(AdminError, match="nothing to clone"):
                await admin.offsets.clone("nobody", "anybody")
            with pytest.raises(AdminError, match="the name server knows DefaultCluster"):
                await admin.clusters.brokers("Nowhere")
            with pytest.raises(AdminError, match='needs a "topicName"'):
                await admin.topics.create_many([{}])
            with pytest.raises(AdminError, match='needs a "groupName"'):
                await admin.groups.create_many([{}])
            with pytest.raises(RefusedError, match="kourou admin topic create"):
                await admin.link.ask(
                    pair.broker_addresses[0], RequestCode.GET_TOPIC_STATS_INFO, TopicName("nothing")
                )
            with pytest.raises(AdminError, match="is not in queue 0"):
                await admin.offsets.set("g", "TBW102", "broker-a", 0, 1_000_000)

    run(check())


def test_names_of_versions() -> None:
    assert [version_name(number) for number in (513, 401, 412, 213)] == [
        "V5_5_0", "V4_9_4", "V5_0_0_SNAPSHOT", "V4_0_0",
    ]  # fmt: skip
    assert version_name(37) == "V3(37)"
    assert version_name(9999) == "HIGHER_VERSION"


@pytest.mark.parametrize("kind", list(TraceType))
def test_traces_are_read_as_they_are_written(kind: TraceType) -> None:
    bean = TraceBean("orders", "ID", "tag", "key-1 key-2", "OFFSET-ID", "10.0.0.1:10911", 5)
    context = TraceContext(kind, [bean], "group", timestamp_ms=1234, cost_ms=7)
    (entry,) = read_traces(context.encode().encode() + b"Pub\x01too short\x02", "10.0.0.2")
    assert (entry.type, entry.message_id, entry.group, entry.client_host) == (
        kind.value,
        "ID",
        "group",
        "10.0.0.2",
    )
    assert entry.timestamp_ms == 1234
    if kind in (TraceType.PUB, TraceType.SUB_AFTER):
        assert (entry.cost_ms, entry.is_success, entry.keys) == (7, True, "key-1 key-2")


def test_the_shell_completes() -> None:
    words = {"COMP_WORDS": "kourou admin topic ", "COMP_CWORD": "3", "_KOUROU_COMPLETE": "complete_bash"}
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "kourou")],
        env={**os.environ, **words}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert {"list", "route", "create", "delete"} <= set(done.stdout.split())
