"""`kourou store`: a store directory, Java's or Kourou's, with no broker running."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.output import (
    count,
    parse_time,
    print_json,
    print_json_lines,
    print_table,
    printable,
    progress_bar,
    quiet_log,
    show_size,
)

if TYPE_CHECKING:
    from kourou.inspect import StoreDirectory
    from kourou.inspect.check.findings import Finding

app = typer.Typer(
    name="store",
    no_args_is_help=True,
    help="Look into a store directory, check it, rebuild it. No broker is needed, and nothing is written"
    " unless the verb says so.",
)

StorePath = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIRECTORY]", help="The store: the directory that holds commitlog.", show_default=False
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="A broker.conf, for file sizes that the files do not tell and for a log that lies elsewhere."
        " With it DIRECTORY may be left out.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]

# So many rows a table has unless a limit is named; JSON and files have them all.
TABLE_ROWS = 100


def _open(path: Path | None, config_file: Path | None) -> StoreDirectory:
    from kourou.inspect import StoreDirectory
    from kourou.store.config import MessageStoreConfig

    if config_file is None:
        if path is None:
            raise typer.BadParameter("name the store's directory, or its broker.conf with -c")
        return StoreDirectory.open(path)
    config = MessageStoreConfig.load(config_file)
    return StoreDirectory.open(path or config.store_path_root_dir, config)


@app.command()
def dump(
    directory: StorePath = None,
    config: ConfigFile = None,
    recovered: Annotated[
        bool, typer.Option("--recovered", help="Add what a store recovers from it; made on a temporary copy.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write there.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Nothing else is printed: a dump is JSON.")] = True,
) -> None:
    """Print everything in the store as one JSON object.

    The form is rocketmq-store-dump/1: files with their hashes, checkpoint, every record of the log, every
    queue entry, index slot and entry, timers and configuration files.

    \b
    Example: all bodies of a topic
      kourou store dump /data/store | jq -r '.commitlog.records[] | select(.topic=="orders") | .body'
    """
    from kourou.inspect.dump import dump as dump_store

    store = _open(directory, config)
    # Recovery of the copy has its own log lines, about files that are gone when somebody reads them.
    with quiet_log("kourou.store"), progress_bar("dump", store.log_size) as progress:
        parts = dump_store(store, recovered=recovered, progress=progress)
        if output is not None:
            with output.open("wb") as file:
                file.writelines(itertools.chain(parts, [b"\n"]))
            return
        out = sys.stdout.buffer
        for part in itertools.chain(parts, [b"\n"]):
            out.write(part)
        out.flush()


@app.command()
def info(
    directory: StorePath = None,
    config: ConfigFile = None,
    queues: Annotated[bool, typer.Option("--queues", help="One line for each queue, however many.")] = False,
    json: AsJson = False,
) -> None:
    """Show what the store holds: sizes, ranges, topics, checkpoint, health. Little of the log is read.

    \b
    Example: is it safe to start a broker on this?
      kourou store info /data/store
    """
    from kourou.cli.store_tables import print_info
    from kourou.inspect.info import describe

    described = describe(_open(directory, config))
    if json:
        print_json(described)
    else:
        print_info(described, all_queues=queues)


@app.command()
def cat(
    directory: StorePath = None,
    config: ConfigFile = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Messages of this topic.")] = None,
    queue: Annotated[int | None, typer.Option("-q", "--queue", help="Of this queue of the topic.")] = None,
    first: Annotated[int | None, typer.Option("--from", help="From this queue offset on.")] = None,
    last: Annotated[int | None, typer.Option("--to", help="Up to this queue offset, without it.")] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="With this key, or this unique id.")] = None,
    since: Annotated[
        str | None, typer.Option(help="Stored at or after: 2026-11-15T08:30, milliseconds, or 10m ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Stored before.")] = None,
    at: Annotated[int | None, typer.Option("--at", help="The one at this physical offset.")] = None,
    message_id: Annotated[str | None, typer.Option("--id", help="The one with this message id.")] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            "-n", "--limit", min=0, help=f"The first so many. A table has {TABLE_ROWS} if none is named."
        ),
    ] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="The last so many.")] = None,
    scan: Annotated[
        bool, typer.Option("--scan", help="Search the log itself, whatever queues and index say.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write a file: .parquet, .arrow or .feather."),
    ] = None,
    json: AsJsonLines = False,
) -> None:
    """Print messages, oldest first. Bodies are decompressed, and shown as text where they are UTF-8.

    \b
    Examples: the last ten of a topic; a key; an hour of everything, for Spark
      kourou store cat /data/store -t orders --tail 10
      kourou store cat /data/store -k order-4711 --json
      kourou store cat /data/store --since 1h -o hour.parquet
    """
    from kourou.cli import message_view
    from kourou.inspect.messages import MessageReader, Selection

    table = not (json or output)
    selection = Selection(
        topic=topic, queue_id=queue, first_offset=first, end_offset=last, key=key, physical_offset=at,
        message_id=message_id, tail=tail, scan=scan,
        begin_ms=None if since is None else parse_time(since),
        end_ms=None if until is None else parse_time(until),
        limit=TABLE_ROWS + 1 if table and limit is None and tail is None else limit,
    )  # fmt: skip
    reader = MessageReader(_open(directory, config), selection)
    if output is not None:
        from kourou.inspect.arrow_file import write_file

        written = write_file(reader.records(), str(output))
        typer.echo(f"{count(written, 'message')} in {output}", err=True)
    elif json:
        print_json_lines(map(message_view.fields, reader.messages()))
    elif at is not None or message_id is not None:
        for message in reader.messages():
            message_view.print_whole(message)
    else:
        messages = list(reader.messages())
        shown = messages if limit is not None or tail is not None else messages[:TABLE_ROWS]
        if messages:
            message_view.print_messages(shown)
        else:
            typer.echo("no message matches", err=True)
        if len(messages) > len(shown):
            typer.echo(f"the first {len(shown)}; more with --limit, all with --json", err=True)
    if reader.unreadable:
        missing = count(len(reader.unreadable), "record")
        typer.echo(f"{missing} cannot be read, the first at {reader.unreadable[0]}: see `check`", err=True)


@app.command()
def queue(
    directory: StorePath = None,
    config: ConfigFile = None,
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.")] = ...,  # type: ignore[assignment]
    queue_id: Annotated[int, typer.Option("-q", "--queue", help="The queue of the topic.")] = 0,
    first: Annotated[int | None, typer.Option("--from", help="From this queue offset on.")] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=0, help="So many entries.")] = None,
    check_records: Annotated[
        bool, typer.Option("--check", help="Say of each entry whether its record is there.")
    ] = False,
    json: AsJsonLines = False,
) -> None:
    """Print the entries of a queue: where each message lies in the log.

    \b
    Example: the entries from 1000 on, and whether their records are there
      kourou store queue /data/store -t orders -q 3 --from 1000 --check
    """
    from kourou.errors import StoreError
    from kourou.inspect.check.queue_report import entry_fields

    store = _open(directory, config)
    chosen = store.queue(topic, queue_id)
    if chosen is None:
        raise StoreError(f"there is no queue {topic}-{queue_id} here; `kourou store info` lists them")
    entries = (
        entry_fields(store, chosen, entry, check_record=check_records)
        for entry in chosen.iterate(chosen.min_offset if first is None else first)
    )
    if json:
        print_json_lines(itertools.islice(entries, limit))
        return
    most = TABLE_ROWS if limit is None else limit
    rows = list(itertools.islice(entries, most + 1))
    columns = [
        ">offset",
        ">physical",
        ">size",
        ">tags code",
        ">messages",
        *(["record"] if check_records else []),
    ]
    title = f"{topic}-{queue_id}: offsets {chosen.min_offset} to {chosen.max_offset}"
    print_table(columns, (list(row.values()) for row in rows[:most]), title=title)
    if len(rows) > most and limit is None:
        typer.echo(f"the first {most}; more with --limit, all with --json", err=True)


@app.command()
def index(
    directory: StorePath = None,
    config: ConfigFile = None,
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="The topic of the key or tag.")] = None,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Look up a key or a unique id.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Look up a tag.")] = None,
    json: AsJsonLines = False,
) -> None:
    """Show how full the index is and how long its chains are, or follow the chain of one key.

    \b
    Example: which entries lead to a key
      kourou store index /data/store -t orders -k order-4711
    """
    from kourou.cli.store_tables import print_index_entries, print_index_files
    from kourou.inspect.check.index_report import describe_index, look_up

    store = _open(directory, config)
    wanted = key if key is not None else tag
    if wanted is not None and topic is None:
        raise typer.BadParameter("a key or tag belongs to a topic: name it with --topic")
    if wanted is None or topic is None:
        (print_json_lines if json else print_index_files)(describe_index(store))
    else:
        (print_json_lines if json else print_index_entries)(look_up(store, topic, wanted, tag=key is None))


@app.command()
def check(
    directory: StorePath = None,
    config: ConfigFile = None,
    all_findings: Annotated[
        bool,
        typer.Option("--all", help="Tell every finding; else 100 of a kind in a file and their number."),
    ] = False,
    json: AsJsonLines = False,
) -> None:
    """Check every record, CRC, queue entry and index chain; print each fault with its file and byte.

    Exit code 1 where there is a fault. What the next start of a broker puts right by itself, such as a torn
    tail after a crash, is a warning.

    \b
    Example: in a script
      kourou store check /data/store --json > findings.jsonl || echo "damaged"
    """
    from kourou.inspect.check.findings import DEFAULT_LIMIT
    from kourou.inspect.check.whole import check as check_store

    store = _open(directory, config)
    holder = store.lock_holder
    if holder is not None:
        typer.echo(
            f"in use by {holder}: findings at the end of log and queues may be of the moment", err=True
        )
    with progress_bar("check", store.log_size) as progress:
        report = check_store(
            store,
            on_finding=_print_finding_json if json else _print_finding,
            progress=progress,
            limit=0 if all_findings else DEFAULT_LIMIT,
        )
    summary = {
        "faults": report.faults, "warnings": report.warnings, "records": report.records,
        "logBytes": report.log_bytes, "queues": report.queues, "queueEntries": report.queue_entries,
        "indexFiles": report.index_files, "indexEntries": report.index_entries,
        "seconds": round(report.seconds, 3),
    }  # fmt: skip
    if json:
        print_json_lines([{"summary": summary}])
    else:
        typer.echo(
            f"{count(report.records, 'record')} ({show_size(report.log_bytes)}),"
            f" {count(report.queue_entries, 'entry')} in {count(report.queues, 'queue')},"
            f" {count(report.index_entries, 'entry')} in {count(report.index_files, 'index file')}:"
            f" {count(report.faults, 'fault')}, {count(report.warnings, 'warning')}, {report.seconds:.1f} s"
        )
    if report.faults:
        raise typer.Exit(1)


def _print_finding(finding: Finding) -> None:
    color = typer.colors.RED if finding.severity.value == "fault" else typer.colors.YELLOW
    typer.echo(f"{typer.style(finding.severity.value, fg=color)} {finding.kind}: {printable(str(finding))}")


def _print_finding_json(finding: Finding) -> None:
    print_json_lines(
        [
            {
                "severity": finding.severity.value,
                "kind": finding.kind,
                "file": finding.file,
                "position": finding.position,
                "message": finding.message,
            }
        ]
    )


@app.command()
def rebuild(
    directory: StorePath = None,
    config: ConfigFile = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Replace those of the store; the store must not be in use.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="NEW", help="Write them to a new directory instead.")
    ] = None,
    backup: Annotated[
        bool, typer.Option("--backup/--no-backup", help="Keep what was there as consumequeue.bak-<time> …")
    ] = True,
    json: AsJson = False,
) -> None:
    """Make the consume queues and the index anew from the log.

    With --in-place the new ones are built beside the old and change places with them at the end, so that a
    crash leaves one or the other.

    \b
    Example: after `check` found faults in queues or index
      kourou store rebuild /data/store --in-place
    """
    from kourou.inspect.rebuild import rebuild_in_place, rebuild_into

    if in_place == (out is not None):
        raise typer.BadParameter("say where: --in-place, or --out with a new directory")
    _allow_many_files()
    store = _open(directory, config)
    with progress_bar("rebuild", store.log_size) as progress:
        if out is not None:
            report = rebuild_into(store, str(out), progress=progress)
        else:
            report = rebuild_in_place(store, backup=backup, progress=progress)
    if json:
        print_json(
            {
                "path": report.path, "records": report.records, "queues": report.queues,
                "indexFiles": report.index_files, "indexEntries": report.index_entries,
                "backups": report.backups, "notes": report.notes, "seconds": round(report.seconds, 3),
            }
        )  # fmt: skip
        return
    typer.echo(
        f"{report.path}: {count(report.queues, 'queue')} and {count(report.index_files, 'index file')}"
        f" ({count(report.index_entries, 'entry')}) from {count(report.records, 'record')},"
        f" {report.seconds:.1f} s"
    )
    for path in report.backups:
        typer.echo(f"the old one is kept in {path}")
    for note in report.notes:
        typer.echo(f"note: {note}", err=True)


def _allow_many_files() -> None:
    """Every file of every queue is open at once: raise the soft limit to what the system allows."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
