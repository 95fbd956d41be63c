"""Every text of the console is in both languages."""

from __future__ import annotations

import ast
import string
from pathlib import Path

from kourou.admin import operations
from kourou.admin.operations.declare import Column
from kourou.admin.operations.parameters import PARAMETERS
from kourou.console import pages
from kourou.console.texts import CHINESE

PACKAGE = Path(pages.__file__).resolve().parent.parent


def texts() -> dict[str, str]:
    """Every text that is given to t() or later(), the columns of tables, the fields of dialogs; and where."""
    found: dict[str, str] = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            found |= dict.fromkeys(said(node), f"{module.name}:{getattr(node, 'lineno', 0)}")
    return found


def said(node: ast.AST) -> list[str]:
    """The texts of a call of t(), later(), columns() or ask(), and of a table that is declared elsewhere."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        declared = getattr(getattr(operations, node.value.id, None), node.attr, ())
        found = declared if isinstance(declared, tuple) else getattr(declared, "columns", ())
        return [one.label for one in found if isinstance(one, Column)]
    if isinstance(node, ast.keyword | ast.Assign) and "fields" in (
        getattr(node, "arg", ""),
        *(getattr(target, "id", "") for target in getattr(node, "targets", ())),
    ):
        asked = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        names = [name for text in asked for name in str(text).split(", ") if name]
        return [word for name in names for word in field_words(name)]
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
        return []
    constants = [str(part.value) for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
    if node.func.id == "columns":
        parts = "".join(constants).split(", ")
        return [label for label, has_source, _ in (part.partition("=") for part in parts) if has_source]
    return [constants[0]] if node.func.id in ("t", "later") and isinstance(node.args[0], ast.Constant) else []


def field_words(text: str) -> list[str]:
    """The label of a field of a dialog, and the words of its choices."""
    name, _, label = text.partition("=")
    about = PARAMETERS[name]
    choices = [word for word in about.choices.values() if word in CHINESE]  # others are RocketMQ's own
    return [label or about.label or about.help.rstrip("."), *choices]


def names(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_every_text_has_its_translation():
    found = texts()
    assert len(found) > 100
    assert {text: where for text, where in found.items() if text not in CHINESE} == {}


def test_no_translation_is_left_over():
    assert set(CHINESE) - set(texts()) == set()


def test_translations_have_the_same_values():
    assert {text for text, chinese in CHINESE.items() if names(text) != names(chinese)} == set()
