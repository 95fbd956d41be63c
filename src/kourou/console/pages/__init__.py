"""The pages of the console, one module each, and the one list that routes and navigation are made from.

To add a page: a module with a function that draws it (it is given the `View`, and what is named in braces in
its path), and an entry below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kourou.console.pages import (
    access,
    broker,
    clients,
    cluster,
    dlq,
    message,
    messages,
    overview,
    pipeline,
    topic,
    topics,
    waiting,
)
from kourou.console.pages.groups import all as groups
from kourou.console.pages.groups import one as group
from kourou.console.pages.store import browser as store
from kourou.console.texts import later


@dataclass(frozen=True, slots=True)
class Entry:
    """A page: its path, what draws it, and where it stands in the navigation (without a title: nowhere)."""

    path: str
    draw: Callable[..., Any]
    title: str = ""
    icon: str = ""
    section: str = ""


PAGES = [
    Entry("/", overview.draw, later("Overview"), "space_dashboard", later("Cluster")),
    Entry("/cluster", cluster.draw, later("Brokers"), "dns", later("Cluster")),
    Entry("/brokers/{address}", broker.draw),
    Entry("/topics", topics.draw, later("Topics"), "topic", later("Data")),
    Entry("/topics/{name}", topic.draw),
    Entry("/groups", groups.draw, later("Consumer groups"), "groups", later("Data")),
    Entry("/groups/{name}", group.draw),
    Entry("/messages", messages.draw, later("Messages"), "mail", later("Data")),
    Entry("/messages/{topic}/{message_id}", message.draw),
    Entry("/dlq", dlq.draw, later("Dead letters"), "report", later("Data")),
    Entry("/dlq/{name}", dlq.draw_group),
    Entry("/waiting", waiting.draw, later("Waiting messages"), "schedule", later("Data")),
    Entry("/clients", clients.draw, later("Clients"), "lan", later("Clients")),
    Entry("/store", store.draw, later("Store"), "folder_open", later("Tools")),
    Entry("/pipeline", pipeline.draw, later("Pipeline"), "bolt", later("Tools")),
    Entry("/pipeline/{run_id}", pipeline.draw_run),
    Entry("/access", access.draw, later("Users and ACLs"), "admin_panel_settings", later("Tools")),
]
