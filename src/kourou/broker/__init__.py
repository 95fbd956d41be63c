"""The broker: what each request does, and the services that live on top of the store.

A request comes in over `remoting`, its handler (broker.handlers) reads its header and answers from the tables
of this package (topics, groups, offsets, clients, locks) or from the store. One thread owns all of it.
"""

from kourou.broker.config import BrokerConfig
from kourou.broker.server import Broker

__all__ = ["Broker", "BrokerConfig"]
