"""RocketMQ 5's official clients at `kourou proxy`, before a broker of ours and before the real Java broker;
Java's also at Java's proxy before ours. (Python's asks for messages before Java's proxy has its settings.)

Java's client speaks TLS, Python's plain text. What the steps of a program do takes seconds of waiting: all of
them run at once, and each test looks at the report of one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from kourou.proxy.protocol import pb
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import CreateTopic
from kourou.remoting.signing import Credentials
from support.foreign import install, python_with, run_step
from support.java import java
from support.recorded.wire import Caller
from support.sites.guarded import ADMIN, SECRET, guarded_broker
from support.sites.servers import (
    java_broker,
    java_proxy,
    kourou,
    kourou_broker,
    kourou_name_server,
    kourou_proxy,
)

SOURCE = Path(__file__).resolve().parent / "grpc"
COUNT = 20
TOPICS = {
    "normal": "NORMAL", "sql": "NORMAL", "push": "NORMAL", "invisible": "NORMAL", "dead": "NORMAL",
    "fifo": "FIFO", "delay": "DELAY", "txn": "TRANSACTION", "ranks": "PRIORITY",
}  # fmt: skip
SETTINGS = {
    "transactionTimeOut": 6000, "transactionCheckInterval": 3000,  # Java writes ends after 3 s
    "recallMessageEnable": "true",
    "enablePropertyFilter": "true",
}  # fmt: skip

OURS = [("kourou", "kourou"), ("kourou", "java")]  # a proxy, and a broker behind it

Reports = dict[str, dict[str, Any]]

at_ours = pytest.mark.parametrize("endpoint", OURS, indirect=True, ids="-".join, scope="module")


@pytest.fixture(scope="session")
def python() -> str:
    """A Python with the official client."""
    return python_with(SOURCE, "rocketmq")


@pytest.fixture(scope="session")
def classes() -> str:
    """The class path of the program with the official Java client."""
    home = SOURCE / "java"
    target = home / "target"
    jars = f"{target}/lib/*"
    source, copy = home / "GrpcClient.java", "dependency:copy-dependencies"
    fetch = ["mvn", "-q", "-B", "-f", str(home / "pom.xml"), copy, f"-DoutputDirectory={target}/lib"]
    compiled = ["javac", "-encoding", "UTF-8", "-cp", jars, "-d", str(target), str(source)]
    install(target, source, fetch, compiled)
    return f"{target}:{jars}"


@pytest.fixture(scope="module", params=[*OURS, ("java", "kourou")], ids="-".join)
def endpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy before a broker, each ours or Java's."""
    proxies, brokers = request.param
    directory = tmp_path_factory.mktemp("proxied")
    if "java" in request.param:
        java()
    start = java_broker if brokers == "java" else kourou_broker
    with kourou_name_server(directory) as server, start(directory, server.port, SETTINGS) as broker:
        with Caller(broker.port) as caller:
            make_topics_and_groups(caller.call)
        ours = proxies == "kourou"
        with kourou_proxy(server.address) if ours else java_proxy(directory, server.port) as proxy:
            yield proxy.address


def make_topics_and_groups(ask: Callable[[RemotingCommand], RemotingCommand]) -> None:
    for client in ("", "java-"):
        for topic, kind in TOPICS.items():
            attributes = f"+message.type={kind}"
            header = CreateTopic(client + topic, "TBW102", 4, 4, 6, "SINGLE_TAG", attributes=attributes)
            answer = ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.fields()))
            assert answer.code == 0, answer
        for group, more in (("g-fifo", {"consumeMessageOrderly": True}), ("g-dead", {"retryMaxTimes": 1})):
            body = lenient_json.dumps({"groupName": client + group, **more})
            answer = ask(RemotingCommand(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body))
            assert answer.code == 0, answer


@pytest.fixture(scope="module")
def from_python(python: str, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each step of the Python program found."""
    home = tmp_path_factory.mktemp("python")
    steps = ("normal", "fifo", "delay", "transaction", "push", "invisible", "priority")
    command = [python, str(SOURCE / "client.py"), endpoint]
    with ThreadPoolExecutor(len(steps)) as pool:
        return dict(zip(steps, pool.map(lambda step: run_step(home, [*command, step]), steps)))


@pytest.fixture(scope="module")
def from_java(classes: str, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """What each step of the Java program found."""
    program = ["java", "-Dfile.encoding=UTF-8", "-cp", classes, "GrpcClient", endpoint, "tls"]
    steps = ("normal", "sql", "push", "fifo", "transaction", "dead", "refused")
    return run_step(tmp_path_factory.mktemp("java"), [*program, ",".join(steps)])


@pytest.fixture(scope="module", params=["kourou", "java"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy with access control, before a broker that has it; `app` may use all topics."""
    directory = tmp_path_factory.mktemp(f"guarded-{request.param}")
    if request.param == "java":
        java()
    admin = Credentials(ADMIN, SECRET)
    with guarded_broker(request.param, directory) as (name_server, broker):
        with Caller(broker.port) as caller:

            def ask(command: RemotingCommand) -> RemotingCommand:
                return caller.call(admin.sign(command))

            make_topics_and_groups(ask)
            for name in ("app", "other"):
                user = {"username": name, "password": f"{name}-secret", "userType": "Normal"}
                make = RemotingCommand(
                    RequestCode.AUTH_CREATE_USER, {"username": name}, lenient_json.dumps(user)
                )
                assert ask(make).code == 0
            entries = [
                {"resource": resource, "actions": ["Pub", "Sub"], "decision": "Allow"}
                for resource in ("Topic:*", "Group:*")
            ]
            acl = {"subject": "User:app", "policies": [{"policyType": "Custom", "entries": entries}]}
            allow = RemotingCommand(
                RequestCode.AUTH_CREATE_ACL, {"subject": "User:app"}, lenient_json.dumps(acl)
            )
            assert ask(allow).code == 0
        config = directory / "rmq-proxy.json"
        inner = f'{{"accessKey":"{ADMIN}","secretKey":"{SECRET}"}}'
        values = {
            "namesrvAddr": name_server.address, "bindAddress": "127.0.0.1", "grpcServerPort": 0,
            "remotingListenPort": -1,
            "authenticationEnabled": True, "authorizationEnabled": True,
            "innerClientAuthenticationCredentials": inner,
        }  # fmt: skip
        config.write_bytes(lenient_json.dumps(values))
        with kourou("proxy", "-c", str(config)) as proxy:
            yield proxy.address


def run_as_users(command: list[str], step: str, refused: str, home: Path) -> Reports:
    """What a program found for a user who may, with a wrong secret, and for one who may not."""
    users = {
        "app": (step, "app", "app-secret"),
        "wrong": (refused, "app", "x"),
        "other": (refused, "other", "other-secret"),
    }
    with ThreadPoolExecutor(len(users)) as pool:
        return dict(zip(users, pool.map(lambda user: run_step(home, [*command, *user]), users.values())))


def odd(topic: str) -> list[str]:
    return sorted(f"{topic} {number}" for number in range(1, COUNT, 2))


def forget_json_names(message: descriptor_pb2.DescriptorProto) -> None:
    """They follow from the names, and not every compiler writes them."""
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        forget_json_names(nested)


def test_the_interface_is_that_of_the_official_client(python):
    """Names, numbers and types of every message and enum, as the client's descriptors have them."""
    program = (
        "import sys\n"
        "from rocketmq.grpc_protocol import definition_pb2, service_pb2\n"
        "for module in (definition_pb2, service_pb2):\n"
        "    sys.stdout.buffer.write(module.DESCRIPTOR.serialized_pb.hex().encode() + b'\\n')\n"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, check=True)
    theirs = [
        descriptor_pb2.FileDescriptorProto.FromString(bytes.fromhex(line.decode()))
        for line in done.stdout.split()
    ]
    ours = descriptor_pb2.FileDescriptorProto.FromString(pb.service.file.serialized_pb)
    for kind in ("message_type", "enum_type"):
        found = {item.name: item for item in getattr(ours, kind)}
        expected = {item.name: item for file in theirs for item in getattr(file, kind)}
        assert found.keys() == expected.keys()
        for name, item in expected.items():
            if kind == "message_type":
                forget_json_names(found[name])
            assert found[name] == item, name
    assert calls_of(ours) == [call for file in theirs for call in calls_of(file)]


def calls_of(file: descriptor_pb2.FileDescriptorProto) -> list[tuple[Any, ...]]:
    return [
        (method.name, method.input_type, method.output_type, method.client_streaming, method.server_streaming)
        for service in file.service
        if service.name == pb.service.name
        for method in service.method
    ]


@at_ours
def test_python_normal_messages_with_a_tag(from_python):
    report = from_python["normal"]
    assert report["bodies"] == odd("normal")
    assert (report["properties"], report["keys"]) == ({"number": "1", "名": "值"}, ["key-1"])
    assert (report["tag"], report["attempt"]) == ("odd", 1)


@at_ours
def test_python_order_is_kept_in_a_message_group(from_python):
    assert from_python["fifo"] == {"even": list(range(0, COUNT, 2)), "odd": list(range(1, COUNT, 2))}


@at_ours
def test_python_delayed_messages_come_in_time_and_are_recalled(from_python):
    assert from_python["delay"] == {"bodies": ["delay 0"], "in_time": True, "has_handle": True}


@at_ours
def test_python_transactions_are_ended_and_asked_for(from_python):
    assert from_python["transaction"] == {"bodies": ["txn 0", "txn 2"], "asked": ["txn 2"]}


@at_ours
def test_python_a_push_consumer_gets_what_failed_again(from_python):
    report = from_python["push"]
    assert report == {"times": {f"push {number}": 2 for number in range(3)}, "attempts": [2, 2, 2]}


@at_ours
def test_python_an_invisible_time_is_changed(from_python):
    assert from_python["invisible"] == {"attempts": [1, 2]}


@at_ours
def test_python_the_highest_priority_is_received_first(from_python):
    assert from_python["priority"] == {"order": [["ranks 3", 3], ["ranks 1", 1], ["ranks 0", 0]]}


def test_java_normal_messages_with_a_tag(from_java):
    report = from_java["normal"]
    assert report["bodies"] == odd("java-normal")
    assert report["properties"]["名"] == "值"


def test_java_messages_by_sql(from_java):
    assert from_java["sql"] == {"bodies": [f"java-sql {number}" for number in (17, 18, 19)]}


def test_java_a_push_consumer_gets_what_failed_again(from_java):
    assert from_java["push"] == {"times": {f"java-push {number}": "2" for number in range(3)}}


def test_java_order_is_kept_in_a_message_group(from_java):
    order = [int(text.split()[1]) for text in from_java["fifo"]["order"]]
    assert [number for number in order if number % 2] == list(range(1, COUNT, 2))
    assert [number for number in order if number % 2 == 0] == list(range(0, COUNT, 2))


def test_java_transactions_are_ended_and_asked_for(from_java):
    assert from_java["transaction"] == {"bodies": ["java-txn 0", "java-txn 2"], "asked": ["java-txn 2"]}


def test_java_what_always_fails_becomes_a_dead_letter(from_java):
    assert from_java["dead"] == {"times": 2, "letters": ["java-dead 0"]}


def test_java_is_told_what_is_wrong(from_java):
    assert from_java["refused"] == {"topic": "NotFoundException", "type": "IllegalArgumentException"}


def test_python_users_are_served_what_they_may(python, guarded, tmp_path):
    reports = run_as_users([python, str(SOURCE / "client.py"), guarded], "normal", "refused", tmp_path)
    assert reports["app"]["bodies"] == odd("normal")
    refused = {"type": "failed to fetch topic:normal route.", "topic": "failed to fetch topic:nowhere route."}
    assert (reports["wrong"], reports["other"]) == (refused, refused)


def test_java_users_are_served_what_they_may(classes, guarded, tmp_path):
    program = ["java", "-Dfile.encoding=UTF-8", "-cp", classes, "GrpcClient", guarded, "tls"]
    reports = run_as_users(program, "normal", "refused", tmp_path)
    assert reports["app"]["normal"]["bodies"] == odd("java-normal")
    refused = {"refused": {"start": "IllegalStateException"}}  # the client does not start
    assert (reports["wrong"], reports["other"]) == (refused, refused)
