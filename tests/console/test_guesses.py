"""Who guesses passwords is slowed down, and locks nobody else out."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi import FastAPI

from kourou.console.config import ConsoleConfig
from kourou.console.door import guesses as module
from kourou.console.door.guesses import (
    FREE_TRIES,
    MANY_TRIES,
    MAX_AT_ONCE,
    MAX_SLOW_S,
    MAX_WAIT_S,
    Guesses,
    origin_of,
)
from kourou.console.door.login import add_login
from kourou.console.door.sessions import Access
from kourou.console.door.users import Role, Users

PASSWORD = "correct horse"
GUESSER, ELSEWHERE, PROXY = "192.0.2.66", "192.0.2.7", "10.0.0.1"
IN, WRONG, WAIT = 303, 401, 429


class Time:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Door:
    """The login page of a console with the users `ann` and `bob`."""

    def __init__(self, directory: Path, *trusted_proxies: str) -> None:
        users = Users(directory / "users.json")
        for name in ("ann", "bob"):
            users.put(name, Role.VIEWER, PASSWORD)
        self._app = FastAPI()
        add_login(self._app, ConsoleConfig("a:1", trusted_proxies=trusted_proxies), Access(users))

    def try_in(self, name: str, password: str, peer: str, forwarded: str | None = None) -> int:
        """The status of the answer to a form."""
        return run(self._try(name, password, peer, forwarded))

    def try_all(self, *forms: tuple[str, str, str]) -> list[int]:
        """The same for several that come at once."""

        async def all_of() -> list[int]:
            return await asyncio.gather(*(self._try(*form, None) for form in forms))

        return run(all_of())

    async def _try(self, name: str, password: str, peer: str, forwarded: str | None) -> int:
        body = urlencode({"name": name, "password": password}).encode()
        headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
        scope = {
            "type": "http", "method": "POST", "path": "/login", "query_string": b"", "headers": headers,
            "client": (peer, 1),
        }  # fmt: skip
        statuses = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        await self._app(scope, receive, send)
        return int(statuses[0])


def run(work: Coroutine[Any, Any, Any]) -> Any:
    with ThreadPoolExecutor(1) as thread:  # in the main one a browser may have its event loop
        return thread.submit(asyncio.run, work).result()


def test_a_user_is_not_locked_out_by_who_guesses_elsewhere(tmp_path: Path) -> None:
    door = Door(tmp_path)
    found = [door.try_in("ann", "wrong", GUESSER) for _ in range(FREE_TRIES + 3)]
    assert found == [WRONG] * FREE_TRIES + [WAIT] * 3
    assert door.try_in("ann", PASSWORD, GUESSER) == WAIT  # also where it would be right at last
    assert door.try_in("ann", PASSWORD, ELSEWHERE) == IN
    assert door.try_in("ann", PASSWORD, GUESSER) == WAIT  # and that does not help who guesses


def test_others_who_share_the_address_are_not_locked_out(tmp_path: Path) -> None:
    """All behind a proxy that is not trusted, or not known."""
    door = Door(tmp_path)
    while door.try_in("ann", "wrong", PROXY) == WRONG:
        pass
    assert door.try_in("bob", PASSWORD, PROXY) == IN


def test_an_address_that_a_peer_says_to_have_is_not_believed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    found = [door.try_in("ann", "wrong", GUESSER, f"198.51.100.{n}") for n in range(FREE_TRIES + 1)]
    assert found == [WRONG] * FREE_TRIES + [WAIT]
    assert door.try_in("ann", PASSWORD, ELSEWHERE, GUESSER) == IN


def test_behind_a_trusted_proxy_each_has_an_address_of_its_own(tmp_path: Path) -> None:
    door = Door(tmp_path, "10.0.0.0/8")
    found = [door.try_in("ann", "wrong", PROXY, f"198.51.100.{n}, {GUESSER}") for n in range(FREE_TRIES + 1)]
    assert found == [WRONG] * FREE_TRIES + [WAIT]  # what came to the proxy is not believed
    assert door.try_in("ann", PASSWORD, PROXY, ELSEWHERE) == IN


@pytest.mark.parametrize(
    ("peer", "forwarded", "wanted"),
    [
        (GUESSER, [], GUESSER),
        (GUESSER, [ELSEWHERE], GUESSER),
        (PROXY, [], PROXY),
        (PROXY, [f"1.1.1.1, {GUESSER}"], GUESSER),
        (PROXY, ["1.1.1.1", GUESSER], GUESSER),
        (PROXY, [f"1.1.1.1, {GUESSER}, 10.0.0.2"], GUESSER),
        (PROXY, ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (PROXY, ["unknown"], "unknown"),
    ],
)
def test_where_a_request_comes_from(peer: str, forwarded: list[str], wanted: str) -> None:
    assert origin_of(peer, forwarded, ["10.0.0.0/8"]) == wanted
    assert origin_of(peer, forwarded, []) == peer


def test_guesses_that_are_sent_at_once_are_no_more_than_those_one_by_one(tmp_path: Path) -> None:
    door = Door(tmp_path)
    found = door.try_all(*[("ann", f"wrong {n}", GUESSER) for n in range(4 * FREE_TRIES)])
    assert found.count(WRONG) == FREE_TRIES
    assert found.count(WAIT) == 3 * FREE_TRIES


def test_an_address_that_tries_many_names_takes_no_more_than_its_share_of_the_machine(tmp_path: Path) -> None:
    door = Door(tmp_path)
    found = door.try_all(*[(f"name {n}", "wrong", GUESSER) for n in range(100)], ("ann", PASSWORD, ELSEWHERE))
    assert found.count(WRONG) == MAX_AT_ONCE
    assert found[-1] == IN
    assert door.try_in("bob", PASSWORD, GUESSER) == IN


def guess(guesses: Guesses, address: str, user: str) -> float:
    """A try in vain, or how long it has to wait."""
    wait_s = guesses.begin(address, user)
    if not wait_s:
        guesses.end(address)
    return wait_s


def test_each_try_in_vain_makes_the_next_one_wait_longer_but_not_for_ever() -> None:
    time = Time()
    guesses = Guesses(time)
    for _ in range(FREE_TRIES):
        assert guess(guesses, GUESSER, "ann") == 0
    waits = []
    for _ in range(12):
        wait_s = guess(guesses, GUESSER, "ann")
        waits.append(wait_s)
        time.now_s += wait_s / 2
        assert 0 < guess(guesses, GUESSER, "ann") < wait_s  # to ask meanwhile makes it no longer
        time.now_s += wait_s / 2
        assert guess(guesses, GUESSER, "ann") == 0
    assert waits == sorted(waits)
    assert waits[:3] == [1.0, 2.0, 4.0]
    assert waits[-1] == MAX_WAIT_S
    time.now_s += module.FORGET_S + 1
    assert [guess(guesses, GUESSER, "ann") for _ in range(FREE_TRIES)] == [0] * FREE_TRIES


def test_who_logs_in_starts_again(tmp_path: Path) -> None:
    door = Door(tmp_path)
    for _ in range(3):
        for _ in range(FREE_TRIES - 1):
            assert door.try_in("ann", "wrong", GUESSER) == WRONG
        assert door.try_in("ann", PASSWORD, GUESSER) == IN


def test_guesses_from_ever_more_addresses_slow_a_user_down_and_lock_nobody_out() -> None:
    time = Time()
    guesses = Guesses(time)
    for number in range(MANY_TRIES):
        assert guess(guesses, f"192.0.2.{number}", "ann") == 0
    assert guesses.slow_s("ann") == 0
    slow = []
    for number in range(5000):
        guess(guesses, f"10.0.{number >> 8}.{number & 255}", "ann")
        slow.append(guesses.slow_s("ann"))
    assert slow[0] > 0
    assert slow[-1] == max(slow) == MAX_SLOW_S
    assert guesses.begin(ELSEWHERE, "ann") == 0  # the right password gets in, a moment later
    assert guesses.slow_s("bob") == 0
    time.now_s += module.MOST_TRIES / module.DRAIN_PER_S
    assert guesses.slow_s("ann") == 0


def test_an_address_of_ipv6_is_its_network() -> None:
    guesses = Guesses(Time())
    for number in range(FREE_TRIES):
        assert guess(guesses, f"2001:db8::{number}", "ann") == 0
    assert guess(guesses, "2001:db8::ffff", "ann") > 0
    assert guess(guesses, "2001:db8:0:1::1", "ann") == 0
    assert module.network_of("::ffff:192.0.2.1") == module.network_of("192.0.2.1")


def test_what_is_kept_of_guesses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRACKED", 100)
    guesses = Guesses(Time())
    for number in range(1000):
        guess(guesses, f"2001:db8:0:{number:x}::1" * 50, f"name {number}" * 1000)
    assert len(guesses._pairs) == len(guesses._users) == 100
    assert guesses._running == {}
    assert max(len(text) for pair in guesses._pairs for text in pair) <= module.MAX_NAME
