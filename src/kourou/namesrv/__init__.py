"""The name server: which brokers there are, which topics they hold, and how a client reaches them.

Brokers register every 30 s and are forgotten 120 s after the last sign of life, or as soon as their
connection is lost. Nothing is kept on disk but the KV config. Name servers do not know of each other: every
broker registers with each.

What lives here: the tables (`routes`), the KV config (`kv`), the configuration, what each request asks of
them (`handlers`) and the server around it. What does not: frames and connections
(`kourou.remoting`).
"""

from kourou.namesrv.config import NameServerConfig
from kourou.namesrv.server import NameServer

__all__ = ["NameServer", "NameServerConfig"]
