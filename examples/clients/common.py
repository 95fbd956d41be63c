"""Runs an example on the cluster of the command line, or on one of its own that is gone afterwards."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from kourou.testing import Cluster


def run(main: Callable[[str], Coroutine[Any, Any, None]]) -> None:
    """Call main(namesrv)."""
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
        return
    print("no name server was given: starting a cluster for this example", file=sys.stderr)
    with Cluster(config={"messageDelayLevel": "1s 2s 3s", "transactionCheckInterval": "1000"}) as cluster:
        cluster.create_topic("orders", queues=4)
        asyncio.run(main(cluster.namesrv))
