"""Files and texts of other kinds, nearly right: the tables of a broker, the timers, broker.conf, SQL92.

Each is read, or refused with an error of ours. What was read is written and read again, and is the same.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from fuzz.mutate import mutate, mutate_text, overwrite
from fuzz.watch import Findings, HangError, no_hang, watched_log
from kourou.broker import Broker, BrokerConfig
from kourou.broker.messages.sql92 import compile_sql
from kourou.errors import KourouError
from kourou.namesrv.kv import KvConfig
from kourou.properties_file import read_properties_file
from kourou.remoting.tls import TlsConfig
from kourou.store import MessageStoreConfig
from kourou.store.log.disk import OsDisk
from kourou.store.timer.store import TimerStore
from support.recorded import golden
from support.recorded.golden_config import _config_files
from support.sites.broker import SMALL

HANG_S = 10.0
SQL_WORDS = (
    "AND", "OR", "NOT", "IN", "BETWEEN", "IS NULL", "IS NOT NULL", "=", "<>", ">", ">=", "<", "<=", "(", ")",
    ",", "TRUE", "FALSE", "NULL", "CONTAINS", "STARTSWITH", "ENDSWITH", "'text'", "''''", "a", "b.c", "$x",
    "1", "-1", "0.5", "1e308", "9223372036854775807", "0x1F", "-", "/* c */", "--", "LIKE", "'", "\\", "é",
)  # fmt: skip
SQL_CORPUS = (
    "a > 1", "a BETWEEN 0 AND 10 AND region = 'eu'", "a IS NULL OR b IS NOT NULL", "a IN ('x', 'y', 'z')",
    "NOT (a = 1 OR b <> 'c')", "a NOT IN ('x')", "name STARTSWITH 'test' AND NOT name ENDSWITH 'x'",
    "a CONTAINS 'b' OR (a >= -5.5 AND a < 1e10)", "TRUE AND a = FALSE", "a = b OR a > b", "-a > -1",
    "a NOT BETWEEN 1 AND 2", "((((a = 1))))", "a = 'it''s'",
)  # fmt: skip
SQL_PROPERTIES: tuple[dict[str, str], ...] = (
    {}, {"a": "1", "b": "2"}, {"a": "x", "region": "eu", "name": "test-x"}, {"a": "-0.0", "b.c": "NaN"},
    {"a": "9" * 400, "b": "0x10", "$x": ""}, {"a": "true", "b": "é"},
)  # fmt: skip
CONF_WORDS = (
    "listenPort", "brokerId", "brokerRole", "flushDiskType", "mappedFileSizeCommitLog", "=", ":", "\\",
    "\\u00e9", "\\u12", "#", "!", "\n", "\r\n", "true", "SYNC_MASTER", "-1", "99999999999999999999", " ",
    "\t", "\x00", "messageDelayLevel=1s 5x", "deleteWhen=04", "9" * 5000, "namesrvAddr",
    "tls.server.mode=permissive",
)  # fmt: skip


class TextFuzz:
    """Small files and expressions, one after the other."""

    def __init__(self, seed: int, findings: Findings) -> None:
        self._chance = random.Random(seed)
        self._findings = findings
        self._tables = [file for file in _config_files() if file[1].removesuffix(".bak").endswith(".json")]
        self._conf = (
            "".join(f"{key}={value}\n" for key, value in SMALL.items()) + "# end\nbrokerRole = SLAVE\n"
        )
        self._timers: dict[str, tuple[bytes, int]] | None = None
        self.input = b""  # what is being tried

    def run_expressions(self, count: int) -> None:
        """Try so many expressions of SQL92."""
        self._repeat(count, self._expression, "expressions tried")

    def run_files(self, count: int, directory: Path) -> None:
        """Try so many files: most of them tables and configurations, some of timers, which are slow."""
        kinds: list[Callable[[Path], bytes]] = [self._table, self._table, self._properties, self._kv_config]

        def one() -> bytes:
            if self._chance.random() < 0.02:
                return self._timer(directory / "timers")
            return self._chance.choice(kinds)(directory)

        self._repeat(count, one, "files tried")

    def _repeat(self, count: int, work: Callable[[], bytes], name: str) -> None:
        with watched_log(self._findings):
            for _ in range(count):
                self._findings.counts[name] += 1
                self.input = b""
                try:
                    with no_hang(HANG_S):
                        work()
                except (HangError, Exception) as error:
                    self._findings.add_error(name, error, self.input)

    # Expressions

    def _expression(self) -> bytes:
        text = mutate_text(self._chance, self._chance.choice(SQL_CORPUS), SQL_WORDS)
        self.input = text.encode("utf-8", "replace")
        try_expression(text, self._findings)
        return self.input

    # Files

    def _table(self, directory: Path) -> bytes:
        """A table of a broker, with a backup that is whole, damaged or not there."""
        _, name, data = self._chance.choice(self._tables)
        name = name.removesuffix(".bak")
        self.input = damaged = mutate(self._chance, data)
        self._findings.counts["files of config"] += 1
        config = BrokerConfig.from_properties({**SMALL, "storePathRootDir": str(directory / "store")})
        file = Broker(config)._files.get(name)
        if file is None:
            return damaged
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_bytes(damaged)
        backup = self._chance.choice((None, data, damaged))
        file.backup.unlink(missing_ok=True)
        if backup is not None:
            file.backup.write_bytes(backup)
        try:
            file.load()
        except KourouError:
            self._findings.counts["tables refused"] += 1
            if backup is data:
                self._findings.add(f"{name}: the backup is whole and is not taken", damaged)
            return damaged
        table = file._table
        first = table.encode()
        file.path.write_bytes(first)
        file.load()
        if table.encode() != first:
            self._findings.add(f"{name} is another when it is read again", damaged)
        return damaged

    def _kv_config(self, directory: Path) -> bytes:
        whole = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"t":"broker-a:4;broker-b:8"},"n":{"k":"v"}}}'
        self.input = damaged = mutate(self._chance, whole)
        self._findings.counts["files of kvConfig"] += 1
        path = directory / "kvConfig.json"
        path.with_name("kvConfig.json.bak").unlink(missing_ok=True)
        path.write_bytes(damaged)
        try:
            found = KvConfig(path)
        except KourouError:
            return damaged
        found.put("n", "k", "w")
        if KvConfig(path).get("n", "k") != "w":
            self._findings.add("kvConfig.json is another when it is read again", damaged)
        return damaged

    def _properties(self, directory: Path) -> bytes:
        text = mutate_text(self._chance, self._conf, CONF_WORDS).encode("utf-8", "replace")
        self.input = damaged = mutate(self._chance, text) if self._chance.random() < 0.3 else text
        self._findings.counts["files of broker.conf"] += 1
        path = directory / "broker.conf"
        path.write_bytes(damaged)
        try_properties(path, self._findings)
        return damaged

    def _timer(self, root: Path) -> bytes:
        """Wheel, log and checkpoint of the timers, of which one is damaged."""
        shutil.rmtree(root, ignore_errors=True)
        config = MessageStoreConfig(store_path_root_dir=str(root), timer_wheel_enable=True)
        if self._timers is None:
            self._timers = _golden_timers(root)
        files = dict(self._timers)
        name = self._chance.choice(list(files))
        data, size = files[name]
        first = max(len(data) - 4096, 0) if name == "timerwheel" else 0
        damaged = overwrite(self._chance, data[first:])
        files[name] = data[:first] + damaged, size
        if self._chance.random() < 0.05:
            damaged = mutate(self._chance, data[:4096])
            files[name] = damaged, len(damaged)
        self.input = name.encode() + b": " + damaged
        self._findings.counts["files of timers"] += 1
        for path, (content, length) in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
            os.truncate(root / path, length)  # a wheel has 37 MiB, nearly all of it zero
        sizes = [length for path, (_, length) in self._timers.items() if path.startswith("timerlog/")]
        config.mapped_file_size_timer_log = sizes[0]
        try:
            timers = TimerStore(OsDisk(), config)
        except KourouError:
            return damaged
        try:
            timers.recover()
            for time_ms in timers.wheel.times_from(0)[:50]:
                for _ in timers.units(time_ms):
                    pass
            now_ms = 1_790_000_000_000
            timers.append(now_ms + 5000, 1, now_ms, 0, 100, 7)
            if not any(unit.enqueue_time == now_ms for unit in timers.units(now_ms + 5000)):
                self._findings.add("a timer that was entered is not found", self.input)
            timers.flush(timers.checkpoint, 0)
        except KourouError:
            self._findings.counts["timers refused"] += 1
        finally:
            timers.close()
        return damaged


def _golden_timers(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Wheel, log and checkpoint that Java wrote: what stands in them, and their sizes."""
    root = golden.unpack("timer", directory).path
    files = [root / "timerwheel", root / "config" / "timercheck", *root.glob("timerlog/*")]
    found = {}
    for file in files:
        data = file.read_bytes()
        used = min(len(data.rstrip(b"\0")) + 64, len(data))
        found[str(file.relative_to(root))] = data[:used], len(data)
    shutil.rmtree(root)
    return found


def try_expression(text: str, findings: Findings) -> None:
    """An expression is refused, or asked about messages: the same twice."""
    try:
        sql = compile_sql(text)
    except KourouError:
        findings.counts["expressions refused"] += 1
        return
    for properties in SQL_PROPERTIES:
        try:
            answer = sql.evaluate(properties)
        except KourouError:
            continue
        if answer not in (True, False, None) or sql.matches(properties) is not (answer is True):
            findings.add(f"{answer!r} is no answer, or another than that of matches", text.encode())


def try_properties(path: Path, findings: Findings) -> None:
    """A broker.conf is refused, or read: written and read again it is the same."""
    properties = read_properties_file(path)
    try:
        config = BrokerConfig.from_properties(properties)
        TlsConfig.from_properties(properties)
    except KourouError:
        findings.counts["configurations refused"] += 1
        return
    text = config.to_text()
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    again = BrokerConfig.from_properties(read_properties_file(path))
    if again.to_text() != text:
        findings.add("a configuration is another when it is read again", text.encode("utf-8", "replace"))
