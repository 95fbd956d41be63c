"""The proxy: RocketMQ 5's official clients, which speak gRPC, before any cluster, Java's or ours.

    protocol/        the interface: messaging.proto, and the classes that are made from it
    config.py        rmq-proxy.json, with Java's keys
    server.py        Proxy: the gRPC server, the port that it listens on, and what the calls share
    door.py          one port for TLS and plain text
    access.py        who calls, and whether they may
    calls.py         a call: who calls, until when; errors become statuses
    statuses.py      StatusError, and the status for what a broker answers
    cluster.py       the brokers behind: routes, requests, what is known of topics and groups
    clients.py       settings, heartbeats, telemetry streams of the clients that are there
    handlers/        what the calls do: routes, sending, receiving, receipts, transactions
    relay.py         clients that speak remoting: requests passed on to the brokers
    metrics.py       what Prometheus is told
    messages.py      messages of the interface to records and back

The way of a message out: `ReceiveMessage` is a POP_MESSAGE to the broker that the client names. Each message
has a receipt handle in it from which an acknowledgement finds its check point again, so that any proxy may
take it, also one that was started since. What is not the interface's business (queues, check points, retries,
order) is the broker's. It needs the extra `proxy`.
"""
