"""Queues: entries that say where in the log a message lies. Plain ones, with filter bits beside them
(consume_queue_ext), of batches, and all of a store (queue_store).
"""
