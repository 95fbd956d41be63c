"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from kourou.cli import app
from kourou.store import InnerMessage, MessageStore, MessageStoreConfig

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_python_of_the_readme_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 4
    for example in examples:
        exec(example.replace("/tmp/orders-store", str(tmp_path / "store")), {})
    printed = capsys.readouterr().out.splitlines()
    namesrv, _, brokers = printed.pop(0).partition(" ")
    assert namesrv.startswith("127.0.0.1:")
    assert brokers == "1"
    assert printed.pop(0).startswith("SEND_OK ")
    assert printed == [
        "orders paid b'order 1'",
        "[b'order 0', b'order 1', b'order 2'] 32",
        "[42]",
        "100 ['topic', 'queue_offset', 'keys', 'body']",
    ]


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MessageStore(
        MessageStoreConfig(store_path_root_dir="store", mapped_file_size_commit_log=65536)
    ) as store:
        for number in range(20):
            store.put_message(InnerMessage("orders", 0, b"%d" % number, {"KEYS": f"k{number}"}))
    commands = re.findall(
        r"^    kourou (store .*?)(?:  +#.*)?$", README.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(commands) == 5
    for command in commands:
        command = command.replace("/data/rocketmq/store", "store").replace("/data/rebuilt", "rebuilt")
        result = CliRunner().invoke(app, shlex.split(command))
        assert result.exit_code == 0, result.output
        assert result.output
    assert pq.read_table("hour.parquet").num_rows == 20
    assert (tmp_path / "rebuilt" / "consumequeue" / "orders" / "0").is_dir()
