"""Options: what a user told the data source, read with one set of rules.

Spark gives options with lower-case names; here they have the names of the documentation again, and a name
that nobody knows is refused, with the nearest one that somebody does.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from kourou.errors import ConfigError

# Options that Spark itself adds or reads.
_SPARKS_OWN = frozenset(("path", "paths", "checkpointlocation", "queryname", "mergeschema", "timezone"))


class OptionError(ConfigError):
    """An option that cannot be used, by its name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"option {name}: {why}")
        self.name = name


def check_given(given: Mapping[str, str]) -> None:
    """Refuse a call without any option, and say where that comes from."""
    if not given:
        raise ConfigError(
            "no option was given, and Spark keeps none for a table: instead of CREATE TABLE … USING rocketmq,"
            " use CREATE TEMPORARY VIEW … USING rocketmq OPTIONS (namesrv '…', topic '…')"
        )


class Options:
    """Options by their names; each is read by the kind of value that it has."""

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        names = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            lowered = key.lower()
            if lowered in names:
                self._values[names[lowered]] = value
            elif lowered not in _SPARKS_OWN and not lowered.startswith("spark."):
                near = difflib.get_close_matches(lowered, names, 1)
                hint = (
                    f"; did you mean {names[near[0]]}?" if near else f": there are {', '.join(sorted(known))}"
                )
                raise OptionError(key, f"it is not known{hint}")
            else:
                self._values[lowered] = value

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        """A text; None where it was not given."""
        return self._values.get(name)

    def choice(self, name: str, values: Collection[str], default: str) -> str:
        """One of some words."""
        text = self._values.get(name, default).strip().lower()
        if text not in values:
            raise OptionError(name, f"{text!r} is none of {', '.join(values)}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number."""
        text = self._values.get(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise OptionError(name, f"{text!r} is no whole number") from None
        if value < least:
            raise OptionError(name, f"{value} is less than {least}")
        return value

    def size(self, name: str) -> int | None:
        """A number of bytes, which may end in k, m or g."""
        text = self._values.get(name, "").strip().lower().removesuffix("b")
        if not text:
            return None
        unit = {"k": 1024, "m": 1024**2, "g": 1024**3}.get(text[-1:], 1)
        digits = text if unit == 1 else text[:-1]
        if not digits.isdecimal() or int(digits) == 0:
            raise OptionError(name, f"{text!r} is no size, such as 67108864 or 64m")
        return int(digits) * unit

    def seconds(self, name: str, default: float) -> float:
        """A time: milliseconds as a number, or 500ms, 30s, 5m, 1h."""
        text = self._values.get(name, "").strip().lower()
        if not text:
            return default
        for suffix, unit in (("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 0.001)):
            digits = text.removesuffix(suffix).strip()
            if text.endswith(suffix) and digits.isdecimal():
                return int(digits) * unit
        raise OptionError(name, f"{text!r} is no time, such as 500ms, 30s or 15m")

    def names(self, name: str) -> list[str] | None:
        """Texts with commas between them, or a JSON array."""
        text = self._values.get(name)
        if text is None:
            return None
        if text.lstrip().startswith("["):
            values = self.json(name)
            if not all(isinstance(value, str) for value in values):
                raise OptionError(name, "it must be an array of texts")
        else:
            values = [part.strip() for part in text.split(",") if part.strip()]
        if not values:
            raise OptionError(name, "it is empty")
        return list(values)

    def json(self, name: str) -> Any:
        """A JSON value."""
        try:
            return json.loads(self._values[name])
        except json.JSONDecodeError as error:
            raise OptionError(name, f"it is no JSON: {error}") from None

    def only_one_of(self, *names: str) -> str | None:
        """Which of some options that exclude each other was given."""
        given = [name for name in names if name in self._values]
        if len(given) > 1:
            raise OptionError(given[1], f"it contradicts {given[0]}: give one of them")
        return given[0] if given else None

    def refuse(self, names: Collection[str], why: str) -> None:
        """Refuse options that have no meaning here."""
        for name in names:
            if name in self._values:
                raise OptionError(name, why)
