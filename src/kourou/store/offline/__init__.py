"""Store directories with no broker running: look, check, rebuild.

What lives here: StoreDirectory (directory, queue_files, lock), a walk over the log that survives damage
(log_scan), and what the command `kourou store` shows: dump, info, messages, check, rebuild. All of it reads
only, but for `rebuild`. The files' layouts are told where the store writes them; opening a store for
writing is MessageStore's.
"""

from kourou.store.offline.directory import StoreDirectory

__all__ = ["StoreDirectory"]
