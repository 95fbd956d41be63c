"""What waits in a store (delayed messages, transactions, retries) goes on under the other broker."""

from __future__ import annotations

import json
import socket
import time

import pytest

from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.protocol.headers import CheckTransactionState, EndTransaction
from support.sites.servers import Server, interop, java_broker, kourou_broker, kourou_name_server

BROKERS = {"kourou": kourou_broker, "java": java_broker}
LEVELS = {"messageDelayLevel": "1s 12s 1m"}
OFTEN = {"transactionCheckInterval": 2000, "transactionTimeOut": 1000}
ANSWER_TIMEOUT_S = 60.0

both_ways = pytest.mark.parametrize(("first", "second"), [("kourou", "java"), ("java", "kourou")])


@both_ways
def test_delayed_messages_come_from_the_broker_that_takes_over(java, tmp_path, first, second):
    sent = tmp_path / "sent.json"
    with kourou_name_server(tmp_path) as server:
        with BROKERS[first](tmp_path, server.port, LEVELS):
            interop(tmp_path, server.address, "topic", "--topic", "D")
            delayed = ["--mode", "delay", "--delay-level", "2", "--count", "6", "--out", str(sent)]
            interop(tmp_path, server.address, "produce", "--topic", "D", *delayed)
        with BROKERS[second](tmp_path, server.port, LEVELS):
            consume = ["--topic", "D", "--group", "G", "--expect", str(sent), "--timeout", "60"]
            interop(tmp_path, server.address, "consume", *consume)


@both_ways
def test_transactions_are_checked_by_the_broker_that_takes_over(java, tmp_path, first, second):
    with kourou_name_server(tmp_path) as server:
        with BROKERS[first](tmp_path, server.port, OFTEN) as broker:
            interop(tmp_path, server.address, "topic", "--topic", "X")
            producer = Producer(broker)
            kept, dropped = (producer.prepare(number) for number in range(2))
            producer.close()
        with BROKERS[second](tmp_path, server.port, OFTEN) as broker:
            producer = Producer(broker)
            producer.heartbeat()
            outcomes = {kept: 8, dropped: 12}
            while outcomes:
                asked = producer.next_check()
                outcome = outcomes.pop(asked.msg_id or "", None)
                if outcome is not None:
                    producer.end(asked, outcome)
            report = interop(tmp_path, server.address, "pull", "--topic", "X")
            producer.close()
    assert [message["msgId"] for message in report["messages"]] == [kept]


class Producer:
    """A producer of transactions that ends them only when it is asked."""

    def __init__(self, broker: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", broker.port), 10)
        self._socket.settimeout(ANSWER_TIMEOUT_S)

    def prepare(self, number: int) -> str:
        """Send a message that is not seen yet; its id."""
        unique_id = f"7F0000010001000000000000000000{number:02X}"
        properties = f"UNIQ_KEY\x01{unique_id}\x02PGROUP\x01PG\x02TRAN_MSG\x01true\x02WAIT\x01true\x02"
        fields = {
            "a": "PG", "b": "X", "c": "TBW102", "d": "4", "e": "1", "f": "4",
            "g": str(time.time_ns() // 1_000_000), "h": "0", "i": properties, "j": "0", "k": "false",
            "m": "false",
        }  # fmt: skip
        answer = self._call(RemotingCommand(RequestCode.SEND_MESSAGE_V2, fields, b"body"))
        assert answer.code == ResponseCode.SUCCESS, answer
        return unique_id

    def heartbeat(self) -> None:
        """Say that there is a producer of the group."""
        body = {
            "clientID": "127.0.0.1@services",
            "producerDataSet": [{"groupName": "PG"}],
            "consumerDataSet": [],
        }
        answer = self._call(RemotingCommand(RequestCode.HEART_BEAT, {}, json.dumps(body).encode()))
        assert answer.code == ResponseCode.SUCCESS, answer

    def next_check(self) -> CheckTransactionState:
        """The next question of the broker."""
        while True:
            command = self._read()
            if command.code == RequestCode.CHECK_TRANSACTION_STATE and not command.is_response:
                return CheckTransactionState.read(command)

    def end(self, asked: CheckTransactionState, outcome: int) -> None:
        """Answer one."""
        header = EndTransaction(
            "PG",
            asked.tran_state_table_offset,
            asked.commit_log_offset,
            outcome,
            asked.msg_id or "",
            "X",
            True,
        )
        answer = self._call(RemotingCommand(RequestCode.END_TRANSACTION, header.fields()))
        assert answer.code == ResponseCode.SUCCESS, answer

    def close(self) -> None:
        self._socket.close()

    def _call(self, request: RemotingCommand) -> RemotingCommand:
        self._socket.sendall(request.encode())
        while True:
            answer = self._read()
            if answer.is_response and answer.opaque == request.opaque:
                return answer

    def _read(self) -> RemotingCommand:
        return decode(self._exactly(int.from_bytes(self._exactly(4), "big")))

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "the broker hung up"
            data += part
        return data
