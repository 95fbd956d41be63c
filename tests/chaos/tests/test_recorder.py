"""The recorder finds what it is there to find."""

from __future__ import annotations

import pytest

from chaos.recorder import COMMITTED, DELAYED, PLAIN, ROLLED_BACK, Found, Place, Recorder


def recorded() -> tuple[Recorder, dict[str, list[Found]]]:
    """Messages of which everything is as it was promised."""
    recorder, found = Recorder(), {}
    for offset, kind in enumerate((PLAIN, PLAIN, DELAYED, COMMITTED)):
        name, body = recorder.make(kind, b"payload")
        place = Place("broker-a", 0, offset)
        recorder.acknowledge(name, place, "producer")
        found[name] = [Found(place, body, 1000)]
        recorder.consume(body)
        if kind == DELAYED:
            recorder.due_ms[name] = 900
    rolled_back, _ = recorder.make(ROLLED_BACK, b"")
    recorder.acknowledge(rolled_back)
    recorder.make(PLAIN, b"not acknowledged, and not there")
    return recorder, found


def test_promises_that_are_kept_are_no_finding():
    recorder, found = recorded()
    assert recorder.judge(found) == []
    assert recorder.unconsumed() == set()


def _lose(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    del found["plain-2"]


def _invent(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    found["plain-99"] = [Found(Place("broker-a", 0, 9), b"plain-99 ", 0)]


def _change(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    found["plain-1"] = [found["plain-1"][0]._replace(body=b"plain-1 other")]


def _double(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    found["plain-1"] *= 2


def _move(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    found["plain-1"] = [found["plain-1"][0]._replace(place=Place("broker-a", 0, 7))]


def _hasten(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    recorder.due_ms["delayed-3"] = 1500


def _commit(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    found["rolled-back-5"] = [Found(Place("broker-a", 0, 5), b"rolled-back-5 ", 0)]


def _consume(recorder: Recorder, found: dict[str, list[Found]]) -> None:
    recorder.consume(b"nobody sent this")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_lose, "plain-2 was acknowledged and is lost"),
        (_invent, "plain-99 was not sent like this"),
        (_change, "plain-1 was not sent like this"),
        (_double, "plain-1 was sent once and is there 2 times"),
        (_move, "plain-1 was promised at"),
        (_hasten, "delayed-3 came 500 ms early"),
        (_commit, "rolled-back-5 was rolled back and is there"),
        (_consume, "a consumer was given nobody, which nobody sent"),
    ],
)
def test_a_promise_that_is_broken_is_found(damage, says):
    recorder, found = recorded()
    damage(recorder, found)
    assert says in "\n".join(recorder.judge(found))


def test_the_order_of_a_producer_is_looked_at():
    recorder, found = recorded()
    first, second = found["plain-1"][0], found["plain-2"][0]
    found["plain-1"], found["plain-2"] = (
        [first._replace(place=second.place)],
        [second._replace(place=first.place)],
    )
    assert any("out of order" in line for line in recorder.judge(found))
