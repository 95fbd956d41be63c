"""Is a store consistent? The log, its queues and its index, and the findings. `whole` checks all of it;
queue_report and index_report show one part.
"""
