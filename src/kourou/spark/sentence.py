"""What a user sees of an error of ours: one sentence, at the top.

Spark shows the whole traceback of a Python process that failed, with the sentence at its end. Of an error
that says all (KourouError) it is to show that alone, which it does where SPARK_HIDE_TRACEBACK is set when it
looks. The process ends there, so nobody else is concerned. Other errors are faults, and keep their traceback.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

from kourou.errors import KourouError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def in_one_sentence(work: Callable[_P, _T]) -> Callable[_P, _T]:
    """Something that Spark calls."""

    @functools.wraps(work)
    def called(*arguments: _P.args, **options: _P.kwargs) -> _T:
        try:
            return work(*arguments, **options)
        except KourouError:
            _hide_traceback()
            raise

    return called


def rows_in_one_sentence(rows: Iterator[Any]) -> Iterator[Any]:
    """Rows that Spark takes."""
    try:
        yield from rows
    except KourouError:
        _hide_traceback()
        raise


def _hide_traceback() -> None:
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
