"""A socket address as records hold it: the IP in network order, then the port in four bytes.

8 bytes for IPv4, 20 for IPv6.
"""

from __future__ import annotations

import ipaddress
import struct
from functools import lru_cache

_IPV4 = struct.Struct(">4si")
_IPV6 = struct.Struct(">16si")


@lru_cache(maxsize=4096)  # a broker packs the same few addresses for every message
def pack_host(ip: str, port: int) -> bytes:
    """The bytes of an address given as text; IPv4 that came over an IPv6 socket is IPv4."""
    address = ipaddress.ip_address(ip)
    if address.version == 6 and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.packed + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(packed: bytes) -> tuple[str, int]:
    """(ip, port) of 8 or 20 bytes; an IPv6 address in Java's form, eight groups, none left out."""
    ip, port = (_IPV4 if len(packed) == 8 else _IPV6).unpack(packed)
    if len(ip) == 4:
        return ".".join(map(str, ip)), port
    address = ipaddress.IPv6Address(ip)
    if address.ipv4_mapped:  # Java's InetAddress turns these into IPv4, and so does what it prints
        return str(address.ipv4_mapped), port
    return ":".join(f"{ip[i] << 8 | ip[i + 1]:x}" for i in range(0, 16, 2)), port


def format_host(packed: bytes) -> str:
    """`ip:port` as Java prints it."""
    ip, port = unpack_host(packed)
    return f"{ip}:{port}"


def parse_host(text: str) -> bytes:
    """The bytes of `ip:port`; an IPv6 address may stand in brackets."""
    ip, _, port = text.rpartition(":")
    return pack_host(ip.strip("[]"), int(port))
