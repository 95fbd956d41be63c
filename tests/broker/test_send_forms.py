"""Forms of sends: what matches is read as orjson reads it, what differs goes the usual way."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.broker.header_forms import MAX_FORM_BYTES, MAX_LEARNED, SEND_FIELDS, SendForm, learn_send_form
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import ROCKETMQ, RemotingCommand
from kourou.remoting.connection import Connection
from support.broker import UNIQUE_ID, Site, long_form, running, send_request
from support.golden import FIXTURES

EXT = {
    "a": "p", "b": "t", "c": "TBW102", "d": "8", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x0112AB\x02TAGS\x01x\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip
TOP = {"code": 310, "extFields": EXT, "flag": 0, "language": "JAVA", "opaque": 7, "version": 513}
# The orders of Java's and Go's client.
ORDERS = {
    "java": lambda head: orjson.dumps(head),
    "go": lambda head: json.dumps(
        {name: head[name] for name in ("code", "language", "version", "opaque", "flag", "extFields")},
        separators=(",", ":"),
    ).encode(),
}


def header(order: str = "java", **changed: Any) -> bytes:
    ext = {**EXT, **{name: value for name, value in changed.items() if len(name) == 1}}
    top = {**TOP, **{name: value for name, value in changed.items() if len(name) > 1}}
    return ORDERS[order]({**top, "extFields": {k: v for k, v in ext.items() if v is not None}})


def values(form: SendForm, text: bytes) -> tuple[bytes, ...] | None:
    """Topic, queue, time, properties and opaque; None if a header does not match."""
    match = form.match(text, 0, len(text))
    if match is None:
        return None
    found = match.groups()
    return (*found[1:], found[0]) if form.opaque_first else found


def form_of(order: str) -> SendForm:
    form = learn_send_form(header(order))
    assert form is not None
    return form


@pytest.mark.parametrize("order", ORDERS)
def test_the_next_headers_of_a_client_match(order):
    form = form_of(order)
    for topic, queue_id, born, opaque in (("t", 0, 1, 0), ("%x-1_|", 65535, 1_700_000_000_000, 2**31 - 1)):
        found = values(form, header(order, a="other", b=topic, e=str(queue_id), g=str(born), opaque=opaque))
        assert found is not None
        expected = [topic.encode(), b"%d" % queue_id, b"%d" % born, b"%d" % opaque]
        assert [*found[:3], found[4]] == expected
        assert orjson.loads(b'"' + found[3] + b'"') == EXT["i"]


def test_the_headers_of_javas_client_have_a_form():
    """Given what Java's client sent, then plain sends are learned, and match the forms of one another."""
    headers = []
    with gzip.open(FIXTURES / "wire" / "remoting-json.jsonl.gz") as lines:
        for record in map(json.loads, lines):
            if record["direction"] == "request" and record["code"] == RequestCode.SEND_MESSAGE_V2:
                frame = base64.b64decode(record["frame"])
                headers.append(frame[8 : 8 + record["headerLength"]])
    plain = [text for text in headers if b'"flag":0' in text and b'"f":"0"' in text and b'"j":"0"' in text]
    assert len(plain) >= 2
    forms = [form for text in plain if (form := learn_send_form(text)) is not None]
    assert len(forms) == len(plain)
    assert all(values(form, text) is not None for form, text in zip(forms, plain[1:] + plain[:1]))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "changed",
    [
        {"code": 320}, {"flag": 2}, {"flag": 1}, {"f": "1"}, {"f": None}, {"h": "3"}, {"h": None}, {"j": "2"},
        {"m": "true"}, {"e": "-1"}, {"e": None}, {"g": "-5"}, {"g": 17}, {"b": 'a"b'}, {"b": "ü"}, {"b": ""},
        {"i": ""}, {"i": None}, {"opaque": -3}, {"opaque": 1.5}, {"opaque": "7"}, {"a": "\\"},
    ],
)  # fmt: skip
def test_what_is_no_plain_send_neither_matches_nor_is_learned(order, changed):
    text = header(order, **changed)
    assert values(form_of(order), text) is None
    assert learn_send_form(text) is None


def test_a_header_that_names_a_field_twice_is_not_learned_by_its_first():
    twice = header().replace(b'"e":"0"', b'"e":"0","e":"3"')
    form = learn_send_form(twice)
    assert form is not None
    found = values(form, twice)
    assert found is not None
    assert found[1] == b"3" == orjson.loads(twice)["extFields"]["e"].encode()
    assert learn_send_form(header().replace(b'"e":"0"', b'"e":"0","e":"0"')) is None


def test_a_long_header_is_not_learned_but_taken():
    long = header(i="UNIQ_KEY\x0112AB\x02user\x01" + "x" * MAX_FORM_BYTES)
    assert learn_send_form(long) is None
    assert values(form_of("java"), long) is not None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{",
        b'{"extFields":[]}',
        b'{"code":310,"extFields":null}',
        json.dumps(TOP).encode(),
    ],
)
def test_what_is_no_header_is_not_learned(text):
    assert learn_send_form(text) is None


edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 3), st.one_of(st.binary(max_size=3), st.sampled_from(
        [b'"', b"\\", b'","e":"1', b"\\u0001", b"0", b"-", b"}", b"\x00", b"\xff", b"\n", b" "]
    ))), min_size=1, max_size=4,
)  # fmt: skip


@given(order=st.sampled_from(sorted(ORDERS)), edits=edits)
@example(order="java", edits=[(0, 0, b"\n")])
def test_whatever_matches_is_read_as_orjson_reads_it(order, edits):
    """Given a header with bytes changed anywhere, if it matches, then orjson reads the same from it."""
    form, text = form_of(order), header(order)
    for at, removed, added in edits:
        text = text[:at] + added + text[at + removed :]
    found = values(form, text)
    # The broker takes two escapes apart, and leaves headers with others to orjson.
    if found is None or b"\\" in found[3].replace(b"\\u0001", b"").replace(b"\\u0002", b""):
        return
    read = orjson.loads(text)
    ext = read.pop("extFields")
    shown = {**ext, "opaque": str(read["opaque"])}
    for name, value in zip((*SEND_FIELDS, "opaque"), found, strict=True):
        if name == "i":
            value = value.replace(b"\\u0001", b"\x01").replace(b"\\u0002", b"\x02")
        if name in ("e", "g"):
            assert int(shown[name]) == int(value)
        else:
            assert shown[name].encode() == value
    assert {name: value for name, value in read.items() if name != "opaque"} == {
        name: value for name, value in TOP.items() if name not in ("extFields", "opaque")
    }
    assert {k: v for k, v in ext.items() if k not in "abegi"} == {
        k: v for k, v in EXT.items() if k not in "abegi"
    }


# In a broker


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """With a topic `t` of four queues."""
    with running(tmp_path) as made:
        made.make_topic("t")
        yield made


def form_in(site: Site) -> Any:
    (connection,) = site.broker.server.connections
    return connection.send_form


def usual(site: Site) -> list[RemotingCommand]:
    """The requests that `send_v2` sees from now on."""
    seen: list[RemotingCommand] = []
    handlers: Any = site.broker.server._handlers
    handle = handlers[RequestCode.SEND_MESSAGE_V2]

    def seeing(connection: Connection, request: RemotingCommand) -> Any:
        seen.append(request)
        return handle(connection, request)

    handlers[RequestCode.SEND_MESSAGE_V2] = seeing
    return seen


def test_the_first_message_is_learned_from_and_the_next_are_taken(site):
    peer, seen = site.connect(), usual(site)
    properties = {"UNIQ_KEY": UNIQUE_ID, "TAGS": "T", "KEYS": "a b", "user": "x"}
    answers = [peer.ask(send_request(properties=properties, body=b"%d" % n, e="1")) for n in range(3)]
    assert len(seen) == 1
    answers.append(peer.ask(send_request(properties=properties, body=b"3", e="1", serialize_type=ROCKETMQ)))
    assert len(seen) == 2
    stored = site.stored("t", 1)
    assert [item.body for item in stored] == [b"0", b"1", b"2", b"3"]
    for name in ("properties", "sys_flag", "flag", "born_timestamp", "born_host", "store_host", "tags_code"):
        if hasattr(stored[0], name):
            assert len({str(getattr(item, name)) for item in stored}) == 1
    assert [int(answer.ext_fields["queueOffset"]) for answer in answers] == [0, 1, 2, 3]
    own = ("msgId", "queueOffset")
    kept = [{k: v for k, v in answer.ext_fields.items() if k not in own} for answer in answers]
    assert kept[0] == kept[1] == kept[2] == kept[3]
    site.do(site.broker.store.index.try_write_pending)
    assert len(site.broker.store.query_message("t", "b").physical_offsets) == 4


def test_a_message_that_is_not_plain_is_left_to_the_usual_way(site):
    peer = site.connect()
    peer.ask(send_request())
    seen = usual(site)
    before = site.log_end()
    assert peer.call(send_request(e="77")).code == ResponseCode.INVALID_PARAMETER
    assert peer.call(send_request("other", c="nothing")).code == ResponseCode.TOPIC_NOT_EXIST
    assert peer.call(send_request(body=None)).code != ResponseCode.SUCCESS
    assert site.log_end() == before
    peer.ask(send_request(properties={"UNIQ_KEY": UNIQUE_ID, "DELAY": "3"}))
    peer.ask(send_request(properties={"UNIQ_KEY": UNIQUE_ID, "user": 'a"b\\'}))
    peer.ask(send_request(properties={"UNIQ_KEY": UNIQUE_ID, "user": "é"}))
    assert len(seen) == 6
    assert [item.properties.get("user") for item in site.stored()] == [None, 'a"b\\', "é"]


def test_a_deleted_topic_is_known_no_more(site):
    peer = site.connect()
    peer.ask(send_request())
    peer.ask(RemotingCommand(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "t"}))
    assert peer.call(send_request(c="nothing")).code == ResponseCode.TOPIC_NOT_EXIST


def test_one_connection_does_not_make_the_broker_learn_for_ever(site):
    peer = site.connect()
    for version in range(3 * MAX_LEARNED):
        peer.ask(send_request(version=version))
    (connection,) = site.broker.server.connections
    assert connection.forms_learned == MAX_LEARNED
    assert len(site.stored()) == 3 * MAX_LEARNED


def test_a_fault_is_answered_and_the_connection_stays(site, caplog):
    peer = site.connect()
    peer.ask(send_request())
    put = site.broker.sender._put_plain

    def broken(*arguments: Any) -> Any:
        raise ArithmeticError("out of order")

    site.broker.sender._put_plain = broken
    answer = peer.call(send_request())
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "ArithmeticError: out of order")
    assert any("failed" in record.getMessage() for record in caplog.records)
    site.broker.sender._put_plain = put
    peer.ask(send_request())
    assert form_in(site) is not None


def test_checked_and_counted_requests_go_the_usual_way(tmp_path):
    for name, more in (
        ("acl", {"authenticationEnabled": "true"}),
        ("metrics", {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}),
    ):
        with running(tmp_path / name, more) as site:
            assert site.broker.server._shortcut is None


@pytest.mark.parametrize("more", [{"flushDiskType": "SYNC_FLUSH"}, {"brokerRole": "SYNC_MASTER"}])
def test_sends_that_wait_are_taken_too(tmp_path, more):
    """Given a broker that waits for the disk or for slaves, then each way gives the same answers."""
    with running(tmp_path, more) as site:
        site.make_topic("t")
        peer, seen = site.connect(), usual(site)
        answers = [peer.call(send_request(properties={"UNIQ_KEY": UNIQUE_ID})) for _ in range(3)]
        answers.append(peer.call(long_form(send_request(properties={"UNIQ_KEY": UNIQUE_ID}))))
        assert len(seen) == 1
        assert len(site.stored()) == 4
        waits_for_slaves = "brokerRole" in more
        expected = ResponseCode.SLAVE_NOT_AVAILABLE if waits_for_slaves else ResponseCode.SUCCESS
        assert {answer.code for answer in answers} == {expected}
        assert len({str(sorted(answer.ext_fields)) for answer in answers}) == 1
        assert site.broker.sender.waiting == 0


def test_a_send_that_waits_long_for_the_disk_is_logged(tmp_path, caplog):
    with running(tmp_path, {"flushDiskType": "SYNC_FLUSH", "slowRequestThresholdMs": "100"}) as site:
        site.make_topic("t")
        peer = site.connect()
        peer.ask(send_request())
        files: Any = site.broker.store.flusher._files
        flush = files.flush

        def slowly(least_pages: int) -> int:
            time.sleep(0.3)
            return int(flush(least_pages))

        files.flush = slowly
        seen = usual(site)
        peer.ask(send_request())
        assert seen == []
        assert any("slow request SEND_MESSAGE_V2" in record.getMessage() for record in caplog.records)
        del files.flush
