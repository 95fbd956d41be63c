"""SQL92 expressions: what they mean, where they are wrong, and what they may cost.

That they mean what Java's mean is shown in tests/interop/test_sql92.py; here are the rules one by one.
"""

from __future__ import annotations

import time

import pytest

from kourou.broker.messages import sql92
from kourou.broker.messages.sql92 import (
    MAX_LENGTH,
    MAX_NESTING,
    MAX_TOKENS,
    BadExpressionError,
    EvaluationError,
    compile_sql,
)
from kourou.remoting.protocol.codes import ResponseCode


def evaluate(expression: str, **properties: str) -> bool | None:
    return compile_sql(expression).evaluate(properties)


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("a = 5", "5", True),
        ("a = 5", "+5", True),
        ("a <> 5", "5", False),
        ("a > 5", "6", True),
        ("a >= 5", "5", True),
        ("a < -5", "-6", True),
        ("a <= 5L", "5", True),
        ("a > 5000000000", "5000000001", True),
        ("a = 1e3", "1000", True),
        ("a < .5", "0.4999", True),
        ("a = 5.0", "5", True),
        ("5 < a", "6", True),
        ("a BETWEEN 1 AND 3", "3", True),
        ("a BETWEEN 1 AND 3", "4", False),
        ("a NOT BETWEEN 1 AND 3", "4", True),
        ("a BETWEEN 1 AND 3 AND TRUE", "2", True),
        ("a = 'x'", "x", True),
        ("'x' = a", "x", True),
        ("a = 'it''s'", "it's", True),
        ("a = TRUE", "True", True),
        ("a = FALSE", "anything", True),
        ("a IN ('x', 'y')", "y", True),
        ("a NOT IN ('x', 'y')", "z", True),
        ("a CONTAINS 'bc'", "abcd", True),
        ("a NOT CONTAINS 'bc'", "abcd", False),
        ("a STARTSWITH 'ab'", "abcd", True),
        ("a ENDSWITH 'cd'", "abcd", True),
        ("a CONTAINS ''", "abcd", False),
        ("a IS NULL", "x", False),
        ("a IS NOT NULL", "x", True),
        ("a", "true", False),  # a text is never true
        ("NOT a", "x", True),
    ],
)
def test_what_an_expression_says_of_a_value(expression, value, expected):
    assert evaluate(expression, a=value) is expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a > 5", None),
        ("a = 5", None),
        ("a = 'x'", None),
        ("a <> 'x'", None),
        ("a <> 5", None),
        ("5 = a", False),  # Java looks at the left side first
        ("a = b", True),  # neither is there
        ("a IN ('x')", None),
        ("a NOT IN ('x')", None),
        ("a CONTAINS 'x'", False),
        ("a NOT CONTAINS 'x'", False),
        ("a IS NULL", True),
        ("NOT (a > 5)", None),
        ("a > 5 AND FALSE", False),
        ("a > 5 AND TRUE", None),
        ("a > 5 OR TRUE", True),
        ("a > 5 OR FALSE", None),
        ("NULL", None),
        ("a > -a", None),
    ],
)
def test_what_is_not_there_is_neither_true_nor_false(expression, expected):
    assert evaluate(expression) is expected
    assert compile_sql(expression).matches({}) is (expected is True)


@pytest.mark.parametrize(
    ("expression", "properties"),
    [
        ("a > 5", {"a": "x"}),
        ("a > 5", {"a": "5.0"}),  # no whole number
        ("a > 5", {"a": "2147483648"}),  # more than an int, as 5 is one
        ("a = 5", {"a": "5 "}),
        ("a = 5", {"a": "1_000"}),
        ("a > 5.5", {"a": "inf"}),
        ("a > b", {"a": "x", "b": "y"}),
        ("TRUE = a", {"a": "true"}),  # Java compares it the other way round only
    ],
)
def test_a_text_that_is_no_such_number_does_not_match(expression, properties):
    compiled = compile_sql(expression)

    assert not compiled.matches(properties)
    with pytest.raises(EvaluationError):
        compiled.evaluate(properties)


def test_properties_are_compared_as_doubles_in_javas_order():
    assert evaluate("a < b", a="9", b="10") is True
    assert evaluate("a < b", a="-0.0", b="0.0") is True
    assert evaluate("a > b", a="NaN", b="Infinity") is True
    assert evaluate("a >= b", a="NaN", b="NaN") is True
    assert evaluate("a > b", a="0x1p4", b="1.5e1f") is True
    assert evaluate("a = b", a="1", b="1.0") is False  # texts


def test_not_binds_tighter_than_comparisons_and_and_tighter_than_or():
    assert evaluate("NOT a = 1", a="1") is False  # (NOT a) = 1
    assert evaluate("NOT (a = 1)", a="2") is True
    assert evaluate("TRUE OR TRUE AND FALSE") is True
    assert evaluate("a = b > 5", a="true", b="6") is True  # a = (b > 5)


def test_keywords_have_any_case_and_names_one():
    assert evaluate("a Between 1 aNd 2 or NULL is not null", a="1") is True
    assert evaluate("A = 1", a="1") is None
    assert evaluate("android = 'x'", android="x") is True


def test_comments_are_skipped():
    assert evaluate("a /* one **/ = -- two\n 1", a="1") is True
    assert evaluate("a = --1", a="1") is True  # no line ends: two signs


def test_what_follows_a_complete_expression_is_not_looked_at():
    assert evaluate("a = 1 b = 2", a="1") is True
    assert evaluate("a = 007", a="0") is True
    assert evaluate("a = 1)", a="1") is True
    assert evaluate("a LIKE 'x%'", a="x") is False  # as `a` is: there is no LIKE


def test_names_are_those_of_the_properties_it_looks_at():
    assert compile_sql("a > 1 AND (b IS NULL OR $c IN ('d'))").names == {"a", "b", "$c"}


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("", 1),
        ("a >", 4),
        ("a > > 5", 5),
        ("a = #", 5),
        ("a = 1 #", 7),
        ("a = 'x", 5),
        ("(a = 1", 7),
        ("a = NULL", 5),
        ("TRUE = 5", 8),
        ("a > 'x'", 5),
        ("(a = 1) > 5", 2),
        ("5", 1),
        ("a AND 'x'", 7),
        ("-a", 2),
        ("a BETWEEN 5 AND 1", 17),
        ("'x' IN ('y')", 1),
        ("a IN (5)", 7),
        ("a NOT = 5", 7),
        ("a = 9223372036854775808", 5),
        ("a = 0.0", 5),
        ("a = 1e999", 5),
    ],
)
def test_a_mistake_is_refused_with_its_column(expression, column):
    with pytest.raises(BadExpressionError, match=f"^column {column}: ") as caught:
        compile_sql(expression)
    assert caught.value.column == column
    assert caught.value.response_code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize(
    "expression",
    [
        "a=1 OR " * 2300 + "a=1",
        "a=--1 OR " * 1800 + "a=1",
        "(" * MAX_LENGTH,
        "-" * MAX_LENGTH,
        "NOT " * 4000 + "a",
        "a" + " = a" * (MAX_NESTING + 1),
        "'" * (MAX_LENGTH - 1),
        "a = 1" + " " * MAX_LENGTH,
    ],
    ids=["terms", "signs", "parentheses", "minus", "not", "chain", "quotes", "length"],
)
def test_a_hostile_expression_is_refused_soon(expression):
    began = time.perf_counter()
    with pytest.raises(BadExpressionError):
        compile_sql(expression)
    assert time.perf_counter() - began < 2  # some 100 ms, on a machine with nothing else to do


def test_the_limits_leave_room():
    texts = ", ".join(f"'{number:05d}'" for number in range(1500))
    assert evaluate(f"a IN ({texts})", a="01499") is True
    assert evaluate(" OR ".join(f"a = {number}" for number in range(MAX_TOKENS // 4)), a="999") is True
    assert evaluate("(" * MAX_NESTING + "a = 1" + ")" * MAX_NESTING, a="1") is True


def test_an_expression_is_compiled_once_and_a_mistake_found_once(monkeypatch):
    compiled = compile_sql("a = 'compiled once'")
    with pytest.raises(BadExpressionError):
        compile_sql("a = 'found once' AND")
    monkeypatch.setattr(sql92, "_parse", None)

    assert compile_sql("a = 'compiled once'") is compiled
    with pytest.raises(BadExpressionError, match="column 21"):
        compile_sql("a = 'found once' AND")
