"""Consuming: Consumer, PullConsumer and, in pop/, SimpleConsumer.

The way of a message: `Assignment` says which queues are read; for each a pull is under way (`pulling`),
whose answer is a MessageBatch (`received`) in the ProcessQueue; the Inbox gives queues that have something to
whoever takes: the handler's tasks, `async for`, `batches` or `fetch_arrow`. What is done moves the offset
that `offsets` keeps. What is popped has no offset here: it is acknowledged.
"""
