"""Store directories with no broker running: look, check, rebuild.

    directory, file_sizes, queue_files, lock   the files of a store, found and mapped
    log_scan, rows                             a walk over the log that survives damage
    dump, recovered, json_stream               what is in it, line by line
    info, messages, arrow_file                 a summary; messages as rows
    check/                                     is everything consistent?
    look/                                      pages of it for a browser, down to the bytes
    rebuild                                    new queues and a new index from the log

All of it only reads, but for `rebuild`. The layouts of the files are told where the store writes them;
opening a store for writing is MessageStore's.
"""

from kourou.inspect.directory import StoreDirectory

__all__ = ["StoreDirectory"]
