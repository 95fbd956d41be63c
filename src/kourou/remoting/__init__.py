"""Frames and headers: how RocketMQ's processes talk to each other.

    protocol/               what is said: commands, headers, bodies, codes
    connection              one connection that asks and answers; outgoing ones in client
    server                  listening sockets; tls, self_signed, http
    buffers, budgets        how much a peer may take
    signing, timing, metrics

What a request means does not live here.

The way of the data: bytes → `Connection.data_received` → frames → `decode` → the handler of the request's
code → its response → `encode` → one write for all that were read together.
"""
