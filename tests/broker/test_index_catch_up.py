"""A broker that serves while its index is made anew after a crash: what it tells of it."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.admin import Admin
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.store.index import index_catch_up
from kourou.store.index.index_catch_up import IndexCatchUp
from support import loops
from support.sites.broker import Site, running, send_request
from support.sites.scrape import get, scrape

COUNT = 100
METRICS = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A broker that was killed and runs again. Its index waits until the test lets it go on."""
    with running(tmp_path) as before:
        before.make_topic()
        peer = before.connect()
        for number in range(COUNT):
            peer.ask(send_request(properties={"UNIQ_KEY": f"U{number}", "KEYS": f"k{number}"}))
    (tmp_path / "store" / "abort").touch()
    shutil.rmtree(tmp_path / "store" / "index")
    monkeypatch.setattr(index_catch_up, "STEP_BYTES", 1000)
    with monkeypatch.context() as waiting:
        waiting.setattr(IndexCatchUp, "run_once", lambda self: None)
        with running(tmp_path, METRICS) as again:
            yield again


def query(site: Site, key: str) -> RemotingCommand:
    fields = {"topic": "t", "key": key, "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(1 << 62)}
    return site.connect().call(RemotingCommand(RequestCode.QUERY_MESSAGE, fields))


def test_sends_are_taken_and_queries_say_that_they_are_not_complete(site):
    site.connect().ask(send_request(properties={"UNIQ_KEY": "N", "KEYS": "new"}))
    found, missing = query(site, "k0"), query(site, "new")
    assert (found.code, missing.code) == (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
    for answer in (found, missing):
        assert answer.remark is not None
        assert answer.remark.startswith("not complete: the index is being made anew, ")

    site.do(site.broker.store.index_catch_up.finish)
    for key in ("k0", f"k{COUNT - 1}", "new"):
        answer = query(site, key)
        assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


def test_metrics_and_runtime_information_say_how_far_it_is(site):
    port = site.broker.config.metrics_prom_exporter_port

    def told() -> tuple[int, int]:
        answer = site.connect().ask(RemotingCommand(RequestCode.GET_BROKER_RUNTIME_INFO))
        table = json.loads(bytes(answer.body or b""))["table"]
        return int(scrape(port).value("kourou_index_behind_bytes")), int(table["indexBehindBytes"])

    catch_up = site.broker.store.index_catch_up
    assert told() == (catch_up.behind_bytes,) * 2
    assert catch_up.behind_bytes > 0
    assert get(port, "/ready").status == 200  # it serves
    site.do(catch_up.finish)
    assert told() == (0, 0)


def test_an_operator_who_asks_by_key_is_told(site, caplog):
    async def brokers(topic: str) -> dict[str, str]:
        return {"broker-a": f"127.0.0.1:{site.port}"}

    async def ask() -> list[int]:
        async with Admin("127.0.0.1:1") as admin:  # no name server: this broker alone
            setattr(admin.link, "topic_brokers", brokers)  # noqa: B010
            return [len(await admin.messages.by_key("t", key)) for key in ("k0", f"k{COUNT - 1}")]

    with caplog.at_level(logging.WARNING, "kourou.admin"):
        assert loops.run("uvloop", ask()) == [1, 0]
    assert sum("not complete" in text for text in caplog.messages) == 2
