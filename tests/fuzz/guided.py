"""Coverage-guided fuzzing with atheris, where it is installed: `make fuzz GUIDED=60`.

    python -m fuzz.guided TARGET [options of libFuzzer]

fuzzes one target: it begins with the corpus of the fixtures, and keeps what reaches code that nothing reached
before. `run_all` runs every target in a process of its own, bounded in time and memory.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MEMORY_MB = 2048
INPUT_TIMEOUT_S = 10

Target = Callable[[bytes], None]


def is_installed() -> bool:
    """Whether atheris is there."""
    return importlib.util.find_spec("atheris") is not None


def run_all(seconds: int) -> bool:
    """Run every target for so long; whether nothing was found."""
    if not is_installed():
        print("atheris is not installed: pip install atheris")
        return True
    with tempfile.TemporaryDirectory() as directory:
        found = [name for name in TARGETS if not run(name, seconds, Path(directory))]
    return not found


def run(name: str, seconds: int, directory: Path) -> bool:
    """Run one target for so long, in a process of its own."""
    corpus = directory / name
    corpus.mkdir()
    for number, data in enumerate(_corpus(name)):
        (corpus / str(number)).write_bytes(data)
    limits = (f"-max_total_time={seconds}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={INPUT_TIMEOUT_S}")
    command = [
        sys.executable,
        "-m",
        "fuzz.guided",
        name,
        *limits,
        f"-artifact_prefix={directory}/",
        str(corpus),
    ]
    done = subprocess.run(
        command, cwd=Path(__file__).parent.parent, capture_output=True, encoding="utf-8", errors="replace",
        check=False, timeout=seconds + 120,
    )  # fmt: skip
    last = [line for line in done.stderr.splitlines() if " cov: " in line][-1:]
    print(f"guided {name}: {' '.join(' '.join(last).split())}", flush=True)
    if done.returncode != 0:
        print(done.stderr[-5000:] + done.stdout[-2000:])
    return done.returncode == 0


def _corpus(name: str) -> list[bytes]:
    from fuzz.corpus import recorded_frames
    from fuzz.texts import CONF_WORDS, SQL_CORPUS
    from support.recorded.golden_config import _config_files

    if name == "frames":
        return [command.encode() for command in recorded_frames()]
    if name == "sql92":
        return [text.encode() for text in SQL_CORPUS]
    if name == "properties":
        return ["\n".join(CONF_WORDS).encode()]
    return [data for _, _, data in _config_files()]


def _frames(data: bytes) -> None:
    from fuzz import oracle
    from fuzz.frames import fields_of
    from kourou.remoting.protocol.command import BadFrameError, decode

    if len(data) < 8:
        return
    frame = (len(data) - 4).to_bytes(4, "big") + data[4:]
    read = oracle.read_frame(frame)
    try:
        command = decode(frame[4:])
    except BadFrameError:
        assert not isinstance(read, oracle.Command), "a good frame is refused"
        return
    assert read is not None, "a bad frame is taken"
    if isinstance(read, oracle.Command):
        assert (command.code, command.opaque, command.flag, fields_of(command)) == (*read[:3], read.fields)


def _sql92(data: bytes) -> None:
    from fuzz.texts import try_expression
    from fuzz.watch import Findings

    findings = Findings()
    try_expression(data.decode("utf-8", "replace"), findings)
    assert not findings.wrong, findings.wrong


def _properties(data: bytes) -> None:
    from kourou.broker import BrokerConfig
    from kourou.errors import KourouError
    from kourou.properties_file import parse_properties

    try:
        config = BrokerConfig.from_properties(parse_properties(data.decode("utf-8", "replace")))
    except KourouError:
        return
    assert BrokerConfig.from_properties(parse_properties(config.to_text())).to_text() == config.to_text()


def _json(data: bytes) -> None:
    from kourou.remoting.protocol import lenient_json

    try:
        value = lenient_json.loads(data)
    except ValueError:
        return
    again = lenient_json.loads(lenient_json.dumps(value))  # without what is null, as fastjson writes it
    assert lenient_json.loads(lenient_json.dumps(again)) == again


TARGETS: dict[str, Target] = {"frames": _frames, "sql92": _sql92, "properties": _properties, "json": _json}


def main() -> None:
    """Fuzz one target until libFuzzer has enough."""
    import atheris  # type: ignore[import-untyped]

    target = TARGETS[sys.argv[1]]
    with atheris.instrument_imports(include=["kourou"]):
        import kourou.broker
        import kourou.broker.messages.sql92
        import kourou.properties_file
        import kourou.remoting.protocol.command
        import kourou.remoting.protocol.lenient_json  # noqa: F401
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
