"""A cluster under load and faults: a moment, 3 minutes with PROOF=full, `make soak` for longer."""

from __future__ import annotations

import logging

import pytest

from chaos.soak import Growth, Soak
from support.proof import proof

SECONDS = proof(quick=20.0, full=180.0)
SEED = 9


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_whatever_happens(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "kourou")  # clients have a lot to say of brokers that die
    soak = Soak(SECONDS, SEED, tmp_path)
    wrong = soak.run()
    assert wrong == [], f"seed {SEED}, {dict(soak.faults)}"
    assert soak.faults.total() >= SECONDS / 10
    assert len(soak.recorder.promised) > SECONDS * 20


def test_memory_and_descriptors_that_grow_are_a_finding(monkeypatch):
    times = iter(range(0, 10_000, 10))
    monkeypatch.setattr("chaos.soak.time.monotonic", lambda: next(times))
    growth = Growth()
    for _ in range(20):
        growth.take(1, 100 << 20, 100)
    assert growth.describe()[1] == []
    growth.take(1, 300 << 20, 100)
    assert len(growth.describe()[1]) == 1
    growth.take(1, 300 << 20, 1000)
    assert len(growth.describe()[1]) == 2
    growth.take(2, 300 << 20, 1000)  # another process
    assert growth.describe()[1] == []
