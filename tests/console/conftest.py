"""The console as a process, beside a cluster with something in it, and one browser for all tests."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kourou.client import Consumer, Message, Producer, ReceivedMessage, ReconsumeLater, TransactionState
from kourou.console.door.users import Role, Users
from kourou.testing import Cluster
from support.browser import WAIT_MS, Browser, BrowserContext, Page, expect, running_browser

START_S = 60
PASSWORD = "correct horse"


class Console(NamedTuple):
    """A console that runs."""

    url: str
    process: subprocess.Popen[str]


class Scene(NamedTuple):
    """What there is to look at."""

    cluster: Cluster
    receipts: list[Any]  # of the messages of topic orders
    run: Callable[[Coroutine[Any, Any, Any]], Any]


@contextmanager
def running_console(*arguments: str) -> Iterator[Console]:
    """`kourou console` on a free port; it must end well."""
    command = [sys.executable, "-m", "kourou", "console", "--port", "0", *arguments]
    # NiceGUI does some things otherwise where it sees pytest.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8", env=environment) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("listening on "), "the console did not start"
            yield Console(line.split()[-1].rstrip("/"), process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(START_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert process.returncode == 0


@pytest.fixture
def start_console() -> Callable[..., Any]:
    return running_console


class Loop:
    """An event loop in a thread, for clients."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_S)
        self._loop.close()


class Clients:
    """A producer, and a consumer of group billing that takes no message with the tag `bad`."""

    def __init__(self, namesrv: str) -> None:
        self.producer = Producer(namesrv, group="shop", trace=True)
        self.consumer = Consumer(
            namesrv, group="billing", subscribe={"orders": "*"}, consume_from="first", trace=True
        )
        self.consumer.handler(self._take)

    async def start(self) -> None:
        await self.producer.__aenter__()
        await self.consumer.__aenter__()

    @staticmethod
    async def _take(message: ReceivedMessage) -> None:
        if message.tags == "bad":
            raise ReconsumeLater(-1)

    async def stop(self) -> None:
        await self.consumer.close()
        await self.producer.__aexit__()

    async def fill(self) -> list[Any]:
        send = self.producer.send
        receipts = []
        for number in range(12):
            body = b'{"order": %d, "amount": %d, "items": ["rocket", "fuel"]}' % (number, number * 10)
            tags = "paid" if number % 2 else "open"
            message = Message("orders", body, {"amount": str(number * 10)}, tags=tags, keys=[f"o-{number}"])
            receipts.append(await send(message))
        await send(Message("orders", b"\x00\x01\xff binary", tags="bad", keys=["dead-1"]))
        await send(Message("payments", b"in order", sharding_key="c-1"))
        await send(Message("later", b"by level", delay_level=18))
        await send(Message("later", b"by timer", delay_s=3600))
        await self.producer.send_in_transaction(
            Message("transfers", b"half"), lambda *_: TransactionState.UNKNOWN
        )
        return receipts


@contextmanager
def running_scene() -> Iterator[Scene]:
    """Two brokers with a slave each, topics, messages, a group that consumes, dead letters, what waits."""
    with ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        config = {"enablePropertyFilter": "true", "timerWheelEnable": "true"}
        cluster = stack.enter_context(Cluster(brokers=2, slaves=1, config=config))
        cluster.create_topic("orders", queues=2)
        cluster.create_topic("payments", queues=2, attributes="+message.type=FIFO")
        cluster.create_topic("later", queues=1, attributes="+message.type=DELAY")
        cluster.create_topic("transfers", queues=1, attributes="+message.type=TRANSACTION")
        clients = Clients(cluster.namesrv)
        loop.run(clients.start())
        stack.callback(lambda: loop.run(clients.stop()))
        yield Scene(cluster, loop.run(clients.fill()), loop.run)


# What all tests of this directory share. Playwright has an event loop in this thread as long as it runs, with
# which no other test can have its own: so all of it ends with the last test here, not with the session.

HERE = Path(__file__).resolve().parent

_stack = ExitStack()
_running: dict[str, Any] = {}


def shared(name: str, make: Callable[[], Any]) -> Any:
    if name not in _running:
        _running[name] = _stack.enter_context(make())
    return _running[name]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or HERE not in nextitem.path.parents:
        _running.clear()
        _stack.close()


@pytest.fixture
def make_loop() -> Iterator[Callable[[], Loop]]:
    """Makes event loops for clients."""
    loops: list[Loop] = []

    def make() -> Loop:
        loops.append(Loop())
        return loops[-1]

    yield make
    for loop in loops:
        loop.close()


@pytest.fixture
def scene() -> Scene:
    """A cluster with something in it."""
    found: Scene = shared("scene", running_scene)
    return found


@pytest.fixture
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a viewer, an operator and an administrator."""

    def make() -> Any:
        file = tmp_path_factory.mktemp("users") / "users.json"
        users = Users(file)
        for role in Role:
            users.put(role.name.lower(), role, PASSWORD)
        return nullcontext(file)

    found: Path = shared("users", make)
    return found


@pytest.fixture
def console(scene: Scene) -> Console:
    """A console without users."""
    found: Console = shared("console", lambda: running_console("--namesrv", scene.cluster.namesrv))
    return found


@pytest.fixture
def guarded(scene: Scene, users_file: Path) -> Console:
    """A console with users."""
    options = ("--namesrv", scene.cluster.namesrv, "--users", str(users_file))
    found: Console = shared("guarded", lambda: running_console(*options))
    return found


@pytest.fixture
def browser() -> Browser:
    found: Browser = shared("browser", running_browser)
    return found


@pytest.fixture
def open_context(browser: Browser) -> Iterator[Callable[..., BrowserContext]]:
    """Makes contexts of the browser, whose pages must ask nobody else for anything, nor fail."""
    with ExitStack() as stack:
        asked: list[str] = []
        failures: list[str] = []

        def make(url: str, **options: Any) -> BrowserContext:
            context = browser.new_context(
                base_url=url, **{"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options}
            )
            context.set_default_timeout(WAIT_MS)
            context.on("request", lambda request: asked.append(request.url))
            context.on("weberror", lambda error: failures.append(str(error.error)))
            stack.callback(context.close)
            return context

        yield make
    others = [url for url in asked if not re.match(r"(https?|wss?)://127\.0\.0\.1[:/]|data:|blob:", url)]
    assert others == [], "the console works without any other server"
    assert failures == []


@pytest.fixture
def page(open_context: Callable[..., BrowserContext], console: Console) -> Page:
    """A page of the console without users."""
    return open_context(console.url).new_page()


@pytest.fixture
def log_in(open_context: Callable[..., BrowserContext], guarded: Console) -> Callable[[str], Page]:
    """`log_in("viewer")`: a page of the console with users, for one of them."""

    def make(name: str) -> Page:
        found = open_context(guarded.url).new_page()
        found.goto("/")
        found.get_by_label("Name").fill(name)
        found.get_by_label("Password").fill(PASSWORD)
        found.get_by_role("button", name="Log in").click()
        expect(found.get_by_role("heading", name="Overview")).to_be_visible()
        return found

    return make
