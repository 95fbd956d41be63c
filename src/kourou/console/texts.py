"""Texts: what the console says, in English and in Chinese (assets/zh.json), where the English text is the
key."""

from __future__ import annotations

from importlib import resources

import orjson
from nicegui import ui
from starlette.requests import Request

ENGLISH_CODE, CHINESE_CODE = "en", "zh"
LANGUAGE_COOKIE = "kourou_language"
_STORED = "language"


def _read_chinese() -> dict[str, str]:
    sections = orjson.loads(resources.files("kourou.console").joinpath("assets/zh.json").read_bytes())
    return {english: chinese for section in sections.values() for english, chinese in section.items()}


CHINESE = _read_chinese()


def language_of(request: Request) -> str:
    """The language of a browser: what was chosen, else what it prefers."""
    chosen = request.cookies.get(LANGUAGE_COOKIE)
    if chosen in (ENGLISH_CODE, CHINESE_CODE):
        return str(chosen)
    preferred = request.headers.get("accept-language", "").lower()
    return CHINESE_CODE if preferred.startswith(CHINESE_CODE) else ENGLISH_CODE


def use_language(language: str) -> None:
    """The language of the tab that is being drawn."""
    ui.context.client.storage[_STORED] = language


def current_language() -> str:
    """The language of the tab that is being drawn."""
    return str(ui.context.client.storage.get(_STORED, ENGLISH_CODE))


def t(text: str, **values: object) -> str:
    """A text in the language of the tab, with values for its {names}."""
    found = translate(text, current_language())
    return found.format(**values) if values else found


def translate(text: str, language: str) -> str:
    """A text in a language; English where it has no other (a test finds those)."""
    return CHINESE.get(text, text) if language == CHINESE_CODE else text


def later(text: str) -> str:
    """Mark a text that is translated where it is shown, by `t`."""
    return text
