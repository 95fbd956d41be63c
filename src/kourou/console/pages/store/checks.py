"""Recovery and check of a store: what the next start would do, every byte looked at, and its small files."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from kourou.admin.operations.declare import Table, columns
from kourou.console.door.users import Role
from kourou.console.pages.store.record import crumbs
from kourou.console.store.hex import fields_html, hex_html
from kourou.console.store.reading import read, store_url
from kourou.console.texts import later, t
from kourou.console.views.components import (
    Section,
    badge,
    card,
    empty,
    facts,
    failure,
    number,
    page_title,
    size,
)
from kourou.console.views.operations import AnswerTable
from kourou.console.views.view import View
from kourou.errors import KourouError, StoreError
from kourou.inspect import StoreDirectory
from kourou.inspect.check.whole import CheckReport, check
from kourou.inspect.info import describe
from kourou.inspect.log_scan import LogEnd, log_end
from kourou.inspect.look.fields import Field, dissect_checkpoint, show_time
from kourou.inspect.look.pages import MOST_TIMERS, read_timers, read_wheel_slots

CHECK_S = 3600.0
LOOK_S = 0.3
MOST_ROWS = 500
_COLORS = {"fault": "bad", "warning": "warn", "note": "info"}
_SEVERITIES = {"fault": later("fault"), "warning": later("warning"), "note": later("note")}


@dataclass(frozen=True, slots=True)
class _Outlook:
    info: dict[str, Any]
    end: LogEnd
    torn_bytes: int
    ahead: list[str]  # queues that point behind the end of the log


def draw(view: View, root: str) -> None:
    """Draw what a recovery would do, and the check."""
    Section(lambda: read(view, root, _look_ahead), lambda found: _draw_outlook(root, found))
    ui.element("div").classes("mb-4")
    _Check(view, root).draw()


def _look_ahead(store: StoreDirectory) -> _Outlook:
    end = log_end(store)
    torn = 0 if end.ending is None else max(end.ending.dirty - end.ending.position, 0)
    ahead = [
        str(queue) for queue in store.queues
        if (last := queue.last_entry) is not None and sum(last) > end.offset
    ]  # fmt: skip
    return _Outlook(describe(store), end, torn, ahead)


def _draw_outlook(root: str, found: _Outlook) -> None:
    info, end = found.info, found.end
    with card(t("What the next start does")):
        steps = []
        if info["lock"]:
            steps.append(t("Nothing now: {who} has the store open.", who=info["lock"]))
        elif info["abort"]:
            steps.append(t("It was not closed: the log is read from the checkpoint on."))
        else:
            steps.append(t("It was closed: the last files are read."))
        steps.append(t("The log ends at {offset}.", offset=number(end.offset)))
        if found.torn_bytes and end.ending is not None:
            steps.append(
                t(
                    "{count} bytes behind that are cut off ({reason}).",
                    count=number(found.torn_bytes),
                    reason=end.ending.reason,
                )
            )
        if end.records_behind_queues:
            steps.append(
                t(
                    "{count} records that no queue knows get their entries.",
                    count=number(end.records_behind_queues),
                )
            )
        if found.ahead:
            steps.append(
                t("Queues that point behind the end are cut: {queues}.", queues=", ".join(found.ahead[:20]))
            )
        with ui.element("ol").classes("pl-5 m-0").style("list-style: decimal; line-height: 1.8"):
            for step in steps:
                with ui.element("li"):
                    ui.label(step)
    with card(t("At a glance")):
        for item in info["health"]:
            with ui.row().classes("items-center gap-2 no-wrap mb-1"):
                badge(t(_SEVERITIES[item["severity"]]), _COLORS[item["severity"]])
                ui.label(item["message"]).style("overflow-wrap: anywhere")
        if not info["health"]:
            badge(t("nothing stands out"), "good")
        timer = info["timer"]
        checkpoint = info["checkpoint"] or {}
        ui.element("div").classes("mb-3")
        facts(
            {
                t("Log on disk up to"): show_time(checkpoint.get("physicMsgTimestamp", 0)),
                t("Queues on disk up to"): show_time(checkpoint.get("logicsMsgTimestamp", 0)),
                t("Full index files up to"): show_time(checkpoint.get("indexMsgTimestamp", 0)),
                t("Timers that wait"): "—" if timer is None else number(timer["pending"]),
                t("First record stored"): show_time(info["log"]["firstStoreTime"]),
                t("Last record stored"): show_time(info["log"]["lastStoreTime"]),
            }
        )


class _StoppedError(StoreError):
    """The tab that wanted a check is gone, or wants it no more."""


class _Check:
    """A check of everything, which tells how far it is and can be stopped."""

    def __init__(self, view: View, root: str) -> None:
        self._view = view
        self._root = root
        self._done = self._all = 0
        self._stop = threading.Event()

    def draw(self) -> None:
        """Draw the button, and where the result goes."""
        with card(t("Check everything"), t("every record, CRC, queue entry and index chain")):
            with ui.row().classes("items-center gap-3"):
                self._start_button = ui.button(t("Check"), icon="fact_check", on_click=self._run)
                self._start_button.props("unelevated")
                self._start_button.set_enabled(self._view.may(Role.OPERATOR))
                self._stop_button = ui.button(t("Stop"), icon="stop", on_click=self._stop.set)
                self._stop_button.props("flat").set_visibility(False)
            self._bar = ui.linear_progress(0, show_value=False).props("rounded size=8px").classes("mt-3")
            self._bar.set_visibility(False)
            self._box = ui.element("div").classes("w-full mt-3")

    async def _run(self) -> None:
        self._stop.clear()
        self._start_button.disable()
        for one in (self._stop_button, self._bar):
            one.set_visibility(True)
        timer = ui.timer(LOOK_S, lambda: self._bar.set_value(self._done / max(self._all, 1)))
        try:
            self._view.access.check(self._view.session, Role.OPERATOR)
            report = await read(self._view, self._root, self._work, within_s=CHECK_S)
        except KourouError as error:
            if not self._box.is_deleted:
                with self._box.clear():
                    failure(error)
        except asyncio.CancelledError:
            self._stop.set()
            raise
        else:
            if not self._box.is_deleted:
                with self._box.clear():
                    self._draw_report(report)
        finally:
            if not self._box.is_deleted:
                timer.cancel()
                self._start_button.enable()
                for one in (self._stop_button, self._bar):
                    one.set_visibility(False)

    def _work(self, store: StoreDirectory) -> tuple[CheckReport, dict[str, int]]:
        self._done, self._all = 0, store.log_size

        def progress(done_bytes: int) -> None:
            self._done += done_bytes
            if self._stop.is_set() or self._box.is_deleted:
                raise _StoppedError("the check was stopped")

        report = check(store, progress=progress)
        return report, {store.relative(file.path): file.base for file in store.log_files}

    def _draw_report(self, found: tuple[CheckReport, dict[str, int]]) -> None:
        report, bases = found
        with ui.row().classes("items-center gap-2 mb-3"):
            badge(t("{count} faults", count=report.faults), "bad" if report.faults else "good")
            badge(t("{count} warnings", count=report.warnings), "warn" if report.warnings else "mute")
            ui.label(
                t(
                    "{records} records ({size}), {entries} queue entries, {keys} keys, {seconds} s",
                    records=number(report.records),
                    size=size(report.log_bytes),
                    entries=number(report.queue_entries),
                    keys=number(report.index_entries),
                    seconds=f"{report.seconds:.1f}",
                )
            ).classes("k-subtitle")
        if not report.findings:
            empty("verified", t("Everything is right"))
            return
        shown = columns(
            "Severity=severity:badge, Kind=kind-, Place=place:link, Finding=message:code",
            severity=lambda one: (_SEVERITIES[one.severity.value], _COLORS[one.severity.value]),
            place=lambda one: (
                f"{one.file} {one.position if one.position >= 0 else ''}".strip(),
                self._link(one.file, one.position, bases),
            ),
        )
        AnswerTable(Table(shown), report.findings[:MOST_ROWS], export="findings")

    def _link(self, file: str, position: int, bases: dict[str, int]) -> str:
        if file in bases and position >= 0:
            return store_url(self._root, file=file, offset=bases[file] + position)
        return store_url(self._root, file=file) if file.startswith(("consumequeue/", "index/")) else ""


# Small files


def draw_small_file(view: View, root: str, file: str) -> None:
    """Draw the checkpoint, the timer wheel, or a file of the timer log."""
    page_title(file, root, parent=crumbs(root))
    if file == "checkpoint":
        Section(lambda: read(view, root, dissect_checkpoint), lambda found: _draw_checkpoint(*found))
    elif file == "timerwheel":
        Section(lambda: read(view, root, read_wheel_slots), lambda rows: _draw_timers(root, rows))
    else:
        Section(
            lambda: read(view, root, lambda store: read_timers(store, file)),
            lambda rows: _draw_timers(root, rows),
        )


def _draw_checkpoint(data: bytes, fields: list[Field]) -> None:
    if not fields:
        with card():
            empty("hourglass_empty", t("The file is empty"))
        return
    with card(t("Bytes")):
        html = f"{hex_html(data, fields, 0)}{fields_html(fields)}"
        ui.html(f"<div class='k-record'>{html}</div>", sanitize=False).classes("w-full")


def _draw_timers(root: str, rows: list[dict[str, Any]]) -> None:
    with card(t("Timers"), t("the first {count}", count=MOST_TIMERS) if len(rows) == MOST_TIMERS else ""):
        place = ", Physical offset=offset:id" if any("offset" in row for row in rows) else ""
        shown = columns(
            "Due=due:time, Messages=messages:number, First or previous unit=first:number-, "
            f"Unit=last:number{place}",
            offset=lambda row: (row["offset"], store_url(root, offset=row["offset"])),
        )
        AnswerTable(Table(shown), rows, export="timers", nothing=t("No timers"))
