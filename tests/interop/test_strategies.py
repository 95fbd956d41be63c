"""Queues are shared as Java's own strategies share them: generated groups, every client of each."""

from __future__ import annotations

import json
import random
import subprocess
from typing import Any

from kourou.client.consume import strategies
from kourou.client.consume.strategies import Strategy
from kourou.client.core import ClientError
from kourou.message.model import MessageQueue
from support.java import RUN, RUN_TIMEOUT_S

CASES = 120  # of each strategy
PLAIN = ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"]
ROOMS = ["hz", "sh", "bj", ""]


def case(generator: random.Random, strategy: str) -> dict[str, Any]:
    """A request for Allocate.java."""
    brokers = generator.sample(
        ["hz-a", "hz-b", "sh-a", "bj-1", "hz@a", "hz@b", "sh@a", "@a", "a@b@c", "sh@a@", "bj@", "é-中"],
        generator.randrange(1, 7),
    )
    queues = [[f"topic-{number % 2}", broker, number] for broker in brokers for number in range(4)]
    queues = sorted(generator.sample(queues, generator.randrange(len(queues) + 1)))
    clients = sorted(
        {f"{generator.choice(ROOMS[:3])}-{generator.randrange(50)}@1" for _ in range(generator.randrange(9))}
    )
    if strategy == "MACHINE_ROOM_NEARBY" and generator.random() < 0.05:
        clients = sorted([*clients, "-nowhere"])
    stranger = generator.random() < 0.05 or not clients
    return {
        "strategy": strategy,
        "client": generator.choice(["hz-stranger", ""]) if stranger else generator.choice(clients),
        "clients": clients,
        "queues": queues,
        "rooms": generator.sample(ROOMS, generator.randrange(1, 4)),
        "nodes": generator.choice([0, 1, 10, 100]),
        "inner": generator.choice(PLAIN),
    }


def make(request: dict[str, Any], name: str) -> Strategy:
    """The same strategy of ours."""
    if name == "CONSISTENT_HASH":
        return strategies.ConsistentHash(request["nodes"])
    if name == "MACHINE_ROOM":
        return strategies.ByMachineRoom(request["rooms"])
    if name == "MACHINE_ROOM_NEARBY":
        return strategies.MachineRoomNearby(
            make(request, request["inner"]),
            lambda queue: queue.broker_name.partition("-")[0],
            lambda client: client.partition("-")[0],
        )
    if name == "CONFIG":
        return strategies.ByConfig(MessageQueue(*queue) for queue in request["queues"][:2])
    return strategies.AVERAGE if name == "AVG" else strategies.AVERAGE_BY_CIRCLE


def ours(request: dict[str, Any]) -> dict[str, Any]:
    """Our answer, in the form of Allocate.java. What is given is in no order."""
    strategy = make(request, request["strategy"])
    queues = [MessageQueue(*queue) for queue in reversed(request["queues"])]
    try:
        found = strategy("group", request["client"], queues, request["clients"][::-1])
    except ClientError:
        return {"error": True}
    return {"name": strategy.name, "queues": [list(queue) for queue in found]}


def test_every_share_is_that_of_java(java):
    generator = random.Random(55)
    names = [*PLAIN, "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG"]
    requests = [case(generator, name) for name in names for _ in range(CASES)]

    done = subprocess.run(
        [RUN, "Allocate"],
        input="".join(json.dumps(request) + "\n" for request in requests).encode(),
        capture_output=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    answers = [json.loads(line[2:]) for line in done.stdout.decode().splitlines() if line.startswith("> ")]

    assert len(answers) == len(requests)
    different = [
        (request, answer, mine)
        for request, answer in zip(requests, answers, strict=True)
        if (mine := ours(request)) != answer
    ]
    assert not different, (len(different), different[0])
    for name in names:  # the table says something of each kind
        shares = [a.get("queues") for r, a in zip(requests, answers, strict=True) if r["strategy"] == name]
        assert sum(bool(share) for share in shares) > CASES / 5, name
