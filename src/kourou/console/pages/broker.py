"""A broker: its figures, its configuration, its replication, and what an operator has it do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from kourou.admin.model import BrokerState
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
)
from kourou.console.views.table import Column, DataTable, RowAction
from kourou.console.views.view import View


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
    with ui.tabs().props("align=left no-caps") as tabs:
        status = ui.tab("status", t("Status"))
        config = ui.tab("config", t("Configuration"))
        replication = ui.tab("replication", t("Replication"))
    with ui.tab_panels(tabs, value=status, animated=False):
        with ui.tab_panel(status):
            Section(
                lambda: view.backend.ask(("runtime", address), lambda admin: admin.brokers.runtime(address)),
                lambda found: _draw_status(state, found),
            )
        with ui.tab_panel(config):
            section = Section(
                lambda: view.backend.ask(("config", address), lambda admin: admin.brokers.config(address)),
                lambda found: _draw_config(view, address, found, lambda: section),
            )
        with ui.tab_panel(replication):
            Section(
                lambda: view.backend.ask(("ha", address), lambda admin: admin.brokers.ha_status(address)),
                _draw_replication,
            )


def _draw_badges(state: BrokerState) -> None:
    badge(t("master") if state.broker_id == 0 else t("slave {id}", id=state.broker_id), "info")
    badge(t("up") if state.error is None else t("down"), "good" if state.error is None else "bad")


def _draw_menu(view: View, state: BrokerState) -> None:
    async def clean(what: str) -> None:
        await view.change(
            Role.ADMIN,
            lambda admin: admin.brokers.clean(what, broker=state.address),
            t("The broker cleans up"),
        )

    async def permit(is_allowed: bool) -> None:
        servers = view.backend.admin.name_servers
        if is_allowed:
            await view.change(
                Role.ADMIN, lambda _: servers.add_write(state.broker_name), t("It is sent to again")
            )
        else:
            await view.change(
                Role.ADMIN, lambda _: servers.wipe_write(state.broker_name), t("Nothing new is sent to it")
            )

    with ui.button(t("Maintenance"), icon="build").props("outline"), ui.menu():
        ui.menu_item(t("Remove empty queues"), lambda: clean("queues"))
        ui.menu_item(t("Remove queues of deleted topics"), lambda: clean("topics"))
        ui.menu_item(t("Remove expired log files"), lambda: clean("log"))
        ui.separator()
        ui.menu_item(t("Stop writes, before it is shut down"), lambda: permit(False))
        ui.menu_item(t("Allow writes again"), lambda: permit(True))


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
        columns = [Column("name", t("Name"), "code"), Column("value", t("Value"), "code")]
        rows = [{"name": key, "value": value} for key, value in runtime.items()]
        DataTable(columns, rows, export=f"{state.broker_name}-status", per_page=50)


def _draw_config(view: View, address: str, config: Mapping[str, str], section: Any) -> None:
    def edit(row: dict[str, Any]) -> None:
        with dialog(row["name"]) as box:
            value = ui.input(t("Value"), value=str(row["value"])).props("outlined dense autofocus")
            ui.label(
                t("It counts at once, and after a restart. The broker refuses keys that it cannot change.")
            )

            async def save() -> bool:
                changes = {str(row["name"]): str(value.value)}
                done = await view.change(
                    Role.ADMIN,
                    lambda admin: admin.brokers.set_config(changes, broker=address),
                    t("{name} is changed", name=row["name"]),
                )
                if done is not None:
                    await section().load()
                return done is not None

            dialog_buttons(box, t("Save"), save)

    with card():
        DataTable(
            [Column("name", t("Name"), "code"), Column("value", t("Value"), "code")],
            [{"name": key, "value": value} for key, value in sorted(config.items())],
            export="broker-config",
            per_page=50,
            actions=[RowAction("edit", t("Edit"), edit)] if view.may(Role.ADMIN) else [],
        )


def _draw_replication(status: dict[str, Any]) -> None:
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
    slaves = status.get("haConnectionInfo") or []
    with card(t("This master")):
        facts(
            {
                t("Position"): number(int(status.get("masterCommitLogMaxOffset") or 0)),
                t("Slaves in sync"): number(int(status.get("inSyncSlaveNums") or 0)),
            }
        )
    with card(t("Slaves")):
        if not slaves:
            empty("sync_disabled", t("No slaves are connected"), t("Messages are kept by this broker alone"))
            return
        rows = [
            {
                "name": slave.get("addr"),
                "behind": int(slave.get("diff") or 0),
                "position": int(slave.get("slaveAckOffset") or 0),
                "speed": float(slave.get("transferredByteInSecond") or 0) / 1024,
                "sync": t("in sync") if slave.get("inSync") else t("behind"),
                "sync_color": "good" if slave.get("inSync") else "warn",
            }
            for slave in slaves
        ]
        columns = [
            Column("name", t("Address"), "code"),
            Column("sync", t("State"), "badge"),
            Column("behind", t("Bytes behind"), "number"),
            Column("position", t("Position"), "number", minor=True),
            Column("speed", t("KiB / s"), "number", minor=True),
        ]
        DataTable(columns, rows, export="slaves")
