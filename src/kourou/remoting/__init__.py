"""Frames and headers: how RocketMQ's processes talk to each other.

What lives here: RemotingCommand in its two forms (command), the codes of requests and responses (codes), a
connection that asks and answers (connection), a server that keeps connections (server), and Java's JSON
where it is not strict (lenient_json). What a request means does not live here.

The way of the data: bytes → `Connection.data_received` → frames → `decode` → the handler of the request's
code → its response → `encode` → one write for all that were read together.
"""
