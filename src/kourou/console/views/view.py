"""View: what a page has at hand: the cluster, who looks at it, and how something is changed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nicegui import ui

from kourou.admin import Admin
from kourou.admin.operations.declare import Operation
from kourou.console.backend import ANSWER_TIMEOUT_S, Backend, Snapshot
from kourou.console.config import ConsoleConfig
from kourou.console.door.sessions import Access, Session
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.errors import KourouError

_T = TypeVar("_T")


@dataclass(slots=True)
class View:
    """One tab of one user."""

    config: ConsoleConfig
    backend: Backend
    access: Access
    session: Session

    @property
    def snapshot(self) -> Snapshot:
        """What the poller saw last."""
        return self.backend.snapshot

    def may(self, role: Role) -> bool:
        """Whether the user may do what needs a role: what to show."""
        return self.access.may(self.session, role)

    async def answer(self, operation: Operation, given: Mapping[str, Any], **options: Any) -> Any:
        """The answer of an operation that changes nothing, if the user may have it; tabs share it."""
        self.access.check(self.session, Role[operation.role.upper()])
        values = operation.values(given)
        key = (operation.name, *(str(value) for value in values.values()))
        return await self.backend.ask(key, lambda admin: operation.run(admin, **values), **options)

    async def change(
        self,
        role: Role,
        work: Callable[[Admin], Awaitable[_T]],
        done: str,
        *,
        within_s: float = ANSWER_TIMEOUT_S,
        is_content: bool = True,
    ) -> _T | None:
        """Change something, if the user may, and say how that went; None if it was not done.

        Here, and not in what the page shows, is where roles and --read-only count.
        """
        try:
            self.access.check(self.session, role)
            result = await self.backend.do(work, within_s=within_s)
        except KourouError as error:
            ui.notify(str(error), type="negative", multi_line=True, timeout=10_000, close_button=t("Close"))
            return None
        if is_content:
            await self.backend.changed()
        ui.notify(done, type="positive")
        return result


def topic_url(topic: str) -> str:
    """Where a topic is shown."""
    return f"/topics/{to_path(topic)}"


def group_url(group: str) -> str:
    """Where a consumer group is shown."""
    return f"/groups/{to_path(group)}"


def broker_url(address: str) -> str:
    """Where a broker is shown."""
    return f"/brokers/{address}"


def message_url(topic: str, message_id: str) -> str:
    """Where a message is shown."""
    return f"/messages/{to_path(topic)}/{message_id}"


def to_path(name: str) -> str:
    """A name in the address of a page: % would have to be escaped there, so it is ~, which no name has."""
    return name.replace("%", "~")


def from_path(text: str) -> str:
    """The name that the address of a page has."""
    return text.replace("~", "%")
