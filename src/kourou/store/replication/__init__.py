"""The log between brokers, in Java's bytes: `master` sends it, `slave` takes it, `dispatch` gives what came
its queues, `waits` and `flow` say who may be answered and how fast, `proof` who a slave is; `service` is
both.
"""
