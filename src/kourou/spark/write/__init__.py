"""Writing: the sink, batches to brokers (send), and exactly once (transactions, checks)."""
