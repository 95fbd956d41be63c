"""Reading: what is wanted (wanted, offsets), the two roads, from brokers (broker_road, pull) and from store
directories (store_plan, store_read, store_table), rows as Arrow batches (rows), and the stream.
"""
