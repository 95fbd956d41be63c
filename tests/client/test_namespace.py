"""Namespaces, by the examples and rules of NamespaceUtil."""

from __future__ import annotations

import pytest

from kourou.client.namespace import unwrap, unwrap_any, wrap


@pytest.mark.parametrize(
    ("resource", "wrapped"),
    [
        ("orders", "NS%orders"),
        ("NS%orders", "NS%orders"),
        ("OTHER%orders", "NS%OTHER%orders"),
        ("%RETRY%group", "%RETRY%NS%group"),
        ("%RETRY%NS%group", "%RETRY%NS%group"),
        ("%DLQ%group", "%DLQ%NS%group"),
        ("NSorders", "NS%NSorders"),
        ("TBW102", "TBW102"),
        ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
        ("", ""),
    ],
)
def test_a_name_is_wrapped_once(resource, wrapped):
    assert wrap("NS", resource) == wrapped
    assert wrap(None, resource) == wrap("", resource) == resource


@pytest.mark.parametrize(
    ("resource", "plain"),
    [
        ("NS%orders", "orders"),
        ("NS%a%b", "a%b"),
        ("OTHER%orders", "OTHER%orders"),
        ("orders", "orders"),
        ("%RETRY%NS%group", "%RETRY%group"),
        ("%RETRY%OTHER%group", "%RETRY%OTHER%group"),
        ("%RETRY%group", "%RETRY%group"),
        ("%DLQ%NS%group", "%DLQ%group"),
        ("TBW102", "TBW102"),
        ("", ""),
    ],
)
def test_a_name_is_unwrapped_of_its_own_namespace(resource, plain):
    assert unwrap("NS", resource) == plain
    assert unwrap(None, resource) == unwrap("", resource) == resource


def test_any_namespace_can_be_left_out_and_found():
    assert unwrap_any("X%orders") == "orders"
    assert unwrap_any("%DLQ%X%group") == "%DLQ%group"
    assert unwrap_any("%RETRY%group") == "%RETRY%group"
    assert unwrap_any("%odd") == "%odd"
