"""The property string, and Java's string hash."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message import decode_properties, encode_properties, java_hash, properties, tags_code
from kourou.message.properties import read_property
from support.recorded import golden
from support.stores.records import property_strings, text

clean = text.filter(lambda value: value and not set("\x01\x02") & set(value))


def string2message_properties(text):
    """MessageDecoder.string2messageProperties of RocketMQ 5.5, line by line."""
    result = {}
    index = 0
    while index < len(text):
        new_index = text.find("\x02", index)
        if new_index < 0:
            new_index = len(text)
        if new_index - index >= 3:
            separator = text.find("\x01", index)
            if index < separator < new_index - 1:
                result[text[index:separator]] = text[separator + 1 : new_index]
        index = new_index + 1
    return result


@given(property_strings)
def test_properties_are_read_as_java_reads_them(text):
    assert decode_properties(text) == string2message_properties(text)


@given(st.text("\x01\x02ab", max_size=12))
def test_damaged_properties_are_read_as_java_reads_them(text):
    assert decode_properties(text) == string2message_properties(text)


@given(st.lists(st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "\x01", "\x02", "a", "b c"]), max_size=14))
def test_keys_are_found_as_they_are_read(pieces):
    text = "".join(pieces)
    found = string2message_properties(text)
    assert properties.read_keys(text) == (found.get("UNIQ_KEY"), found.get("KEYS"), found.get("TAGS"))


@given(st.dictionaries(clean, clean))
def test_properties_decode_to_what_was_encoded(values):
    assert decode_properties(encode_properties(values)) == values


def test_a_property_without_a_value_is_left_out():
    assert encode_properties({"a": "1", "b": None}) == "a\x011\x02"


def test_the_last_separator_may_be_missing():
    assert decode_properties("a\x011\x02b\x012") == {"a": "1", "b": "2"}


def test_reserved_names_are_known():
    assert {"KEYS", "TAGS", "UNIQ_KEY", "__CRC32#", "1ST_POP_TIME"} <= properties.RESERVED_NAMES
    assert not {" ", "\x01", "__RMQ.TRANSIENT."} & properties.RESERVED_NAMES


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("hello", 99162322),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("中文", 646394),
        ("😀", 1772899),
        ("\ud800", 55296),
    ],
)
def test_the_hash_is_that_of_java(text, value):
    assert java_hash(text) == value


def test_no_tags_have_the_code_zero():
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)


@pytest.mark.parametrize("name", golden.GOLDEN_STORES)
def test_properties_and_tags_codes_are_those_that_java_reads(name):
    for record in golden.read_expected(name)["commitlog"]["records"]:
        decoded = decode_properties(record["propertiesRaw"])
        assert decoded == record["properties"]
        assert tags_code(decoded.get("TAGS")) == record["tagsCode"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["REAL_TOPIC", "A", "", "XREAL_TOPIC"]), st.text("ab\x01", max_size=3))
    )
)
def test_one_property_is_what_all_of_them_say(pairs):
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    for form in (text, text.removesuffix("\x02")):
        assert read_property(form, "REAL_TOPIC") == decode_properties(form).get("REAL_TOPIC")
