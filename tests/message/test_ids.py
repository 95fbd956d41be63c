"""The two ids of a message."""

from __future__ import annotations

from datetime import datetime
from ipaddress import IPv4Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import BadMessageError
from kourou.message import (
    UniqueIdGenerator,
    decode_offset_message_id,
    decode_unique_id,
    offset_message_id,
    pack_host,
    parse_host,
)
from support.recorded import golden

ports = st.integers(0, 65535)
NOON_OF_THE_SECOND = int(datetime(2026, 11, 2, 12).timestamp() * 1000)


@given(st.ip_addresses(), ports, st.integers(0, 2**63 - 1))
def test_an_offset_message_id_tells_broker_and_offset(ip, port, offset):
    message_id = offset_message_id(pack_host(str(ip), port), offset)
    decoded = decode_offset_message_id(message_id)
    assert len(message_id) == (32 if isinstance(ip, IPv4Address) or ip.ipv4_mapped else 56)
    assert (decoded.port, decoded.physical_offset) == (port, offset)
    assert ip_address(decoded.ip) in (ip, getattr(ip, "ipv4_mapped", None))


@pytest.mark.parametrize("name", golden.GOLDEN_STORES)
def test_offset_message_ids_are_those_of_java(name):
    for record in golden.read_expected(name)["commitlog"]["records"]:
        assert (
            offset_message_id(parse_host(record["storeHost"]), record["physicalOffset"])
            == record["offsetMsgId"]
        )


@given(st.ip_addresses(), st.integers(0, 2**22), st.integers(0, 2**32 - 1))
def test_a_unique_id_tells_the_client_that_made_it(ip, pid, instance):
    generate = UniqueIdGenerator(str(ip), pid, instance, now_ms=lambda: NOON_OF_THE_SECOND)
    first, second = generate(), generate()
    decoded = decode_unique_id(first)
    assert len(first) == (32 if isinstance(ip, IPv4Address) else 56)
    assert ip_address(decoded.ip) in (ip, getattr(ip, "ipv4_mapped", None))
    assert (decoded.pid, decoded.millis_of_month, decoded.counter) == (pid & 0xFFFF, 36 * 3_600_000, 0)
    assert decode_unique_id(second).counter == 1


def test_unique_ids_differ_although_the_clock_stands_still():
    generate = UniqueIdGenerator("10.0.0.1", now_ms=lambda: NOON_OF_THE_SECOND)
    assert len({generate() for _ in range(5000)}) == 5000


def test_the_time_in_a_unique_id_begins_anew_with_the_month():
    times = iter([NOON_OF_THE_SECOND, NOON_OF_THE_SECOND + 30 * 86_400_000])
    generate = UniqueIdGenerator("10.0.0.1", now_ms=lambda: next(times))
    generate()
    assert decode_unique_id(generate()).millis_of_month < 3 * 86_400_000


@pytest.mark.parametrize("name", ["plain", "batch"])
def test_unique_ids_of_java_are_understood(name):
    ids = [r["properties"].get("UNIQ_KEY") for r in golden.read_expected(name)["commitlog"]["records"]]
    assert {len(unique_id) for unique_id in ids if unique_id} <= {32, 56}
    assert all(
        decode_unique_id(unique_id).millis_of_month < 31 * 86_400_000 for unique_id in ids if unique_id
    )


@pytest.mark.parametrize("text", ["", "zz", "0" * 31, "0" * 33, "0" * 40, "g" * 32])
@pytest.mark.parametrize("decode", [decode_offset_message_id, decode_unique_id])
def test_what_is_no_id_gets_a_clear_error(decode, text):
    with pytest.raises(BadMessageError, match="32 or 56 hexadecimal"):
        decode(text)
