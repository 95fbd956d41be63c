"""Jobs of the pipeline: what a form asks for, checked and made the arguments of `kourou spark`.

No argument is ever part of a command line of a shell, and no value can be taken for an option: options are
given as `--name=value`, and what has no name comes behind `--`. Jobs write below the directory of the jobs
alone. In SQL of Spark programs can be run, so it is for administrators.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kourou.console.door.users import Role
from kourou.console.store.reading import is_free
from kourou.console.texts import later
from kourou.console.views.view import View
from kourou.errors import ConfigError
from kourou.spark.java import java_home

FORMATS = ("parquet", "delta", "iceberg")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_ADDRESSES = re.compile(r"[\w.\[\]:][\w.\-\[\]:]*:\d+([;][\w.\-\[\]:]+:\d+)*")
_TIME = re.compile(r"\d[\d:T.+Z smhd-]{0,40}")


@dataclass(frozen=True, slots=True)
class Job:
    """A job: what it is for, which fields its form has, and who may start it."""

    name: str
    title: str
    purpose: str
    icon: str
    fields: frozenset[str]
    role: Role = Role.OPERATOR


JOBS = {
    job.name: job
    for job in (
        Job(
            "sql", later("SQL"), later("Ask a store, a cluster or an archive a question"), "query_stats",
            frozenset({"source", "query", "topics", "times"}), Role.ADMIN,
        ),
        Job(
            "audit", later("Audit"), later("Look for damage, gaps, repeats and disorder, and write a report"),
            "fact_check", frozenset({"source", "topics", "times"}),
        ),
        Job(
            "archive", later("Archive"), later("Bring what is new into Parquet files or a table"),
            "inventory_2", frozenset({"source", "topics", "target", "format"}),
        ),
        Job(
            "rebuild", later("Rebuild"), later("Make consume queues and index anew, in a new directory"),
            "construction", frozenset({"source", "target"}),
        ),
        Job(
            "replay", later("Replay"), later("Send messages of a store, an archive or a topic again"),
            "replay", frozenset({"source", "topics", "times", "into", "where", "rate", "dry"}),
        ),
    )
}  # fmt: skip


def missing_parts() -> str | None:
    """What Spark jobs lack on this machine, and how to get it; None where nothing is missing."""
    if find_spec("pyspark") is None:
        return later("Spark is not installed here: pip install 'kourou[spark]'")
    if java_home() is None:
        return later("Spark needs Java 17 or later: install a JDK, or set JAVA_HOME")
    return None


def sources(view: View, directory: Path) -> list[str]:
    """What jobs may read, for a form to offer: this cluster, the stores, the archives of earlier jobs."""
    archives = directory / "archives"
    found = sorted(path for path in archives.iterdir() if path.is_dir()) if archives.is_dir() else []
    return [view.config.namesrv, *(os.path.realpath(one) for one in view.config.stores), *map(str, found)]


def role_of(job: Job, values: Mapping[str, Any]) -> Role:
    """Who may start a job with these values."""
    return Role.ADMIN if values.get("where") else job.role


def arguments_of(view: View, directory: Path, job: Job, values: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The source of a job and its arguments, from the values of its form; ConfigError for one of no use."""
    source = _source(view, directory, job, str(values.get("source") or "").strip())
    options = []
    if "topics" in job.fields:
        options += [f"--topic={topic}" for topic in _topics(str(values.get("topics") or ""))]
    if "times" in job.fields:
        for name in ("since", "until"):
            if text := str(values.get(name) or "").strip():
                options.append(f"--{name}={_checked(_TIME, text, 'time')}")
    if job.name == "sql":
        query = str(values.get("query") or "").strip()
        if not query:
            raise ConfigError("write a query over the view `messages`")
        return source, ["--json", *options, "--", query, source]
    if job.name == "audit":
        return source, [*options, "--out={run}/report", "--", source]
    if job.name == "replay":
        return source, [*options, *_replay_options(view, values), "--", source]
    name = _checked(_NAME, str(values.get("target") or "").strip(), "name")
    if job.name == "rebuild":
        return source, [f"--out={directory / 'rebuilt' / name}", "--", source]
    form = str(values.get("format") or FORMATS[0])
    if form not in FORMATS:
        raise ConfigError(f"{form} is no format: take one of {', '.join(FORMATS)}")
    return source, [f"--format={form}", *options, "--", source, str(directory / "archives" / name)]


def _replay_options(view: View, values: Mapping[str, Any]) -> list[str]:
    options = [f"--to={view.config.namesrv}"]
    if into := str(values.get("into") or "").strip():
        options.append(f"--into={_checked(_TOPIC, into, 'topic')}")
    if where := str(values.get("where") or "").strip():
        options.append(f"--where={where}")
    if rate := values.get("rate"):
        options.append(f"--rate={max(int(rate), 1)}")
    if values.get("dry"):
        options.append("--dry-run")
    return options


def _source(view: View, directory: Path, job: Job, text: str) -> str:
    if not text:
        raise ConfigError("choose a source")
    is_offered = text in sources(view, directory)
    is_address = text == view.config.namesrv or _ADDRESSES.fullmatch(text) is not None
    if job.name == "rebuild" and is_address:
        raise ConfigError("a rebuild needs the directory of a store, not a cluster")
    if is_offered:
        return text
    if not is_free(view):
        raise ConfigError(f"{text} is none of the sources of this console: add a store with --store")
    if is_address:
        return text
    path = os.path.expanduser(text)
    if not os.path.isabs(path) or "," in path or not os.path.isdir(path):
        raise ConfigError(f"{text} is neither a directory with its whole path nor host:port")
    return os.path.realpath(path)


def _topics(text: str) -> list[str]:
    return [_checked(_TOPIC, topic, "topic") for topic in re.split(r"[,\s]+", text) if topic]


def _checked(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ConfigError(f"{text!r} is no {what}")
    return text
