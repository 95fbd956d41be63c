"""Overview: how the cluster does, at a glance."""

from __future__ import annotations

from kourou.admin.operations.declare import Table, columns
from kourou.console.backend import BROKERS_INTERVAL_S
from kourou.console.contents import GroupRow, TopicRow
from kourou.console.texts import later, t
from kourou.console.views.components import Stat, card, grid, line_chart, live, number, page_title
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View, broker_url

TOP = 8
TOPICS = Table(columns("Topic=name:topic, In / s=tps:number, Messages=messages:number"))
GROUPS = Table(
    columns("Group=name:group, Lag=lag:number, Clients=clients:number", clients=lambda row: len(row.clients))
)
BROKERS = Table(
    columns(
        "Broker=broker:link, Role=role:badge, State=state:badge, Address=address:address-, Version=version-, "
        "In / s=in_tps:number, Out / s=out_tps:number, Disk=disk_ratio:percent-",
        broker=lambda state: (state.broker_name, broker_url(state.address)),
        role=lambda state: later("master") if state.broker_id == 0 else f"slave {state.broker_id}",
        state=lambda state: later("up") if state.error is None else later("down"),
    )
)


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
            nothing = t("No topics yet: create one on the page Topics")
            topics = AnswerTable(TOPICS, export="busiest-topics", per_page=TOP, nothing=nothing)
        with card(t("Groups that are behind")):
            nothing = t("No consumer groups yet: they come with their first client")
            groups = AnswerTable(GROUPS, export="groups-behind", per_page=TOP, nothing=nothing)
    with card(t("Brokers")):
        brokers = AnswerTable(BROKERS, export="brokers", nothing=t("No brokers"))

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
        brokers.show(snapshot.brokers)

    await view.backend.ready()
    live(view, refresh)


def _behind(view: View) -> int:
    return sum(group.lag > 0 for group in view.snapshot.groups.values())


def _top_topics(view: View) -> list[TopicRow]:
    rows = [row for row in view.snapshot.topics.values() if row.kind not in ("system", "retry", "dlq")]
    return sorted(rows, key=lambda row: (-row.tps, -row.messages, row.name))[:TOP]


def _top_groups(view: View) -> list[GroupRow]:
    rows = [row for row in view.snapshot.groups.values() if not row.is_system]
    return sorted(rows, key=lambda row: (-row.lag, -len(row.clients), row.name))[:TOP]
