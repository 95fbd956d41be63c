"""Places on a mounted file system, as a user may spell them: what Hadoop makes of a text, this makes too.

    /data/x   file:/data/x   file:///data/x   file://localhost/data/x   data/x   all lead to one directory

Percent signs and `~` are characters of a name, as for Hadoop.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from kourou.errors import ConfigError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)(?://([^/]*))?(.*)", re.DOTALL)


def local_place(text: str, what: str) -> Path:
    """The directory that a text names, from the root on: a relative one is below that of this process.
    ConfigError where it is of another file system, or of another machine."""
    found = _SCHEME.fullmatch(text)
    if found is None:
        return Path(os.path.abspath(text))
    scheme, host, path = found.groups()
    if scheme.lower() != "file":
        raise ConfigError(
            f"{what}={text}: {scheme} is no mounted file system, and driver and workers share one"
        )
    if host and host != "localhost":
        raise ConfigError(f"{what}={text}: {host} is the name of a machine there; write file:///{host}{path}")
    return Path(os.path.abspath(path or "/"))
