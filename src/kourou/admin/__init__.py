"""Admin: what an operator does with a cluster, Java's or Kourou's, as a Python API.

What lives here: `Admin` and its parts, one for each kind of thing (topics, groups, offsets, messages,
brokers, clusters, name servers, metadata), what they answer (`model`), and tools that use them (tools/). What
does not: tables, JSON and exit codes, which are `kourou.cli`'s; routes and sends, which are `kourou.client`'s
and used here.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.topics.create("orders", cluster="DefaultCluster", queues=8)
        progress = await admin.groups.progress("billing")

A request goes from a part through `link`, which finds the brokers it is for, to `ClientCore`. What a server
refuses is a RefusedError with its code and words.
"""

from kourou.admin.admin import Admin
from kourou.admin.link import AdminError

__all__ = ["Admin", "AdminError"]
