"""RocketMQ 5's official Go and Node clients, and an early Java client, at `kourou proxy`, before a broker of
ours and before Java's.

Go's client speaks TLS, Node's plain text. Both programs do the same steps, all at once; each test looks
at the report of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.foreign import go_program, install, node_modules, proxied_cluster, run_step

SOURCE = Path(__file__).resolve().parent / "grpc"
COUNT = 20
KINDS = {
    "normal": "NORMAL", "push": "NORMAL", "invisible": "NORMAL", "fifo": "FIFO", "delay": "DELAY",
    "txn": "TRANSACTION",
}  # fmt: skip
CLIENTS = ("go", "node")
TOPICS = {f"{client}-{topic}": kind for client in (*CLIENTS, "java") for topic, kind in KINDS.items()}
GROUPS = {group: {"consumeMessageOrderly": True} for group in ("g-go-fifo", "g-node-fifo", "java-g-fifo")}
SETTINGS = {"transactionTimeOut": 6000, "transactionCheckInterval": 3000, "recallMessageEnable": "true"}
TOPIC_NOT_FOUND = 40402
OLD_JAVA = "5.0.3"

Reports = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=["kourou", "java"])
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy."""
    directory = tmp_path_factory.mktemp(request.param)
    with proxied_cluster(directory, request.param, SETTINGS, TOPICS, GROUPS) as address:
        yield address


@pytest.fixture(params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in CLIENTS])
def client(request: pytest.FixtureRequest) -> str:
    """The language of a client."""
    return str(request.param)


@pytest.fixture(scope="module")
def known(endpoint: str) -> dict[str, Reports]:
    """The reports of each client at this proxy, once they are known."""
    return {}


@pytest.fixture
def reports(client: str, endpoint: str, known: dict[str, Reports], tmp_path: Path) -> Reports:
    """What each step of a program found. A program runs once for each proxy."""
    if client not in known:
        known[client] = run(client, endpoint, tmp_path)
    return known[client]


def run(client: str, endpoint: str, home: Path) -> Reports:
    if client == "go":
        program = str(go_program(SOURCE / client))
        return run_step(home, [program, endpoint], {"rocketmq.client.logRoot": str(home)})
    modules = {"NODE_PATH": str(node_modules(SOURCE / client))}
    return run_step(home, ["node", str(SOURCE / client / "client.js"), endpoint], modules)


@pytest.fixture(scope="session")
def old_classes() -> str:
    """The class path of the Java program with an early client. It is compiled with the newest."""
    home = SOURCE / "java"
    target = home / "target" / OLD_JAVA
    target.mkdir(parents=True, exist_ok=True)
    source, newest, old = home / "GrpcClient.java", target / "newest", target / "lib"
    fetch = ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), "dependency:copy-dependencies"]
    compiled = ["javac", "-encoding", "UTF-8", "-cp", f"{newest}/*", "-d", str(target), str(source)]
    versions = [f"-Dclient.version={OLD_JAVA}", f"-DoutputDirectory={old}"]
    install(target, source, [*fetch, f"-DoutputDirectory={newest}"], compiled, [*fetch, *versions])
    return f"{target}:{old}/*"


def test_normal_messages_with_a_tag(client, reports):
    bodies = sorted(f"{client}-normal {number}" for number in range(1, COUNT, 2))
    first = {"properties": {"number": "1", "名": "值"}, "keys": ["key-1"], "tag": "odd", "attempt": 1}
    assert reports["normal"] == {"bodies": bodies, **first}


def test_order_is_kept_in_a_message_group(reports):
    assert reports["fifo"] == {"even": list(range(0, COUNT, 2)), "odd": list(range(1, COUNT, 2))}


def test_delayed_messages_come_in_time_unless_they_are_recalled(client, reports):
    assert reports["delay"] == {"bodies": [f"{client}-delay 0"], "in_time": True}


def test_transactions_are_ended_and_asked_for(client, reports):
    bodies = [f"{client}-txn 0", f"{client}-txn 2"]
    assert reports["transaction"] == {"bodies": bodies, "asked": [f"{client}-txn 2"]}


def test_a_push_consumer_gets_what_failed_again(client, reports):
    twice = {f"{client}-push {number}": 2 for number in range(3)}
    assert reports["push"] == {"times": twice, "attempts": twice}


def test_an_invisible_time_is_changed(reports):
    assert reports["invisible"] == {"attempts": [1, 2]}


def test_a_topic_that_is_not_there_is_refused(reports):
    assert reports["refused"] == {"topic": TOPIC_NOT_FOUND}


def test_an_early_java_client_sends_and_consumes(old_classes, endpoint, tmp_path):
    program = ["java", "-Dfile.encoding=UTF-8", f"-Duser.home={tmp_path}", "-cp", old_classes, "GrpcClient"]
    reports = run_step(tmp_path, [*program, endpoint, "tls", "normal,push,fifo"])
    assert reports["normal"]["bodies"] == sorted(f"java-normal {number}" for number in range(1, COUNT, 2))
    assert reports["push"] == {"times": {f"java-push {number}": "2" for number in range(3)}}
    order = [int(body.split()[1]) for body in reports["fifo"]["order"]]
    assert [number for number in order if number % 2] == list(range(1, COUNT, 2))
    assert [number for number in order if number % 2 == 0] == list(range(0, COUNT, 2))
