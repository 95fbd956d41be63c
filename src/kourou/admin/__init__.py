"""Admin: what an operator does with a cluster, Java's or Kourou's, as a Python API.

What lives here: `Admin` and its parts, one for each kind of thing (topics, groups, offsets, messages,
brokers, clusters, name servers, metadata), what they answer (`model`), what an operator can ask and order
(operations/), and tools that use them (tools/). What does not: tables, JSON and exit codes, which are
`kourou.cli`'s; routes and sends, which are `kourou.client`'s and used here.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.topics.create("orders", cluster="DefaultCluster", queues=8)
        progress = await admin.groups.progress("billing")

A request goes from a part through `link`, which finds the brokers it is for, to `ClientCore`. What a server
refuses is a RefusedError with its code and words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kourou.admin.admin import Admin as Admin
    from kourou.admin.link import AdminError as AdminError

__all__ = ["Admin", "AdminError"]


def __getattr__(name: str) -> Any:
    """What is imported from here when it is needed: help and completion need the declarations alone."""
    if name == "Admin":
        from kourou.admin.admin import Admin

        return Admin
    if name == "AdminError":
        from kourou.admin.link import AdminError

        return AdminError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
