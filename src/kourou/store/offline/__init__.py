"""Store directories with no broker running: look, check, rebuild.

What lives here: StoreDirectory, the files of a store found and mapped (directory, file_sizes, queue_files,
lock); a walk over the log that survives damage (log_scan, rows); and what the command `kourou store` does
with them: dump (with recovered, json_stream), info, messages (with arrow_file), queue_report, index_report,
check (with check_queues, check_index, findings), rebuild.

All of it only reads, but for `rebuild`. The layouts of the files are told where the store writes them;
opening a store for writing is MessageStore's.
"""

from kourou.store.offline.directory import StoreDirectory

__all__ = ["StoreDirectory"]
