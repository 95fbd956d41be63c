"""What a server tells over HTTP: its metrics, as Prometheus reads them, and whether it is ready."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from http.client import HTTPConnection
from typing import Any, NamedTuple

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

HOST = "127.0.0.1"
TIMEOUT_S = 20


class Answer(NamedTuple):
    """An answer to an HTTP request."""

    status: int
    content_type: str
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def get(port: int, path: str, method: str = "GET") -> Answer:
    connection = HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("Content-Type", ""), answer.read())
    finally:
        connection.close()


class Scraped:
    """The metrics of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.families: dict[str, Metric] = {
            family.name: family for family in text_string_to_metric_families(text)
        }

    def value(self, name: str, **labels: str) -> float:
        """The value of the one sample that has these labels, whatever others it has."""
        found = [sample.value for sample in self.samples(name) if labels.items() <= sample.labels.items()]
        assert len(found) == 1, f"{name} {labels}: {found}"
        return float(found[0])

    def has(self, name: str, **labels: str) -> bool:
        return any(labels.items() <= sample.labels.items() for sample in self.samples(name))

    def samples(self, name: str) -> list[Any]:
        return [
            sample for family in self.families.values() for sample in family.samples if sample.name == name
        ]

    def label_names(self, family: str, but: Iterable[str] = ("le",)) -> set[frozenset[str]]:
        """The names of the labels that samples of a family have."""
        return {frozenset(sample.labels) - set(but) for sample in self.families[family].samples}


def scrape(port: int) -> Scraped:
    answer = get(port, "/metrics")
    assert answer.status == 200, answer
    return Scraped(answer.body.decode())


def raw(port: int, data: bytes) -> bytes:
    """What comes back for bytes, until the other end hangs up."""
    with socket.create_connection((HOST, port), TIMEOUT_S) as connection:
        try:
            connection.sendall(data)
            return _rest(connection)
        except ConnectionError:
            return b""


def _rest(connection: socket.socket) -> bytes:
    found = b""
    while piece := connection.recv(65536):
        found += piece
    return found
