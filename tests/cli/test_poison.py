"""Bodies that nobody can read, in the tools: `store cat`, `tail`, a message sent again, the console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kourou.admin import Admin
from kourou.cli import app
from kourou.console import reading
from kourou.console.reading import CONTENT, as_json, browse
from kourou.message.compression import CompressionType, compress
from kourou.testing import Cluster
from support.poison import POISON, Poison, bomb
from support.spark import send

TOPIC = "poisoned"
HONEST = {f"honest {kind.name}".encode() * 20: kind for kind in CompressionType}
BOMBS = {
    f"{kind.name} bomb": Poison(kind.sys_flag, bomb(kind), "body inflates to more than 268435456 bytes")
    for kind in CompressionType
}
BAD = {name: poison for name, poison in (POISON | BOMBS).items() if poison.body}
COUNT = len(HONEST) + len(BAD)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as running:
        running.create_topic(TOPIC, queues=1)
        sent = [(poison.sys_flag, poison.body) for poison in BAD.values()]
        sent += [(kind.sys_flag, compress(body, kind)) for body, kind in HONEST.items()]
        send(running, TOPIC, [body for _, body in sent], queue=0, sys_flag=lambda n: sent[n][0])
        yield running


@pytest.fixture
def store(cluster: Cluster) -> Path:
    assert cluster.directory is not None
    return cluster.directory / "broker-a"


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "400", "NO_COLOR": "1"})
    assert result.exit_code == code, result.output
    return result.output if code else result.stdout


def check(found: list[dict[str, str]]) -> None:
    """All are there: honest ones as they were sent, the others with the reason, in the order of the queue."""
    bad, honest = found[: len(BAD)], found[len(BAD) :]
    for one, poison in zip(bad, BAD.values(), strict=True):
        assert one["bodyError"].startswith(poison.why)
    assert [one["body"].encode() for one in honest] == list(HONEST)
    assert not any("bodyError" in one for one in honest)


def test_cat_shows_each(store: Path) -> None:
    check([json.loads(line) for line in run("store", "cat", store, "-t", TOPIC, "--json").splitlines()])
    table = run("store", "cat", store, "-t", TOPIC)
    assert all(poison.why in table for poison in BAD.values())
    assert all(body.decode()[:40] in table for body in HONEST)


def test_cat_writes_each_into_a_file(store: Path, tmp_path: Path) -> None:
    """The file could not be written."""
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "cat.parquet"
    run("store", "cat", store, "-t", TOPIC, "-o", path)
    rows = pq.read_table(path, columns=["body", "body_error"]).to_pylist()
    assert [row["body"] for row in rows] == [poison.body for poison in BAD.values()] + list(HONEST)
    assert [bool(row["body_error"]) for row in rows] == [True] * len(BAD) + [False] * len(HONEST)


def test_tail_shows_each(cluster: Cluster) -> None:
    following = ["tail", TOPIC, "--from", "first", "--count", COUNT, "-n", cluster.namesrv]
    check([json.loads(line) for line in run(*following, "--json").splitlines()])
    printed = run(*following)
    assert all(poison.why in printed for poison in BAD.values())
    assert all(body.decode() in printed for body in HONEST)


def test_the_console_lists_each(monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
    monkeypatch.setattr(reading, "READ_S", 120.0)  # inflating takes what it takes

    async def main() -> None:
        async with Admin(cluster.namesrv) as admin:
            found = await browse(admin, TOPIC)
            assert (found.is_partial, found.error) == (False, None)
            messages = sorted(found.messages, key=lambda message: message.queue_offset)
            check([as_json(message) for message in messages])
            (shown,) = [column for column in CONTENT if column.label == "Body"]
            assert all(
                str(shown.of(message)).startswith(poison.why)
                for message, poison in zip(messages, BAD.values())
            )
            assert [len(message.body) for message in messages[len(BAD) :]] == [len(body) for body in HONEST]

    asyncio.run(main())


def test_what_cannot_be_read_is_not_sent_again(cluster: Cluster, store: Path) -> None:
    """Its bytes would have been sent as if they were the body."""
    lines = run("store", "cat", store, "-t", TOPIC, "--json").splitlines()
    message_id = json.loads(lines[0])["offsetMsgId"]
    said = run("admin", "message", "resend", TOPIC, message_id, "-n", cluster.namesrv, code=1)
    assert "cannot be read" in said
