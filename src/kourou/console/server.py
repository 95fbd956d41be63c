"""The console as a server: one process, one event loop, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path

from kourou.auth.model import is_loopback
from kourou.console.config import ConsoleConfig
from kourou.errors import KourouError

# Before NiceGUI is imported: the console keeps nothing there, and must not look into the working directory.
os.environ.setdefault("NICEGUI_STORAGE_PATH", str(Path(tempfile.gettempdir()) / "kourou-console-unused"))

import uvicorn
from fastapi import FastAPI
from nicegui import ui
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from kourou.console.backend import Backend
from kourou.console.door.gate import Gate
from kourou.console.door.login import add_login
from kourou.console.door.sessions import Access
from kourou.console.door.users import Users
from kourou.console.texts import language_of, use_language
from kourou.console.views.layout import draw_frame
from kourou.console.views.view import View

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 2
RECONNECT_S = 60.0  # how long the state of a tab is kept that lost its connection
FAVICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7"'
    ' fill="#3457d5"/><path d="M10 7v18M22 8l-9 8 9 9" fill="none" stroke="#fff" stroke-width="3.5"'
    ' stroke-linecap="round" stroke-linejoin="round"/></svg>'
)


def make_app(config: ConsoleConfig, backend: Backend, access: Access) -> Gate:
    """The console as an ASGI application. One for each process, as NiceGUI is."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_login(app, config, access)

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok")

    app.add_route("/healthz", health, methods=["GET"])
    style = resources.files("kourou.console").joinpath("assets/style.css").read_text(encoding="utf-8")

    def root(request: Request) -> None:
        use_language(language_of(request))
        ui.add_css(style)
        draw_frame(View(config, backend, access, request.state.session), request)

    ui.run_with(
        app,
        root=root,
        title="Kourou",
        favicon=FAVICON,
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_S,
        show_welcome_message=False,
    )
    return Gate(app, config, access)


async def serve(
    config: ConsoleConfig, started: Callable[[str], None] = lambda _: None, *, while_stdin: bool = False
) -> None:
    """Serve until SIGINT or SIGTERM, or the end of standard input; `started` is told the address."""
    config.check()
    users = None if config.users_file is None else Users(config.users_file)
    if users is not None and not users.names():
        raise KourouError(f"{config.users_file} has no users: make one with `kourou console add-user`")
    logging.getLogger("nicegui").setLevel(logging.ERROR)
    if users is not None and config.tls_cert is None and not is_loopback(config.host):
        log.warning("passwords come in clear: serve with --tls-cert, or behind a proxy that has TLS")
    listener = _listen(config)
    access = Access(users, read_only=config.read_only)
    async with Backend(config) as backend:
        server = _Server(
            uvicorn.Config(
                make_app(config, backend, access),
                log_config=None,  # its lines go where all others do
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
                ws_max_size=4 * 1024 * 1024,
            )
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        if while_stdin:
            await loop.connect_read_pipe(lambda: _UntilEnd(server.stop), sys.stdin)
        serving = loop.create_task(server.serve(sockets=[listener]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            scheme = "http" if config.tls_cert is None else "https"
            started(f"{scheme}://{_shown(listener)}/")
        await serving


class _Server(uvicorn.Server):
    """A server that leaves signals to who runs it."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        """Take no signals."""
        yield

    def stop(self) -> None:
        """End soon."""
        self.should_exit = True


class _UntilEnd(asyncio.Protocol):
    """Tells when standard input ends."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def connection_lost(self, _: Exception | None) -> None:
        """It has ended."""
        self._tell()


def _listen(config: ConsoleConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=256)
    except OSError as error:
        raise KourouError(
            f"port {config.port} of {config.host} cannot be used: {error.strerror or error};"
            " take another one with --port"
        ) from error


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
