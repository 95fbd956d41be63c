"""Plain sockets that speak frames: what a test sends is on the wire as it is, what comes is decoded."""

from __future__ import annotations

import socket

from kourou.remoting.command import RemotingCommand, decode


class Caller:
    """A connection that sends a request and waits for its answer."""

    def __init__(self, port: int, host: str = "127.0.0.1", timeout_s: float = 10) -> None:
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


def free_ports(*steps: int) -> int:
    """A port p so that p + step is free for each of the steps."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
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
