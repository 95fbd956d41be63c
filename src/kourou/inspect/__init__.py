"""Store directories with no broker running: look, check, rebuild.

    directory, file_sizes, queue_files, lock   the files of a store, found and mapped
    log_scan, rows                             a walk over the log that survives damage
    dump, recovered, json_stream               what is in it, line by line
    info, messages, arrow_file                 in short; messages as rows
    check/                                     whether all of it is right
    rebuild                                    queues and index made anew

All of it only reads, but for `rebuild`. The layouts of the files are told where the store writes them;
opening a store for writing is MessageStore's.
"""

from kourou.inspect.directory import StoreDirectory

__all__ = ["StoreDirectory"]
