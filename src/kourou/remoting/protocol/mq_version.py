"""Names of the positions in Java's MQVersion, which is what clients say of their version."""

from __future__ import annotations

# From here on each version has a snapshot and a release, ten of a minor version.
_V4_0_0_SNAPSHOT = 212
_LAST_VERSION = 611


def version_name(number: int) -> str:
    """The name of a position in Java's MQVersion: 513 is V5_5_0. Those before 4.0 are given as a number."""
    if number > _LAST_VERSION:
        return "HIGHER_VERSION"
    if number < _V4_0_0_SNAPSHOT:
        return f"V3({number})"
    step, is_release = divmod(number - _V4_0_0_SNAPSHOT, 2)
    return "V" + "_".join(str(400 + step)) + ("" if is_release else "_SNAPSHOT")
