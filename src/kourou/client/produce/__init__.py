"""Sending: Producer, and the way of a message: the queues of its topic (publication), the broker that takes
it (sending, faults), several at once (batches), what comes back (receipts), transactions, requests and
replies.
"""
