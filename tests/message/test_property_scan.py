"""Many property strings at once: always what `decode_properties` says of them one by one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from kourou.message import decode_properties
from kourou.message.scan import records as scan
from kourou.message.scan.properties import join_properties
from support.stores.records import encode_raw, names, property_strings, simple_message

many_properties = "".join(f"name-{number % 40}\x01{number}\x02" for number in range(50))
same_ends = (
    "long-name-1-of-a-property\x01a\x02long-name-2-of-a-property\x01b\x02long-name-1-of-a-property\x01c\x02"
)


def cut(strings):
    log = b"".join(encode_raw(simple_message(), b"t", string.encode()) for string in strings)
    records, _ = scan.read_records(log, scan.find_records(log))
    assert len(records) == len(strings)
    return join_properties(log, records)


def text_at(properties, start, length):
    return properties.blob[start : start + length].tobytes().decode()


@given(st.lists(property_strings, max_size=6), names)
@example(["TAGS\x01a\x02TAGS\x01b\x02TAGS\x01\x02"], "TAGS")
@example(["", "TAGS\x01a", "TAGS\x01b"], "TAGS")
@example(["TAGS\x01a\x02TAGS\x01b", ""], "TAGS")
@example(["MSG_REGION\x01a", "MSG_REGIOM\x01a", "MSG_REGION"], "MSG_REGION")
@example(["a\x01b\x01c"], "a\x01b")
def test_a_property_is_found_in_the_rows_that_have_it(strings, name):
    properties = cut(strings)
    found = {
        row: text_at(properties, start, length)
        for row, start, length in zip(*map(list, properties.find(name)))
    }
    decoded = [decode_properties(string).get(name) for string in strings]
    assert found == {row: value for row, value in enumerate(decoded) if value is not None}


@given(st.lists(property_strings, max_size=6))
@example([many_properties, "", many_properties])
@example([same_ends, same_ends])
@example(["a\x01b\x01c\x02", "\x01\x01\x02\x02a\x01", "\x02\x02"])
def test_all_properties_of_a_row_are_those_that_are_decoded_one_by_one(strings):
    properties = cut(strings)
    table = properties.all()
    pairs = [
        (text_at(properties, name, name_length), text_at(properties, value, value_length))
        for name, name_length, value, value_length in zip(*map(list, table[1:]))
    ]
    for count, string in zip(table.counts.tolist(), strings):
        row, pairs = pairs[:count], pairs[count:]
        assert dict(row) == decode_properties(string)
        assert len(dict(row)) == count  # a map must not have a key twice
    assert not pairs
