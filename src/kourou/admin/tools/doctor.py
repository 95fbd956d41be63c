"""Doctor: whether this machine is fit for a broker, and whether a cluster answers."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.metadata
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import kourou
from kourou.admin.admin import Admin
from kourou.errors import KourouError

OK, WARN, FAIL = "ok", "warn", "fail"

PORTS = {9876: "name server", 10911: "broker", 10909: "broker, VIP channel", 10912: "replication"}
OPEN_FILES_LEAST, OPEN_FILES_WANTED = 1024, 65535
MAPS_WANTED = 65530
MEMORY_LEAST, MEMORY_WANTED = 256 * 1024**2, 1024**3
DISK_FULL, DISK_NEARLY_FULL = 0.90, 0.75  # where brokers stop taking messages, and begin to delete
JAVA_TIMEOUT_S = 10.0
REVIVE_BEHIND = 10_000  # records of the revive topic; a broker does more than that in its pauses
_TIME_ERROR = 5  # what adjtimex returns where nobody keeps the clock
_MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, how it is, and what to do about it."""

    name: str
    state: str
    found: str
    advice: str = ""


def examine(directory: Path) -> list[Check]:
    """Everything about this machine; `directory` is where a store is or would be."""
    return [
        *_versions(),
        _java(),
        *_ports(),
        _open_files(),
        *_memory_maps(),
        *_memory(),
        _disk(directory),
        _clock(),
    ]


async def examine_cluster(namesrv: str) -> list[Check]:
    """Whether the name servers answer, and their brokers."""
    checks = []
    try:
        async with Admin(namesrv, timeout_s=3.0) as admin:
            states = await admin.clusters.states()
            checks.append(Check("name server", OK, f"{namesrv} answers, {len(states)} brokers"))
            for one in states:
                name = f"broker {one.broker_name} {one.broker_id}"
                if one.error is not None:
                    checks.append(
                        Check(name, FAIL, one.error, f"is {one.address} up, and can this machine reach it?")
                    )
                elif one.disk_ratio > DISK_NEARLY_FULL:
                    full = one.disk_ratio > DISK_FULL
                    advice = "make room, or lower fileReservedTime"
                    checks.append(
                        Check(name, FAIL if full else WARN, f"its disk is {one.disk_ratio:.0%} full", advice)
                    )
                else:
                    checks.append(Check(name, OK, f"{one.address}, {one.version}"))
                    checks += await _pop(admin, one.broker_name, one.address) if one.broker_id == 0 else []
            if not states:
                checks.append(Check("brokers", WARN, "none is registered", "start one with namesrvAddr set"))
    except KourouError as error:
        advice = "start one (`kourou up`, `kourou namesrv`), or say where it is with -n"
        checks.append(Check("name server", WARN, str(error), advice))
    return checks


async def _pop(admin: Admin, broker_name: str, address: str) -> list[Check]:
    """Whether a broker keeps up with what was popped; nothing where nobody pops, or it does not say."""
    try:
        found = await admin.pops.revive_state(address)
    except KourouError:
        return []
    if not found.behind and not found.waiting:
        return []
    text = f"{found.waiting} check points and acknowledgements wait, {found.behind} are due and not done"
    is_odd = found.behind > REVIVE_BEHIND
    advice = "messages that were not acknowledged come again late: is its disk or its timer slow?"
    return [Check(f"pop at {broker_name}", WARN if is_odd else OK, text, advice if is_odd else "")]


def _versions() -> Iterator[Check]:
    found = f"Python {platform.python_version()}, {platform.system()} {platform.release()}"
    good = sys.version_info >= (3, 11)
    yield Check("python", OK if good else FAIL, found, "" if good else "Kourou needs Python 3.11 or later")
    extras = []
    for name in ("uvloop", "orjson", "numpy", "pyarrow", "pyspark", "nicegui"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            extras.append(f"{name} {importlib.metadata.version(name)}")
    yield Check("kourou", OK, f"kourou {kourou.__version__}; {', '.join(extras)}")
    if not any(one.startswith("uvloop") for one in extras):
        yield Check("uvloop", WARN, "not installed", "pip install uvloop: servers are twice as fast with it")


def _java() -> Check:
    path = shutil.which("java")
    needed = "only Spark needs it: install a JDK, version 17 or later"
    if path is None:
        return Check("java", WARN, "not found", needed)
    try:
        done = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("java", WARN, f"{path} does not run: {error}", needed)
    first = (done.stderr or done.stdout).strip().splitlines()[:1]
    return Check("java", OK, f"{first[0] if first else 'no version'} ({path})")


def _ports() -> Iterator[Check]:
    for port, what in PORTS.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    yield Check(f"port {port}", WARN, f"{what}: {error.strerror}", "choose another port")
                    continue
                advice = "fine if it is yours; another server needs another port"
                yield Check(f"port {port}", WARN, f"{what}: something listens there", advice)
                continue
        yield Check(f"port {port}", OK, f"{what}: free")


def _open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)}, at most {_limit(hard)}"
    best = max(soft, hard) if resource.RLIM_INFINITY not in (soft, hard) else OPEN_FILES_WANTED
    if best < OPEN_FILES_LEAST:
        return Check("open files", FAIL, found, f"ulimit -n {OPEN_FILES_WANTED}: each queue has files")
    if best < OPEN_FILES_WANTED:
        return Check("open files", WARN, found, f"ulimit -n {OPEN_FILES_WANTED} for many topics")
    return Check("open files", OK, found)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _memory_maps() -> Iterator[Check]:
    value = _number("/proc/sys/vm/max_map_count")
    if value is not None:
        good = value >= MAPS_WANTED
        advice = "" if good else "sysctl -w vm.max_map_count=655360: each file of a store is a map"
        yield Check("memory maps", OK if good else WARN, str(value), advice)
    swappiness = _number("/proc/sys/vm/swappiness")
    if swappiness is not None:
        good = swappiness <= 60
        advice = "" if good else "sysctl -w vm.swappiness=1: a broker that is swapped out stands still"
        yield Check("swappiness", OK if good else WARN, str(swappiness), advice)


def _memory() -> Iterator[Check]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    free, total = sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0)
    found = f"{free // _MIB} MiB free of {total // _MIB}, {os.cpu_count()} processors"
    if free < MEMORY_LEAST:
        yield Check("memory", FAIL, found, "stop something else, or take a larger machine")
    elif free < MEMORY_WANTED:
        yield Check("memory", WARN, found, "reads of older messages will go to the disk")
    else:
        yield Check("memory", OK, found)


def _disk(directory: Path) -> Check:
    place = directory.absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    ratio = 1 - usage.free / usage.total
    found = f"{usage.free // _MIB} MiB free at {place}, {ratio:.0%} used"
    if not os.access(place, os.W_OK):
        return Check("disk", FAIL, f"{place} cannot be written", "choose another directory with --dir")
    if ratio > DISK_FULL:
        return Check("disk", FAIL, found, "a broker takes no messages on a disk this full: make room")
    if ratio > DISK_NEARLY_FULL:
        return Check("disk", WARN, found, "a broker deletes old messages early on a disk this full")
    return Check("disk", OK, found)


def _clock() -> Check:
    now = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512))  # zeros: only asked
    except (OSError, AttributeError):
        return Check("clock", OK, now)
    if state == _TIME_ERROR:
        advice = "run chrony or ntpd: delays, traces and resets by time go by the clock"
        return Check("clock", WARN, f"{now}; nobody keeps it right", advice)
    return Check("clock", OK, f"{now}, kept right" if state >= 0 else now)


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
