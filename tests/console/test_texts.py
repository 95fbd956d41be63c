"""Every text of the console is in both languages."""

from __future__ import annotations

import ast
import string
from pathlib import Path

from kourou.console import pages
from kourou.console.texts import CHINESE

PACKAGE = Path(pages.__file__).resolve().parent.parent


def texts() -> dict[str, str]:
    """Every text that is given to t() or later(), and where."""
    found = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in ("t", "later") and isinstance(node.args[0], ast.Constant):
                found[str(node.args[0].value)] = f"{module.name}:{node.lineno}"
    return found


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
