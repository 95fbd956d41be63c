"""The table of errors: every class that Kourou raises on purpose, and the response code that it becomes."""

from __future__ import annotations

import importlib
import pkgutil

import kourou
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode
from reference.text import MADE, first_paragraph, table

HEAD = f"""# Errors

{MADE}
Everything that Kourou raises on purpose is a `KourouError`, with a message that says what to do. A server
that meets one answers the response code beside it; a client that is answered with a code raises
`RefusedError`, which has it as `code`. The command ends with one line on standard error and the exit code
2, or 1 where a cluster refused.

"""


def classes() -> list[type[KourouError]]:
    """All public classes of errors, by where they are defined."""
    for module in pkgutil.walk_packages(kourou.__path__, "kourou."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, waiting = set(), [KourouError]
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting += one.__subclasses__()
    ours = (one for one in found if not one.__name__.startswith("_") and one.__module__.startswith("kourou."))
    return sorted(ours, key=lambda one: (one.__module__, one.__name__))


def response(one: type[KourouError]) -> str:
    """The response code of a class, by its name."""
    code = ResponseCode(one.response_code)
    return f"{code.name} ({int(code)})"


def page() -> str:
    """The whole page."""
    rows = [
        (f"`{one.__module__}.{one.__name__}`", f"`{one.__base__.__name__}`" if one.__base__ else "",
         response(one), first_paragraph(one))
        for one in classes()
    ]  # fmt: skip
    codes = [(str(int(code)), code.name) for code in sorted(ResponseCode)]
    return (
        f"{HEAD}{table(('class', 'is a', 'answered as', 'when'), rows)}\n"
        "\n## Response codes\n\nJava's. Those of the controller are never answered here.\n\n"
        f"{table(('code', 'name'), codes)}\n"
    )
