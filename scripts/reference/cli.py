"""The commands: every verb with its arguments and options, a page a group; the tables of docs/admin.md."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from typer.main import get_command

from kourou.cli import app
from kourou.cli.mqadmin.commands import verbs
from kourou.cli.mqadmin.verbs import NOT_THERE
from reference.text import MADE, cell, first_paragraph, table

HEAD = """`--help` of each command says the same. Exit codes: 0 done; 1 done and something is wrong, or a
cluster refused; 2 not done, and one line on standard error says why; 130 interrupted.
"""
# Pages of commands that are no group of their own
PAGES = {
    "servers": ("Servers", ("namesrv", "broker", "proxy", "up", "console")),
    "everyday": ("Send, follow, measure", ("send", "tail", "bench", "doctor")),
}


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
    parts = [f"## {words}"]
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


def groups(root: Any) -> Iterator[tuple[str, str, list[tuple[str, Any]]]]:
    """Each page: its name, its title, and the commands on it with the words that call them."""
    for name, (title, names) in PAGES.items():
        yield name, title, [one for part in names for one in commands(root.commands[part], f"kourou {part}")]
    alone = {part for _, names in PAGES.values() for part in names} | {"mqadmin", "admin"}
    for name, command in root.commands.items():
        if name not in alone and not command.hidden:
            yield name, f"kourou {name}", list(commands(command, f"kourou {name}"))
    admin = root.commands["admin"].commands
    for name, command in admin.items():
        if getattr(command, "commands", None):
            yield f"admin-{name}", f"kourou admin {name}", list(commands(command, f"kourou admin {name}"))
    single = [
        (f"kourou admin {name}", one) for name, one in admin.items() if not getattr(one, "commands", None)
    ]
    yield "admin", "kourou admin export, import", single


def pages() -> dict[str, str]:
    """Every page below docs/reference/cli, by its name."""
    root: Any = get_command(app)
    made, rows = {}, []
    for name, title, found in groups(root):
        parts = [f"# {title}\n\n{MADE.rstrip()}", *(one_command(words, command) for words, command in found)]
        made[name] = "\n\n".join(parts) + "\n"
        listed = ", ".join(f"`{words}`" for words, _ in found)
        rows.append((f"[{title}]({name}.md)", listed))
    made["mqadmin"] = mqadmin_page()
    rows.append(("[kourou mqadmin](mqadmin.md)", "Java's verbs with Java's flags"))
    made["index"] = f"# The command line\n\n{MADE}\n{HEAD}\n{table(('page', 'commands'), rows)}\n"
    return made


def mqadmin_page() -> str:
    """Each verb of `kourou mqadmin` with its flags, and those of Java's that are not there."""
    flags = {name: " ".join(_flag(one) for one in verb.flags) for name, verb in verbs().items()}
    rows = [
        (f"`{name}`", verb.help, f"`{flags[name]}`" if flags[name] else "") for name, verb in verbs().items()
    ]
    return (
        f"# kourou mqadmin\n\n{MADE}\nJava's verbs with Java's flags, for runbooks that have them."
        f" `!` is required, of those with `|` one is.\n\n{table(('verb', 'what it does', 'flags'), rows)}\n\n"
        f"## Verbs of Java's that are not there\n\n{missing_table()}\n"
    )


def _flag(flag: Any) -> str:
    return f"-{flag.short}{flag.kind if flag.kind in '!|' else ''}"


def missing_table() -> str:
    """The verbs of Java's mqadmin that Kourou's has not, and why."""
    return table(("verb", "why it is not there"), ((f"`{name}`", why) for name, why in NOT_THERE.items()))


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
