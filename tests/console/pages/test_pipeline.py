"""The pipeline: what becomes an argument of a job, and what never does; runs; and jobs in a browser."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kourou.console.config import ConsoleConfig
from kourou.console.door.sessions import Access
from kourou.console.door.users import Role, Users
from kourou.console.pipeline.jobs import JOBS, arguments_of, role_of
from kourou.console.pipeline.runs import CHILD, MAX_RUNNING, Runs, State
from kourou.console.views.view import View
from kourou.errors import ConfigError, KourouError
from support.browser import expect
from support.recorded import golden

FITS = "document.documentElement.scrollWidth <= window.innerWidth"
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
JOB_MS = 180_000
PASSWORD = "correct horse"


def view_of(config: ConsoleConfig) -> View:
    users = None
    if config.users_file is not None:
        users = Users(config.users_file)
        users.put("ann", Role.OPERATOR, PASSWORD)
    access = Access(users)
    session = access.open("ann") if users else access.find(None)
    assert session is not None
    backend: Any = None  # nothing here asks a cluster
    return View(config, backend, access, session)


@pytest.fixture
def store(tmp_path) -> Path:
    return golden.unpack("plain", tmp_path).path


# Arguments


def test_every_job_gets_its_arguments(tmp_path, store):
    view = view_of(ConsoleConfig("127.0.0.1:9876", stores=(store,)))
    path = os.path.realpath(store)

    def arguments(job, **values):
        found_source, found = arguments_of(view, tmp_path, JOBS[job], {"source": path, **values})
        assert found_source == path
        return found

    assert arguments("sql", query="--help", topics="a, b") == [
        "--json", "--topic=a", "--topic=b", "--", "--help", path,
    ]  # fmt: skip
    assert arguments("audit", since="10m") == ["--since=10m", "--out={run}/report", "--", path]
    assert arguments("archive", target="orders", format="delta") == [
        "--format=delta", "--", path, f"{tmp_path}/archives/orders",
    ]  # fmt: skip
    assert arguments("rebuild", target="new") == [f"--out={tmp_path}/rebuilt/new", "--", path]
    assert arguments("replay", into="other", where="1 = 1", rate=5.0, dry=True) == [
        "--to=127.0.0.1:9876", "--into=other", "--where=1 = 1", "--rate=5", "--dry-run", "--", path,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("job", "values"),
    [
        ("archive", {"target": "../out"}),
        ("archive", {"target": "/out"}),
        ("archive", {"target": "-x"}),
        ("archive", {"target": ".hidden"}),
        ("archive", {"target": ""}),
        ("archive", {"target": "ok", "format": "csv"}),
        ("audit", {"topics": "a;b"}),
        ("audit", {"since": "--conf=x"}),
        ("audit", {"source": ""}),
        ("audit", {"source": "/nowhere/at/all"}),
        ("audit", {"source": "relative"}),
        ("audit", {"source": "--help:1"}),
        ("rebuild", {"source": "127.0.0.1:9876", "target": "ok"}),
        ("replay", {"into": "a b"}),
        ("sql", {"query": "  "}),
    ],
)
def test_values_of_no_use_are_refused(tmp_path, store, job, values):
    view = view_of(ConsoleConfig("127.0.0.1:9876"))
    with pytest.raises(ConfigError):
        arguments_of(view, tmp_path, JOBS[job], {"source": str(store), **values})


def test_with_users_jobs_read_what_the_console_names(tmp_path, store):
    config = ConsoleConfig("127.0.0.1:9876", users_file=tmp_path / "users.json")
    values = {"source": os.path.realpath(store)}
    for source in (values["source"], "10.0.0.9:9876"):
        with pytest.raises(ConfigError, match="none of the sources"):
            arguments_of(view_of(config), tmp_path, JOBS["audit"], {"source": source})
    named = ConsoleConfig("127.0.0.1:9876", users_file=tmp_path / "users.json", stores=(store,))
    assert arguments_of(view_of(named), tmp_path, JOBS["audit"], values)[0] == values["source"]
    archive = tmp_path / "archives" / "orders"
    archive.mkdir(parents=True)
    assert arguments_of(view_of(config), tmp_path, JOBS["audit"], {"source": str(archive)})


def test_sql_is_for_administrators():
    assert role_of(JOBS["sql"], {}) is Role.ADMIN
    assert role_of(JOBS["replay"], {}) is Role.OPERATOR
    assert role_of(JOBS["replay"], {"where": "1 = 1"}) is Role.ADMIN


# Runs


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_gone(group: int) -> None:
    until = time.monotonic() + 60
    while is_alive(group):
        assert time.monotonic() < until, "it did not end"
        time.sleep(0.05)


def run_async(work):
    """With a loop of its own in a thread: a browser that is open has the one of this thread."""
    found = []

    def target() -> None:
        found.append(asyncio.run(work))

    thread = threading.Thread(target=target)
    thread.start()
    thread.join(120)
    assert found, "it failed or did not end"
    return found[0]


def test_a_job_that_fails_says_why(tmp_path):
    async def main():
        runs = Runs(tmp_path)
        run = await runs.start("nothing", "here", "ann", ["--", "x"])
        while run.ended_s is None:
            await asyncio.sleep(0.05)
        return runs, run

    runs, run = run_async(main())
    assert run.state is State.FAILED
    assert "No such command" in "\n".join(run.lines)
    assert runs.all() == [run]
    assert runs.find(run.run_id) is run
    assert run.read_report() is None


def test_runs_are_few_at_a_time_and_are_cancelled_with_all_their_processes(tmp_path, store):
    async def main():
        runs = Runs(tmp_path)
        started = [
            await runs.start("sql", str(store), "", ["--json", "--", "select 1", str(store)])
            for _ in range(MAX_RUNNING)
        ]
        with pytest.raises(KourouError, match="are running"):
            await runs.start("sql", str(store), "", [])
        groups = [run.process.pid for run in started if run.process is not None]
        assert len(groups) == MAX_RUNNING
        assert all(map(is_alive, groups))
        await runs.cancel(started[0])
        await runs.close()
        return started, groups

    started, groups = run_async(main())
    assert [run.state for run in started] == [State.CANCELLED] * MAX_RUNNING
    for group in groups:
        wait_gone(group)


def test_a_job_ends_with_its_console(store):
    command = [sys.executable, "-m", CHILD, "spark", "sql", "--", "select 1", str(store)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL


def test_only_a_report_of_the_run_itself_is_read(tmp_path):
    runs = Runs(tmp_path)

    async def start(job):
        run = await runs.start(job, "x", "", ["--nothing"])
        await runs.cancel(run)
        run.report.parent.mkdir()
        return run

    secret = tmp_path / "secret"
    secret.write_text("secret")
    audit = run_async(start("audit"))
    audit.report.symlink_to(secret)
    assert audit.read_report() is None
    audit.report.unlink()
    audit.report.write_text("<h1>fine</h1>")
    assert audit.read_report() == "<h1>fine</h1>"
    other = run_async(start("rebuild"))
    other.report.write_text("<h1>fine</h1>")
    assert other.read_report() is None


# In a browser


def test_without_a_directory_there_are_no_jobs(page):
    page.goto("/pipeline")
    expect(page.locator("main")).to_contain_text("Jobs are off")
    page.goto("/pipeline/20260101-000000-abcdef")
    expect(page.locator("main")).to_contain_text("Jobs are off")


def test_roles_decide_which_jobs_there_are(open_context, start_console, users_file, tmp_path):
    options = ("-n", "127.0.0.1:1", "--users", str(users_file), "--jobs", str(tmp_path))
    with start_console(*options) as console:
        for name, offered in (("viewer", None), ("operator", ["Audit", "Archive", "Rebuild", "Replay"])):
            page = open_context(console.url).new_page()
            page.goto("/login?next=/pipeline")
            page.get_by_label("Name").fill(name)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Log in").click()
            if offered is None:
                expect(page.locator("main")).to_contain_text("This is for operators")
            else:
                expect(page.get_by_role("tab")).to_have_count(len(offered))
                titles = [text.split()[-1] for text in page.get_by_role("tab").all_inner_texts()]
                assert titles == offered


def start_job(page, job, source):
    page.goto(f"/pipeline?job={job}&source={source}")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("[data-stat=run-state]")).to_have_text("running")


@pytest.mark.spark
def test_a_query_and_an_audit_of_a_store_of_javas(open_context, start_console, tmp_path):
    store = golden.unpack("timer", tmp_path).path
    options = ("-n", "127.0.0.1:1", "--store", str(store), "--jobs", str(tmp_path / "jobs"))
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with start_console(*options) as console:
        context = open_context(console.url)
        query, audit = context.new_page(), context.new_page()
        start_job(query, "sql", os.path.realpath(store))
        start_job(audit, "audit", os.path.realpath(store))

        expect(query.locator("[data-stat=run-state]")).to_have_text("succeeded", timeout=JOB_MS)
        expect(query.locator("main")).to_contain_text("2 rows")
        expect(query.get_by_role("cell", name="GoldenTimer")).to_be_visible()
        expect(query.locator("main")).to_contain_text("tasks known yet")
        expect(query.locator(".nicegui-echart canvas")).to_be_visible()
        shoot(query, "pipeline-result")

        expect(audit.locator("[data-stat=run-state]")).to_have_text("succeeded", timeout=JOB_MS)
        frame = audit.locator("iframe.k-report")
        expect(frame).to_be_visible()
        assert frame.get_attribute("sandbox") == ""
        assert "Audit of" in frame.get_attribute("srcdoc")
        shoot(audit, "pipeline-report")
        with audit.expect_download() as download:
            audit.get_by_role("button", name="Download").click()
        assert "no faults" in Path(download.value.path()).read_text(encoding="utf-8")

        query.goto("/pipeline?job=replay")
        expect(query.locator("tbody tr")).to_have_count(2)
        shoot(query, "pipeline")


def shoot(page, name):
    for theme in ("light", "dark"):
        for width in (390, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            page.wait_for_function(FITS)  # once the navigation has moved aside
            page.screenshot(
                path=SCREENSHOTS / f"{name}-{width}-{theme}.png", full_page=True, animations="disabled"
            )
        page.get_by_label("Dark mode").click()
        expect(page.locator("body.body--dark")).to_have_count(int(theme == "light"))
