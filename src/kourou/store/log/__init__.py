"""Files of the log: mapped (mapped_file), made ahead (allocate), flushed (flush), and the CommitLog of them.
`disk` is all that the store asks of a file system.
"""
