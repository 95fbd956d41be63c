"""Traces: what is in the messages of the trace topic (the form is in `kourou.client.trace`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kourou.admin.model import TraceEntry
from kourou.client.trace import TraceType

_CONTEXT_END, _FIELD_END = "\x02", "\x01"


def read_traces(body: bytes, client_host: str) -> Iterator[TraceEntry]:
    """What a trace message tells; `client_host` is where it came from. Contexts of no use are left out."""
    for line in body.decode("utf-8", "replace").split(_CONTEXT_END):
        fields = ["" if field == "null" else field for field in line.split(_FIELD_END)]
        try:
            entry = _read(fields, client_host)
        except (ValueError, IndexError):
            continue  # one that an old client wrote in another form
        if entry is not None:
            yield entry


def _read(fields: Sequence[str], host: str) -> TraceEntry | None:
    match fields[0]:
        case TraceType.PUB.value:
            # time, region, group, topic, id, tags, keys, store host, body size, cost, kind, offset id, ok
            is_success = fields[13] == "true" if len(fields) > 13 else fields[-1] != "false"
            return TraceEntry(
                fields[0], fields[5], fields[3], fields[4], host, int(fields[1]), int(fields[10]),
                is_success, fields[7], fields[6],
            )  # fmt: skip
        case TraceType.SUB_BEFORE.value:
            # time, region, group, request id, message id, retry times, keys
            return TraceEntry(
                fields[0], fields[5], fields[3], "", host, int(fields[1]), 0, True, fields[7]
            )  # fmt: skip
        case TraceType.SUB_AFTER.value:
            # request id, message id, cost, success, keys, return code, time, group
            return TraceEntry(
                fields[0], fields[2], fields[8], "", host, int(fields[7]), int(fields[3]),
                fields[4] == "true", fields[5],
            )  # fmt: skip
        case TraceType.END_TRANSACTION.value:
            # time, region, group, topic, id, tags, keys, store host, kind, transaction id, state, from check
            return TraceEntry(
                fields[0], fields[5], fields[3], fields[4], host, int(fields[1]), 0,
                fields[11] == "COMMIT_MESSAGE", fields[7], fields[6],
            )  # fmt: skip
        case TraceType.RECALL.value:
            # time, region, group, topic, id, success
            return TraceEntry(
                fields[0], fields[5], fields[3], fields[4], host, int(fields[1]), 0, fields[6] == "true"
            )
    return None
