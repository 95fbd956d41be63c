"""Memory of an open store of 10 GiB: resident memory less the pages of mapped files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.common import Row, scratch

GIB = 1 << 30
FILES = 10


def run() -> list[Row]:
    """One row, measured in a process of its own, beside the same process before it opens the store."""
    with scratch() as root:
        before, after = _open_in_a_process(root)
    return [
        Row(
            "memory of an open 10 GiB store",
            after,
            before,
            "MB",
            "the interpreter with numpy and the store's modules",
            100,
            lower_is_better=True,
        )
    ]


def _open_in_a_process(root: Path) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", str(root)], capture_output=True, text=True, check=True
    )
    before, after = done.stdout.split()
    return float(before), float(after)


def heap_mb() -> float:
    """Anonymous resident memory, in MB: what is not a page of a mapped file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("this kernel does not tell RssAnon")


def main(root: str) -> None:
    """Makes a store of 10 GiB (one file full of messages, and nine like it), opens it, and reads from it."""
    from kourou.store import InnerMessage, MessageStore, MessageStoreConfig

    config = MessageStoreConfig(store_path_root_dir=root)
    before = heap_mb()
    with MessageStore(config) as store:
        body = bytes(1_000_000)
        for number in range(FILES * GIB // 1_000_300 - 2000):
            assert store.put_message(InnerMessage.of("large", number % 8, body, f"KEYS\x01{number}\x02")).ok
    with MessageStore(config) as store:
        assert store.commit_log.max_offset > (FILES - 2) * GIB
        for queue_id in range(8):
            offset = store.min_offset("large", queue_id)
            while (result := store.get_message("large", queue_id, offset, 32)).records:
                offset = result.next_begin_offset
        print(before, heap_mb())


if __name__ == "__main__":
    main(sys.argv[1])
