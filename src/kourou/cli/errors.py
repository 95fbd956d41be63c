"""What becomes of an error: one clear line on standard error, and an exit code; never a traceback."""

from __future__ import annotations

import errno
from typing import Any

import typer
from typer.core import TyperGroup

from kourou.errors import KourouError

EXIT_FAILED = 2
EXIT_INTERRUPTED = 130


class OneLineErrors(TyperGroup):
    """A group whose commands end with one line where they fail."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KourouError as error:
            raise self._failed(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone: typer ends quietly
            where = f"{error.filename}: " if error.filename else ""
            raise self._failed(f"{where}{error.strerror or error}") from error
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None

    @staticmethod
    def _failed(message: str) -> typer.Exit:
        typer.echo(f"kourou: {message}", err=True)
        return typer.Exit(EXIT_FAILED)
