"""What becomes of an error: one clear line on standard error, and an exit code; never a traceback."""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from kourou.cli.output import echo
from kourou.errors import KourouError

EXIT_REFUSED = 1
EXIT_FAILED = 2
EXIT_INTERRUPTED = 130


class _OneLine:
    """What ends with one line where it fails, and with its exit code."""

    exit_code = EXIT_FAILED

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]  # of the command that this is mixed with
        except KourouError as error:
            raise self._failed(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone: typer ends quietly
            where = f"{error.filename}: " if error.filename else ""
            raise self._failed(f"{where}{error.strerror or error}") from error
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    def _failed(self, message: str) -> typer.Exit:
        echo(f"kourou: {message}", err=True)
        return typer.Exit(self.exit_code)


class OneLineErrors(_OneLine, TyperGroup):
    """A group whose commands end with one line where they fail."""


class RefusedGroup(_OneLine, TyperGroup):
    """Commands that ask something of a cluster: what it refuses is exit code 1, a wrong usage 2."""

    exit_code = EXIT_REFUSED


class RefusedCommand(_OneLine, TyperCommand):
    """One command that asks something of a cluster."""

    exit_code = EXIT_REFUSED
