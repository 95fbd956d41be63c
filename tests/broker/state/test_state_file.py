"""State files: a damaged one is noticed, its backup is taken, and nothing is lost in silence."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from kourou.broker.state.state_file import StateDamagedError, StateFile
from kourou.errors import KourouError


class Table:
    """A table of one number."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.dirty = False

    def encode(self) -> bytes:
        return b'{"number":%d}' % self.number

    def decode(self, value: Any) -> None:
        self.number = int(value["number"])

    def change(self, number: int) -> None:
        self.number = number
        self.dirty = True


def load(path: Path) -> Table:
    table = Table(-1)
    assert StateFile(path, table).load()
    return table


def save(path: Path, *numbers: int) -> None:
    table = Table()
    for number in numbers:
        table.change(number)
        StateFile(path, table).save()


DAMAGE = {
    "empty": b"",
    "cut": b'{"num',
    "zeros": bytes(512),
    "no object": b"[1]",
    "other fields": b'{"other":1}',
    "other types": b'{"number":{}}',
    "null": b"null",
    "no text": b'{"number":"\xff"}',
}


def test_nothing_is_loaded_where_nothing_was_saved(tmp_path):
    table = Table(7)
    assert not StateFile(tmp_path / "state.json", table).load()
    assert table.number == 7


def test_what_was_saved_is_loaded_and_the_one_before_is_kept(tmp_path):
    path = tmp_path / "config" / "state.json"
    save(path, 1, 2, 3)
    assert load(path).number == 3
    assert path.with_name("state.json.bak").read_bytes() == b'{"number":2}'
    assert sorted(file.name for file in path.parent.iterdir()) == ["state.json", "state.json.bak"]


def test_a_table_that_did_not_change_is_not_written(tmp_path):
    path = tmp_path / "state.json"
    file = StateFile(path, Table(1))
    assert file.pending() is None
    file.save()
    assert not path.exists()


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_of_a_damaged_file_the_backup_is_taken_with_a_warning(tmp_path, damage, caplog):
    path = tmp_path / "state.json"
    save(path, 1, 2)
    path.write_bytes(damage)
    assert load(path).number == 1
    assert str(path) in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_of_a_missing_file_the_backup_is_taken(tmp_path, caplog):
    path = tmp_path / "state.json"
    save(path, 1, 2)
    path.unlink()
    assert load(path).number == 1
    assert "state.json.bak" in caplog.text


def test_the_good_backup_is_never_replaced_by_the_damaged_file(tmp_path):
    path = tmp_path / "state.json"
    save(path, 1, 2)
    path.write_bytes(b"\0\0\0")
    table = Table()
    file = StateFile(path, table)
    file.load()

    file.save()  # the table counts as changed: the file has to be whole again

    assert load(path).number == 1
    assert path.with_name("state.json.bak").read_bytes() == b'{"number":1}'
    assert path.with_name("state.json.damaged").read_bytes() == b"\0\0\0"


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_broker_does_not_start_if_both_are_damaged(tmp_path, damage):
    path = tmp_path / "state.json"
    save(path, 1, 2)
    path.write_bytes(damage)
    path.with_name("state.json.bak").write_bytes(b"{")
    table = Table(7)
    with pytest.raises(StateDamagedError) as caught:
        StateFile(path, table).load()
    assert isinstance(caught.value, KourouError)
    assert f"neither {path} nor {path}.bak can be read" in str(caught.value)
    assert table.number == 7
    assert path.read_bytes() == damage


def test_a_broker_does_not_start_on_a_damaged_file_without_a_backup(tmp_path):
    path = tmp_path / "state.json"
    path.write_bytes(b"{")
    with pytest.raises(StateDamagedError, match=r"state\.json can be read"):
        StateFile(path, Table()).load()


def test_a_worker_writes_what_the_owner_encoded(tmp_path):
    path = tmp_path / "state.json"
    table = Table()
    file = StateFile(path, table)
    table.change(1)
    write = file.pending()
    assert write is not None
    table.change(2)  # goes into the next write

    worker = threading.Thread(target=write)
    worker.start()
    worker.join()

    assert load(path).number == 1
    assert table.dirty
    file.save()
    assert load(path).number == 2


def test_a_write_that_fails_is_tried_again(tmp_path):
    path = tmp_path / "config" / "state.json"
    path.parent.write_bytes(b"a file where the directory should be")
    table = Table()
    table.change(1)
    file = StateFile(path, table)
    with pytest.raises(OSError, match="config"):
        file.save()
    path.parent.unlink()
    file.save()
    assert load(path).number == 1
