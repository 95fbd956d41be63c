"""Many records as Arrow arrays: row by row and column by column what `decode` says of each record."""

from __future__ import annotations

import mmap
import random
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.errors import CorruptRecordError
from kourou.message import CompressionType, compress, decode_properties
from kourou.message.codec import encode
from support.poison import BAD_BATCHES, POISON
from support.recorded import golden
from support.stores.records import (
    as_row,
    blank,
    decode_all,
    encode_raw,
    raw_records,
    simple_message,
)

pa = pytest.importorskip("pyarrow")

from kourou.message.scan import columns  # noqa: E402
from kourou.message.scan import records as scan  # noqa: E402


@pytest.fixture(scope="module", autouse=True, params=["plain", "compiled"])
def road(request):
    """Every test with numpy alone, and with the compiled loops."""
    before = columns._road
    columns._road = columns._Road(scan.find_records, scan.read_records, columns.Rows)
    if request.param == "compiled":
        pytest.importorskip("numba", reason="no numba; make setup")
        assert columns.accelerate()
        assert columns._road.rows is not columns.Rows
    yield
    columns._road = before


def rows_of(batch):
    """The rows as `as_row` gives them."""
    batch.validate(full=True)
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            batch = batch.set_column(index, field.name, batch.column(index).cast(pa.int64()))
    rows = batch.to_pylist()
    for row in rows:
        if "properties" in row:
            assert len(row["properties"]) == len(dict(row["properties"]))
            row["properties"] = dict(row["properties"])
    return rows


def log_of(*messages):
    return b"".join(map(encode, messages))


def compressed(body, kind, **fields):
    return simple_message(compress(body, kind), sys_flag=kind.sys_flag, **fields)


@pytest.mark.parametrize("name", golden.GOLDEN_STORES)
def test_columns_of_a_store_of_java_are_its_records(golden_store, name):
    for file in sorted((golden_store(name).path / "commitlog").iterdir()):
        log = file.read_bytes()
        messages, end = decode_all(log)
        expected = [as_row(message) for message in messages]
        batch, stop = columns.read_columns(log, base_offset=int(file.name))
        assert rows_of(batch) == expected
        assert stop.position == end
        batches = list(columns.iter_columns(log, rows_per_batch=7, bytes_per_batch=10_000))
        assert [row for part in batches for row in rows_of(part.batch)] == expected
        assert batches[-1].stop == stop


@given(st.lists(raw_records(), max_size=6))
def test_columns_of_any_log_are_its_records(raw):
    log = b"".join(raw)
    batch, stop = columns.read_columns(log)
    assert batch.schema == columns.SCHEMA
    assert rows_of(batch) == [as_row(message) for message in decode_all(log)[0]]
    assert stop == scan.Stop(len(log), scan.END)


@given(st.lists(raw_records(), min_size=1, max_size=4), st.data())
def test_columns_of_a_damaged_log_are_the_records_before_the_damage(raw, data):
    log = bytearray(b"".join(raw))
    log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    for check_crc in (False, True):
        messages, end = decode_all(log, check_crc=check_crc)
        batch, stop = columns.read_columns(log, check_crc=check_crc)
        assert rows_of(batch) == [as_row(message) for message in messages]
        assert stop.position == end


@given(st.lists(raw_records(), max_size=8), st.data())
def test_batches_hold_what_one_batch_would_and_any_of_them_says_where_to_go_on(raw, data):
    log = b"".join(raw) + data.draw(st.sampled_from([b"", blank(50), b"junk and more junk"]))
    whole, stop = columns.read_columns(log)
    sizes = {
        "rows_per_batch": data.draw(st.integers(1, 5)),
        "bytes_per_batch": data.draw(st.integers(1, len(log) + 1)),
    }
    batches = list(columns.iter_columns(log, **sizes))
    assert pa.Table.from_batches([part.batch for part in batches]).combine_chunks() == pa.table(whole)
    assert batches[-1].stop == stop
    assert all(part.batch.num_rows and part.stop.reason == columns.MORE for part in batches[:-1])
    seen = 0
    for part in batches[:-1]:
        seen += part.batch.num_rows
        assert columns.read_columns(log, part.stop.position) == (whole.slice(seen), stop)


pairs = st.tuples(st.sampled_from(["a", "b", "ab"]), st.text("ab\x01", min_size=1, max_size=4))
alike = st.one_of(
    st.text("ab\x01\x02", max_size=16),
    st.lists(pairs, max_size=4).map(lambda items: "".join(f"{name}\x01{value}\x02" for name, value in items)),
)


@given(
    st.lists(alike, min_size=1, max_size=6),
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 15), st.sampled_from(["a", "b", "\x01", "\x02", "", "ab"])
        ),
        max_size=24,
    ),
)
@example(
    ["a\x01b\x02", "ab\x01ab\x02", "b\x01\x01b\x02a\x01b\x02"], [(0, 2, "\x01"), (1, 3, "b"), (2, 3, "a")]
)
@example(["a\x01bb\x02"], [(0, 3, "\x02"), (0, 3, "\x01"), (0, 3, "a")])
@example(["a\x01b\x02a\x01a\x02"], [(0, 4, "b"), (0, 0, "b"), (0, 2, "\x02"), (0, 9, "a")])
def test_properties_that_are_alike_are_told_apart(models, changes):
    """Given properties that differ in a character or two from those before, then each row has its own."""
    texts = list(models)
    for which, at, character in changes:
        model = models[which % len(models)]
        texts.append(model[:at] + character + model[at + 1 :])
    log = b"".join(encode_raw(simple_message(), b"t", text.encode()) for text in texts)
    batch, _ = columns.read_columns(log, columns=["properties", "properties.a", "properties.ab"])
    batch.validate(full=True)
    decoded = [decode_properties(text) for text in texts]
    assert [dict(row) for row in batch.column("properties").to_pylist()] == decoded
    assert [len(row) for row in batch.column("properties").to_pylist()] == [len(row) for row in decoded]
    for name in ("a", "ab"):
        assert batch.column(f"properties.{name}").to_pylist() == [row.get(name) for row in decoded]


def test_properties_of_any_length_are_told_apart_wherever_they_stand():
    """Given long stretches of values of the same and of other lengths, and some rows of other names."""
    chance = random.Random(7)
    odd = [
        "",
        "a\x01\x02KEYS\x01k\x02ab\x01x",
        "ab\x01y\x02a\x01x\x02a\x01z\x02",
        "b\x01\x01\x02",
        "a\x01x\x02KEYS\x01",
    ]
    texts = []
    for number in range(1500):
        varied = number // 200 % 2
        value = "v" * (chance.randint(1, 30) if varied else 5)
        last = chance.choice(["", "\x02"]) if varied else "\x02"
        texts.append(f"a\x01{value}\x02KEYS\x01{number:05}\x02ab\x01{value[::2]}{last}")
        if chance.random() < 0.02:
            texts.append(chance.choice(odd))
    log = b"".join(encode_raw(simple_message(), b"t", text.encode()) for text in texts)
    batch, _ = columns.read_columns(log, columns=["properties", "keys", "properties.ab"])
    decoded = [decode_properties(text) for text in texts]
    assert [dict(row) for row in batch.column("properties").to_pylist()] == decoded
    assert batch.column("keys").to_pylist() == [row.get("KEYS") for row in decoded]
    assert batch.column("properties.ab").to_pylist() == [row.get("ab") for row in decoded]


def test_columns_do_not_need_the_bytes_they_were_read_from(golden_store):
    """Given a buffer that is used again, then what was read from it before stays."""
    path = golden_store("ipv6").path
    log = bytearray(min((path / "commitlog").iterdir()).read_bytes())
    expected = [as_row(message) for message in decode_all(log)[0]]
    batch = columns.read_columns(log).batch
    log[:] = bytes(len(log))
    assert rows_of(batch) == expected


def test_no_records_give_an_empty_batch_of_the_same_schema():
    for log in (b"", bytes(100), blank(100)):
        assert columns.read_columns(log).batch.schema == columns.SCHEMA
        ((batch, stop),) = columns.iter_columns(log, columns=["body", "tags"])
        assert (batch.num_rows, batch.schema.names) == (0, ["body", "tags"])
        assert stop == columns.read_columns(log).stop


@pytest.mark.parametrize("column", columns.SCHEMA.names)
def test_a_column_is_the_same_alone_as_among_all(golden_store, column):
    path = golden_store("ipv6").path
    log = min((path / "commitlog").iterdir()).read_bytes()
    alone = columns.read_columns(log, columns=[column]).batch
    assert alone.schema == columns.schema([column])
    assert alone.column(0) == columns.read_columns(log).batch.column(column)


def test_columns_come_in_the_order_in_which_they_are_named():
    batch = columns.read_columns(log_of(simple_message()), columns=["tags", "body", "queue_id"]).batch
    assert batch.schema.names == ["tags", "body", "queue_id"]


def test_any_property_can_be_a_column():
    log = log_of(
        simple_message(properties="color\x01red\x02"),
        simple_message(),
        simple_message(properties="color\x01"),
    )
    batch = columns.read_columns(log, columns=["properties.color", "properties.none"]).batch
    assert batch.to_pydict() == {"properties.color": ["red", None, None], "properties.none": [None] * 3}


@pytest.mark.parametrize("names", [["nothing"], ["properties."], [""], []])
def test_a_column_that_is_not_there_is_refused(names):
    with pytest.raises(ValueError, match="column"):
        columns.schema(names)


def test_timestamps_are_in_utc():
    batch = columns.read_columns(log_of(simple_message()), columns=["born_timestamp"]).batch
    assert str(batch.column(0)[0].as_py()) == "2023-11-14 22:13:20+00:00"


def test_bytes_that_are_no_utf8_become_replacement_characters():
    log = encode_raw(simple_message(), b"t\xff", b"TAGS\x01\xe4\xb8\x02\xff\x01a\x02\xfe\x01b\x02")
    (row,) = rows_of(columns.read_columns(log).batch)
    assert (row["topic"], row["tags"], row["properties"]) == ("t�", "�", {"TAGS": "�", "�": "b"})


def test_bodies_short_and_long_are_copied_exactly():
    bodies = [b"b" * size for size in range(30)] + [b"", b"", bytes(12), bytes(13)]
    log = log_of(*map(simple_message, bodies))
    assert columns.read_columns(log, columns=["body"]).batch.column(0).to_pylist() == bodies
    last = encode_raw(simple_message(b"x"), b"", b"")  # three bytes behind its body the buffer ends
    assert columns.read_columns(last, columns=["body"]).batch.column(0).to_pylist() == [b"x"]


def test_a_body_is_copied_once():
    log = log_of(simple_message(b"b" * 100_000)) * 200
    pool = pa.default_memory_pool()
    allocated = pool.bytes_allocated()
    tracemalloc.start()
    batch = columns.read_columns(log, columns=["body"]).batch
    _, peak_of_python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pool.bytes_allocated() - allocated < len(log) * 1.1
    assert peak_of_python < len(log) // 20
    assert batch.column(0).nbytes >= 200 * 100_000


def test_nothing_of_the_buffer_is_held_by_the_batch(tmp_path):
    (tmp_path / "log").write_bytes(log_of(*[simple_message(b"b" * 100, "TAGS\x01TagA\x02")] * 3))
    with (tmp_path / "log").open("rb") as file:
        log = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    batch = columns.read_columns(log).batch
    log.close()  # raises where something still points into it
    assert batch.num_rows == 3


def test_compressed_bodies_come_as_stored_or_as_sent():
    plain = [b"", b"a", b"twelve bytes", b"thirteen byte", b"row " * 100]
    messages = [simple_message(b"as it is")]
    for kind in CompressionType:
        messages += [compressed(body, kind) for body in plain]
    log = log_of(*messages)
    stored = columns.read_columns(log, columns=["body"]).batch.column(0).to_pylist()
    sent = columns.read_columns(log, columns=["body"], decompress=True).batch.column(0).to_pylist()
    assert stored == [message.body for message in messages]
    assert sent == [b"as it is", *plain * 3]
    (batch,) = columns.decode_rows([encode(messages[-1])], decompress=True)
    assert batch["body"].to_pylist() == [plain[-1]]


@pytest.mark.parametrize("name", [*POISON, *BAD_BATCHES])
def test_a_body_that_cannot_be_read_stays_as_it_is_and_says_why(name):
    """It raised, and whoever read its topic read nothing."""
    flag, stored, why = (POISON | BAD_BATCHES)[name]
    good = compressed(b"sent " * 50, CompressionType.LZ4)
    log = log_of(good, simple_message(stored, sys_flag=flag), good)
    batch = columns.read_columns(log, columns=["body", "body_error"], decompress=True).batch
    assert batch["body"].to_pylist() == [b"sent " * 50, stored, b"sent " * 50]
    first, error, last = batch["body_error"].to_pylist()
    assert (first, last) == (None, None)
    assert error.startswith(why)
    alone = columns.read_columns(log, columns=["body_error"], decompress=True).batch
    assert alone["body_error"].to_pylist() == [None, error, None]
    assert columns.read_columns(log, columns=["body_error"]).batch["body_error"].null_count == 3


@pytest.mark.parametrize("kind", CompressionType)
def test_a_bomb_costs_its_own_row(kind, monkeypatch):
    monkeypatch.setattr(columns.decompress_body, "__defaults__", (100_000,))
    bomb, good = compressed(bytes(100_001), kind), compressed(b"good", kind)
    batch = columns.read_columns(log_of(bomb, good, bomb), decompress=True).batch
    assert batch["body"].to_pylist() == [bomb.body, b"good", bomb.body]
    assert batch["body_error"].to_pylist() == [
        "body inflates to more than 100000 bytes", None, "body inflates to more than 100000 bytes",
    ]  # fmt: skip


def test_the_largest_bodies_stay_as_they_are_where_all_would_be_too_many():
    sizes = [50_000, 7, 60_000, 40_000, 90]
    log = log_of(*(compressed(bytes(size), CompressionType.ZSTD) for size in sizes))
    batch = columns.read_columns(log, decompress=True, most_inflated=95_000).batch
    read = [
        len(body) for body, error in zip(*(batch[name].to_pylist() for name in ("body", "body_error")))
        if error is None
    ]  # fmt: skip
    assert read == [50_000, 7, 40_000, 90]
    assert batch["body_error"].to_pylist()[2] == "body inflates to 60000 bytes: too many for one batch"


def test_batches_stay_small_although_bodies_decompress_to_much():
    log = log_of(*[compressed(bytes(10_000), CompressionType.ZLIB), simple_message(b"small")] * 10)
    batches = list(columns.iter_columns(log, columns=["body"], decompress=True, bytes_per_batch=25_000))
    assert [part.batch.num_rows for part in batches] == [4] * 5
    bodies = [body for part in batches for body in part.batch.column(0).to_pylist()]
    assert bodies == [bytes(10_000), b"small"] * 10


def test_a_wrong_crc_stops_a_scan_that_checks_it():
    log = bytearray(log_of(simple_message(), simple_message(b"damage me"), simple_message()))
    log[log.index(b"damage me")] ^= 1
    assert columns.read_columns(log).batch.num_rows == 3
    batch, stop = columns.read_columns(log, check_crc=True)
    assert (batch.num_rows, stop.position, stop.reason) == (
        1,
        len(log_of(simple_message())),
        scan.DOES_NOT_DECODE,
    )
    assert "CRC" in stop.detail


def test_rows_are_chosen_by_topic_and_by_fixed_fields():
    log = log_of(*(simple_message(topic=f"t{n % 3}", queue_id=n % 4, queue_offset=n) for n in range(24)))

    def queue_one(header):
        return header["queue_id"] == 1

    by_topic = columns.read_columns(log, topics=["t0", "t2"]).batch
    assert set(by_topic["topic"].to_pylist()) == {"t0", "t2"}
    assert by_topic.num_rows == 16
    both, stop = columns.read_columns(log, topics=["t0"], where=queue_one)
    assert both["queue_offset"].to_pylist() == [9, 21]
    assert stop == scan.Stop(len(log), scan.END)
    in_batches = list(columns.iter_columns(log, topics=["t0"], where=queue_one, bytes_per_batch=200))
    assert [n for part in in_batches for n in part.batch["queue_offset"].to_pylist()] == [9, 21]
    assert in_batches[-1].stop == stop
    assert columns.read_columns(log, topics=["none"]).batch.num_rows == 0


def test_rows_come_from_records_that_do_not_lie_side_by_side():
    messages = [simple_message(b"a"), simple_message(b"b", "TAGS\x01TagA\x02")]
    (batch,) = columns.decode_rows([memoryview(encode(message)) for message in messages])
    assert rows_of(batch) == [as_row(message) for message in decode_all(log_of(*messages))[0]]
    assert [batch.num_rows for batch in columns.decode_rows([], columns=["body"])] == [0]
    with pytest.raises(CorruptRecordError, match="unknown magic"):
        list(columns.decode_rows([encode(messages[0]), b"no record at all"]))


def test_offsets_are_checked_where_it_is_known_where_the_buffer_lies():
    log = log_of(simple_message(physical_offset=1000))
    assert columns.read_columns(log, base_offset=1000).batch.num_rows == 1
    batch, stop = columns.read_columns(log, base_offset=0)
    assert (batch.num_rows, stop.reason) == (0, scan.DOES_NOT_DECODE)
