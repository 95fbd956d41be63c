"""The broker: what each request does, and the services that live on top of the store.

    server       Broker, which puts the rest together; config, names
    handlers/    what each request asks, one function a request code
    messages/    sends and pulls, the hot ones, and filters
    pop/         consumption without rebalance
    state/       tables: topics, groups, offsets, clients, locks
    services/    delays, timers, transactions, registration, slaves
    metrics/     what is counted, and told to Prometheus

A request comes in over `remoting`, its handler reads its header and answers from the tables or from the
store. One thread owns all of it.
"""

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker

__all__ = ["Broker", "BrokerConfig"]
