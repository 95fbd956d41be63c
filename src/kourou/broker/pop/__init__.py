"""POP: consumption without rebalance. A client asks a broker for messages of a topic, whichever queue they
are in, and acknowledges each; what it does not acknowledge in time comes again.

    checkpoints.py  what is written of messages in flight: check points and acknowledgements
    admission.py    which requests are served
    popper.py       POP_MESSAGE, NOTIFICATION, POLLING_INFO
    peek.py         PEEK_MESSAGE
    polls.py        the requests that wait for a message
    acks.py         ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME
    settled.py      check points that are acknowledged before they are due: revive need not read them
    buffer.py       check points that wait in memory for their acknowledgements, as an option
    order.py        ordered groups: which messages of a queue are in flight
    revive.py       what was not acknowledged goes to the retry topic
    recovery.py     what is known again after a crash, from the log
    modes.py        which groups pull and which pop, and who gets which queues

The way of a message: `Popper` reads it from its queue and writes a check point, a timer message that comes to
the revive topic when the invisible time is nearly over. An acknowledgement is a timer message, too, which
comes a second later. `ReviveService` reads both: what a check point names and no acknowledgement does is put
into the retry topic of the group, from which it is popped again. An ordered group has no retry topic: its
queue is blocked while messages of it are in flight, and the next pop begins with the first that is left.
"""
