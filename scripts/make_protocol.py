"""Write docs/protocol.md: every request code of RocketMQ 5.5 and who serves it. --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kourou.broker.handlers import MODULES
from kourou.broker.pull import MessagePuller
from kourou.broker.send import MessageSender
from kourou.namesrv.handlers import HANDLERS as NAMESRV_HANDLERS
from kourou.remoting.codes import RequestCode

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol.md"

# Requests that a broker sends to its clients, or a name server to its brokers
TO_CLIENTS = {
    RequestCode.CHECK_TRANSACTION_STATE,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
    RequestCode.NOTIFY_UNSUBSCRIBE_LITE,
}

HEAD = """# The protocol: every request code

Made by `scripts/make_protocol.py` from the handlers and from `kourou.remoting.codes`; a test fails when it is
out of date. Frames and headers are described in `src/kourou/remoting/command.py`, the fields of each request
in `src/kourou/remoting/headers.py`.

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
    for part in (MessageSender, MessagePuller):
        for code, name in part.HANDLERS.items():
            add(code, "broker", getattr(part, name))
    return found


def summary(handler: Any) -> str:
    """What the first line of a docstring says, without the names of codes before a colon."""
    line = " ".join((handler.__doc__ or "").strip().split("\n\n")[0].split())
    head, colon, rest = line.partition(": ")
    text = rest if colon and head.replace(",", "").replace("_", "").replace(" ", "").isupper() else line
    return text[:1].upper() + text[1:]


def page() -> str:
    """The whole page."""
    table = served()
    lines = ["| code | name | served by | what it does |", "|---|---|---|---|"]
    for code in sorted(RequestCode):
        servers = table.get(int(code), [])
        by = ", ".join(server for server, _ in servers) or ("to clients" if code in TO_CLIENTS else "–")
        lines.append(f"| {int(code)} | {code.name} | {by} | {servers[0][1] if servers else ''} |")
    count = sum(int(code) in table for code in RequestCode)
    total = f"\n{count} of {len(RequestCode)} codes are served.\n"
    return HEAD + "\n".join(lines) + "\n" + total


def main() -> int:
    """Write the page, or compare it."""
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is out of date: run scripts/make_protocol.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
