"""Trace data as Java's own reader and writer have it."""

from __future__ import annotations

import json
import subprocess

from kourou.client.produce.transactions import TransactionState
from kourou.client.trace import MessageType, TraceBean, TraceContext, TraceType
from support.java import RUN, RUN_TIMEOUT_S

FULL = TraceBean(
    "NS%orders", "ID1", "paid", "k1 k2", "OFFSET1", "192.0.2.7:10911", 128, 3, MessageType.DELAY, "TX1",
    TransactionState.ROLLBACK, True,
)  # fmt: skip
EMPTY = TraceBean("orders", "ID2")
READ = {
    TraceType.PUB: ["timestamp", "region", "group", "cost", "success", "topic", "msgId", "offsetMsgId",
                    "tags", "keys", "storeHost", "bodyLength", "msgType"],
    TraceType.SUB_BEFORE: ["timestamp", "region", "group", "request", "msgId", "retryTimes", "keys"],
    TraceType.SUB_AFTER: ["timestamp", "group", "cost", "success", "request", "code", "msgId", "keys"],
    TraceType.END_TRANSACTION: ["timestamp", "region", "group", "topic", "msgId", "tags", "keys", "storeHost",
                                "msgType", "transactionId", "state", "fromCheck"],
    TraceType.RECALL: ["timestamp", "region", "group", "success", "topic", "msgId"],
}  # fmt: skip


def context(kind: TraceType, *beans: TraceBean) -> TraceContext:
    return TraceContext(kind, list(beans), "NS%group", "region", 1_700_000_000_000, 7, False, "REQUEST", 4)


def test_java_reads_what_is_written_and_writes_the_same(java):
    contexts = [context(kind, bean) for kind in TraceType for bean in (FULL, EMPTY)]

    done = subprocess.run(
        [RUN, "TraceDecode"],
        input="".join(
            json.dumps(text) + "\n"
            for text in (
                "".join(item.encode() for item in contexts),
                context(TraceType.SUB_BEFORE, FULL, EMPTY).encode(),
            )
        ).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    lines = [line[2:] for line in done.stdout.decode().splitlines() if line.startswith("> ")]
    found, together = (json.loads(line) for line in lines)

    assert [item["msgId"] for item in together] == ["ID1", "ID2"]
    assert len(found) == len(contexts)
    for ours, theirs in zip(contexts, found, strict=True):
        bean = ours.beans[0]
        expected = {
            "timestamp": ours.timestamp_ms, "region": "region", "group": "group", "cost": 7, "success": False,
            "request": "REQUEST", "code": 4, "topic": "orders", "msgId": bean.message_id,
            "offsetMsgId": bean.offset_message_id or "null", "tags": bean.tags or "null",
            "keys": bean.keys or "null", "storeHost": bean.store_host or "null",
            "retryTimes": bean.retry_times, "bodyLength": bean.body_length,
            "msgType": "Delay_Msg" if bean is FULL else "Normal_Msg",
            "transactionId": bean.transaction_id or "null", "state": bean.transaction_state.value,
            "fromCheck": bean.is_from_check,
        }  # fmt: skip
        assert theirs["type"] == ours.type.value
        assert {name: theirs[name] for name in READ[ours.type]} == {
            name: expected[name] for name in READ[ours.type]
        }
        assert theirs["data"] == ours.encode()
        if bean is FULL and ours.type is not TraceType.RECALL:
            assert set(theirs["encodedKeys"]) == set(ours.index_keys())
