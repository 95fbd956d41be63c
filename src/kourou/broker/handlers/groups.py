from __future__ import annotations

from typing import Any

HANDLERS: dict[Any, Any] = {}
