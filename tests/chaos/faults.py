"""Faults: what happens to a cluster at a moment by chance, and how it is undone."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chaos import mounts, peers
from chaos.cluster import OPEN_FILES, Cluster
from chaos.load import TOPIC, Load
from chaos.nodes import Node
from kourou.message.compression import CompressionType
from support.poison import bomb
from support.recorded.wire import Caller
from support.sites.broker import until

HOUR_S = 3600
MANY = 400  # connections
BOMB_BYTES = 64 << 20
CLOCK_SETTLES_S = 4.0  # longer than any delay
CALM_S = (0.3, 2.5)  # between two faults
LAST_KILL = 0.5  # of broker-b, in parts of the run: memory is compared over what follows


class Faults:
    """The faults that a cluster can have. `disk` is the small one of broker-b, if there is one."""

    def __init__(self, cluster: Cluster, load: Load, chance: random.Random, disk: Path | None) -> None:
        self._cluster = cluster
        self._load = load
        self._chance = chance
        self._disk = disk
        self.counts: Counter[str] = Counter()
        self.spares_b = False  # broker-b is not killed any more
        self.last = ""

    def strike(self) -> None:
        """Let something happen, and undo it. Blocks for some seconds: for a thread."""
        kinds: list[Callable[[], str]] = [
            self._kill, self._kill, self._kill, self._pause, self._pause, self._set_clock, self._flood,
            self._half_frames, self._deaf, self._start_twice, self._bomb, self._restart,
        ]  # fmt: skip
        if self._disk is not None:
            kinds += [self._fill_disk, self._read_only]
        what = self._chance.choice(kinds)()
        self.last = what
        self.counts[what] += 1
        time.sleep(self._chance.uniform(*CALM_S))

    def _victim(self) -> Node:
        nodes = self._cluster.nodes
        return self._chance.choice(
            [node for node in nodes if not (self.spares_b and node is self._cluster.b)]
        )

    def _wait(self, most_s: float) -> None:
        time.sleep(self._chance.uniform(0.05, most_s))

    def _kill(self) -> str:
        node = self._victim()
        node.kill()
        self._wait(1.0)
        node.start()
        return f"kill -9 of {node.name}"

    def _restart(self) -> str:
        node = self._victim()
        code = node.stop()
        assert code == 0, f"{node.name} ended with {code}: {node.said()[-2000:]}"
        node.start()
        return f"restart of {node.name}"

    def _pause(self) -> str:
        node = self._victim()
        node.pause()
        self._wait(3.0)
        node.resume()
        return f"SIGSTOP of {node.name}"

    def _set_clock(self) -> str:
        """Of one broker, by an hour and back. What is delayed then comes when its clock says so."""
        node, shift_s = (
            self._chance.choice((self._cluster.a, self._cluster.b)),
            self._chance.choice((1, -1)) * HOUR_S,
        )
        self._load.clock_changes()
        node.set_clock(shift_s)
        self._wait(2.0)
        node.set_clock(0)
        time.sleep(CLOCK_SETTLES_S)
        self._load.clock_is_right()
        return f"clock of {node.name} an hour {'ahead' if shift_s > 0 else 'behind'}"

    def _flood(self) -> str:
        """More connections than broker-b has descriptors for; or, of another, than it has clients."""
        node = self._chance.choice((self._cluster.a, self._cluster.b, self._cluster.name_server))
        count = OPEN_FILES + 100 if node is self._cluster.b else MANY
        with peers.flood(node.port, count):
            self._wait(1.0)
        return f"flood of connections to {node.name}"

    def _half_frames(self) -> str:
        node = self._chance.choice((self._cluster.a, self._cluster.b, self._cluster.name_server))
        with peers.flood(node.port, MANY // 4, peers.half_frame()):
            self._wait(2.0)
        return f"half frames to {node.name}"

    def _deaf(self) -> str:
        node = self._chance.choice((self._cluster.a, self._cluster.b))
        with contextlib.suppress(OSError), contextlib.closing(peers.ask_and_do_not_read(node.port, TOPIC)):
            self._wait(1.0)
        return f"client of {node.name} that does not read"

    def _start_twice(self) -> str:
        node = self._chance.choice((self._cluster.a, self._cluster.slave, self._cluster.b))
        second = node.spawn()
        assert second.stdout is not None
        second.stdout.close()
        assert second.wait(30) != 0, f"a second {node.name} runs on the same store"
        return f"second start of {node.name}"

    def _bomb(self) -> str:
        """A body that inflates: no broker inflates it."""
        kind = self._chance.choice(list(CompressionType))
        node = self._chance.choice((self._cluster.a, self._cluster.b))
        request = peers.send_bomb(kind, bomb(kind, BOMB_BYTES), "bombs")
        with contextlib.suppress(OSError), contextlib.closing(Caller(node.port)) as caller:
            caller.call(request)
        return "body that inflates"

    def _fill_disk(self) -> str:
        assert self._disk is not None
        mounts.fill(self._disk)
        self._wait(2.0)
        mounts.make_room(self._disk)
        return "full disk of broker-b"

    def _read_only(self) -> str:
        folder = self._chance.choice(("config", "commitlog", "consumequeue", "index"))
        place = self._cluster.b.directory / "store" / folder
        until(place.is_dir, "the directory to be made")
        with mounts.read_only(place):
            self._wait(2.0)
        return f"{folder} of broker-b read only"
