"""Frames of every kind, nearly right, given to a real broker and a real name server without sockets.

The recorded frames of the Java run are the corpus, and one of our own for each request that is not in it.
What comes back is read by code that is not Kourou's (oracle.py), and compared: a frame that Kourou takes for
one is one and means what it says there, every request is answered once, every answer is a frame. In the end
the broker stops, its store is whole, and the memory is what it was.
"""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from fuzz import oracle
from fuzz.corpus import VALUES, greedy_body, recorded_frames
from fuzz.mutate import mutate
from fuzz.watch import Findings, HangError, LogWatch, MemoryWatch, no_hang, watched_log
from kourou.broker import Broker
from kourou.broker.handlers import make_handlers as broker_handlers
from kourou.errors import KourouError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.findings import Severity
from kourou.inspect.check.whole import check
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.client import RemotingClient
from kourou.remoting.connection import Connection, ConnectionLostError
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import (
    ONEWAY_FLAG,
    RESPONSE_FLAG,
    BadFrameError,
    RemotingCommand,
    decode,
)
from kourou.remoting.protocol.topic_config import TopicConfig
from support.sites.broker import FIELD_NAMES, broker_config

LIFE = 20_000  # frames that a broker has to bear, before another one starts
TURN = 50  # frames between two turns of the loop
MOST_TOKENS = 400_000  # read in Python, in about half a second
GREEDY = 0.01  # of the frames ask for much
HANG_S = 60.0  # for a turn, on a machine that others use too
ANSWER_S = 30.0  # for the last answers
# The first says nothing to who does not know the outcome of a transaction, as in Java; the others ask a
# client, which here never answers, and wait for it.
SILENT = {
    int(RequestCode.END_TRANSACTION), int(RequestCode.GET_CONSUMER_RUNNING_INFO),
    int(RequestCode.CONSUME_MESSAGE_DIRECTLY), int(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS),
    int(RequestCode.SEND_REPLY_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE_V2),
}  # fmt: skip


class Transport(asyncio.Transport):
    """A connection that takes everything that is written, and leads nowhere."""

    def __init__(self, number: int) -> None:
        super().__init__({"peername": ("127.0.0.1", 1024 + number % 60_000)})
        self.written: list[bytes] = []
        self.closed = False
        self.connection: Connection

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written += map(bytes, list_of_data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        """Nothing comes that is not given."""

    def resume_reading(self) -> None:
        """Nothing comes that is not given."""


class Line:
    """Connections to one server, one after the other, and what is expected on them."""

    def __init__(self, server: Any, findings: Findings, name: str) -> None:
        self._server = server  # a RemotingServer
        self._findings = findings
        self._name = name
        self._number = 0
        self.owed: Counter[int] = Counter()  # answers, by opaque
        self._asked: dict[int, bytes] = {}  # the requests, by opaque
        self._silent: set[int] = set()  # those that may be answered, or not
        self._connect()

    def _connect(self) -> None:
        self._number += 1
        self._transport = Transport(self._number)
        self._connection = Connection(
            self._server._handlers, on_open=self._server._opened, on_close=self._server._closed
        )
        self._transport.connection = self._connection
        self._connection.connection_made(self._transport)

    def give(self, data: bytes) -> None:
        """Have the server read some bytes; what it should make of them is noted."""
        ends = False
        for frame, read in oracle.frames_in(data):
            ends = read is None
            if frame:
                self._compare(frame, read)
        self._connection.data_received(data)
        if self._transport.closed or ends:
            self.hang_up()

    def hang_up(self) -> None:
        """End the connection, as the peer does it, and begin another; what was not answered is forgotten."""
        self._connection.flush()
        self.look()
        self._transport.close()
        self.owed.clear()
        self._silent.clear()
        self._connect()

    def _compare(self, frame: bytes, read: oracle.Read) -> None:
        try:
            command = decode(frame[4:])
        except BadFrameError:
            if isinstance(read, oracle.Command):
                self._findings.add(f"{self._name}: a good frame is refused", frame)
            return
        if read is None:
            self._findings.add(f"{self._name}: a bad frame is taken: {command}", frame)
            return
        if isinstance(read, oracle.Command):
            meant = (command.code, command.opaque, command.flag, command.remark, fields_of(command))
            if meant != read[:5] or bytes(command.body or b"") != read.body:
                self._findings.add(f"{self._name}: {meant} and not {read[:5]}", frame)
            elif not _encodes_back(command, read):
                self._findings.add(f"{self._name}: {command} is another when it is encoded", frame)
        if not command.flag & (RESPONSE_FLAG | ONEWAY_FLAG):
            self._findings.counts[f"requests to the {self._name}"] += 1
            if command.code in SILENT:
                self._silent.add(command.opaque)
            else:
                self.owed[command.opaque] += 1
                self._asked[command.opaque] = frame

    def look(self) -> None:
        """Look at what the server has written."""
        data, self._transport.written = b"".join(self._transport.written), []
        for frame, read in oracle.frames_in(data):
            if not isinstance(read, oracle.Command):
                self._findings.add(f"{self._name}: writes what is no frame", frame or data)
                return
            self._findings.counts[f"frames of the {self._name}"] += 1
            if read.flag & RESPONSE_FLAG and read.opaque not in self._silent:
                self.owed[read.opaque] -= 1
                if self.owed[read.opaque] < 0:
                    self._findings.add(f"{self._name}: answers {read[:5]} once too often", frame)

    @property
    def waits(self) -> bool:
        """Whether an answer is owed."""
        return any(count > 0 for count in self.owed.values())

    def settle(self) -> None:
        """Whatever waits has been answered now."""
        self.look()
        for opaque, count in self.owed.items():
            if count > 0:
                self._findings.add(f"{self._name}: a request without an answer", self._asked[opaque])


def fields_of(command: RemotingCommand) -> dict[str, str] | None:
    """The fields of a command; None where its header has none."""
    return command.ext_fields or command._ext_fields


def _encodes_back(command: RemotingCommand, read: oracle.Command) -> bool:
    """Whether a command is the same once it was written; empty texts are none in the binary form."""
    try:
        again = oracle.read_frame(command.encode())
    except KourouError:
        return True  # a header that the other form has no room for
    return isinstance(again, oracle.Command) and (again.code, again.opaque, again.flag) == read[:3] and (
        (again.remark or None, again.fields or None, again.body)
        == (read.remark or None, read.fields or None, read.body)
    )  # fmt: skip


class FrameFuzz:
    """Frames for a broker and a name server, for as many lives of these as it takes."""

    def __init__(self, seed: int, findings: Findings, *, patience_s: float = ANSWER_S) -> None:
        self._chance = random.Random(seed)
        self._patience_s = patience_s
        self._findings = findings
        self._memory = MemoryWatch(findings)
        frames = recorded_frames()
        requests = [command for command in frames if not command.flag & RESPONSE_FLAG]
        self._recorded = requests * 5 + [command for command in frames if command.flag & RESPONSE_FLAG]
        self._bodies = [bytes(command.body) for command in self._recorded if command.body]
        self._frames = [command.encode() for command in self._recorded]
        began = time.thread_time()
        lenient_json.loads(b"{%b}" % b",".join(b"%d:1" % number for number in range(MOST_TOKENS // 4)))
        self._most_s = time.thread_time() - began  # that one frame may keep the loop from others

    def run(self, count: int, directory: Path) -> None:
        """Try so many frames."""
        with watched_log(self._findings) as watch:
            for start in range(0, count, LIFE):
                life = Path(tempfile.mkdtemp(dir=directory))
                try:
                    with asyncio.Runner() as runner:
                        runner.run(self._life(min(LIFE, count - start), life, watch))
                except HangError as error:
                    self._findings.add_error("hang", error, watch.input)
                finally:
                    shutil.rmtree(life)
                gc.collect()
                self._memory.look()

    async def _life(self, count: int, directory: Path, watch: LogWatch) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self._loop_failed(context, watch))
        config = {
            "longPollingEnable": "false", "shortPollingTimeMills": "1", "timerWheelEnable": "true",
            "enablePropertyFilter": "true", "recallMessageEnable": "true", "transactionCheckInterval": "500",
            "transactionTimeOut": "100", "brokerClusterName": "DefaultCluster", "enableLmq": "true",
            "enableMultiDispatch": "true", "messageDelayLevel": "1s 1s 2s",
        }  # fmt: skip
        broker = Broker(broker_config(directory, config))
        server = NameServer(
            NameServerConfig(
                bind_address="127.0.0.1",
                listen_port=0,
                kv_config_path=f"{directory}/kv.json",
                config_store_path=f"{directory}/namesrv.properties",
            )
        )
        with mock.patch.object(RemotingClient, "_connected", _refused):
            await broker.start()
            await server.start()
            for topic in ("t", "TopicTest"):
                broker.topics.update(TopicConfig(topic, 4, 4))
            # What may be no frame has connections of its own, which end with it: on the others, every request
            # is answered to the last.
            steady = [Line(broker.server, self._findings, "broker")]
            steady += [Line(server._server, self._findings, "name server")]
            rough = [Line(broker.server, self._findings, "broker")]
            rough += [Line(server._server, self._findings, "name server")]
            codes = sorted(broker_handlers(broker)), sorted(server._server._handlers)
            for done in range(0, count, TURN):
                with no_hang(HANG_S):
                    for _ in range(min(TURN, count - done)):
                        which = int(self._chance.random() < 0.2)
                        is_rough = self._chance.random() < 0.25
                        watch.input = data = self._bytes() if is_rough else self._frame(codes[which])
                        self._try((rough if is_rough else steady)[which], data)
                    await asyncio.sleep(0)
                for line in steady + rough:
                    line.look()
            watch.input = b""
            await self._until_answered(steady)
            async with asyncio.timeout(60):
                await broker.stop()
                await server.stop()
            for line in steady:
                line.settle()
        self._check_store(directory / "store")
        self._findings.counts["lives of a broker"] += 1

    async def _until_answered(self, lines: list[Line]) -> None:
        """Wait for what takes longer: tables that are written, pulls that are held for a moment."""
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while any(line.waits for line in lines) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
            for line in lines:
                line.look()

    def _try(self, line: Line, data: bytes) -> None:
        self._findings.counts["frames tried"] += 1
        began = time.thread_time()
        try:
            line.give(data)
        except Exception as error:
            self._findings.add_error("the connection failed", error, data)
            line.hang_up()
        if time.thread_time() - began > self._most_s:
            self._findings.add(f"a frame stops the loop for {time.thread_time() - began:.2f} s", data)

    def _loop_failed(self, context: Mapping[str, Any], watch: LogWatch) -> None:
        error = context.get("exception")
        if isinstance(error, Exception):
            self._findings.add_error(str(context.get("message")), error, watch.input)

    # Frames

    def _bytes(self) -> bytes:
        """A frame whose bytes were changed; mostly with a length that is right: then more is looked at."""
        chance = self._chance
        data = mutate(chance, chance.choice(self._frames), self._frames)
        if chance.random() < 0.6 and len(data) >= 4:
            data = (len(data) - 4).to_bytes(4, "big") + data[4:]
        return data

    def _frame(self, codes: Sequence[int]) -> bytes:
        """A frame that is one, of a command of which parts were changed."""
        chance = self._chance
        recorded = chance.choice(self._recorded)
        command = RemotingCommand(
            recorded.code, dict(recorded.ext_fields), recorded.body, flag=recorded.flag,
            version=recorded.version, serialize_type=int(chance.random() * 2),
        )  # fmt: skip
        if chance.random() < 0.3:
            command.code = chance.choice(codes)
        self._change_fields(command)
        if chance.random() < GREEDY:
            command.body = greedy_body(chance)
        elif chance.random() < 0.5:
            command.body = self._body(bytes(command.body or b""))
        try:
            return command.encode()
        except (KourouError, TypeError, ValueError, UnicodeError):
            return self._frames[0]

    def _change_fields(self, command: RemotingCommand) -> None:
        chance, fields = self._chance, command.ext_fields
        for _ in range(int(chance.random() * 4)):
            kind = chance.random()
            names = list(fields) if fields and kind < 0.8 else FIELD_NAMES
            name = chance.choice(names)
            if kind < 0.1:
                fields.pop(name, None)
            elif kind < 0.5:
                fields[name] = chance.choice(VALUES)
            elif kind < 0.7 and fields.get(name):
                text = mutate(chance, fields[name].encode("utf-8", "replace"), self._bodies)
                fields[name] = text.decode("utf-8", "replace")[:40_000]
            else:
                other = chance.choice(self._recorded).ext_fields
                fields[name] = chance.choice(list(other.values()) or [""])
        if "suspendTimeoutMillis" in fields and chance.random() < 0.9:
            fields["suspendTimeoutMillis"] = "0"
        command._ext_fields = fields

    def _body(self, body: bytes) -> bytes:
        chance = self._chance
        if not body or chance.random() < 0.2:
            body = chance.choice(self._bodies)
        return mutate(chance, body, self._bodies) if chance.random() < 0.9 else b""

    def _check_store(self, root: Path) -> None:
        """What the requests left is a store that is whole. A topic may have been deleted, and its queues."""
        with StoreDirectory.open(root) as store:
            report = check(store)
        self._findings.counts["records stored"] += report.records
        for found in report.findings:
            if found.severity is Severity.FAULT and found.kind != "missing-queue":
                self._findings.add(f"the store is damaged: {found}")


async def _refused(self: RemotingClient, address: str, timeout_s: float | None) -> NoReturn:
    """Addresses in frames lead to others than 127.0.0.1 as well."""
    raise ConnectionLostError(f"nothing is at {address}")
