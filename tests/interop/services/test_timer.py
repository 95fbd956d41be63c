"""Timer messages: the Java client against `kourou broker`, and pending timers that change hands."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.recorded.wire import Caller
from support.sites.servers import (
    Server,
    interop,
    java_broker,
    kourou_broker,
    kourou_name_server,
    report_of,
    run_interop,
)

BROKERS = {"kourou": kourou_broker, "java": java_broker}
RECALL = {"recallMessageEnable": "true"}
WAIT_S = 30  # a Java broker starts meanwhile
SUITE_TIMEOUT_S = 240


def send(broker: Server, name: str, **properties: object) -> str | None:
    """Send a message with a time to topic T; the handle by which it can be recalled."""
    given = {"UNIQ_KEY": name, "WAIT": "true", **properties}
    raw = "".join(f"{key}\x01{value}\x02" for key, value in given.items())
    fields = {
        "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(now_ms()), "h": "0",
        "i": raw, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    with Caller(broker.port) as caller:
        answer = caller.call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, name.encode()))
    assert answer.code == ResponseCode.SUCCESS, answer
    return answer.ext_fields.get("recallHandle")


def recall(broker: Server, handle: str | None, name: str) -> None:
    fields = {"topic": "T", "recallHandle": handle or "", "producerGroup": "PG"}
    with Caller(broker.port) as caller:
        answer = caller.call(RemotingCommand(RequestCode.RECALL_MESSAGE, fields))
    assert (answer.code, answer.ext_fields.get("msgId")) == (ResponseCode.SUCCESS, name), answer


def name_of(number: int) -> str:
    return f"7F0000010001000000000000000000{number:02X}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def delivered(directory: Path, name_server: Server) -> list[str]:
    report = interop(directory, name_server.address, "pull", "--topic", "T")
    return sorted(message["msgId"] for message in report["messages"])


def test_the_suite_of_the_java_client(java, tmp_path):
    with kourou_name_server(tmp_path) as server, kourou_broker(tmp_path, server.port):
        done = run_interop(tmp_path, server.address, "suite", "--only", "timer", timeout_s=SUITE_TIMEOUT_S)
    results = report_of(done)["results"]
    assert {name: result["problems"] for name, result in results.items() if not result["ok"]} == {}
    assert len(results) == 3


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
@pytest.mark.parametrize(("first", "second"), [("kourou", "java"), ("java", "kourou")])
def test_pending_timers_come_from_the_broker_that_takes_over(java, tmp_path, first, second, crash):
    """Some are delivered before, one is recalled before and one after, some are rolled on the way."""
    home = tmp_path / "second"
    home.mkdir()
    config = {**RECALL, "timerRollWindowSlot": 12}
    with kourou_name_server(tmp_path) as server:
        with BROKERS[first](tmp_path, server.port, config) as broker:
            interop(tmp_path, server.address, "topic", "--topic", "T")
            soon = [name_of(number) for number in range(3)]
            for name in soon:
                send(broker, name, TIMER_DELAY_SEC=2)
            due_ms = now_ms() // 1000 * 1000 + WAIT_S * 1000
            late = [name_of(number) for number in range(10, 20)]
            handles = [
                send(broker, name, TIMER_DELIVER_MS=due_ms + number % 3 * 1000 + 500)
                for number, name in enumerate(late)
            ]
            recall(broker, handles[3], late[3])
            deadline = time.monotonic() + WAIT_S / 2
            while delivered(tmp_path, server) != soon and time.monotonic() < deadline:
                time.sleep(0.2)
            if crash:
                time.sleep(2)  # what the first has delivered is in its checkpoint, also if it is Java's
                shutil.copytree(tmp_path / "store", home / "store")
        if not crash:
            (tmp_path / "store").rename(home / "store")
        with BROKERS[second](home, server.port, config) as broker:
            recall(broker, handles[7], late[7])
            expected = sorted({*soon, *late} - {late[3], late[7]})
            found = delivered(tmp_path, server)
            if now_ms() < due_ms:  # none of the others was due when this was asked
                assert found == soon
            time.sleep(max(due_ms / 1000 - time.time(), 0))
            deadline = time.monotonic() + WAIT_S
            while len(delivered(tmp_path, server)) < len(expected) and time.monotonic() < deadline:
                time.sleep(0.5)
            time.sleep(2)
            assert delivered(tmp_path, server) == expected
