"""Everything that a cluster knows beside its messages, as one JSON document, and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kourou.admin.operations.declare import ADMIN, Document, Text, operation
from kourou.admin.operations.parameters import Param

if TYPE_CHECKING:
    from kourou.admin import Admin


@operation(
    "export",
    Document(),
    role=ADMIN,
    file=Param("Where to write; else to standard output.", metavar="FILE", argument=True),
)
async def export(admin: Admin, file: Text = None, part: list[str] | None = None, cluster: Text = None) -> Any:
    """Write topics, groups, configuration and offsets as JSON.

    \b
    Example: a copy of everything before a change
      kourou admin export before.json
    """
    import orjson

    from kourou.admin.metadata import PARTS

    found = await admin.metadata.export(cluster, tuple(part or PARTS))
    if file is None:
        return found
    Path(file).write_bytes(orjson.dumps(found, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return {"file": file, "brokers": len(found["brokers"])}


@operation(
    "import", Document(), role=ADMIN, confirm="Change what the cluster knows to what {file} says?",
    file=Param("What `export` wrote.", metavar="FILE"),
)  # fmt: skip
async def import_(admin: Admin, file: str, part: list[str] | None = None, cluster: Text = None) -> Any:
    """Make the topics and groups of an export, and set their offsets.

    What is there already is changed to what the export says. The configuration is taken over with
    `--part config` only, and then without what belongs to a machine: paths, addresses, names.
    """
    from kourou.admin import AdminError
    from kourou.remoting.protocol import lenient_json

    try:
        document = lenient_json.loads(Path(file).read_bytes())
        _ = document["format"]
    except (ValueError, TypeError, KeyError):
        raise AdminError(f"{file} is no export of `kourou admin export`") from None
    wanted = tuple(part or ("topics", "groups", "offsets"))
    return await admin.metadata.import_all(document, cluster=cluster, parts=wanted)
