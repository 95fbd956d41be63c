"""Compile the interface of the proxy, messaging.proto, to the descriptors that the package reads.

python scripts/make_messaging.py [--check]       needs grpcio-tools
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

HOME = Path(__file__).parents[1] / "src/kourou/proxy/protocol"
MADE = HOME / "messaging.binpb"


def compiled() -> bytes:
    """The descriptors of the file and of what it imports."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory, MADE.name)
        included = Path(grpc_tools.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{HOME}", f"-I{included}", "--include_imports"]
        if protoc.main([*arguments, f"--descriptor_set_out={made}", "messaging.proto"]):
            raise SystemExit("messaging.proto cannot be compiled")
        return made.read_bytes()


def main() -> None:
    """Write the descriptors, or with --check say whether they are those of the interface."""
    data = compiled()
    if "--check" not in sys.argv[1:]:
        MADE.write_bytes(data)
    elif MADE.read_bytes() != data:
        raise SystemExit(f"{MADE.name} is older than messaging.proto: run scripts/make_messaging.py")


if __name__ == "__main__":
    main()
