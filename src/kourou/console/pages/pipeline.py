"""Pipeline: Spark jobs: started with a form, watched, cancelled, and what came of them."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from nicegui import app, ui

from kourou.console.door.users import Role
from kourou.console.pages.store.browser import add_style
from kourou.console.pipeline.jobs import FORMATS, JOBS, Job, arguments_of, missing_parts, role_of, sources
from kourou.console.pipeline.result import draw_result
from kourou.console.pipeline.runs import MAX_ROWS, Run, Runs, State
from kourou.console.store.reading import is_free
from kourou.console.texts import later, t
from kourou.console.views.components import card, code, empty, facts, page_title
from kourou.console.views.table import Column, DataTable
from kourou.console.views.view import View
from kourou.errors import KourouError

LOOK_S = 0.5
EXAMPLE = "select topic, count(*) as messages, sum(length(body)) as bytes from messages group by topic"
_STATES = {
    State.RUNNING: (later("running"), "info"),
    State.SUCCEEDED: (later("succeeded"), "good"),
    State.FAULTS: (later("faults found"), "warn"),
    State.FAILED: (later("failed"), "bad"),
    State.CANCELLED: (later("cancelled"), "mute"),
}
_running: list[Runs] = []  # one for a process, as the console is


def runs_of(directory: Path) -> Runs:
    """The runs of this console, which end with it."""
    if not _running:
        _running.append(Runs(directory))
        app.on_shutdown(_running[0].close)
    return _running[0]


def _refusal(view: View) -> tuple[str, str] | None:
    """Why there are no jobs for this user, and what to do about it."""
    if view.config.jobs_directory is None:
        return (
            t("Jobs are off"),
            t("Start the console with `--jobs DIRECTORY`: they run on its machine, as its user"),
        )
    missing = missing_parts()
    if missing is not None:
        return t("Jobs cannot run"), t(missing)
    if not view.may(Role.OPERATOR):
        return t("This is for operators"), t("Ask an administrator of the console")
    return None


async def draw(view: View, job: str = "sql", source: str = "", query: str = "") -> None:
    """Draw the page: a form, and the runs."""
    add_style()
    page_title(t("Pipeline"), t("Spark jobs on stores, clusters and archives"))
    refusal = _refusal(view)
    directory = view.config.jobs_directory
    if refusal is not None or directory is None:
        with card():
            empty("bolt", *(refusal or ("", "")))
        return
    runs = runs_of(directory)
    allowed = {name: one for name, one in JOBS.items() if view.may(one.role)}
    chosen = allowed.get(job) or next(iter(allowed.values()))
    with ui.tabs().props("align=left no-caps inline-label") as tabs:
        for one in allowed.values():
            ui.tab(one.name, t(one.title), icon=one.icon)
    with ui.tab_panels(tabs, value=chosen.name, animated=False):
        for one in allowed.values():
            with ui.tab_panel(one.name), card("", ""):
                _Form(view, runs, one, source, query).draw()
    ui.element("div").classes("mb-2")
    _draw_runs(runs)


class _Form:
    """The form of a job."""

    def __init__(self, view: View, runs: Runs, job: Job, source: str, query: str) -> None:
        self._view = view
        self._runs = runs
        self._job = job
        self._source = source
        self._query = query
        self._inputs: dict[str, Any] = {}

    def draw(self) -> None:
        """Draw it."""
        job, view = self._job, self._view
        ui.label(t(job.purpose)).classes("k-subtitle mb-3")
        offered = sources(view, self._runs.directory)
        if job.name == "rebuild":
            offered = offered[1:]
        if self._source and self._source not in offered:
            offered.append(self._source)
        with ui.element("div").classes("w-full flex flex-col gap-3"):
            if "query" in job.fields:
                self._inputs["query"] = (
                    ui.textarea(t("Query over the view `messages`"), value=self._query or EXAMPLE)
                    .props("outlined autogrow input-class=k-mono")
                    .classes("w-full")
                )
            self._inputs["source"] = (
                ui.select(
                    offered, value=self._source or next(iter(offered), None), label=t("Source"),
                    with_input=is_free(view), new_value_mode="add-unique" if is_free(view) else None,
                ).props(f'outlined dense aria-label="{t("Source")}"').classes("w-full")
            )  # fmt: skip
            with ui.element("div").classes("k-grid"):
                self._draw_fields()
            with ui.row():
                ui.button(t("Start"), icon="play_arrow", on_click=self._start).props("unelevated")

    def _draw_fields(self) -> None:
        fields = self._job.fields
        if "topics" in fields:
            self._text("topics", t("Topics"), t("all"))
        if "times" in fields:
            self._text("since", t("Stored since"), "2026-11-15T08:30, 10m")
            self._text("until", t("Stored until"), "")
        if "target" in fields:
            self._text("target", t("Name of the result"), "orders")
        if "format" in fields:
            self._inputs["format"] = ui.select(list(FORMATS), value=FORMATS[0], label=t("Format")).props(
                "outlined dense"
            )
        if "into" in fields:
            self._text("into", t("Into topic"), t("the same"))
        if "where" in fields and self._view.may(Role.ADMIN):
            self._text("where", t("Condition (SQL)"), "keys = 'o-1'")
        if "rate" in fields:
            self._inputs["rate"] = ui.number(t("At most / s"), min=1, format="%d").props("outlined dense")
        if "dry" in fields:
            self._inputs["dry"] = ui.switch(t("Only say what would be sent"), value=True)

    def _text(self, name: str, label: str, example: str) -> None:
        self._inputs[name] = ui.input(label, placeholder=example).props("outlined dense stack-label")

    async def _start(self) -> None:
        values = {name: one.value for name, one in self._inputs.items()}
        view, job = self._view, self._job
        try:
            view.access.check(view.session, role_of(job, values))
            source, arguments = await asyncio.to_thread(arguments_of, view, self._runs.directory, job, values)
            run = await self._runs.start(job.name, source, view.session.user, arguments)
        except KourouError as error:
            ui.notify(str(error), type="negative", multi_line=True, timeout=10_000, close_button=t("Close"))
            return
        ui.navigate.to(f"/pipeline/{run.run_id}")


def _draw_runs(runs: Runs) -> None:
    with card(t("Runs"), t("since the console was started")):
        table = DataTable(
            [
                Column("name", t("Run"), "link"),
                Column("state", t("State"), "badge"),
                Column("job", t("Job")),
                Column("source", t("Source"), "code", minor=True),
                Column("started", t("Started"), "time", minor=True),
                Column("duration", t("Seconds"), "number"),
                Column("user", t("User"), minor=True),
            ],
            key="name",
            export="runs",
            nothing=t("No jobs were started yet"),
        )

    def refresh() -> None:
        table.show(
            {
                "name": run.run_id,
                "name_href": f"/pipeline/{run.run_id}",
                "state": t(_STATES[run.state][0]),
                "state_color": _STATES[run.state][1],
                "job": run.job,
                "source": run.source,
                "started": int(run.started_s * 1000),
                "duration": round(run.duration_s),
                "user": run.user,
            }
            for run in runs.all()
        )

    refresh()
    ui.timer(1.0, refresh)


async def draw_run(view: View, run_id: str) -> None:
    """Draw the page of one run."""
    add_style()
    refusal = _refusal(view)
    directory = view.config.jobs_directory
    run = None if refusal is not None or directory is None else runs_of(directory).find(run_id)
    if run is None or directory is None:
        page_title(run_id, parent=(t("Pipeline"), "/pipeline"))
        with card():
            empty(
                "bolt", *(refusal or (t("There is no such run"), t("Runs are known until the console ends")))
            )
        return
    _RunPage(view, runs_of(directory), run).draw()


class _RunPage:
    """A run, as it goes on."""

    def __init__(self, view: View, runs: Runs, run: Run) -> None:
        self._view = view
        self._runs = runs
        self._run = run
        self._seen = -1
        self._has_result = False

    def draw(self) -> None:
        """Draw it, and again whenever it has changed."""
        run = self._run
        with ui.row().classes("w-full items-end justify-between gap-3"):
            page_title(
                t("{job} of {source}", job=t(JOBS[run.job].title), source=run.source),
                run.run_id,
                parent=(t("Pipeline"), "/pipeline"),
            )
            with ui.row().classes("gap-2 items-center"):
                self._badge = ui.label().classes("k-badge").props("data-stat=run-state")
                self._cancel = ui.button(t("Cancel"), icon="stop", on_click=self._end).props("outline")
        with card(t("Progress")):
            self._text = ui.label().classes("k-subtitle mb-2")
            self._bar = ui.linear_progress(0, show_value=False).props("rounded size=8px")
        self._result = ui.element("div").classes("w-full flex flex-col gap-4")
        with card(t("Output")), ui.element("pre").classes("k-code k-output"):
            self._output = ui.label().style("white-space: pre-wrap")
        with ui.expansion(t("Details")).classes("w-full"):
            facts(
                {
                    t("User"): run.user,
                    t("Directory"): str(run.directory),
                    t("Arguments"): lambda: code("\n".join(run.arguments)),
                }
            )
        self._look()
        ui.timer(LOOK_S, self._look)

    async def _end(self) -> None:
        try:
            self._view.access.check(self._view.session, Role.OPERATOR)
        except KourouError as error:
            ui.notify(str(error), type="negative")
            return
        self._cancel.disable()
        await self._runs.cancel(self._run)

    def _look(self) -> None:
        run = self._run
        is_running = run.state is State.RUNNING
        seconds = f"{run.duration_s:.0f}"
        if run.tasks:
            text = t(
                "{done} of {all} tasks known yet, {seconds} s",
                done=run.tasks_done, all=run.tasks, seconds=seconds,
            )  # fmt: skip
        elif is_running:
            text = t("Spark starts, {seconds} s", seconds=seconds)
        else:
            text = t("{seconds} s", seconds=seconds)
        self._text.set_text(text)
        if run.version == self._seen:
            return
        self._seen = run.version
        word, color = _STATES[run.state]
        self._badge.set_text(t(word))
        self._badge.classes(replace=f"k-badge k-{color}")
        self._cancel.set_visibility(is_running)
        self._bar.set_value(run.tasks_done / run.tasks if run.tasks else (0 if is_running else 1))
        self._output.set_text("\n".join(run.lines) or ("…" if is_running else "—"))
        if run.ended_s is not None and not self._has_result:
            self._has_result = True
            with self._result.clear():
                self._draw_result()

    def _draw_result(self) -> None:
        run = self._run
        if run.job == "sql" and run.state is State.SUCCEEDED:
            with card(t("Result"), t("{count} rows", count=f"{run.row_count:,}")):
                draw_result(run.rows)
                if run.row_count > MAX_ROWS:
                    ui.label(t("The first {count} are shown", count=f"{MAX_ROWS:,}")).classes("k-subtitle")
        with contextlib.suppress(OSError):
            report = run.read_report()
            if report is not None:
                _draw_report(run, report)


def _draw_report(run: Run, report: str) -> None:
    with card(t("Report")):
        ui.button(
            t("Download"),
            icon="download",
            on_click=lambda: ui.download.content(report.encode(), f"audit-{run.run_id}.html", "text/html"),
        ).props("outline").classes("mb-3")
        # A frame without any rights: no scripts, no forms, an origin of its own.
        frame = ui.element("iframe").classes("k-report").props('sandbox=""')
        frame.props["srcdoc"] = report
        frame.props["title"] = t("Report")
