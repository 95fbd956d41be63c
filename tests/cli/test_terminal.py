"""What peers say cannot forge a line of a log, hide one, or steer the terminal of who looks."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kourou.cli import app
from kourou.cli.mqadmin.groups import running_info_text
from kourou.cli.servers.serve import OneLineEach, set_up_logging
from kourou.cli.tail import BodyForm, pretty_body
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.server import RemotingServer
from support.sites.broker import HOST, loop_thread, run_on

FORGED = "2026-11-15 08:30:00,000 WARNING kourou.broker all is well"
# Line breaks of every kind, sequences for terminals in both forms, the other direction, NUL, DEL, invisible
EVIL = f"x\n{FORGED}\r\x1b[2J\x9b2J\x85\u2028\u2029\u202e\u2066\x00\x07\x7f\u200b\x0b\x0c\x1c\ufeff"
STEERING = set(EVIL) - set(f"x{FORGED}[2J")


@contextmanager
def terminal() -> Iterator[Callable[[], str]]:
    """A log as the servers have it; what it has written to standard error."""
    root, before, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    stream, old = io.StringIO(), sys.stderr
    sys.stderr = stream
    try:
        set_up_logging(None)
        yield stream.getvalue
    finally:
        sys.stderr = old
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
        root.setLevel(level)


def fail(depth: int) -> None:
    """Errors within errors, with what a peer said in their texts."""
    if depth == 0:
        error = ValueError(EVIL)
        error.add_note("of the code")
        raise error
    try:
        fail(depth - 1)
    except ValueError as error:
        if depth == 1:
            raise RuntimeError(f"caused by {EVIL}") from error
    except RuntimeError as error:
        raise ExceptionGroup(f"several {EVIL}", [error, KeyError(EVIL)]) from None


def test_a_record_is_one_line_whatever_is_in_it() -> None:
    with terminal() as written:
        log = logging.getLogger("kourou.of.test")
        log.warning("topic %s of %r", EVIL, {EVIL: EVIL})
        log.error(EVIL)
        logging.getLogger(f"kourou.{EVIL}").warning("by its name")
        text = written()
    assert not STEERING - {"\n"} & set(text)
    lines = text.split("\n")
    assert len(lines) == 4
    assert lines.pop() == ""
    assert not any(line.startswith(FORGED) for line in lines)
    assert "x\\n2026-11-15" in lines[0]  # nothing is lost
    assert "\\x1b[2J\\x9b2J\\x85\\u2028\\u2029\\u202e\\u2066\\x00" in lines[1]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_traceback_has_its_own_lines_and_no_others(depth: int) -> None:
    with terminal() as written:
        try:
            fail(depth)
        except Exception:
            logging.getLogger("kourou.of.test").exception("it failed")
        text = written()
    assert not STEERING - {"\n"} & set(text)
    lines = text.split("\n")
    assert not any(line.strip(" |+-").startswith(FORGED) for line in lines)
    assert lines[0].endswith("ERROR kourou.of.test it failed")
    assert lines[1].strip(" |+-").startswith(("Traceback", "Exception Group Traceback"))
    assert sum("ValueError: x\\n2026" in line for line in lines) == 1
    if depth == 0:
        assert lines[-2] == "of the code"
    else:
        assert sum("RuntimeError: caused by x\\n2026" in line for line in lines) == 1
        assert any("direct cause" in line for line in lines)
    if depth == 2:
        assert sum("ExceptionGroup: several x\\n2026" in line for line in lines) == 1


def test_a_plain_record_is_as_it_was() -> None:
    record = logging.LogRecord("kourou", logging.WARNING, "", 0, "Größe 数 %s", ("é",), None)
    assert OneLineEach("%(levelname)s %(message)s").format(record) == "WARNING Größe 数 é"


def test_the_file_of_a_log_has_all_of_it_and_steers_no_terminal_either(tmp_path: Path) -> None:
    file, root = tmp_path / "broker.log", logging.getLogger()
    before, level = root.handlers[:], root.level
    set_up_logging(file)
    try:
        logging.getLogger("kourou.of.test").warning("%s", EVIL + "\U000e0001")
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
            handler.close()
        root.setLevel(level)
    text = file.read_text(encoding="utf-8")
    assert not STEERING - {"\n"} & set(text)
    assert text.count("\n") == 1
    assert json.loads(text)["message"] == EVIL + "\U000e0001"


def test_commands_that_set_up_no_log_write_lines_of_the_same_kind() -> None:
    code = (
        "import logging, sys, kourou.cli as cli\n"
        "class App:\n"
        "    registered_commands = registered_groups = ()\n"
        "    def __call__(self): logging.getLogger('kourou.of.test').warning('%s', sys.argv[2])\n"
        "cli.app = App()\n"
        "cli.main()\n"
    )
    evil = EVIL.replace("\0", "")
    done = subprocess.run([sys.executable, "-c", code, "none", evil], capture_output=True, check=True)
    text = done.stderr.decode()
    assert not STEERING - {"\n"} & set(text)
    assert text.count("\n") == 1


# What commands print


class Hostile:
    """A name server and broker in one that names everything in the worst way."""

    def __init__(self) -> None:
        self.port = 0

    def answer(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        body = self._bodies().get(request.code)
        if body is None:
            return request.response(ResponseCode.SYSTEM_ERROR, remark=f"refused {EVIL}")
        return request.response(ext_fields={"value": EVIL}, body=lenient_json.dumps(body))

    def _bodies(self) -> dict[int, Any]:
        here = f"{HOST}:{self.port}"
        broker = {"brokerName": EVIL, "cluster": EVIL, "brokerAddrs": {"0": here}}
        queue = {"brokerName": EVIL, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicSysFlag": 0}
        topic = {"topicName": EVIL, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": {}}
        client = {"clientId": EVIL, "clientAddr": EVIL, "language": "JAVA", "version": 400}
        wanted = {"topic": EVIL, "subString": EVIL, "tagsSet": [EVIL], "codeSet": [], "expressionType": "TAG"}
        return {
            RequestCode.GET_BROKER_CLUSTER_INFO: {
                "brokerAddrTable": {EVIL: broker}, "clusterAddrTable": {EVIL: [EVIL]},
            },
            RequestCode.GET_ROUTEINFO_BY_TOPIC: {"brokerDatas": [broker], "queueDatas": [queue]},
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {"topicList": [EVIL]},
            RequestCode.GET_ALL_TOPIC_CONFIG: {
                "topicConfigTable": {EVIL: topic}, "dataVersion": {"counter": 1, "timestamp": 1},
            },
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: {
                "subscriptionGroupTable": {EVIL: {"groupName": EVIL}}, "dataVersion": {"counter": 1},
            },
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: {"groupList": [EVIL]},
            RequestCode.GET_CONSUMER_CONNECTION_LIST: {
                "connectionSet": [client], "subscriptionTable": {EVIL: wanted},
                "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            },
            RequestCode.GET_PRODUCER_CONNECTION_LIST: {"connectionSet": [client]},
            RequestCode.GET_KV_CONFIG: {},
            RequestCode.GET_KVLIST_BY_NAMESPACE: {"table": {EVIL: EVIL}},
            RequestCode.AUTH_LIST_USER: [{"username": EVIL, "userType": EVIL, "userStatus": EVIL}],
        }  # fmt: skip


@pytest.fixture(scope="module")
def hostile() -> Iterator[str]:
    server = Hostile()

    async def start() -> RemotingServer:
        remoting = RemotingServer(dict.fromkeys(map(int, RequestCode), server.answer))
        server.port = await remoting.start(HOST, 0)
        return remoting

    with loop_thread() as loop:
        remoting = run_on(loop, start())
        yield f"{HOST}:{server.port}"
        run_on(loop, remoting.stop())


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit):
        app(arguments)
    done = capfd.readouterr()
    return done.out, done.err


@pytest.mark.parametrize(
    "arguments",
    [
        "admin cluster list", "admin cluster stats", "admin topic list --all", "admin topic list",
        "admin topic route t", "admin topic status t", "admin topic clusters t", "admin topic groups t",
        "admin topic order t", "admin topic config t", "admin group list", "admin group connections g",
        "admin group progress g", "admin group status g", "admin namesrv kv-get n k",
        "admin namesrv kv-list n", "admin user list", "admin broker status {here}", "admin message print t",
        "mqadmin topicList", "mqadmin clusterList", "mqadmin topicRoute -t t",
        "mqadmin topicClusterList -t t", "mqadmin consumerConnection -g g", "mqadmin consumerProgress -g g",
        "mqadmin producerConnection -g p -t t", "mqadmin listUser -c c", "mqadmin topicStatus -t t",
        "mqadmin brokerStatus -b {here}", "mqadmin getBrokerConfig -b {here}", "tail t --count 1", "doctor",
    ],
)  # fmt: skip
def test_what_a_server_says_stays_in_its_place(
    hostile: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: str
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", hostile)
    out, err = command(capfd, *arguments.format(here=hostile).split())
    assert not STEERING - {"\n"} & set(out + err), (out, err)
    assert not any(line.startswith(FORGED) for line in (out + err).split("\n"))
    assert "2026-11-15" in out + err  # it was said, and is shown


def test_json_is_exact(
    hostile: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", hostile)
    out, _ = command(capfd, *["admin", "topic", "list", "--all", "--json"])
    assert json.loads(out) == {"topic": EVIL}


@pytest.mark.parametrize("form", BodyForm)
@pytest.mark.parametrize(
    "body",
    [EVIL.encode(), json.dumps({EVIL: [EVIL]}, ensure_ascii=False).encode(), json.dumps(EVIL).encode()],
)
def test_a_body_does_not_steer_the_terminal(body: bytes, form: BodyForm) -> None:
    assert not STEERING - {"\n"} & set(pretty_body(body, form))


def test_what_a_consumer_says_of_itself_is_in_its_rows() -> None:
    info = {"properties": {EVIL: EVIL}, "jstack": f"main\n\tat {EVIL}", "subscriptionSet": [{"topic": EVIL}]}
    text = running_info_text(info)
    assert not STEERING - {"\n"} & set(text)
    assert "main\n" in text
