"""`kourou store` as a person or a script uses it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kourou
from kourou.cli import app
from kourou.cli.output import count, parse_time, printable, show_size, show_time

VERBS = ["dump", "info", "cat", "queue", "index", "check", "rebuild"]
COMMAND = str(Path(sys.executable).with_name("kourou"))


class Done:
    """What a run printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object) -> Done:
    """The command in this process."""
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "180", "NO_COLOR": "1"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)


def store(*arguments: object) -> Done:
    return run("store", *arguments)


@pytest.fixture
def plain(golden_store) -> tuple[Path, dict[str, Any]]:
    golden = golden_store("plain")
    return golden.path, golden.expected


@pytest.fixture
def conf(tmp_path):
    def write(**keys: object) -> Path:
        path = tmp_path / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        return path

    return write


# Help, version, errors


def test_version_and_help():
    assert run("--version").out == f"kourou {kourou.__version__}\n"
    assert "store" in run("--help").out
    assert run().code == 2  # typer: no arguments is help and an error


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_teaches_with_an_example(verb):
    done = store(verb, "--help")

    assert done.code == 0
    assert f"kourou store {verb} /data/store" in done.out
    assert "--json" in done.out
    assert "--config" in done.out


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_that_is_no_store_gets_one_clear_line(verb, tmp_path):
    options = {"queue": ["-t", "T"], "rebuild": ["--in-place"]}.get(verb, [])

    done = store(verb, tmp_path, *options)

    assert (done.code, done.out) == (2, "")
    assert done.err == f"kourou: {tmp_path} is no RocketMQ store: there is no commitlog in it\n"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["info", "/no/such/place"], "kourou: /no/such/place is no directory"),
        (
            ["cat", "{store}", "-t", "Nope"],
            "kourou: there is no queue of Nope here; topics with queues: ",
        ),
        (["cat", "{store}", "--at", "7"], "kourou: no record begins at 7; the log begins at 0"),
        (
            ["cat", "{store}", "-o", "x.csv"],
            "kourou: x.csv: the name must end with .parquet, ",
        ),
        (["cat", "{store}", "-n", "1", "--tail", "1"], "kourou: --limit and --tail exclude each other"),
        (["queue", "{store}", "-t", "Nope"], "kourou: there is no queue Nope-0 here"),
        (["info", "-c", "/no/such/broker.conf"], "kourou: cannot read /no/such/broker.conf: No such file"),
        (["rebuild", "{store}", "--out", "{store}"], "kourou: {store} is not empty"),
    ],
)
def test_a_mistake_gets_one_clear_line(plain, arguments, line):
    path, _ = plain

    done = store(*(argument.replace("{store}", str(path)) for argument in arguments))

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(line.replace("{store}", str(path)))
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["info"], "broker.conf with -c"),
        (["rebuild", "{store}"], "--in-place, or --out"),
        (["rebuild", "{store}", "--in-place", "--out", "x"], "--in-place, or --out"),
        (["cat", "{store}", "--since", "yesterday"], "is no time"),
        (["index", "{store}", "-k", "key"], "name it with --topic"),
        (["queue", "{store}"], "--topic"),
    ],
)
def test_a_wrong_use_is_explained(plain, arguments, hint):
    path, _ = plain

    done = store(*(argument.replace("{store}", str(path)) for argument in arguments))

    assert done.code == 2
    assert hint in done.err


# Verbs


def test_dump(golden_store, tmp_path):
    path, expected = golden_store("timer")
    target = tmp_path / "dump.json"

    printed = store("dump", path, "--recovered")
    to_file = store("dump", path, "-o", target)

    document = json.loads(printed.out)
    assert document["timer"] == expected["timer"]
    assert document["recovered"]["maxPhyOffset"] == expected["recovered"]["maxPhyOffset"]
    assert (to_file.code, to_file.out, printed.err) == (0, "", "")
    assert json.loads(target.read_text()) == {k: v for k, v in document.items() if k != "recovered"}


def test_info_for_a_person(golden_store):
    path, _ = golden_store("crash_torn")

    done = store("info", path)

    assert done.code == 0
    assert "7 files of 448.0 KiB in all, offsets 0 to 367431" in done.out
    assert "1103 entries" in done.out
    assert "no: there is an abort file" in done.out
    assert re.search(r"GoldenBeta_2-x +0 +53 +0 +53 +3", done.out)
    assert "warning: 438 bytes lie behind the end of the log at 367431" in done.out


def test_info_of_a_store_with_nothing_to_say(golden_store):
    path, _ = golden_store("timer")

    done = store("info", path)

    assert "2 pending, next at" in done.out
    assert "health: nothing stands out" in done.out


def test_info_with_many_queues_has_a_line_for_each_topic(golden_store, monkeypatch):
    monkeypatch.setattr("kourou.cli.store_tables._MAX_QUEUE_ROWS", 10)
    path, _ = golden_store("plain")

    assert re.search(r"GoldenBeta_2-x +SimpleCQ +3 +108 ", store("info", path).out)
    assert re.search(r"GoldenBeta_2-x +0 +53 ", store("info", path, "--queues").out)


def test_info_for_a_script(plain):
    path, expected = plain

    info = json.loads(store("info", path, "--json").out)

    assert info["log"]["maxOffset"] == expected["commitlog"]["endOffset"]
    assert info["log"]["lastStoreTime"] == expected["commitlog"]["records"][-1]["storeTimestamp"]
    assert {topic["topic"]: topic["messages"] for topic in info["topics"]} == {
        topic: sum(len(queue["entries"]) for queue in queues.values())
        for topic, queues in expected["consumequeue"].items()
    }
    assert info["checkpoint"]["physicMsgTimestamp"] == expected["checkpoint"]["physicMsgTimestamp"]
    assert (info["abort"], info["lock"], info["health"]) == (False, None, [])


def test_cat_as_a_table(plain):
    path, _ = plain

    done = store("cat", path, "-t", "GoldenAlpha", "-q", 2, "--from", 25)

    assert "plain text number 306" in done.out
    assert "plain text number 318" in done.out
    assert len(done.out.splitlines()) == 4


def test_cat_limits_a_table_and_says_so(plain):
    path, _ = plain

    limited, named = store("cat", path), store("cat", path, "-n", 200)

    assert len(re.findall(r"^2026", limited.out, re.MULTILINE)) == 100
    assert limited.err == "the first 100; more with --limit, all with --json\n"
    assert len(re.findall(r"^2026", named.out, re.MULTILINE)) == 200
    assert named.err == ""
    assert store("cat", path, "-k", "nothing").err == "no message matches\n"


def test_cat_as_json_lines(plain):
    path, expected = plain

    lines = store("cat", path, "--json").lines

    records = expected["commitlog"]["records"]
    assert len(lines) == len(records)
    for line, record in zip(lines, records, strict=True):
        for name in (
            "physicalOffset",
            "topic",
            "queueOffset",
            "msgId",
            "offsetMsgId",
            "bornHost",
            "properties",
        ):
            assert line[name] == record[name]


def test_cat_shows_bodies_decompressed_and_as_text_where_they_are(golden_store):
    from base64 import b64decode

    path, expected = golden_store("batch")
    records = expected["commitlog"]["records"]

    for line, record in zip(store("cat", path, "--json").lines, records, strict=True):
        body = line["body"].encode() if line["bodyEncoding"] == "utf-8" else b64decode(line["body"])
        assert body == b64decode(record.get("decompressedBody", record["body"]))
    assert {line["bodyEncoding"] for line in store("cat", path, "--json").lines} == {"utf-8", "base64"}


def test_cat_shows_the_messages_of_inner_batches(golden_store):
    path, expected = golden_store("batchcq")
    inner = [len(record.get("inner", [])) for record in expected["commitlog"]["records"]]

    assert [len(line.get("inner", [])) for line in store("cat", path, "--json").lines] == inner
    assert f"batch of {inner[2]} messages" in store("cat", path).out


def test_cat_shows_one_message_whole(plain):
    path, expected = plain
    record = expected["commitlog"]["records"][0]

    for option, value in (("--at", 0), ("--id", record["msgId"]), ("--id", record["offsetMsgId"])):
        out = store("cat", path, option, value).out
        assert re.search(r"^body \(utf-8\) +plain text number 0", out, re.MULTILINE)
        assert re.search(r"^property region +hangzhou", out, re.MULTILINE)


def test_cat_to_parquet(plain, tmp_path):
    import pyarrow.parquet as pq

    path, _ = plain
    target = tmp_path / "alpha.parquet"

    done = store("cat", path, "-t", "GoldenAlpha", "-o", target)

    assert done.err == f"107 messages in {target}\n"
    table = pq.read_table(target)
    assert table.num_rows == 107
    assert set(table["topic"].to_pylist()) == {"GoldenAlpha"}


def test_cat_says_what_cannot_be_read(golden_store):
    path, _ = golden_store("crash_torn")

    done = store("cat", path, "-t", "GoldenBeta_2-x", "--json")

    assert len(done.lines) == 107
    assert done.err == "1 record cannot be read, the first at 367431: see `check`\n"


def test_queue(golden_store):
    path, expected = golden_store("crash_torn")
    entries = expected["consumequeue"]["GoldenBeta_2-x"]["1"]["entries"]

    lines = store("queue", path, "-t", "GoldenBeta_2-x", "-q", 1, "--check", "--json").lines

    assert [
        [line[name] for name in ("queueOffset", "physicalOffset", "size", "tagsCode")] for line in lines
    ] == entries
    assert [line["record"] for line in lines] == ["ok"] * 27 + ["there is no record"]
    table = store("queue", path, "-t", "GoldenBeta_2-x", "-q", 1, "--from", 26).out
    assert "GoldenBeta_2-x-1: offsets 0 to 28" in table
    assert len(table.splitlines()) == 5


@pytest.mark.parametrize(
    ("name", "topic"),
    [("lmq", "%LMQ%one"), ("batchcq", "GoldenBatchCq"), ("delay_after", "SCHEDULE_TOPIC_XXXX")],
)
def test_queue_knows_light_batch_and_delay_queues(golden_store, name, topic):
    path, _ = golden_store(name)

    lines = store("queue", path, "-t", topic, "--check", "--json").lines

    assert lines
    assert {line["record"] for line in lines} == {"ok"}


def test_index(plain):
    path, expected = plain
    files = expected["index"]["files"]

    lines = store("index", path, "--json").lines

    assert [line["entries"] for line in lines] == [len(file["entries"]) for file in files]
    assert [line["slotsUsed"] for line in lines] == [len(file["slots"]) for file in files]
    for line, file in zip(lines, files, strict=True):
        chains = [entry[1] % 100 for entry in file["entries"]]
        assert line["longestChain"] == max(map(chains.count, chains))
    assert "90 of 100" in store("index", path).out


@pytest.mark.parametrize("kind", ["U", "K", "T"])
def test_index_follows_a_key(plain, kind):
    path, expected = plain
    queries = [query for query in expected["recovered"]["indexQueries"] if query["type"] == kind]

    for query in queries[:5]:
        option = "--tag" if kind == "T" else "--key"
        lines = store("index", path, "-t", query["topic"], option, query["key"], "--json").lines
        assert [line["physicalOffset"] for line in lines][:64] == query["phyOffsets"]
        assert all(line["hasKey"] for line in lines)
    assert "yes" in store("index", path, "-t", query["topic"], option, query["key"]).out


def test_check_of_a_store_that_is_whole(plain):
    path, _ = plain

    done = store("check", path)

    assert done.code == 0
    assert done.out.startswith(
        "321 records (361.5 KiB), 321 entries in 11 queues, 1103 entries in 3 index files: no faults, "
    )


def test_check_of_a_damaged_store(plain):
    path, _ = plain
    queue = path / "consumequeue" / "GoldenAlpha" / "0" / ("0" * 20)
    queue.write_bytes(queue.read_bytes()[:8] + b"\0\0\0\x01" + queue.read_bytes()[12:])

    done, for_script = store("check", path), store("check", path, "--json")

    assert (done.code, for_script.code) == (1, 1)
    assert done.out.startswith(
        f"fault queue-size: consumequeue/GoldenAlpha/0/{'0' * 20} at byte 0: entry 0 says size 1, its record"
    )
    finding, last = for_script.lines
    assert finding == {
        "severity": "fault",
        "kind": "queue-size",
        "file": f"consumequeue/GoldenAlpha/0/{'0' * 20}",
        "position": 0,
        "message": "entry 0 says size 1, its record at 0 says 316",
    }
    assert (last["summary"]["faults"], last["summary"]["records"]) == (1, 321)


def test_check_after_a_crash_has_warnings_only(golden_store):
    path, _ = golden_store("crash_flip")

    done = store("check", path)

    assert done.code == 0
    assert "warning torn-tail: commitlog/00000000000000327680 at byte 39751" in done.out


def test_rebuild_in_place_and_elsewhere(plain, tmp_path):
    path, _ = plain
    out = tmp_path / "out"

    elsewhere = json.loads(store("rebuild", path, "--out", out, "--json").out)
    in_place = store("rebuild", path, "--in-place")

    assert (elsewhere["path"], elsewhere["records"], elsewhere["queues"]) == (str(out), 321, 11)
    assert in_place.out.startswith(f"{path}: 11 queues and 3 index files (1103 entries) from 321 records")
    assert in_place.out.count("the old one is kept in") == 2
    assert store("check", path).code == 0
    assert len(list(path.glob("*.bak-*"))) == 2


@pytest.mark.parametrize("name", ["plain", "crash_torn", "batchcq"])
def test_the_verbs_that_look_write_nothing(golden_store, tmp_path, name):
    path, expected = golden_store(name)
    topic = expected["commitlog"]["records"][0]["topic"]
    before = snapshot(path)

    for verb, *options in (
        ["dump", "--recovered"], ["info"], ["cat"], ["cat", "--scan", "-k", "key-0"], ["queue", "-t", topic],
        ["index"], ["check"], ["rebuild", "--out", tmp_path / "out"],
    ):  # fmt: skip
        assert store(verb, path, *options).code == 0

    assert snapshot(path) == before


def snapshot(path: Path) -> dict[str, tuple[int, int]]:
    return {str(entry): (entry.stat().st_mtime_ns, entry.stat().st_ino) for entry in path.rglob("*")}


# Configuration


def test_a_configuration_names_the_store_and_its_sizes(plain, conf):
    path, _ = plain
    sizes = {"mappedFileSizeCommitLog": 65536, "mappedFileSizeConsumeQueue": 400}
    index = {"maxHashSlotNum": 100, "maxIndexNum": 400}
    file = conf(storePathRootDir=path, brokerName="b", **sizes, **index)

    assert json.loads(store("info", "-c", file, "--json").out)["config"]["takenFrom"] == "the configuration"
    assert store("check", "-c", file).code == 0
    assert store("check", path, "-c", conf(**sizes)).code == 1  # by default an index file is larger


def test_a_bad_configuration_gets_one_clear_line(plain, conf):
    path, _ = plain

    done = store("info", path, "-c", conf(mappedFileSizeCommitLog="many"))

    assert (done.code, done.err) == (2, "kourou: mappedFileSizeCommitLog=many: expected a whole number\n")


# As a process


def test_the_command_itself(plain):
    path, _ = plain

    done = subprocess.run([COMMAND, "store", "check", path], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "no faults" in done.stdout


def test_a_store_in_use_is_not_rebuilt(plain):
    path, _ = plain
    program = (
        "import sys; from kourou.store.log.disk import OsDisk;"
        "OsDisk().lock(sys.argv[1]); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, f"{path}/lock"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        done, check = store("rebuild", path, "--in-place"), store("check", path)
        other.stdin.close()

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"kourou: {path} is in use by another process")
    assert check.code == 0
    assert (
        check.err
        == f"in use by process {other.pid}: findings at the end of log and queues may be of the moment\n"
    )


def test_a_reader_that_goes_away_is_no_error(golden_store):
    path, _ = golden_store("plain")
    with subprocess.Popen(
        [COMMAND, "store", "dump", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10) == b'{"format":'
        process.stdout.close()
        assert process.stderr.read() == b""


def test_an_interrupt_ends_it_quietly(plain):
    path, _ = plain
    program = (
        "import signal, sys, time, kourou.inspect.check.whole as m;"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"  # ignored where a shell runs tests with &
        "from kourou.cli import main;"
        "m.check = lambda *a, **k: (print('ready', flush=True), time.sleep(60));"
        "sys.argv = ['kourou', 'store', 'check', sys.argv[1]]; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
    assert process.returncode == 130


def test_help_loads_nothing_heavy():
    """What a verb needs is imported by the verb: help is there at once."""
    done = subprocess.run(
        [COMMAND, "--help"], capture_output=True, env={**os.environ, "COLUMNS": "80"}, check=True
    )
    assert b"store" in done.stdout
    program = (
        "import sys, kourou.cli; print([m for m in ('numpy', 'orjson', 'rich.table') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


# How things are shown


def test_times_are_read_in_several_forms():
    before = time.time_ns() // 1_000_000
    ten_minutes_ago, two_days_ago = parse_time("10m"), parse_time("2d")
    after = time.time_ns() // 1_000_000

    assert before <= ten_minutes_ago + 600_000 <= after
    assert before <= two_days_ago + 2 * 86_400_000 <= after
    assert parse_time("1794723348222") == 1794723348222
    assert parse_time("2026-11-15T06:15:48.222+00:00") == 1794723348222


def test_numbers_and_texts_are_shown_as_a_person_reads_them():
    assert [show_size(size) for size in (0, 1023, 1024, 1 << 30, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.0 GiB", "5.0 TiB",
    ]  # fmt: skip
    assert [count(number, "entry") for number in (0, 1, 2)] == ["no entries", "1 entry", "2 entries"]
    assert show_time(0) == "-"
    assert show_time(1 << 62) == str(1 << 62)
    assert printable("a\x1b[31mb\nc") == "a·[31mb·c"
