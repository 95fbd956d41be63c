"""Gate: what every request passes first, pages, assets and web sockets alike.

- The Host has to be a name of this console: a page whose name was bound to this address later (DNS rebinding)
  has another one.
- An Origin has to be this console; what can change something (POST, a web socket) has to have one. NiceGUI's
  web socket takes any, so this is what keeps other sites out, besides the cookie's SameSite.
- Where there are users, only somebody who is logged in comes further than the login page.
"""

from __future__ import annotations

import ipaddress
import socket
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote, urlsplit

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kourou.console.config import ConsoleConfig
from kourou.console.door.sessions import Access

COOKIE = "kourou_session"
OPEN_PATHS = frozenset({"/login", "/healthz", "/favicon.ico"})
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_REFUSED = 4403  # a close code of a web socket, for applications to choose

# Vue compiles templates in the browser, so scripts need eval; everything comes from this console alone.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none';"
    " base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
]


class Gate:
    """Lets in what comes from this console's own pages, and who may."""

    def __init__(self, app: ASGIApp, config: ConsoleConfig, access: Access) -> None:
        self.app = app
        self._access = access
        self._names = {"localhost", socket.gethostname().lower(), config.host.lower()} | {
            name.lower() for name in config.allowed_hosts
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await self._refuse(scope, receive, send, PlainTextResponse(refusal, 403))
            return
        session = self._access.find(_cookie(headers.get("cookie", "")))
        if session is None and scope["path"] not in OPEN_PATHS:
            wanted = scope["path"] if scope.get("method") == "GET" else "/"
            response = RedirectResponse(f"/login?next={quote(wanted)}", 303)
            await self._refuse(scope, receive, send, response)
            return
        scope.setdefault("state", {})["session"] = session

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: dict[str, str]) -> str | None:
        host = headers.get("host", "")
        if not self._is_own(host):
            return f"{host} is no name of this console: allow it with --allow-host"
        origin = headers.get("origin")
        if origin is not None:
            return None if urlsplit(origin).netloc.lower() == host.lower() else "this is for no other site"
        if scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS:
            return "such a request says where it comes from (Origin)"
        return None

    def _is_own(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True  # an address cannot be bound to another one

    @staticmethod
    async def _refuse(scope: Scope, receive: Receive, send: Send, response: Response) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": _REFUSED})
        else:
            await response(scope, receive, send)


def _cookie(header: str) -> str | None:
    try:
        found = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return None
    return None if found is None else found.value
