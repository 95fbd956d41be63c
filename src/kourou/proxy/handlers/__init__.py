"""What the calls of the interface do.

routes.py        QueryRoute, QueryAssignment
sending.py       SendMessage, RecallMessage
transactions.py  EndTransaction, and brokers that ask what became of a transaction
receiving.py     ReceiveMessage
receipts.py      AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue, renewal
"""
