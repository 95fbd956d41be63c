"""answer_checks: what a driver says when a broker asks what became of half messages of a query.

Only versions before this one have sent half messages (`once` does without): this is for those that are left.

A broker asks for halves that nobody has ended for some seconds. Those of a micro-batch that is under way
are left alone: the commit ends them. What is still asked for when its micro-batch is done, or when a later
one is, is what a try that failed has left, or a copy that the broker made of a half: it is rolled back.
Nothing is ever committed here, so that an answer and a commit cannot both show a message.

Without it nothing is wrong either: a broker gives such halves up by itself after some checks (15 by
default).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kourou.client.consume.received import ReceivedMessage
from kourou.client.core import ClientCore, make_client_id
from kourou.client.produce.transactions import Checks, TransactionState
from kourou.spark.places import local_place
from kourou.spark.write.once import Journal
from kourou.spark.write.sink import DEFAULT_GROUP

BATCH_PROPERTY = "KOUROU_BATCH"
HEARTBEAT_S = 5.0
STOP_TIMEOUT_S = 30.0


class CheckAnswers:
    """The answers for one query, from its checkpoint."""

    def __init__(self, checkpoint: str) -> None:
        self._log = Journal(checkpoint)
        self._checkpoint = local_place(checkpoint, "checkpointLocation")
        self.rolled_back = 0

    def state_of(self, message: ReceivedMessage) -> TransactionState:
        """What became of a half."""
        query, _, batch = message.properties.get(BATCH_PROPERTY, "").rpartition("/")
        if not query or not batch.isdecimal() or query != self._query_id():
            return TransactionState.UNKNOWN
        number = int(batch)
        if self._log.done(number) or (not self._log.decided(number) and self._last_commit() >= number):
            self.rolled_back += 1
            return TransactionState.ROLLBACK
        return TransactionState.UNKNOWN

    def _query_id(self) -> str:
        try:
            return str(json.loads((self._checkpoint / "metadata").read_bytes())["id"])
        except (OSError, ValueError, KeyError):  # the query has not begun
            return ""

    def _last_commit(self) -> int:
        names = [path.name for path in (self._checkpoint / "commits").glob("[0-9]*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)


@contextmanager
def answer_checks(
    namesrv: str, topics: Sequence[str], checkpoint: str, *, group: str = DEFAULT_GROUP, tls: Any = None
) -> Iterator[CheckAnswers]:
    """Answer for the query with this checkpoint, which writes to these topics, while the `with` lasts."""
    answers = CheckAnswers(checkpoint)
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with ClientCore(namesrv, client_id=make_client_id("127.0.0.1"), tls=tls) as core:
            core.producer_groups.add(group)
            checks = Checks(core, group, None, answers.state_of, lambda message, address, state: None)
            for topic in topics:
                await core.route(topic)
            while not stop.is_set():
                await core.send_heartbeats()
                ready.set()
                for _ in range(int(HEARTBEAT_S / 0.1)):
                    if stop.is_set():
                        break
                    await asyncio.sleep(0.1)
            await checks.close()

    failure: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="kourou-spark-checks", daemon=True)
    thread.start()
    ready.wait()
    try:
        if failure:
            raise failure[0]
        yield answers
    finally:
        stop.set()
        thread.join(STOP_TIMEOUT_S)
