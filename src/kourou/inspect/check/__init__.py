"""Whether a store is right: the log, its queues, its index, and the findings. `whole` is all of it;
queue_report and index_report tell of one.
"""
