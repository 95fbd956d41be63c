"""Addresses in records."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.message import format_host, pack_host, parse_host, unpack_host


@given(st.ip_addresses(), st.integers(0, 65535))
def test_an_address_is_unpacked_to_what_was_packed(ip, port):
    packed = pack_host(str(ip), port)
    unpacked, unpacked_port = unpack_host(packed)
    assert len(packed) == (8 if ip.version == 4 or ip.ipv4_mapped else 20)  # as Java's InetAddress
    assert ip_address(unpacked) in (ip, getattr(ip, "ipv4_mapped", None))
    assert unpacked_port == port


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:10911", "127.0.0.1:10911"),
        ("[2001:db8::1]:80", "2001:db8:0:0:0:0:0:1:80"),
        ("2001:db8:0:0:0:0:0:1:80", "2001:db8:0:0:0:0:0:1:80"),
        ("[::ffff:10.0.0.1]:80", "10.0.0.1:80"),
    ],
)
def test_addresses_are_shown_as_java_shows_them(text, shown):
    assert format_host(parse_host(text)) == shown
