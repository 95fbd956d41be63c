"""Overview: how the cluster does, at a glance."""

from __future__ import annotations

from typing import Any

from kourou.console.backend import BROKERS_INTERVAL_S
from kourou.console.texts import t
from kourou.console.views.components import Stat, card, grid, line_chart, live, number, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View, broker_url, group_url, topic_url

TOP = 8


async def draw(view: View) -> None:
    """Draw the page."""
    page_title(t("Overview"), t("Updated every {seconds} s", seconds=int(BROKERS_INTERVAL_S)))
    with grid():
        stats = {
            "brokers": Stat(t("Brokers up"), mark="brokers"),
            "in": Stat(t("Messages in / s"), mark="in"),
            "out": Stat(t("Messages out / s"), mark="out"),
            "lag": Stat(t("Total lag"), mark="lag"),
            "disk": Stat(t("Disk use"), mark="disk"),
        }
    with grid(wide=True):
        draw_rates = line_chart(t("Messages per second"), [(t("In"), "in_tps"), (t("Out"), "out_tps")])
        draw_lag = line_chart(t("Total lag"), [(t("Lag"), "lag")])
    with grid(wide=True):
        with card(t("Busiest topics")):
            topics = DataTable(
                [
                    Column("name", t("Topic"), "link"),
                    Column("tps", t("In / s"), "number"),
                    Column("messages", t("Messages"), "number"),
                ],
                export="busiest-topics",
                per_page=TOP,
                nothing=t("No topics yet: create one on the page Topics"),
            )
        with card(t("Groups that are behind")):
            groups = DataTable(
                [
                    Column("name", t("Group"), "link"),
                    Column("lag", t("Lag"), "number"),
                    Column("clients", t("Clients"), "number"),
                ],
                export="groups-behind",
                per_page=TOP,
                nothing=t("No consumer groups yet: they come with their first client"),
            )
    with card(t("Brokers")):
        brokers = DataTable(broker_columns(), key="address", export="brokers", nothing=t("No brokers"))

    def refresh() -> None:
        snapshot = view.snapshot
        up = [state for state in snapshot.brokers if state.error is None]
        point = view.backend.history[-1] if view.backend.history else None
        stats["brokers"].show(
            f"{len(up)} / {len(snapshot.brokers)}",
            t("All answer") if len(up) == len(snapshot.brokers) and up else t("Some do not answer"),
        )
        if point is not None:
            stats["in"].show(number(point.in_tps), t("last 10 seconds"))
            stats["out"].show(number(point.out_tps), t("last 10 seconds"))
            lag = sum(group.lag for group in snapshot.groups.values())
            stats["lag"].show(number(lag), t("in {count} groups", count=_behind(view)))
            stats["disk"].show(f"{point.disk_ratio:.0%}", t("the fullest broker"))
        points = list(view.backend.history)
        draw_rates(points)
        draw_lag(points)
        topics.show(_top_topics(view))
        groups.show(_top_groups(view))
        brokers.show(broker_rows(view))

    await view.backend.ready()
    live(view, refresh)


def _behind(view: View) -> int:
    return sum(group.lag > 0 for group in view.snapshot.groups.values())


def _top_topics(view: View) -> list[dict[str, Any]]:
    rows = [row for row in view.snapshot.topics.values() if row.kind not in ("system", "retry", "dlq")]
    rows.sort(key=lambda row: (-row.tps, -row.messages, row.name))
    return [
        {
            "name": row.name,
            "name_href": topic_url(row.name),
            "tps": round(row.tps, 1),
            "messages": row.messages,
        }
        for row in rows[:TOP]
    ]


def _top_groups(view: View) -> list[dict[str, Any]]:
    rows = [row for row in view.snapshot.groups.values() if not row.is_system]
    rows.sort(key=lambda row: (-row.lag, -len(row.clients), row.name))
    return [
        {"name": row.name, "name_href": group_url(row.name), "lag": row.lag, "clients": len(row.clients)}
        for row in rows[:TOP]
    ]


def broker_columns() -> list[Column]:
    """The columns of a table of brokers."""
    return [
        Column("broker", t("Broker"), "link"),
        Column("role", t("Role"), "badge"),
        Column("state", t("State"), "badge"),
        Column("address", t("Address"), "address", minor=True),
        Column("version", t("Version"), minor=True),
        Column("in_tps", t("In / s"), "number"),
        Column("out_tps", t("Out / s"), "number"),
        Column("disk", t("Disk"), "percent", minor=True),
    ]


def broker_rows(view: View) -> list[dict[str, Any]]:
    """The brokers, as rows of a table."""
    return [
        {
            "broker": state.broker_name,
            "broker_href": broker_url(state.address),
            "role": t("master") if state.broker_id == 0 else t("slave {id}", id=state.broker_id),
            "role_color": "info" if state.broker_id == 0 else "mute",
            "state": t("up") if state.error is None else t("down"),
            "state_color": "good" if state.error is None else "bad",
            "address": state.address,
            "version": state.version,
            "in_tps": round(state.in_tps, 1),
            "out_tps": round(state.out_tps, 1),
            "disk": round(state.disk_ratio, 3),
        }
        for state in view.snapshot.brokers
    ]
