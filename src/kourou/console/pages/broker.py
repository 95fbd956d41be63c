"""A broker: its figures, its configuration, its replication, and what an operator has it do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nicegui import ui

from kourou.admin.model import BrokerState
from kourou.admin.operations import brokers, name_servers
from kourou.admin.operations.declare import Operation, Table, columns
from kourou.console.door.users import Role
from kourou.console.texts import t
from kourou.console.views.components import (
    Section,
    badge,
    card,
    dialog,
    dialog_buttons,
    empty,
    facts,
    number,
    page_title,
    size,
    tab_sections,
)
from kourou.console.views.operations import AnswerTable, change
from kourou.console.views.table import RowAction
from kourou.console.views.view import View

VALUES = Table(
    columns("Name=name:code, Value=value:code"),
    rows=lambda found: [{"name": name, "value": value} for name, value in found.items()],
)


async def draw(view: View, address: str) -> None:
    """Draw the page of the broker at an address."""
    await view.backend.ready()
    state = next((one for one in view.snapshot.brokers if one.address == address), None)
    name = state.broker_name if state is not None else address
    with ui.row().classes("w-full items-end justify-between gap-3"):
        page_title(name, address, parent=(t("Cluster"), "/cluster"))
        if state is not None:
            with ui.row().classes("gap-2 items-center"):
                _draw_badges(state)
                if view.may(Role.ADMIN) and state.error is None:
                    _draw_menu(view, state)
    if state is None:
        with card():
            empty("dns", t("No such broker is known"), t("See the page Cluster for those that are"))
        return
    given = {"broker": address}
    sections: list[Section] = []
    sections += tab_sections(
        {
            "status": (
                t("Status"),
                lambda: view.answer(brokers.status, given),
                lambda found: _draw_status(state, found),
            ),
            "config": (
                t("Configuration"),
                lambda: view.answer(brokers.config, given),
                lambda found: _draw_config(view, address, found, lambda: sections[1]),
            ),
            "replication": (
                t("Replication"),
                lambda: view.answer(brokers.ha_status, given),
                _draw_replication,
            ),
        }
    )


def _draw_badges(state: BrokerState) -> None:
    badge(t("master") if state.broker_id == 0 else t("slave {id}", id=state.broker_id), "info")
    badge(t("up") if state.error is None else t("down"), "good" if state.error is None else "bad")


def _draw_menu(view: View, state: BrokerState) -> None:
    def item(text: str, operation: Operation, done: str, **given: str) -> None:
        ui.menu_item(text, lambda: change(view, operation, given, done))

    with ui.button(t("Maintenance"), icon="build").props("outline"), ui.menu():
        for what, text in (
            ("queues", t("Remove empty queues")),
            ("topics", t("Remove queues of deleted topics")),
            ("log", t("Remove expired log files")),
        ):
            item(text, brokers.clean, t("The broker cleans up"), what=what, broker=state.address)
        ui.separator()
        name = state.broker_name
        stopped = t("Nothing new is sent to it")
        item(t("Stop writes, before it is shut down"), name_servers.wipe_write, stopped, broker=name)
        item(t("Allow writes again"), name_servers.add_write, t("It is sent to again"), broker=name)


def _draw_status(state: BrokerState, runtime: Mapping[str, str]) -> None:
    fresh = BrokerState(state.cluster, state.broker_name, state.broker_id, state.address, runtime)
    log_bytes = fresh.difference("commitLogMaxOffset", "commitLogMinOffset")
    with card(t("At a glance")):
        facts(
            {
                t("Cluster"): state.cluster,
                t("Version"): fresh.version,
                t("Running for"): runtime.get("runtime", "").strip("[ ]"),
                t("Messages in / s"): number(fresh.in_tps),
                t("Messages out / s"): number(fresh.out_tps),
                t("Disk use"): f"{fresh.disk_ratio:.0%}",
                t("Messages in the log"): size(log_bytes),
                t("In today"): number(fresh.difference("msgPutTotalTodayNow", "msgPutTotalTodayMorning")),
                t("Out today"): number(fresh.difference("msgGetTotalTodayNow", "msgGetTotalTodayMorning")),
            }
        )
    with card(t("All figures")):
        AnswerTable(VALUES, runtime, export=f"{state.broker_name}-status", per_page=50)


def _draw_config(view: View, address: str, config: Mapping[str, str], section: Callable[[], Section]) -> None:
    def edit(row: dict[str, Any]) -> None:
        with dialog(row["name"]) as box:
            value = ui.input(t("Value"), value=str(row["value"])).props("outlined dense autofocus")
            ui.label(
                t("It counts at once, and after a restart. The broker refuses keys that it cannot change.")
            )

            async def save() -> bool:
                given = {"changes": {row["name"]: str(value.value)}, "broker": address}
                done = t("{name} is changed", name=row["name"])
                return await change(view, brokers.set_config, given, done, lambda *_: section().load())

            dialog_buttons(box, t("Save"), save)

    with card():
        actions = [RowAction("edit", t("Edit"), edit)] if view.may(Role.ADMIN) else []
        AnswerTable(VALUES, config, export="broker-config", per_page=50, actions=actions)


def _draw_replication(found: list[dict[str, Any]]) -> None:
    status = found[0]
    if not status.get("master"):
        client = status.get("haClientRuntimeInfo") or {}
        with card(t("This slave")):
            facts(
                {
                    t("Master"): client.get("masterAddr"),
                    t("Transferred / s"): size(float(client.get("transferredByteInSecond") or 0)),
                    t("Position"): number(int(client.get("maxOffset") or 0)),
                    t("Flushed by the master"): number(int(client.get("masterFlushOffset") or 0)),
                }
            )
        return
    with card(t("This master")):
        facts(
            {
                t("Position"): number(int(status.get("masterCommitLogMaxOffset") or 0)),
                t("Slaves in sync"): number(int(status.get("inSyncSlaveNums") or 0)),
            }
        )
    with card(t("Slaves")):
        if not status.get("haConnectionInfo"):
            empty("sync_disabled", t("No slaves are connected"), t("Messages are kept by this broker alone"))
            return
        AnswerTable(brokers.SLAVES, found, export="slaves")
