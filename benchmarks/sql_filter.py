"""SQL92 filter: how many records a subscription is asked about in a second, beside Java's on the same log."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

from benchmarks.beside_java.broker_processes import RUN_JAVA, CannotRunError
from benchmarks.common import QUEUES, TOPIC, Row, best_of, open_store, scratch
from kourou.broker.messages.filters import filter_of
from kourou.message import UniqueIdGenerator
from kourou.remoting.protocol.subscription import SQL92, SubscriptionData
from kourou.store import InnerMessage, MessageStore

RECORDS = 50_000
SECONDS = 2.0
JAVA_TIMEOUT_S = 300
EXPRESSIONS = {
    "one comparison": "amount > 500",
    "three conditions": (
        "amount BETWEEN 100 AND 900 AND region IN ('eu', 'us') AND NOT (customer STARTSWITH 'test')"
    ),
    "six properties": (
        "amount > 100 AND region <> 'cn' AND (weight < 2.5 OR TAGS = 'TagA') AND customer IS NOT NULL"
        " AND (KEYS CONTAINS '-1' OR priority >= 3)"
    ),
}


def run() -> list[Row]:
    """A row for each expression."""
    if shutil.which("javac") is None:
        raise CannotRunError("no javac on this machine: Java's filter needs a JDK, version 17")
    with scratch() as root, open_store(root) as store:
        _fill(store)
        file = store.commit_log.files.files[0]
        records = _records(file.view, file.wrote)
        assert len(records) == RECORDS
        requests = [
            {"log": str(file.path), "end": file.wrote, "seconds": SECONDS, "expression": expression}
            for expression in EXPRESSIONS.values()
        ]
        theirs = _ask_java(requests)
        rows = []
        for (name, expression), (matched, java_rate) in zip(EXPRESSIONS.items(), theirs, strict=True):
            found, rate = _measure(records, expression)
            assert found == matched, f"{expression}: Java lets {matched} through, we {found}"
            rows.append(
                Row(f"SQL92 filter, {name}", rate, java_rate, "msg/s", "Java's ExpressionMessageFilter")
            )
        del records
    return rows


def _fill(store: MessageStore) -> None:
    unique, body = UniqueIdGenerator("10.0.0.1"), bytes(128)
    for number in range(RECORDS):
        properties = (
            f"UNIQ_KEY\x01{unique()}\x02KEYS\x01order-{number}\x02WAIT\x01true\x02"
            f"TAGS\x01Tag{'ABC'[number % 3]}\x02"
            f"amount\x01{number % 1000}\x02region\x01{('eu', 'us', 'cn')[number % 3]}\x02"
            f"weight\x01{number % 50 / 10}\x02customer\x01{('test', 'name')[number % 2]}{number}\x02"
            "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"
        )
        store.put_message(InnerMessage.of(TOPIC, number % QUEUES, body, properties))


def _records(view: memoryview, end: int) -> list[memoryview]:
    records, at = [], 0
    while at < end:
        size = int.from_bytes(view[at : at + 4])
        records.append(view[at : at + size])
        at += size
    return records


def _measure(records: list[memoryview], expression: str) -> tuple[int, float]:
    message_filter = filter_of(SubscriptionData(TOPIC, expression, 1, expression_type=SQL92))
    assert message_filter is not None
    matches = message_filter.matches_record
    found = 0

    def once() -> float:
        nonlocal found
        start = time.perf_counter()
        found = sum(map(matches, records))
        return len(records) / (time.perf_counter() - start)

    rate = best_of(5, once)
    return found, rate


def _ask_java(requests: list[dict[str, object]]) -> list[tuple[int, float]]:
    """How many records Java's filter lets through, and how many it looks at in a second, for each request."""
    text = "".join(json.dumps(request) + "\n" for request in requests)
    try:
        done = subprocess.run(
            [RUN_JAVA, "SqlFilter", "bench"],
            input=text,
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"Java's filter did not answer within {JAVA_TIMEOUT_S} s") from None
    answers = [json.loads(line[2:]) for line in done.stdout.splitlines() if line.startswith("> ")]
    if done.returncode != 0 or len(answers) != len(requests):
        raise CannotRunError(f"Java's filter failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return [(answer["matched"], answer["rate"]) for answer in answers]
