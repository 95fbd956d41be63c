"""`kourou admin`: each operation of `kourou.admin.operations` as a command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kourou.admin.operations.declare import OPERATIONS, Operation, Parameter
from kourou.admin.operations.parameters import BadInputError
from kourou.cli.answers import show
from kourou.cli.errors import RefusedGroup
from kourou.cli.run import DEFAULT_NAMESRV, AsJson, Namesrv, Yes, confirm, run

if TYPE_CHECKING:
    from kourou.admin import Admin

GROUPS = {
    "topic": "Topics: where they are, what is in them.",
    "group": "Consumer groups: how far they are, who is there.",
    "producer": "Producers: who sends.",
    "offset": "Where groups go on.",
    "message": "Messages: find, read, send, hand out.",
    "broker": "Single brokers: figures, configuration.",
    "ha": "Replication.",
    "cluster": "Clusters: their brokers, and what they do.",
    "namesrv": "Name servers.",
    "user": "Users of brokers (ACL 2.0).",
    "acl": "What users may do (ACL 2.0).",
}

# What is typed in the example of an operation that has none of its own, by parameter
SAMPLES = {
    "actions": "Pub", "body": "hello", "broker": "broker-a", "bytes_per_s": "1000000",
    "changes": "KEY=VALUE", "client": "10.0.0.7@4711", "clients": "one two", "engine": "F",
    "file": "orders.json", "group": "billing", "key": "o-4711",
    "message_id": "7F0000010A2C2A139A5500000001", "mode": "PULL", "namespace": "ORDER_TOPIC_CONFIG",
    "offset": "0", "perm": "r", "queue": "0", "read_mode": "0", "resource": "Topic:orders",
    "source": "billing", "target": "audit", "to": "1h", "topic": "orders", "user": "app",
    "value": "broker-a:4", "what": "log",
}  # fmt: skip

app = typer.Typer(
    name="admin",
    cls=RefusedGroup,
    no_args_is_help=True,
    help="Operate a cluster: topics, groups, offsets, messages, brokers, name servers."
    " Exit codes: 0 done, 1 refused or failed, 2 wrong usage.",
)


def _command(operation: Operation) -> Callable[..., None]:
    """What typer makes a command of: it looks at the signature."""

    def command(**given: Any) -> None:
        _run(operation, given)

    wanted = {name: (_annotation(one), _default(one)) for name, one in operation.parameters.items()}
    wanted |= {"namesrv": (Namesrv, DEFAULT_NAMESRV)} | ({"yes": (Yes, False)} if operation.confirm else {})
    wanted["json"] = (AsJson, False)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter(name, keyword, default=default, annotation=annotation)
        for name, (annotation, default) in wanted.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {name: annotation for name, (annotation, _) in wanted.items()}
    command.__doc__ = _help(operation)
    return command


def _help(operation: Operation) -> str:
    """What it does, and an example."""
    if "\b\n" in operation.help:
        return operation.help
    words = ["kourou admin", operation.name]
    for name, one in operation.parameters.items():
        if one.is_required and not one.about.secret:
            words += [SAMPLES[name]] if one.is_argument else [one.about.short or f"--{name}", SAMPLES[name]]
    return f"{operation.help}\n\n\b\nExample:\n  {' '.join(words)}"


def _annotation(one: Parameter) -> Any:
    about, is_several = one.about, one.type in (list, dict)
    kind: Any = list[str] if is_several else str if about.read is not None else one.type
    if not one.is_required and one.default is None:
        kind = kind | None
    metavar = about.metavar or None
    shows_default = one.default not in (None, "", False)
    if one.is_argument:
        metavar = metavar if one.is_required else f"[{metavar}]"
        return Annotated[kind, typer.Argument(metavar=metavar, help=about.help, show_default=shows_default)]
    names = [about.short] if about.short else []
    names.append(about.long or f"--{one.name.replace('_', '-')}")
    more: dict[str, Any] = {"min": about.least} if one.type in (int, float) and about.read is None else {}
    if about.secret:
        more["envvar"] = "KOUROU_NEW_PASSWORD"
        if one.is_required:
            more |= {"prompt": about.label, "hide_input": True, "confirmation_prompt": True}
    help = about.help if not about.choices or about.metavar else f"{about.help} {', '.join(about.choices)}."
    return Annotated[
        kind, typer.Option(*names, metavar=metavar, help=help, show_default=shows_default, **more)
    ]


def _default(one: Parameter) -> Any:
    return str(one.default) if one.about.read is not None and isinstance(one.default, int) else one.default


def _run(operation: Operation, given: dict[str, Any]) -> None:
    namesrv, as_json = given.pop("namesrv"), given.pop("json")
    try:
        values = operation.values(given)
        if operation.confirm:
            confirm(operation.confirm.format(**given), given["yes"])

        async def work(admin: Admin) -> Any:
            await operation.check(admin, values)
            return await operation.run(admin, **values)

        found = run(namesrv, work)
    except BadInputError as error:
        raise typer.BadParameter(str(error)) from None
    show(operation, values, found, as_json=as_json)


_groups = {
    name: typer.Typer(name=name, no_args_is_help=True, help=about_group)
    for name, about_group in GROUPS.items()
}
for _operation in OPERATIONS.values():
    _group, _, _verb = _operation.name.rpartition(" ")
    (_groups[_group] if _group else app).command(_verb)(_command(_operation))
for _part in _groups.values():
    app.add_typer(_part)
