"""PlainProperties reads what `decode_properties` reads, or nothing."""

from __future__ import annotations

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.message.plain_properties import MAX_MODELS, NOT_PLAIN, PlainProperties
from kourou.message.properties import decode_properties, tags_code

ADDED = {"MSG_REGION": "r", "TRACE_ON": "true", "CLUSTER": "c"}

pieces = st.sampled_from(
    [
        "UNIQ_KEY",
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "CLUSTER",
        "XUNIQ_KEY",
        "\x01",
        "\x02",
        "a",
        "7F01",
        "INNER_",
        "é",
        "\\",
        "\\u0002",
        '"',
        "",
    ]
)
raws = st.lists(pieces, max_size=14).map("".join)
segments = st.lists(
    st.tuples(
        st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "a", "PGROUP", "DELAY"]),
        st.sampled_from(["1", "x y", "Z9", "a\\b", "KEYS"]),
    ),
    max_size=6,
)

likely = segments.map(lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs))


def is_plain(raw: str, properties: dict[str, str]) -> bool:
    """By the words of the rule: each property once and whole, a unique id, nothing that is the broker's."""
    whole = raw if raw.endswith("\x02") else raw + "\x02"
    unique_id = properties.get("UNIQ_KEY", "")
    return (
        len(properties) == whole.count("\x02")
        and (NOT_PLAIN - {"UNIQ_KEY", "KEYS"}).isdisjoint(properties)
        and unique_id.isalnum()
        and unique_id.isascii()
        and "INNER_" not in raw
    )


def check(raw: str, reader: PlainProperties | None = None) -> None:
    reader = reader or PlainProperties(ADDED)
    expected = decode_properties(raw)
    text = orjson.dumps(raw)[1:-1]
    for _ in range(2):  # the second time from what is remembered
        found = reader.read(raw.encode())
        from_json = reader.read_json(text)
        if not is_plain(raw, expected):
            assert found is from_json is None
            continue
        assert found is not None
        if "\\" in raw or '"' in raw:  # it has escapes, which are left to a parser
            assert from_json is None
        else:
            assert from_json is not None
            assert from_json == (reader.stored(raw.encode()), *found)
            assert decode_properties(from_json[0].decode()) == {**expected, **ADDED}
        unique_id, keys, model = found
        assert model.properties(unique_id, keys) == {**expected, **ADDED}
        assert unique_id.decode() == expected["UNIQ_KEY"]
        assert (keys and keys.decode()) == expected.get("KEYS")
        assert (model.tags, model.tags_code) == (expected.get("TAGS"), tags_code(expected.get("TAGS")))
        assert model.waits == (expected.get("WAIT", "true").lower() == "true")


@given(raw=raws)
@example(raw="UNIQ_KEY\x01A\x02UNIQ_KEY\x01B")
@example(raw="KEYS\x01k\x02UNIQ_KEY\x01A\x02KEYS\x01j")
@example(raw="UNIQ_KEY\x01A\x02KEYS\x01\x02")
def test_any_string_is_read_as_before_or_not_at_all(raw):
    check(raw)


@given(segments=segments, ends=st.booleans())
def test_strings_of_clients_are_read_as_before(segments, ends):
    check("\x02".join(f"{name}\x01{value}" for name, value in segments) + ("\x02" if ends else ""))


@given(texts=st.lists(st.one_of(raws, likely), max_size=12))
@example(texts=["UNIQ_KEY\x01A\x02KEYS\x01k", "KEYS\x01k\x02UNIQ_KEY\x01A", "UNIQ_KEY\x01A\x02KEYS\x01"])
def test_what_is_remembered_of_one_string_does_not_change_another(texts):
    reader = PlainProperties(ADDED)
    for text in texts:
        check(text, reader)


def test_what_a_caller_changes_is_not_remembered():
    reader = PlainProperties(ADDED)
    first = reader.read(b"UNIQ_KEY\x01A\x02TAGS\x01t")
    assert first is not None
    first[2].properties(b"A", None)["TAGS"] = "other"

    second = reader.read(b"UNIQ_KEY\x01B\x02TAGS\x01t")

    assert second is not None
    assert second[2].properties(b"B", None) == {**ADDED, "UNIQ_KEY": "B", "TAGS": "t"}


def test_forms_without_end_are_not_all_remembered():
    reader = PlainProperties(ADDED)
    for number in range(3 * MAX_MODELS):
        assert reader.read(b"UNIQ_KEY\x01A\x02user\x01%d" % number) is not None
    reader.read(b"UNIQ_KEY\x01A\x02user\x01" + b"x" * 10_000)

    assert 0 < len(reader._models) <= MAX_MODELS
    assert max(map(len, reader._models)) < 1000
