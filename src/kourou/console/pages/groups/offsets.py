"""Dialogs that change where a consumer group goes on."""

from __future__ import annotations

from kourou.admin.operations import groups, offsets
from kourou.console.texts import t
from kourou.console.views.operations import ask, show_answer
from kourou.console.views.view import View
from kourou.errors import KourouError
from kourou.message.topics import RETRY_PREFIX


async def _topics(view: View, group: str) -> list[str]:
    """The topics of a group: that it has offsets in, or subscribes to; all where there are none."""
    row = view.snapshot.groups.get(group)
    found = set(row.topics) if row is not None else set()
    try:
        progress = await view.answer(groups.progress, {"group": group})
    except KourouError:
        pass  # what is known of its clients is enough to choose from
    else:
        found |= {queue.topic for queue in progress.queues if not queue.topic.startswith(RETRY_PREFIX)}
    return sorted(found) or [one.name for one in view.snapshot.topics.values() if one.kind != "system"]


async def reset_dialog(view: View, group: str) -> None:
    """Let a group go on at a time."""
    topics = await _topics(view, group)
    note = t("What was sent since then is consumed again, whether clients are online or not.")
    ask(
        view, offsets.reset, t("Reset offsets by time"), t("Reset"), t("The offsets are reset"),
        fields="topic, to", fixed={"group": group}, known={"topic": topics[0]} if topics else {},
        options={"topic": topics}, notes=[group, note],
        then=lambda _, found: show_answer(t("New offsets"), offsets.CHANGES, found, "offsets"),
    )  # fmt: skip


async def skip_dialog(view: View, group: str) -> None:
    """Let a group go on after the last message."""
    topics = await _topics(view, group)
    ask(
        view, offsets.skip, t("Skip accumulated messages"), t("Skip"),
        t("The group goes on behind the last message"), fields="topic", fixed={"group": group},
        known={"topic": topics[0]} if topics else {}, options={"topic": topics}, notes=[group],
        warning=t("Messages that wait now are not consumed by this group."),
        then=lambda _, found: show_answer(t("New offsets"), offsets.CHANGES, found, "offsets"),
    )  # fmt: skip


def clone_dialog(view: View, group: str) -> None:
    """Let a group go on where another one is."""
    others = [name for name, row in view.snapshot.groups.items() if name != group and not row.is_system]
    note = t("In all topics of that group. Stop the clients of this one first.")
    ask(
        view, offsets.clone, t("Clone offsets of another group"), t("Clone"), t("The offsets are cloned"),
        fields="source", fixed={"target": group}, options={"source": others}, notes=[group, note],
    )  # fmt: skip
