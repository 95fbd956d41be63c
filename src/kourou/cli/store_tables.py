"""What `kourou store` prints for a person: the page of `info`, the tables of `index`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer

from kourou.cli.output import echo, print_table, printable, show_size, show_time

# With more queues than this, topics have one line each.
_MAX_QUEUE_ROWS = 64
_COLORS = {"fault": typer.colors.RED, "warning": typer.colors.YELLOW, "note": typer.colors.CYAN}


def print_info(info: dict[str, Any], *, all_queues: bool) -> None:
    """What `describe` found, as a page."""
    typer.echo(f"store {info['path']}")
    for name, text in _lines(info):
        echo(f"  {name:<11} {text}")
    typer.echo()
    if sum(len(topic["queues"]) for topic in info["topics"]) <= _MAX_QUEUE_ROWS or all_queues:
        _print_queues(info["topics"])
    else:
        _print_topics(info["topics"])
    if not info["health"]:
        fine = typer.style("nothing stands out", fg=typer.colors.GREEN)
        typer.echo(f"health: {fine} (`check` looks at everything)")
    for item in info["health"]:
        severity = item["severity"]
        typer.echo(f"{typer.style(severity, fg=_COLORS[severity])}: {printable(item['message'])}")


def _lines(info: dict[str, Any]) -> list[tuple[str, str]]:
    log, index, config = info["log"], info["index"], info["config"]
    lines = [
        ("log", f"{_files(log)}, offsets {log['minOffset']} to {log['maxOffset']}"),
        ("stored", f"{show_time(log['firstStoreTime'])} to {show_time(log['lastStoreTime'])}"),
        ("index", _files(index) + (f", {index['entries']} entries" if index["files"] else "")),
        (
            "file sizes",
            f"log {config['mappedFileSizeCommitLog']}, queue {config['mappedFileSizeConsumeQueue']}, index"
            f" {config['maxHashSlotNum']} slots and {config['maxIndexNum']} entries;"
            f" from {config['takenFrom']}",
        ),
        ("checkpoint", _checkpoint(info["checkpoint"])),
        ("closed", "no: there is an abort file" if info["abort"] else "yes, cleanly"),
        ("in use", f"by {info['lock']}" if info["lock"] else "no"),
    ]
    if len(config["commitLogDirectories"]) > 1:
        lines.insert(1, ("log paths", ", ".join(config["commitLogDirectories"])))
    timer = info["timer"]
    if timer is not None:
        coming = f", next at {show_time(timer['nextTime'])}" if timer["pending"] else ""
        lines.append(
            ("timer", f"read up to {show_time(timer['lastReadTime'])}, {timer['pending']} pending{coming}")
        )
    for copy in info["cut"]:
        lines.append(("cut off", f"{copy['path']} ({show_size(copy['bytes'])})"))
    return lines


def _files(part: dict[str, Any]) -> str:
    number = part["files"]
    if number == 0:
        return "no files"
    size = show_size(part["bytes"])
    return f"1 file of {size}" if number == 1 else f"{number} files of {size} in all"


def _checkpoint(checkpoint: dict[str, int] | None) -> str:
    if checkpoint is None:
        return "none"
    queues = "queues not noted"
    if checkpoint["logicsMsgTimestamp"]:
        time = show_time(checkpoint["logicsMsgTimestamp"])
        queues = f"queues up to {time} (record at {checkpoint['logicsPhysicalOffset']})"
    return (
        f"log on disk up to {show_time(checkpoint['physicMsgTimestamp'])}, {queues}, full index files up to"
        f" {show_time(checkpoint['indexMsgTimestamp'])}"
    )


def _print_queues(topics: list[dict[str, Any]]) -> None:
    columns = (
        "topic",
        ">queue",
        ">messages",
        ">min offset",
        ">max offset",
        ">files",
        "first stored",
        "last stored",
    )
    rows = (
        (
            topic["topic"] if number == 0 else "", queue["queueId"], queue["messages"], queue["minOffset"],
            queue["maxOffset"], queue["files"], show_time(queue["firstStoreTime"]),
            show_time(queue["lastStoreTime"]),
        )
        for topic in topics
        for number, queue in enumerate(topic["queues"])
    )  # fmt: skip
    print_table(columns, rows)


def _print_topics(topics: list[dict[str, Any]]) -> None:
    columns = ("topic", "type", ">queues", ">messages", "first stored", "last stored")
    rows = (
        (
            topic["topic"], topic["type"], len(topic["queues"]), topic["messages"],
            show_time(min((q["firstStoreTime"] for q in topic["queues"] if q["firstStoreTime"]), default=0)),
            show_time(max(q["lastStoreTime"] for q in topic["queues"])),
        )
        for topic in topics
    )  # fmt: skip
    print_table(columns, rows)
    typer.echo("one line for each queue with --queues")


def print_index_files(files: Iterable[dict[str, Any]]) -> None:
    """The files of the index, a line each."""
    columns = (
        "file", "first stored", "last stored", "physical offsets", ">entries", ">full", ">slots used",
        ">mean chain", ">p99", ">longest",
    )  # fmt: skip
    rows = (
        (
            file["file"],
            show_time(file["beginTimestamp"]),
            show_time(file["endTimestamp"]),
            f"{file['beginPhyOffset']} to {file['endPhyOffset']}",
            file["entries"],
            f"{file['entries'] / max(file['maxEntries'], 1):.0%}",
            f"{file['slotsUsed']} of {file['slots']}",
            file["meanChain"],
            file["p99Chain"],
            file["longestChain"],
        )
        for file in files
    )
    print_table(columns, rows)


def print_index_entries(entries: Iterable[dict[str, Any]]) -> None:
    """The entries that a key leads to, a line each."""
    columns = (
        "file", ">entry", ">hash", ">physical", "stored", ">previous", "has the key", ">queue", ">offset",
    )  # fmt: skip
    rows = (
        (
            entry["file"],
            entry["entry"],
            entry["hash"],
            entry["physicalOffset"],
            show_time(entry["storeTimestamp"]),
            entry["previous"],
            "yes" if entry["hasKey"] else "no",
            "-" if entry["queueId"] is None else entry["queueId"],
            "-" if entry["queueOffset"] is None else entry["queueOffset"],
        )
        for entry in entries
    )
    print_table(columns, rows)
