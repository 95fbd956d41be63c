"""The declarations of what an operator can ask or order: each is whole, and each face shows it."""

from __future__ import annotations

import re
import shlex
import string
from typing import Any

import pytest
from typer.main import get_command

from kourou.admin.operations import OPERATIONS
from kourou.admin.operations.declare import Done, Operation, Table
from kourou.admin.operations.parameters import PARAMETERS, BadInputError, read_time
from kourou.cli import app
from kourou.cli.mqadmin.commands import verbs
from kourou.console.door.users import Role

ADMIN: Any = get_command(app).commands["admin"]  # type: ignore[attr-defined]


def command(operation: Operation) -> Any:
    found = ADMIN
    for word in operation.name.split():
        found = found.commands[word]
    return found


def names(text: str) -> set[str]:
    return {name.partition(".")[0] for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_a_declaration_is_whole(operation: Operation) -> None:
    assert operation.help.partition("\n")[0].endswith(".")
    assert Role[operation.role.upper()]
    known = {*operation.parameters, "found"}
    shown = operation.shown
    told = shown.text if isinstance(shown, Done) else shown.title if isinstance(shown, Table) else ""
    assert names(operation.confirm) | names(told) <= known
    assert not operation.needs or operation.needs in known
    assert set(operation.options) | set(operation.special) <= known
    if isinstance(shown, Table):
        labels = [column.label for column in shown.columns]
        assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_it_is_a_command(operation: Operation) -> None:
    """With all its parameters, JSON for scripts, and a question before what deletes or moves something."""
    found = command(operation)
    options = {name for one in found.params for name in one.opts}
    assert {one.name for one in found.params} >= {*operation.parameters, "namesrv", "json"}
    assert ("--yes" in options) == bool(operation.confirm)
    for one in operation.parameters.values():
        assert one.is_argument or one.about.short in {"", *options}
    assert found.help.split("\n")[0] == operation.help.split("\n")[0]


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_its_help_has_an_example_that_is_right(operation: Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOUROU_NEW_PASSWORD", "secret")
    examples = re.findall(rf"^  kourou admin {operation.name}\b(.*)", command(operation).help, re.MULTILINE)
    assert examples
    for example in examples:
        context = command(operation).make_context(operation.name, shlex.split(example))
        assert operation.values(context.params)


def test_every_parameter_that_is_described_is_used() -> None:
    used = {name for operation in OPERATIONS.values() for name in operation.parameters}
    assert set(PARAMETERS) - used == set()


@pytest.mark.parametrize(
    "verb", [verb for verb in verbs().values() if verb.operation], ids=lambda one: one.name
)
def test_flags_of_java_fill_parameters(verb: Any) -> None:
    filled = [flag.parameter for flag in verb.flags if flag.parameter]
    assert set(filled) <= set(verb.operation.parameters)
    assert len(set(filled)) == len(filled)
    required = {name for name, one in verb.operation.parameters.items() if one.is_required}
    assert required <= set(filled)


def test_every_verb_that_an_operation_names_is_there() -> None:
    named = {operation.java.split()[0] for operation in OPERATIONS.values() if operation.java}
    assert named <= set(verbs())
    assert all(
        re.fullmatch(r"\w+[!|:-]\w+(=\w*)?", flag)
        for one in OPERATIONS.values()
        for flag in one.java.split()[1:]
    )


@pytest.mark.parametrize(
    ("operation", "given", "wanted"),
    [
        (
            "topic create",
            {"topic": "a", "queues": "4", "perm": " r"},
            {"topic": "a", "queues": 4, "perm": 4},
        ),
        ("topic create", {"topic": "a", "order": "TRUE", "type": "fifo"}, {"order": True, "type": "FIFO"}),
        ("topic allocate", {"topic": "a", "clients": "x, y"}, {"clients": ["x", "y"]}),
        ("broker set", {"changes": "a=1\n\nb = 2=3"}, {"changes": {"a": "1", "b": " 2=3"}}),
        ("broker set", {"changes": ["a="]}, {"changes": {"a": ""}}),
        ("offset reset", {"group": "g", "topic": "t", "to": "last"}, {"to": -1}),
        ("message send", {"topic": "t", "body": " b ", "delay": "1.5"}, {"body": " b ", "delay": 1.5}),
        ("message send", {"topic": "t", "body": "b", "delay": ""}, {"delay": None}),
    ],
)
def test_what_is_given_is_read(operation: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
    values = OPERATIONS[operation].values(given)
    assert {name: values[name] for name in wanted} == wanted
    assert set(values) == set(OPERATIONS[operation].parameters)


@pytest.mark.parametrize(
    ("operation", "given", "why"),
    [
        ("topic create", {}, "Topic is missing"),
        ("topic create", {"topic": "a", "queues": "x"}, "'x' is no number"),
        ("topic create", {"topic": "a", "queues": -1}, "queues is 0 or more"),
        ("topic create", {"topic": "a", "perm": "x"}, "'x' is no permission"),
        ("topic create", {"topic": "a", "type": "x"}, "'x' is no type: say NORMAL, DELAY"),
        ("broker set", {"changes": "a"}, "'a' is no NAME=VALUE"),
        ("acl put", {"user": "u", "resource": "*", "actions": ["Pub", "Fly"]}, "'Fly' is no actions"),
        ("message key", {"topic": "t", "key": "k", "begin": "soon"}, "'soon' is no time"),
    ],
)
def test_what_is_wrong_is_told(operation: str, given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInputError, match=re.escape(why)):
        OPERATIONS[operation].values(given)


def test_times() -> None:
    now = read_time("now")
    assert 0 <= now - 600_000 - read_time("10m") < 60_000
    assert read_time("-1") == -1
    assert read_time("2026-11-15#08:30:00:123") == read_time("2026-11-15T08:30") + 123
