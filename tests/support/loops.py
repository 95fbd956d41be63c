"""The two event loops that Kourou runs on, and tests that are coroutines.

`async def test_…` runs on the loop that its argument `loop` names, else on uvloop.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
DEADLINE_S = 360  # of a test that hangs


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    run(str(values.get("loop", "uvloop")), pyfuncitem.obj(**values))
    return True


def run(loop: str, main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on one of the LOOPS, or fail if it has none."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        result = runner.run(_bounded(main))
        runner.run(asyncio.sleep(0.01))  # what was closed goes in the next turns of the loop
        return result


async def _bounded(main: Coroutine[Any, Any, Any]) -> Any:
    # Not wait_for: it waits for what it has cancelled, and a test that hangs may not be cancelled so easily.
    task = asyncio.ensure_future(main)
    done, _ = await asyncio.wait((task,), timeout=DEADLINE_S)
    assert done, f"no end after {DEADLINE_S} s"
    return task.result()


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + DEADLINE_S / 3
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what or condition}"
        await asyncio.sleep(0.005)
