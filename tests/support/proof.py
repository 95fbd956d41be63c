"""How far proofs go: PROOF=quick for an answer in minutes, PROOF=full for what a build machine can do."""

from __future__ import annotations

import os
from typing import TypeVar

PROOF = os.environ.get("PROOF") or "quick"
assert PROOF in ("quick", "full"), f"PROOF={PROOF}: quick or full"

T = TypeVar("T")


def proof(*, quick: T, full: T) -> T:
    """A number of rounds, seeds, seconds: the one that was asked for."""
    return full if PROOF == "full" else quick
