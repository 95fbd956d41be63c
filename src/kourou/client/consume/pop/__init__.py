"""POP: consuming without rebalance. Messages are asked for by topic, and acknowledged one by one.

batches.py          PopBatch: what a pop brought, and the receipt handles of its messages
popping.py          Popper: the requests
simple_consumer.py  SimpleConsumer: receive, ack, change_invisible, when the caller wants
queues.py           PopQueues: what a push Consumer pops where the broker's request mode is POP
"""
