"""JSON with bare numbers as keys, as fastjson writes and reads it."""

from __future__ import annotations

import pytest

from kourou.remoting.protocol import lenient_json


def test_int_keys_are_written_without_quotes_and_none_is_left_out():
    value = {"addresses": {0: "a:1", 12: "b:2"}, "list": [{1: True}], "none": None, "0": "ü\n"}
    assert lenient_json.dumps(value) == (
        '{"addresses":{0:"a:1",12:"b:2"},"list":[{1:true}],"0":"ü\\n"}'.encode()
    )


def test_bare_and_quoted_keys_are_read_alike():
    assert lenient_json.loads(b'{"a":{0:"x", -1 : [1,2]},3:{}}') == {"a": {"0": "x", "-1": [1, 2]}, "3": {}}
    assert lenient_json.loads(b'{"0":1}') == {"0": 1}


def test_what_looks_like_a_key_inside_a_string_stays():
    text = '{"s":"{0:1,2:3} \\" ,4:5",0:1}'
    assert lenient_json.loads(text.encode()) == {"s": '{0:1,2:3} " ,4:5', "0": 1}


@pytest.mark.parametrize("data", [b"", b"{", b"{a:1}", b'{0:"}', b"{0 1}", b"\xff"])
def test_what_is_no_json_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"."):
        lenient_json.loads(data)
