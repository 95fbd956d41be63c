"""What every request passes: where it comes from, and who sends it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kourou.console.config import ConsoleConfig
from kourou.console.door.gate import COOKIE, Gate
from kourou.console.door.sessions import Access
from kourou.console.door.users import Role, Users

OWN = "127.0.0.1:8088"


class Behind:
    """An application behind the gate, which notes what reaches it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ok"})
        else:
            await send({"type": "websocket.accept"})


def ask(
    gate: Gate, kind: str = "http", *, method: str = "GET", path: str = "/", **headers: str
) -> dict[str, Any]:
    """The first message of the answer."""
    scope: dict[str, Any] = {
        "type": kind,
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in {"host": OWN, **headers}.items()],
    }
    if kind == "websocket":
        del scope["method"]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    with ThreadPoolExecutor(1) as thread:  # in the main one a browser may have its event loop
        thread.submit(asyncio.run, gate(scope, receive, send)).result()
    return sent[0]


def status(answer: dict[str, Any]) -> Any:
    return answer.get("status", answer["type"])


def make(*hosts: str, users: Users | None = None) -> tuple[Gate, Behind, Access]:
    behind, access = Behind(), Access(users)
    gate = Gate(behind, ConsoleConfig("127.0.0.1:9876", allowed_hosts=hosts), access)
    return gate, behind, access


@pytest.mark.parametrize(
    "host", [OWN, "localhost:8088", "LOCALHOST", "[::1]:8088", "10.1.2.3:8088", "mq.example"]
)
def test_names_of_the_console_are_let_in(host):
    gate, behind, _ = make("mq.example")
    assert status(ask(gate, host=host)) == 200
    assert behind.reached == ["/"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8088", "", "127.0.0.1.evil.example", "[::1", "a b"]
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_other_names_are_refused(host, kind):
    """A page whose name was bound to this address (DNS rebinding) says its own name."""
    gate, behind, _ = make()
    answer = ask(gate, kind, host=host, origin=f"http://{host}")
    assert status(answer) in (403, "websocket.close")
    assert behind.reached == []


@pytest.mark.parametrize(
    ("kind", "method"), [("http", "GET"), ("http", "POST"), ("http", "PUT"), ("websocket", "GET")]
)
@pytest.mark.parametrize(
    "origin", ["http://evil.example", "http://127.0.0.1:9999", "null", "http://localhost:8088"]
)
def test_other_origins_are_refused(kind, method, origin):
    gate, behind, _ = make()
    assert status(ask(gate, kind, method=method, origin=origin)) in (403, "websocket.close")
    assert behind.reached == []


@pytest.mark.parametrize(("kind", "method"), [("http", "POST"), ("http", "DELETE"), ("websocket", "GET")])
def test_what_can_change_something_says_where_it_comes_from(kind, method):
    gate, behind, _ = make()
    assert status(ask(gate, kind, method=method)) in (403, "websocket.close")
    assert behind.reached == []
    assert status(ask(gate, kind, method=method, origin=f"http://{OWN}")) in (200, "websocket.accept")
    assert behind.reached == ["/"]


def test_with_users_only_the_login_page_is_open(tmp_path):
    users = Users(tmp_path / "users.json")
    users.put("ann", Role.VIEWER, "correct horse")
    gate, behind, access = make(users=users)
    answer = ask(gate, path="/topics/orders")
    assert status(answer) == 303
    assert (b"location", b"/login?next=/topics/orders") in answer["headers"]
    assert status(ask(gate, path="/_nicegui/components/x.js")) == 303
    assert status(ask(gate, "websocket", path="/_nicegui_ws/", origin=f"http://{OWN}")) == "websocket.close"
    assert behind.reached == []
    assert status(ask(gate, path="/login")) == 200

    cookie = f"{COOKIE}={access.open('ann').token}"
    assert status(ask(gate, path="/topics", cookie=cookie)) == 200
    ws = ask(gate, "websocket", path="/_nicegui_ws/", origin=f"http://{OWN}", cookie=cookie)
    assert status(ws) == "websocket.accept"
    assert status(ask(gate, path="/topics", cookie=f"{COOKIE}=guessed")) == 303
    assert status(ask(gate, path="/topics", cookie="damaged;=;;")) == 303


def test_answers_forbid_frames_and_other_servers():
    gate, _, _ = make()
    headers = dict(ask(gate)["headers"])
    assert headers[b"x-frame-options"] == b"DENY"
    assert b"default-src 'self'" in headers[b"content-security-policy"]
    assert headers[b"x-content-type-options"] == b"nosniff"
