"""Plain sockets that speak frames: what a test sends is on the wire as it is, what comes is decoded."""

from __future__ import annotations

import itertools
import os
import random
import socket

from kourou.remoting.protocol.command import RemotingCommand, decode


class Caller:
    """A connection that sends a request and waits for its answer."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 120) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)

    def call(self, request: RemotingCommand | bytes) -> RemotingCommand:
        """The answer to a request, or to the bytes of a frame."""
        self._socket.sendall(request if isinstance(request, bytes) else request.encode())
        return decode(self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            if not part:
                raise ConnectionError(f"the server hung up after {len(data)} of {size} bytes")
            data += part
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Below those that the system gives to outgoing connections, one of which could take a port before its server
# does; a range for each of the processes that run tests side by side.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
_PORTS = range(12_000 + _WORKER * 2_200, 12_000 + (_WORKER + 1) * 2_200, 5)
_next_port = itertools.cycle(random.sample(_PORTS, len(_PORTS))).__next__


def free_ports(*steps: int) -> int:
    """A port p so that p + step is free for each of the steps. It is not given again soon."""
    for _ in _PORTS:
        port = _next_port()
        if all(_is_free(port + step) for step in steps):
            return port
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True
