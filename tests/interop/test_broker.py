"""The real Java client, Java's mqadmin and Java's servers against `kourou broker`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from support.java import Java
from support.recorded.wire import free_ports
from support.sites.certificates import Authority, needs_openssl
from support.sites.servers import (
    Server,
    interop,
    java_broker,
    java_name_server,
    kourou,
    kourou_broker,
    kourou_name_server,
    mqadmin,
    report_of,
    run_interop,
    write_broker_conf,
)

SUITE_TIMEOUT_S = 420
BINARY = "-Drocketmq.serialize.type=ROCKETMQ"


class Cluster(NamedTuple):
    """A name server and a broker of ours."""

    name_server: Server
    broker: Server
    directory: Path

    def interop(self, *arguments: str) -> None:
        interop(self.directory, self.name_server.address, *arguments)


@pytest.fixture(scope="module")
def cluster(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    often = {"transactionCheckInterval": 3000, "transactionTimeOut": 2000}
    with kourou_name_server(directory) as server, kourou_broker(directory, server.port, often) as broker:
        yield Cluster(server, broker, directory)


@pytest.mark.parametrize(
    ("kinds", "options"),
    [
        ("sync,async,oneway", ""),
        ("batch,ordered", ""),
        ("compress,delay,timer,retry,rpc,transaction", ""),
        ("sync,batch,ordered,retry", BINARY),
    ],
    ids=["plain", "batch-ordered", "services", "binary"],
)
def test_the_suite_of_the_java_client(cluster, tmp_path, kinds, options):
    done = run_interop(
        tmp_path, cluster.name_server.address, "suite", "--only", kinds,
        options=options, timeout_s=SUITE_TIMEOUT_S,
    )  # fmt: skip

    results = report_of(done)["results"]
    failed = {name: result["problems"] for name, result in results.items() if not result["ok"]}
    assert not failed, failed
    assert {name.split()[0] for name in results} == set(kinds.split(","))


def test_mqadmin(cluster, tmp_path):
    namesrv, broker = ["-n", cluster.name_server.address], ["-b", cluster.broker.address]
    sent = tmp_path / "sent.json"
    cluster.interop("topic", "--topic", "Adm")
    cluster.interop("produce", "--topic", "Adm", "--count", "20", "--key-prefix", "k", "--out", str(sent))
    cluster.interop("consume", "--topic", "Adm", "--group", "AdmGroup", "--expect", str(sent))
    first = json.loads(sent.read_text())["messages"][0]

    verbs = {
        "clusterList": ["clusterList", *namesrv],
        "topicList": ["topicList", *namesrv],
        "updateTopic": ["updateTopic", *namesrv, *broker, "-t", "AdmNew", "-r", "3", "-w", "3"],
        "topicRoute": ["topicRoute", *namesrv, "-t", "AdmNew"],
        "topicStatus": ["topicStatus", *namesrv, "-t", "Adm"],
        "updateTopicPerm": ["updateTopicPerm", *namesrv, *broker, "-t", "AdmNew", "-p", "4"],
        "updateSubGroup": ["updateSubGroup", *namesrv, *broker, "-g", "AdmSub", "-r", "7"],
        "consumerProgress": ["consumerProgress", *namesrv, "-g", "AdmGroup"],
        "queryMsgById": ["queryMsgById", *namesrv, "-t", "Adm", "-i", first["offsetMsgId"]],
        "queryMsgByKey": ["queryMsgByKey", *namesrv, "-t", "Adm", "-k", "k-7"],
        "queryMsgByUniqueKey": ["queryMsgByUniqueKey", *namesrv, "-t", "Adm", "-i", first["msgId"]],
        "queryMsgByOffset": [
            "queryMsgByOffset", *namesrv, "-b", "broker-a", "-t", "Adm", "-i", "0", "-o", "0"
        ],
        "resetOffsetByTime": ["resetOffsetByTime", *namesrv, "-g", "AdmGroup", "-t", "Adm", "-s", "0"],
        "progressAfter": ["consumerProgress", *namesrv, "-g", "AdmGroup"],
        "cloneGroupOffset": [
            "cloneGroupOffset", *namesrv, "-s", "AdmGroup", "-d", "AdmSub", "-t", "Adm", "-o", "true"
        ],
        "brokerStatus": ["brokerStatus", *namesrv, *broker],
        "getBrokerConfig": ["getBrokerConfig", *namesrv, *broker],
        "updateBrokerConfig": ["updateBrokerConfig", *namesrv, *broker, "-k", "fileReservedTime", "-v", "48"],
        "configAfter": ["getBrokerConfig", *namesrv, *broker],
        "printMsg": ["printMsg", *namesrv, "-t", "Adm"],
        "queryCq": ["queryCq", *namesrv, *broker, "-t", "Adm", "-q", "0", "-i", "0", "-c", "2"],
        "statsAll": ["statsAll", *namesrv, "-t", "Adm"],
        "brokerConsumeStats": ["brokerConsumeStats", *namesrv, *broker],
        "cleanExpiredCQ": ["cleanExpiredCQ", *namesrv, *broker],
        "cleanUnusedTopic": ["cleanUnusedTopic", *namesrv, *broker],
        "deleteSubGroup": ["deleteSubGroup", *namesrv, *broker, "-g", "AdmSub", "-r", "true"],
        "deleteTopic": ["deleteTopic", *namesrv, "-c", "DefaultCluster", "-t", "AdmNew"],
        "topicListAfter": ["topicList", *namesrv],
    }  # fmt: skip
    out = dict(zip(verbs, mqadmin(tmp_path, *verbs.values()), strict=True))

    for verb, text in out.items():
        assert "Exception" not in text, f"{verb}: {text[-2000:]}"
    assert re.search(rf"broker-a\s+0\s+{re.escape(cluster.broker.address)}", out["clusterList"])
    assert "Adm" in out["topicList"].split()
    assert '"readQueueNums":3' in re.sub(r"\s", "", out["topicRoute"])
    assert sum(int(line.split()[3]) for line in _rows(out["topicStatus"], "broker-a")) == 20
    assert "Diff Total: 0" in out["consumerProgress"]
    assert first["offsetMsgId"] in out["queryMsgById"]
    assert len(_rows(out["queryMsgByKey"], first["msgId"][:24])) == 1
    assert first["msgId"] in out["queryMsgByUniqueKey"]
    assert "Diff Total: 20" in out["progressAfter"]
    (cloned,) = _rows(out["statsAll"], "AdmSub")
    assert cloned.split()[:3] == ["Adm", "AdmSub", "20"]
    assert re.search(r"putTps\s*:", out["brokerStatus"])
    assert re.search(r"fileReservedTime\s*=\s*72", out["getBrokerConfig"])
    assert re.search(r"fileReservedTime\s*=\s*48", out["configAfter"])
    assert out["printMsg"].count("MSGID: ") == 20
    assert "AdmNew" not in out["topicListAfter"].split()


def _rows(text: str, word: str) -> list[str]:
    return [line for line in text.splitlines() if word in line]


def test_a_kourou_broker_at_a_java_name_server(java, tmp_path):
    sent = str(tmp_path / "sent.json")
    with java_name_server(tmp_path) as server, kourou_broker(tmp_path, server.port):
        interop(tmp_path, server.address, "topic", "--topic", "T")
        interop(tmp_path, server.address, "produce", "--topic", "T", "--count", "20", "--out", sent)
        interop(tmp_path, server.address, "consume", "--topic", "T", "--group", "G", "--expect", sent)
        interop(tmp_path, server.address, "admin", "--topic", "T", "--group", "G")


def test_a_store_goes_from_kourou_to_java_and_back(java, tmp_path):
    """Every message stays, and a group goes on where it was."""
    files = [tmp_path / f"sent-{number}.json" for number in range(3)]
    brokers = [kourou_broker, java_broker, kourou_broker]
    with kourou_name_server(tmp_path) as server:
        for number, broker in enumerate(brokers):
            with broker(tmp_path, server.port):
                if number == 0:
                    interop(tmp_path, server.address, "topic", "--topic", "T")
                sent = ["--key-prefix", f"k{number}", "--out", str(files[number])]
                interop(tmp_path, server.address, "produce", "--topic", "T", "--count", "20", *sent)
                # What this group consumed from the broker before does not come again.
                consume = ["consume", "--topic", "T", "--group", "G", "--expect", str(files[number])]
                interop(tmp_path, server.address, *consume)
                everything = tmp_path / f"all-{number}.json"
                reports = [json.loads(file.read_text()) for file in files[: number + 1]]
                messages = [message for report in reports for message in report["messages"]]
                everything.write_text(json.dumps({"ok": True, "messages": messages}))
                interop(tmp_path, server.address, "pull", "--topic", "T", "--expect", str(everything))


@needs_openssl
def test_the_java_client_speaks_tls(java, tmp_path):
    """Both servers in enforcing mode, and the client proves who it is."""
    authority = Authority(tmp_path, "authority")
    server, client = authority.sign("server"), authority.sign("client")
    theirs, ours = tmp_path / "client.properties", tmp_path / "server.properties"
    theirs.write_text(
        "tls.test.mode.enable=false\ntls.client.authServer=true\n"
        f"tls.client.trustCertPath={authority.cert}\n"
        f"tls.client.certPath={client.cert}\ntls.client.keyPath={client.key}\n"
    )
    ours.write_text(
        "tls.server.mode=enforcing\ntls.test.mode.enable=false\n"
        f"tls.server.certPath={server.cert}\ntls.server.keyPath={server.key}\n"
        f"tls.server.need.client.auth=require\ntls.server.authClient=true\n"
        f"tls.server.trustCertPath={authority.cert}\n" + theirs.read_text()
    )
    sent = str(tmp_path / "sent.json")
    tls = f"-Dtls.enable=true -Dtls.config.file={theirs}"
    port = free_ports(0)
    conf = write_broker_conf(tmp_path, port, {"tls.config.file": ours})
    with (
        kourou("namesrv", "--port", str(port), "--host", "127.0.0.1", "--tls", str(ours)) as name_server,
        kourou("broker", "-c", str(conf)),
    ):
        address = name_server.address
        interop(tmp_path, address, "topic", "--topic", "T", options=tls)
        interop(tmp_path, address, "produce", "--topic", "T", "--count", "10", "--out", sent, options=tls)
        interop(tmp_path, address, "consume", "--topic", "T", "--group", "G", "--expect", sent, options=tls)
        plain = run_interop(tmp_path, address, "topic", "--topic", "U")
    assert plain.returncode != 0
