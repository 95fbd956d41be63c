"""Fuzzing in short, and what it must find. `make fuzz` is the long form."""

from __future__ import annotations

import random
import time
from unittest import mock

import pytest

from fuzz import oracle
from fuzz.corpus import recorded_frames
from fuzz.frames import FrameFuzz
from fuzz.mutate import mutate, mutate_text, overwrite
from fuzz.poison import PoisonFuzz
from fuzz.stores import StoreFuzz, templates
from fuzz.texts import SQL_CORPUS, SQL_WORDS, TextFuzz
from fuzz.watch import Findings, HangError, no_hang
from kourou.broker.handlers import statistics
from kourou.broker.messages import sql92
from kourou.errors import CorruptRecordError
from kourou.message import codec, compression
from kourou.message.compression import CompressionType
from kourou.remoting.protocol import command
from kourou.store import bulk_dispatch
from kourou.store.dispatch import check_record

FRAMES, FILES, TEXTS, MESSAGES = 10_000, 250, 3000, 600


def assert_well(findings: Findings) -> None:
    assert not findings.wrong, findings.report()


def test_frames(memory_path):
    findings = Findings()
    FrameFuzz(1, findings).run(FRAMES, memory_path)
    assert_well(findings)
    assert findings.counts["requests to the broker"] > FRAMES / 4
    assert findings.counts["frames of the name server"] > FRAMES / 20
    assert findings.counts["records stored"] > 0


def test_store_files(memory_path):
    findings = Findings()
    StoreFuzz(1, findings).run(FILES, memory_path)
    assert_well(findings)
    assert findings.counts["messages put and found again"] > FILES / 20


def test_tables_timers_and_configurations(memory_path):
    findings = Findings()
    TextFuzz(1, findings).run_files(FILES * 2, memory_path)
    assert_well(findings)


def test_expressions():
    findings = Findings()
    TextFuzz(1, findings).run_expressions(TEXTS)
    assert_well(findings)
    assert TEXTS * 0.1 < findings.counts["expressions refused"] < TEXTS * 0.9


def test_messages_that_cannot_be_read():
    findings = Findings()
    PoisonFuzz(1, findings).run(MESSAGES)
    assert_well(findings)
    assert findings.counts["bad messages"] > MESSAGES / 10
    assert findings.counts["honest messages"] > MESSAGES / 4
    assert findings.counts["bodies read all the same"] > 0


# What fuzzing finds, if it is there


def test_a_handler_that_fails_is_found(memory_path):
    with mock.patch.dict(statistics.HANDLERS, dict.fromkeys(statistics.HANDLERS, _fails)):
        findings = Findings()
        FrameFuzz(2, findings, patience_s=0.1).run(1500, memory_path)
    assert "KeyError" in findings.report()


def _fails(*_: object) -> None:
    raise KeyError("planted")


def test_a_request_that_is_not_answered_is_found(memory_path):
    with mock.patch.dict(statistics.HANDLERS, dict.fromkeys(statistics.HANDLERS, _says_nothing)):
        findings = Findings()
        FrameFuzz(2, findings, patience_s=0.1).run(1500, memory_path)
    assert "without an answer" in findings.report()


def _says_nothing(*_: object) -> None:
    return None


def test_a_decoder_that_reads_another_number_is_found(memory_path):
    def wrong(data: bytes, view: memoryview, at: int, end: int, word: int) -> command.RemotingCommand:
        read = right(data, view, at, end, word)
        read.opaque ^= read.code == 105
        return read

    right = command.decode_frame
    with mock.patch.object(command, "decode_frame", wrong):
        findings = Findings()
        FrameFuzz(2, findings, patience_s=0.1).run(1500, memory_path)
    assert "and not" in findings.report()


def test_recovery_without_a_crc_is_found(memory_path):
    def careless(*arguments: object, check_crc: bool = True, **more: object) -> object:
        return right(*arguments, check_crc=False, **more)  # type: ignore[arg-type]

    right = bulk_dispatch.scan.read_records
    with (
        mock.patch.object(bulk_dispatch.scan, "read_records", careless),
        mock.patch.object(bulk_dispatch, "check_record", _checks_no_crc),
    ):
        findings = Findings()
        StoreFuzz(3, findings).run(200, memory_path)
    assert "by its bytes at" in findings.report()


def _checks_no_crc(*arguments: object, check_crc: bool = True, **more: object) -> object:
    return check_record(*arguments, check_crc=False, **more)  # type: ignore[arg-type]


def test_an_expression_that_fails_is_found():
    def careless(text: str, least: int, most: int) -> int:
        return int(text)

    with mock.patch.object(sql92, "_whole", careless):
        findings = Findings()
        TextFuzz(2, findings).run_expressions(TEXTS)
    assert "ValueError" in findings.report()


def test_a_pull_that_gives_up_after_a_bad_body_is_found():
    has_given_up = False

    def careless(body: bytes, kind: CompressionType) -> bytes:
        nonlocal has_given_up
        try:
            return right(body, kind, 0 if has_given_up else 1 << 28)
        except CorruptRecordError:
            has_given_up = True
            raise

    right = compression.decompress
    with mock.patch.object(codec, "decompress", careless):
        findings = Findings()
        PoisonFuzz(2, findings).run(100)
    assert any(what.startswith("honest messages at") for what in findings.wrong)


def test_a_hang_is_found():
    with pytest.raises(HangError), no_hang(0.05):
        time.sleep(30)


# The tools themselves


def test_mutations_are_the_same_for_the_same_seed():
    data = bytes(range(200))
    for work in (
        lambda chance: mutate(chance, data, [data]),
        lambda chance: overwrite(chance, data),
        lambda chance: mutate_text(chance, SQL_CORPUS[1], SQL_WORDS),
    ):
        assert [work(random.Random(7)) for _ in range(3)] == [work(random.Random(7))] * 3
        assert len({str(work(random.Random(seed))) for seed in range(50)}) > 25
    assert len(overwrite(random.Random(1), data)) == len(data)


def test_the_other_reader_reads_what_java_wrote():
    for recorded in recorded_frames():
        read = oracle.read_frame(recorded.encode())
        assert isinstance(read, oracle.Command)
        assert (read.code, read.opaque, read.fields or {}) == (
            recorded.code, recorded.opaque, recorded.ext_fields
        )  # fmt: skip
    for template in templates():
        logs = [(int(name[-20:]), template.files[name]) for name in template.log_files()]
        assert len(oracle.read_log(logs).records) >= 10, template.name
