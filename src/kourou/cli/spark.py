"""`kourou spark`: jobs on many messages, on a Spark inside this command or on a cluster."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kourou.cli.output import console, count, parse_time, print_json_lines, print_table, show_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from kourou.spark.jobs.inputs import Input

app = typer.Typer(
    name="spark",
    no_args_is_help=True,
    help="Archive, query, audit and replay with Spark. SOURCE is a store directory (several with commas),"
    " name servers as host:port, or an archive.",
)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A store directory, host:port, an archive.")]
Topics = Annotated[list[str] | None, typer.Option("-t", "--topic", help="Only this topic; may be repeated.")]
Given = Annotated[
    list[str] | None,
    typer.Option(
        "-o", "--option", metavar="KEY=VALUE", help="An option of the data source; may be repeated."
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="A Spark master; local[*] by default.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be repeated.")
]
Since = Annotated[
    str | None, typer.Option(help="Stored at or after: 2026-11-15T08:30, milliseconds, or 10m ago.")
]
Until = Annotated[str | None, typer.Option(help="Stored before; as --since.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

BAR_WIDTH = 60
LOOK_INTERVAL_S = 0.2


@app.command()
def archive(
    source: Source,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The archive's directory.")],
    topic: Topics = None,
    format: Annotated[
        str | None,
        typer.Option(
            help="parquet, delta or iceberg; by default what the archive has, parquet for a new one."
        ),
    ] = None,
    json_columns: Annotated[
        bool, typer.Option("--json-columns", help="Fields of bodies that are JSON objects become columns.")
    ] = False,
    drop_body: Annotated[
        bool, typer.Option("--drop-body", help="Leave out the bodies that became columns.")
    ] = False,
    compact: Annotated[bool, typer.Option(help="Make one file of many small ones.")] = True,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Bring what is new in a store or a cluster into Parquet files or a table, by topic and day.

    \b
    Example: every night
      kourou spark archive 127.0.0.1:9876 /data/archive
    Example: a Delta table with a column for each field of the orders
      kourou spark archive /data/store /data/orders -t orders --format delta --json-columns
    """
    from kourou.spark.jobs.archive import archive as run

    with _spark(master, conf) as spark, _working("archive", spark):
        report = run(
            spark, _input(source, option), target, topics=topic or None, format=format,
            json_columns=json_columns, drop_body=drop_body, compact=compact,
        )  # fmt: skip
    typer.echo(
        f"{report.target}: {count(report.rows, 'message')} of {count(len(report.by_topic), 'topic')} in"
        f" {count(report.files, 'file')} ({show_size(report.size_bytes)}), {report.compacted_files} made"
        f" fewer, {report.seconds:.1f} s"
    )


@app.command()
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A query over the view `messages`.")],
    source: Source,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    json: AsJsonLines = False,
    plot: Annotated[bool, typer.Option("--plot", help="Bars of the last column by the first.")] = False,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Ask a store, a cluster or an archive a question.

    \b
    Example: what fills the disk
      kourou spark sql "select topic, sum(length(body)) from messages group by topic" /data/store --plot
    """
    with _spark(master, conf) as spark:
        frame = _input(source, option).frame(
            spark, topics=topic or None, begin_ms=_time(since), end_ms=_time(until)
        )
        frame.createOrReplaceTempView("messages")
        answer = spark.sql(query)
        rows = [[_plain(value) for value in row] for row in answer.collect()]
    _show(answer.columns, rows, as_json=json, plot=plot)


@app.command()
def audit(
    source: Source,
    out: Annotated[Path, typer.Option("--out", metavar="DIRECTORY", help="Where the report goes.")] = Path(
        "audit"
    ),
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Look for damage, gaps, repeats and disorder; say how large, how fast and whose. Exit code 1 for faults.

    \b
    Example: a report to look at
      kourou spark audit /data/store --out report && open report/report.html
    """
    from kourou.spark.jobs.audit import audit as run

    with _spark(master, conf) as spark, _working("audit", spark):
        report = run(
            spark, _input(source, option), topics=topic or None, begin_ms=_time(since), end_ms=_time(until)
        )
    path = report.write(out)
    typer.echo(
        f"{count(report.messages, 'message')}, {count(report.faults, 'fault')},"
        f" {count(len(report.tables['repeats']), 'repeat')}: {path}"
    )
    if report.faults:
        raise typer.Exit(1)


@app.command()
def rebuild(
    stores: Annotated[list[Path], typer.Argument(metavar="STORE…", help="Store directories.")],
    out: Annotated[
        Path, typer.Option("--out", metavar="DIRECTORY", help="Each store gets a directory there.")
    ],
    config: Annotated[
        Path | None, typer.Option("-c", "--config", metavar="FILE", help="A broker.conf.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Make consume queues and index of store directories anew from their logs, many ranges of a log at once.

    \b
    Example: what a broker would have written
      kourou spark rebuild /data/rocketmq/store --out /data/rebuilt
    """
    from kourou.spark.jobs.rebuild import rebuild as run

    with _spark(master, conf) as spark, _working("rebuild", spark):
        reports = run(
            spark,
            [str(path) for path in stores],
            str(out),
            config_file=None if config is None else str(config),
        )
    for report in reports:
        typer.echo(
            f"{report['path']}: {count(report['queues'], 'queue')} and"
            f" {count(report['index_files'], 'index file')} from {count(report['records'], 'record')},"
            f" {report['seconds']:.1f} s"
        )
        for note in report["notes"]:
            typer.echo(f"  {note}")


@app.command()
def replay(
    source: Source,
    namesrv: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="Name servers of the target.")],
    target: Annotated[str | None, typer.Option("--into", metavar="TOPIC", help="The target topic.")] = None,
    topic: Topics = None,
    since: Since = None,
    until: Until = None,
    where: Annotated[str | None, typer.Option(help="A condition, as in SQL.")] = None,
    transform: Annotated[str | None, typer.Option(help="A query over the view `messages`.")] = None,
    dlq: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Dead letters of a group, to where they came from.")
    ] = None,
    rate: Annotated[int | None, typer.Option(min=1, help="Messages a second, at most.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be sent.")] = False,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Send messages of a store, an archive or a topic again.

    \b
    Example: yesterday's orders into a test topic
      kourou spark replay /data/archive -t orders --since 1d --to 127.0.0.1:9876 --into orders-test
    """
    from kourou.spark.jobs.replay import replay as run

    with _spark(master, conf) as spark, _working("replay", spark):
        report = run(
            spark, _input(source, option), namesrv, target, topics=topic or None, begin_ms=_time(since),
            end_ms=_time(until), where=where, transform=transform, dlq=dlq, per_second=rate, dry_run=dry_run,
        )  # fmt: skip
    print_table(["topic", ">messages"], sorted(report.by_topic.items()))
    verb = "would be sent" if dry_run else "sent"
    typer.echo(f"{count(report.messages, 'message')} {verb}")


@app.command()
def lag(
    source: Source,
    group: Annotated[str | None, typer.Option("-g", "--group", help="Only this consumer group.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="How many times to look.")] = 1,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 10.0,
    json: AsJsonLines = False,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Show how far consumer groups are behind; with --samples also how that changes."""
    from kourou.spark.jobs.lag import lag as run

    with _spark(master, conf) as spark:
        frame = run(spark, _input(source, option), group=group, samples=samples, every_s=every)
        frame = frame.groupBy("group", "topic", "time").agg({"lag": "sum", "end": "sum"})
        frame = frame.withColumnsRenamed({"sum(lag)": "lag", "sum(end)": "end"}).select(
            "time", "group", "topic", "end", "lag"
        )
        rows = [[_plain(value) for value in row] for row in frame.orderBy("group", "topic", "time").collect()]
    _show(frame.columns, rows, as_json=json, plot=False)


@app.command()
def stats(
    source: Source,
    topic: Topics = None,
    every: Annotated[str, typer.Option(help="minute, hour, day, week or month.")] = "hour",
    json: AsJsonLines = False,
    plot: Annotated[bool, typer.Option("--plot", help="Bars of the bytes by time.")] = False,
    option: Given = None,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Count messages and bytes by topic and time."""
    from kourou.spark.jobs.audit import stats as run

    with _spark(master, conf) as spark:
        frame = run(spark, _input(source, option), topics=topic or None, every=every)
        rows = [[_plain(value) for value in row] for row in frame.collect()]
    _show(frame.columns, rows, as_json=json, plot=plot)


# What the verbs share


@contextlib.contextmanager
def _spark(master: str | None, conf: list[str] | None) -> Iterator[SparkSession]:
    """A session for one verb; where a program has one already, that one."""
    from kourou.errors import ConfigError

    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError("this needs Spark: pip install 'kourou[spark]'") from None
    from kourou.spark import session

    if "SPARK_REMOTE" in os.environ:
        raise ConfigError("SPARK_REMOTE is set, and a job needs a driver of its own: unset it, use --master")

    running = SparkSession.getActiveSession()
    if running is not None:
        with _one_line():
            yield running
        return
    settings = {"spark.ui.enabled": "false", **_pairs(conf, "--conf")}
    spark = session("kourou", master=master, conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with _one_line():
            yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _one_line() -> Iterator[None]:
    """Errors that come back from Spark with two stacks around them, without these."""
    from pyspark.errors import PySparkException

    from kourou.errors import KourouError

    try:
        yield
    except PySparkException as error:
        text = str(error)
        own = re.findall(r"^kourou\.[\w.]+: (.+)$", text, re.MULTILINE)
        raise KourouError(own[-1] if own else text.splitlines()[0]) from error


def _input(source: str, options: list[str] | None) -> Input:
    from kourou.spark.jobs.inputs import Input

    return Input.parse(source, _pairs(options, "--option"))


def _pairs(given: list[str] | None, name: str) -> dict[str, str]:
    pairs = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"{text!r} is no KEY=VALUE", param_hint=name)
        pairs[key] = value
    return pairs


def _time(text: str | None) -> int | None:
    return None if text is None else parse_time(text)


@contextlib.contextmanager
def _working(what: str, spark: SparkSession) -> Iterator[None]:
    """A bar on a terminal while Spark works: tasks done of all that are known yet."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from kourou.spark.jobs.progress import TaskWatch

    watch, ended = TaskWatch(spark), threading.Event()
    text = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("tasks")
    with Progress(*text, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(what, total=None)

        def follow() -> None:
            while not ended.wait(LOOK_INTERVAL_S):
                done, tasks = watch.look()
                progress.update(bar, completed=done, total=tasks or None)

        thread = threading.Thread(target=follow, name="kourou-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _plain(value: Any) -> Any:
    """A value of Spark's as JSON and tables have it."""
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value if isinstance(value, int | float | str | None) else str(value)


def _show(columns: list[str], rows: list[list[Any]], *, as_json: bool, plot: bool) -> None:
    if as_json:
        print_json_lines(dict(zip(columns, row)) for row in rows)
    elif plot:
        _plot(rows)
    else:
        numbers = [bool(rows) and isinstance(rows[0][at], int | float) for at in range(len(columns))]
        heads = [f">{name}" if number else name for name, number in zip(columns, numbers)]
        print_table(heads, [["" if cell is None else cell for cell in row] for row in rows])


def _plot(rows: list[list[Any]]) -> None:
    """A bar for each row: its first column, and as long as its last."""
    values = [(str(row[0]), float(row[-1] or 0)) for row in rows if isinstance(row[-1], int | float | None)]
    if len(values) < len(rows):
        raise typer.BadParameter("a plot needs a number in the last column", param_hint="--plot")
    most = max((value for _, value in values), default=0) or 1
    width = max((len(name) for name, _ in values), default=0)
    for name, value in values:
        bar = "█" * round(BAR_WIDTH * value / most)
        console().print(f"{name:<{width}} {bar} {value:,.0f}", markup=False)
