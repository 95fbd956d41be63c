"""A RocketMQ cluster for tests: a name server and brokers inside the test's own process.

    with Cluster() as cluster:
        cluster.create_topic("orders", queues=4)
        run_my_application(namesrv=cluster.namesrv)

It listens on free ports of 127.0.0.1, keeps its files in a temporary directory and is gone at the end. The
pytest fixture `kourou_cluster` (one for the whole run) comes with the package.
"""

from kourou.testing.cluster import Cluster

__all__ = ["Cluster"]
