"""The table of request codes: every code of RocketMQ 5.5 and who serves it."""

from __future__ import annotations

from typing import Any

from kourou.broker.handlers import MODULES, PARTS
from kourou.namesrv.handlers import HANDLERS as NAMESRV_HANDLERS
from kourou.remoting.protocol.codes import RequestCode
from reference.text import MADE, first_paragraph, table

# Requests that a broker sends to its clients, or a name server to its brokers
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
}

HEAD = f"""# The protocol: every request code

{MADE}
Frames and headers are described in `src/kourou/remoting/protocol/command.py`, the fields of each request in
`src/kourou/remoting/protocol/headers.py`.

A code that is not served is answered with `REQUEST_CODE_NOT_SUPPORTED` (3). "To clients" are requests that a
broker sends over the connections of its clients.

"""


def served() -> dict[int, list[tuple[str, str]]]:
    """Code -> who serves it, and what it does there."""
    found: dict[int, list[tuple[str, str]]] = {}

    def add(code: int, server: str, handler: Any) -> None:
        found.setdefault(int(code), []).append((server, summary(handler)))

    for code, handler in NAMESRV_HANDLERS.items():
        add(code, "name server", handler)
    for module in MODULES:
        for code, handler in module.HANDLERS.items():
            add(code, "broker", handler)
    for part in PARTS:
        for code, name in part.HANDLERS.items():
            add(code, "broker", getattr(part, name))
    return found


def summary(handler: Any) -> str:
    """What the first line of a docstring says, without the names of codes before a colon."""
    line = first_paragraph(handler)
    head, colon, rest = line.partition(": ")
    text = rest if colon and head.replace(",", "").replace("_", "").replace(" ", "").isupper() else line
    return text[:1].upper() + text[1:]


def page() -> str:
    """The whole page."""
    known = served()
    rows = []
    for code in sorted(RequestCode):
        servers = known.get(int(code), [])
        by = ", ".join(server for server, _ in servers) or ("to clients" if code in TO_CLIENTS else "–")
        rows.append((str(int(code)), code.name, by, servers[0][1] if servers else ""))
    count = sum(int(code) in known for code in RequestCode)
    rows_text = table(("code", "name", "served by", "what it does"), rows)
    return f"{HEAD}{rows_text}\n\n{count} of {len(RequestCode)} codes are served.\n"
