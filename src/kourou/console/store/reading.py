"""Reading a store for the browser: which one may be opened, and how: in a thread of its own, and anew each
time, for a broker may be writing to it. What is read is `kourou.inspect`'s."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from urllib.parse import urlencode

from kourou.auth.model import is_loopback
from kourou.console.door.sessions import ForbiddenError
from kourou.console.door.users import Role
from kourou.console.views.view import View
from kourou.errors import KourouError, StoreError
from kourou.inspect import StoreDirectory

READ_S = 30.0

_T = TypeVar("_T")
_threads = ThreadPoolExecutor(2, "kourou-store")


def is_free(view: View) -> bool:
    """Whether any path may be typed: not where there are users, nor where other machines get in."""
    config = view.config
    return config.users_file is None and is_loopback(config.host) and view.may(Role.OPERATOR)


def check_path(view: View, path: str) -> str:
    """The path of a store that this user may open; ForbiddenError otherwise."""
    wanted = os.path.realpath(os.path.expanduser(path))
    if wanted in {os.path.realpath(one) for one in view.config.stores} or is_free(view):
        return wanted
    raise ForbiddenError(
        f"{path} is none of the stores of this console: name it with `kourou console --store DIRECTORY`"
    )


async def read(
    view: View, path: str, work: Callable[[StoreDirectory], _T], *, within_s: float = READ_S
) -> _T:
    """What `work` finds in a store, read in a thread."""
    view.access.check(view.session, Role.VIEWER)
    root = check_path(view, path)

    def run() -> _T:
        try:
            with StoreDirectory.open(root) as store:
                return work(store)
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror or error}") from error

    try:
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(_threads, run), within_s)
    except TimeoutError:
        raise KourouError(f"{path} was not read within {within_s:g} s: use `kourou store` for it") from None


def store_url(path: str, **parameters: object) -> str:
    """The address of a place in a store."""
    given = {key: value for key, value in parameters.items() if value not in ("", None)}
    return f"/store?{urlencode({'path': path, **given})}"
