"""The commands: every verb with its arguments and options, and the tables of verbs in docs/admin.md."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from kourou.cli import app
from kourou.cli.mqadmin.commands import verbs
from reference_text import MADE, cell, first_paragraph, table

HEAD = f"""# The command line

{MADE}
`--help` of each command says the same. Exit codes: 0 done; 1 done and something is wrong, or a cluster
refused; 2 not done, and one line on standard error says why; 130 interrupted. `kourou mqadmin` takes the
verbs and flags of Java's mqadmin: [Operating a cluster](../admin.md#verbs-of-kourou-mqadmin).
"""


def commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Every command below one, with the words that call it."""
    below: dict[str, Any] = getattr(command, "commands", None) or {}
    if not below or getattr(command, "invoke_without_command", False):
        yield words, command
    for name, part in below.items():
        if not part.hidden:
            yield from commands(part, f"{words} {name}")


def usage(words: str, command: Any) -> str:
    """How a command is called."""
    arguments = [
        one.metavar or one.name.upper() for one in command.params if one.param_type_name == "argument"
    ]
    return " ".join([words, *arguments])


def value(option: Any) -> str:
    """What an option takes, as it is written behind its name."""
    if option.is_flag:
        return ""
    if option.metavar:
        return f" {option.metavar}"
    choices = getattr(option.type, "choices", None)
    if choices:
        return " " + "|".join(str(one.value if isinstance(one, Enum) else one) for one in choices)
    kind = type(option.type).__name__.lower()
    return " NUMBER" if "int" in kind or "float" in kind else f" {option.name.upper()}"


def default(option: Any) -> str:
    """What counts if an option is not given."""
    if option.required:
        return "required"
    found = option.default
    if found is None or found is False or found == [] or callable(found) or not option.show_default:
        return ""
    if found is True:
        return "" if not option.secondary_opts else f"`{option.opts[0]}`"
    return f"`{found.value if isinstance(found, Enum) else found}`"


def option_rows(command: Any) -> Iterator[tuple[str, str, str]]:
    """The arguments and options of a command."""
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        told = " ".join((one.help or "").split()).replace("<", "&lt;")
        if one.param_type_name == "argument":
            yield f"`{one.metavar or one.name.upper()}`", told, "required" if one.required else ""
            continue
        names = ", ".join(sorted([*one.opts, *one.secondary_opts], key=len))
        if one.envvar:
            told += f" (`${one.envvar}`)"
        yield f"`{names}{value(one)}`", told, default(one)


def one_command(words: str, command: Any) -> str:
    """The section of a command."""
    paragraphs = (command.help or "").strip().split("\n\n")
    parts = [f"### {words}"]
    for paragraph in paragraphs:
        if paragraph.startswith("\b"):
            parts.append(f"```text\n{paragraph.removeprefix(chr(8)).strip()}\n```")
        else:
            parts.append(" ".join(paragraph.split()).replace("<", "&lt;"))
    rows = list(option_rows(command))
    if rows:
        parts.append(f"`{usage(words, command)}`")
        parts.append(table(("option", "meaning", "default"), rows))
    return "\n\n".join(parts)


def page() -> str:
    """The whole page."""
    root: Any = get_command(app)
    parts = [HEAD.rstrip("\n")]
    for name, command in root.commands.items():
        if command.hidden or name == "mqadmin":
            continue
        parts.append(f"## {name}")
        if getattr(command, "commands", None) and command.help:
            parts.append(first_paragraph(command.help))
        parts += [one_command(words, part) for words, part in commands(command, f"kourou {name}")]
    return "\n\n".join(parts) + "\n"


def admin_table() -> str:
    """Each verb of `kourou admin`, and what it does."""
    root: Any = get_command(app)
    rows = []
    for name, command in root.commands["admin"].commands.items():
        parts: dict[str, Any] = getattr(command, "commands", None) or {"": command}
        for part, verb in parts.items():
            words = [f"kourou admin {name} {part}".strip()]
            words += [one.metavar for one in verb.params if one.param_type_name == "argument"]
            rows.append((f"`{cell(' '.join(words))}`", first_paragraph(verb.help or "")))
    return table(("verb", "what it does"), rows)


def mqadmin_table() -> str:
    """Each verb of `kourou mqadmin`, and what it does."""
    return table(("verb", "what it does"), ((f"`{name}`", verb.help) for name, verb in verbs().items()))
