"""Forms of pulls: what matches is read as orjson reads it, what differs goes the usual way."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kourou.broker.groups import SubscriptionGroupConfig
from kourou.broker.header_forms import MAX_FORM_BYTES, MAX_LEARNED, PULL_FIELDS, PullForm, learn_pull_form
from kourou.broker.pull import PIECE_BYTES, PIECES_FROM_BYTES
from kourou.message.properties import java_hash
from kourou.remoting.codes import RequestCode, ResponseCode
from kourou.remoting.command import ROCKETMQ, RemotingCommand, decode
from support.broker import Peer, Site, heartbeat, messages_in, pull_request, running, send_request, until
from support.golden import FIXTURES

EXT = {
    "bname": "broker-a", "commitOffset": "0", "consumerGroup": "g", "expressionType": "TAG",
    "maxMsgNums": "32", "queueId": "0", "queueOffset": "0", "subVersion": "0", "subscription": "*",
    "suspendTimeoutMillis": "15000", "sysFlag": "4", "topic": "t",
}  # fmt: skip
TOP = {"code": 11, "extFields": EXT, "flag": 0, "language": "JAVA", "opaque": 7, "version": 513}
CODES = (11, 361)  # PULL_MESSAGE, LITE_PULL_MESSAGE
# The orders of Java's and Go's client.
ORDERS = {
    "java": lambda head: orjson.dumps(head, option=orjson.OPT_SORT_KEYS),
    "go": lambda head: json.dumps(
        {name: head[name] for name in ("code", "language", "version", "opaque", "flag", "extFields")},
        separators=(",", ":"),
    ).encode(),
}
NUMBERS = ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "subVersion", "opaque")
GONE = "gone"  # in place of a field's value: the field is left out


def header(order: str = "java", **changed: Any) -> bytes:
    ext = {**EXT, **{name: value for name, value in changed.items() if name not in TOP}}
    top = {**TOP, **{name: value for name, value in changed.items() if name in TOP}}
    return ORDERS[order]({**top, "extFields": {k: v for k, v in ext.items() if v != GONE}})


def values(form: PullForm, text: bytes) -> dict[str, Any] | None:
    """What a form reads by the names of the fields; None if a header does not match."""
    match = form.match(text, 0, len(text))
    if match is None:
        return None
    found = zip(PULL_FIELDS, (group.decode() for group in match.group(*form.places)))
    return {name: int(text) if name in NUMBERS else text for name, text in found}


def as_read(text: bytes) -> dict[str, Any]:
    """What orjson reads."""
    fields = orjson.loads(text)
    shown = {**fields["extFields"], "opaque": fields["opaque"]}
    return {name: int(shown[name]) if name in NUMBERS else shown[name] for name in PULL_FIELDS}


def form_of(order: str, **changed: Any) -> PullForm:
    form = learn_pull_form(header(order, **changed))
    assert form is not None
    return form


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("code", CODES)
def test_the_next_headers_of_a_client_match(order, code):
    form = form_of(order, code=code)
    assert form.expression == ("*", "TAG")
    for changed in (
        {"consumerGroup": "other", "topic": "%RETRY%g-1_|", "opaque": 0},
        {"queueId": "7", "queueOffset": "9" * 18, "maxMsgNums": "1", "sysFlag": "0"},
        {"sysFlag": "22", "commitOffset": "12345678901", "subVersion": "1794723927160"},
        {"topic": "x" * MAX_FORM_BYTES},  # too long to be learned
        {"opaque": 2**31 - 1, "topic": "u", "consumerGroup": "a b!", "queueOffset": "007"},
    ):
        text = header(order, code=code, **changed)
        assert values(form, text) == as_read(text)


def kind(text: bytes) -> bytes:
    """A header without what its form has holes for."""
    fields = orjson.loads(text)
    fields["opaque"] = 0
    fields["extFields"] |= {name: "" for name in PULL_FIELDS if name != "opaque"}
    return orjson.dumps(fields)


def test_the_headers_of_javas_client_have_a_form():
    """Given what Java's client sent, then its pulls are learned, and those of a kind match one another."""
    with gzip.open(FIXTURES / "wire" / "remoting-json.jsonl.gz") as lines:
        records = [json.loads(line) for line in lines]
    pulls = [record for record in records if record["direction"] == "request" and record["code"] in CODES]
    headers = [base64.b64decode(record["frame"])[8 : 8 + record["headerLength"]] for record in pulls]
    plain = [text for text in headers if b'"-1"' not in text]  # an offset that the client does not know
    assert len(plain) > len({kind(text) for text in plain}) > 1
    for learned in plain:
        form = learn_pull_form(learned)
        assert form is not None
        for text in plain:
            assert values(form, text) == (as_read(text) if kind(text) == kind(learned) else None)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "changed",
    [
        {"code": 10}, {"code": 310}, {"code": "11"}, {"flag": 1}, {"flag": 2}, {"sysFlag": "x"},
        {"opaque": -3}, {"opaque": 1.5}, {"opaque": "7"}, {"opaque": None}, {"suspendTimeoutMillis": GONE},
        {"suspendTimeoutMillis": 15000}, {"subscription": 5}, {"expressionType": False}, {"queueId": "-1"},
        {"queueOffset": "-1"}, {"maxMsgNums": "-1"}, {"sysFlag": "-4"}, {"subVersion": "-1"}, {"queueId": ""},
        {"queueOffset": "9" * 19}, {"queueId": "1" * 10}, {"bname": "x" * MAX_FORM_BYTES},
        *({name: text} for name in ("topic", "consumerGroup") for text in ('a"b', "ü", "\\", "", "a\n")),
        *({name: value} for name in PULL_FIELDS if name != "opaque" for value in (GONE, 5, None, ["5"])),
    ],
    ids=lambda changed: ",".join(f"{name}={str(value)[:20]!r}" for name, value in changed.items()),
)  # fmt: skip
def test_what_is_no_usual_pull_neither_matches_nor_is_learned(order, changed):
    text = header(order, **changed)
    assert (values(form_of(order), text), learn_pull_form(text)) == (None, None)


@pytest.mark.parametrize(
    "changed",
    [{"subscription": "TagA"}, {"subscription": GONE}, {"expressionType": "SQL92"}, {"code": 361},
     {"suspendTimeoutMillis": "0"}, {"more": "x"}, {"language": "GO"}, {"version": 1}],
)  # fmt: skip
def test_another_kind_of_pull_has_another_form(changed):
    text = header(**changed)
    assert values(form_of("java"), text) is None
    form = form_of("java", **changed)
    assert (values(form, text), values(form, header())) == (as_read(text), None)


edits = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 3), st.one_of(st.binary(max_size=3), st.sampled_from(
        [b'"', b"\\", b'","queueId":"1', b'"topic":"x",', b"\\u0001", b"0", b"-", b"}", b"\xff", b"\n", b" "]
    ))), min_size=1, max_size=4,
)  # fmt: skip


@given(order=st.sampled_from(sorted(ORDERS)), edits=edits)
@example(order="java", edits=[(len(header()), 0, b"\n")])
def test_whatever_matches_is_read_as_orjson_reads_it(order, edits):
    """Given a header with bytes changed anywhere, if it matches, then orjson reads the same from it."""
    form, text = form_of(order), header(order)
    for at, removed, added in edits:
        text = text[:at] + added + text[at + removed :]
    found = values(form, text)
    if found is not None:
        assert found == as_read(text)
        assert kind(text) == kind(header(order))


# In a broker

OK, NOT_FOUND, MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED
RETRY, BAD = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.INVALID_PARAMETER
NOT_ALLOWED, NOT_HEARD = ResponseCode.NO_PERMISSION, ResponseCode.SUBSCRIPTION_NOT_EXIST
NO_TOPIC, NO_GROUP = ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
COMMIT, SUSPEND, SUBSCRIPTION, HOLD = 1, 2, 4, 6  # of a pull's sysFlag
# Queues of the topic `t`: their messages lie behind each other, or apart with those of the next one.
SMALL, LARGE, APART, LARGE_APART = 0, 1, 2, 4
COUNT = 100


def fill(peer: Peer, count: int, *queue_ids: int, body: bytes = b"body", tag: str = "TagA") -> None:
    """Put some messages into each of the queues, by turns."""
    for number in queue_ids * count:
        peer.ask(send_request(body=body, properties={"TAGS": tag}, e=str(number)))


def beat(*tags: str, version: int = 1, group: str = "g", **more: Any) -> RemotingCommand:
    """A heartbeat for some tags of the topic, or for all."""
    wanted = {"topic": "t", "subString": "||".join(tags) or "*", "tagsSet": list(tags), "subVersion": version}
    return heartbeat("c", group, [{**wanted, "codeSet": [java_hash(tag) for tag in tags]}], **more)


class Ways:
    """A connection to a broker, and how many of its pulls were taken by their form."""

    def __init__(self, site: Site, patch: pytest.MonkeyPatch) -> None:
        self.site, self.peer, self.taken = site, site.connect(), 0
        take = site.broker.puller.take

        def counting(*arguments: Any) -> Any:
            answer = take(*arguments)
            self.taken += answer is not None
            return answer

        patch.setattr(site.broker.puller, "take", counting)

    @property
    def connection(self) -> Any:
        """The broker's end."""
        port = self.peer.socket.getsockname()[1]
        (found,) = (item for item in self.site.broker.server.connections if item.peer.endswith(f":{port}"))
        return found

    def pull(self, is_taken: bool, **values: Any) -> RemotingCommand:
        """The answer to a pull that is taken by its form, or goes the usual way."""
        expected = self.taken + is_taken
        answer = self.peer.call(pull_request(**values))
        assert self.taken == expected
        return answer

    def learn(self, **values: Any) -> None:
        """Have a form learned, and a pull taken by it."""
        assert [self.pull(is_taken, **values).code for is_taken in (False, True)] == [OK, OK]

    def frame(self, request: RemotingCommand) -> bytes:
        """The bytes of an answer."""
        self.peer.send(request)
        size = self.peer._stream.read(4)
        return size + self.peer._stream.read(int.from_bytes(size, "big"))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """With a hundred messages in each queue of `t`, and a group `heard` that sent a heartbeat for all."""
    more = {"maxTransferCountOnMessageInMemory": "200", "mappedFileSizeCommitLog": str(8 << 20),
            "maxTransferBytesOnMessageInMemory": str(4 << 20)}  # fmt: skip
    with running(tmp_path_factory.mktemp("full"), more) as made:
        made.make_topic("t", 6)
        peer = made.connect()
        fill(peer, COUNT, SMALL, body=b"x" * 100)
        fill(peer, COUNT, LARGE, body=b"x" * 3000)
        fill(peer, COUNT, APART, APART + 1, body=b"x" * 1000)
        fill(peer, COUNT, LARGE_APART, LARGE_APART + 1, body=b"x" * (PIECE_BYTES + 1))
        peer.ask(beat(group="heard", version=5))
        yield made


@pytest.fixture
def ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ways]:
    """With three messages in two of the four queues of `t`, and a group `g`; no other is made."""
    with running(tmp_path, {"autoCreateSubscriptionGroup": "false"}) as site:
        site.make_topic("t")
        change_group(site, consume_broadcast_enable=False)
        fill(site.connect(), 3, 0, 1)
        yield Ways(site, monkeypatch)


def change_group(site: Site, **values: Any) -> None:
    site.do(site.broker.groups.update, SubscriptionGroupConfig("g", **values))


@pytest.mark.parametrize("queue_id", [SMALL, LARGE, APART, LARGE_APART])
@pytest.mark.parametrize(
    "asked",
    [
        {}, {"count": 1, "offset": 3}, {"count": 64}, {"count": 65}, {"count": 1000, "offset": 1},
        {"code": RequestCode.LITE_PULL_MESSAGE}, {"subscription": None}, {"expressionType": "TAG"},
        {"flag": SUBSCRIPTION | COMMIT}, {"flag": HOLD, "suspend_ms": 600_000},
        {"group": "heard", "flag": 0}, {"group": "heard", "flag": SUSPEND, "subVersion": "5"},
        {"group": "heard", "flag": COMMIT, "subscription": None},
    ],
    ids=str,
)  # fmt: skip
def test_each_way_gives_the_same_bytes(full, monkeypatch, queue_id, asked):
    """Given a pull by form, before and after it goes the usual way, then answers and counts are the same."""
    ways, broker = Ways(full, monkeypatch), full.broker
    request, group = pull_request(queue_id=queue_id, **asked), asked.get("group", "g")

    def state() -> tuple[int, ...]:
        counted, read = broker.stats.group("t", group).queue(queue_id), broker.store.stats
        return counted.messages, counted.calls, counted.size_bytes, read.get_found, read.get_transferred

    place, frames, counts = (group, "t", queue_id), [], []
    fields = {"consumerGroup": group, "topic": "t", "queueId": str(queue_id), "setZeroIfNotFound": "true"}
    query = RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields)
    for number in range(3):
        if number == 2:
            ways.connection.pull_form = None
        for commit in (broker.offsets.commit, broker.offsets.commit_pull):
            full.do(commit, "", *place, 0)
        request.ext_fields["commitOffset"] = str(number + 1)
        before = full.do(state)
        frames.append(ways.frame(request))
        assert ways.taken == (number > 0)
        counts.append([now - then for now, then in zip(full.do(state), before)])
        assert ways.peer.ask(query).ext_fields["offset"] == str(
            number + 1 if asked.get("flag", 0) & COMMIT else 0
        )
        answer = decode(frames[-1][4:])
        assert answer.ext_fields["nextBeginOffset"] == str(broker.offsets.query_pull(*place))
    assert (frames, counts) == ([frames[0]] * 3, [counts[0]] * 3)
    found, first = messages_in(answer), asked.get("offset", 0)
    assert [item.queue_offset for item in found] == list(range(COUNT))[first : first + asked.get("count", 32)]
    assert counts[1] == [len(found), 1, len(bytes(answer.body or b"")), 1, len(found)]
    assert len(frames[1]) > PIECES_FROM_BYTES or queue_id in (SMALL, APART) or len(found) == 1


def test_the_next_pulls_are_taken_wherever_they_go(full, monkeypatch):
    """Given one pull that was learned from, then those of other groups, queues and offsets are taken."""
    ways = Ways(full, monkeypatch)
    for group in ("g1", "g2", "g1"):  # a new group has everybody checked again
        assert ways.pull(False, group=group).code == OK
    for offset in range(0, COUNT, 10):
        for queue_id in range(6):
            asked = {"group": f"g{1 + queue_id % 2}", "queue_id": queue_id, "offset": offset, "count": 10}
            assert messages_in(ways.pull(True, **asked)) == full.stored("t", queue_id, offset)[:10]


def ask(code: int, body: bytes = b"", **fields: str) -> Callable[[Ways], object]:
    return lambda ways: ways.peer.ask(RemotingCommand(code, fields, body))


def lose_first(ways: Ways) -> None:
    """Have the first two messages of the first queue gone."""
    queue, first_kept = ways.site.broker.store.queues.table["t"][0], ways.site.stored()[2].physical_offset
    ways.site.do(queue.correct_min_offset, first_kept)


def others_want_all(ways: Ways) -> None:
    """Have a form with a tag learned, and another of the group pull without one."""
    ways.pull(False, subscription="TagB")
    ways.site.connect().ask(pull_request())


OWN, HEARD = {"flag": SUBSCRIPTION}, {"flag": 0, "subVersion": "1"}
LEAVE = ask(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="g")


@pytest.mark.parametrize(
    ("learned", "change", "asked", "code", "remark"),
    [
        (OWN, None, {"offset": 3}, NOT_FOUND, "OFFSET_OVERFLOW_ONE"),
        (OWN, None, {"offset": 4}, MOVED, "OFFSET_OVERFLOW_BADLY"),
        (OWN, None, {"offset": 10**18 - 1}, MOVED, "OFFSET_OVERFLOW_BADLY"),
        (OWN, None, {"offset": -1}, MOVED, "OFFSET_TOO_SMALL"),
        (OWN, lose_first, {"offset": 1}, MOVED, "OFFSET_TOO_SMALL"),
        (OWN, None, {"queue_id": 2}, NOT_FOUND, "NO_MESSAGE_IN_QUEUE"),
        (OWN, None, {"queue_id": 4}, BAD, "queueId[4] is illegal"),
        (OWN, None, {"queue_id": -1}, BAD, "queueId[-1] is illegal"),
        (OWN, None, {"topic": "u"}, NO_TOPIC, "topic[u]"),
        (OWN, None, {"group": "h"}, NO_GROUP, "group [h]"),
        (OWN, None, {"serialize_type": ROCKETMQ}, OK, "FOUND"),
        (OWN, None, {"subscription": "TagA"}, OK, "FOUND"),
        (OWN, None, {"subscription": "TagB"}, RETRY, "NO_MATCHED_MESSAGE"),
        (OWN, others_want_all, {"subscription": "TagB"}, RETRY, "NO_MATCHED_MESSAGE"),
        (OWN, None, {"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse"),
        (OWN, None, {"flag": 0}, NOT_HEARD, "group info not exist"),
        (OWN, None, {"commitOffset": "x"}, ResponseCode.SYSTEM_ERROR, "commitOffset"),
        (OWN, lambda ways: ways.site.make_topic("t", perm=2), {}, NOT_ALLOWED, "topic[t]"),
        (HEARD, lambda ways: ways.site.make_topic("t", 1), {"queue_id": 1}, BAD, "queueId[1]"),
        (OWN, lambda ways: ways.site.make_topic("t", topic_sys_flag=3), {}, OK, "FOUND"),
        (OWN, lambda ways: change_group(ways.site, consume_enable=False), {}, NOT_ALLOWED, "group no perm"),
        (OWN, lambda ways: change_group(ways.site, group_sys_flag=9), {}, OK, "FOUND"),
        (OWN, ask(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=2"), {}, NOT_ALLOWED, "broker["),
        (OWN, ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t"), {}, NO_TOPIC, "topic[t]"),
        (OWN, ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g"), {}, NO_GROUP, "group [g]"),
        (HEARD, None, {"subVersion": "2"}, ResponseCode.SUBSCRIPTION_NOT_LATEST, "not latest"),
        (HEARD, lambda ways: ways.peer.ask(beat("TagA", version=2)), {}, OK, "FOUND"),
        (HEARD, lambda ways: ways.peer.ask(beat("TagB", version=2)), {}, RETRY, "NO_MATCHED_MESSAGE"),
        (HEARD, LEAVE, {}, NOT_HEARD, "group info not exist"),
        (HEARD, lambda ways: ways.site.do(ways.site.broker.groups.set_forbidden, "g", "t", 2, True), {},
         NOT_ALLOWED, "is forbidden for topic[t]"),
        (HEARD, lambda ways: (LEAVE(ways), ways.peer.ask(beat(model="BROADCASTING"))), {}, NOT_ALLOWED, "by"),
    ],
)  # fmt: skip
def test_what_is_unusual_goes_the_usual_way(ways, learned, change, asked, code, remark):
    """Given a form that was learned, then what changed since and what is rare is answered as without it."""
    ways.peer.ask(beat(group="g" if learned is HEARD else "other"))
    ways.learn(**learned)
    if change is not None:
        change(ways)
    answer = ways.pull(False, **{**learned, **asked})
    assert (answer.code, remark in (answer.remark or "")) == (code, True), answer
    for _ in range(2):  # with the form, and without it
        again = ways.peer.call(pull_request(**{**learned, **asked}))
        assert (again.code, again.remark, again.ext_fields) == (answer.code, answer.remark, answer.ext_fields)
        assert messages_in(again) == messages_in(answer)
        ways.connection.pull_form = None


@pytest.mark.parametrize("flag", [SUBSCRIPTION, 0])
def test_tags_are_looked_at_each_time(ways, flag):
    """Given a subscription that is not for all, then no pull is taken; given one for all, then they are."""
    fill(ways.peer, 2, 0, tag="TagB")
    for version, tag, offsets in ((1, "TagA", [0, 1, 2]), (2, "TagB", [3, 4]), (3, "*", [0, 1, 2, 3, 4])):
        ways.peer.ask(beat(*([] if tag == "*" else [tag]), version=version))
        ways.pull(False, flag=flag, subscription=tag)  # its form is learned
        answer = ways.pull(tag == "*", flag=flag, subscription=tag)
        assert [item.queue_offset for item in messages_in(answer)] == offsets


def test_a_pull_that_finds_nothing_is_held(ways):
    """Given a form, then a pull at the end of its queue waits for the next message."""
    waits: dict[str, Any] = {"flag": HOLD, "suspend_ms": 600_000}
    ways.learn(**waits)
    waiting = ways.peer.send(pull_request(offset=3, **waits))
    until(lambda: ways.site.broker.puller.held == 1)
    fill(ways.site.connect(), 1, 0, body=b"news")
    answer = ways.peer.answer_to(waiting)
    assert [item.body for item in messages_in(answer)] == [b"news"]
    assert ways.pull(True, offset=3, **waits).ext_fields == answer.ext_fields


def test_a_reset_sends_a_pull_elsewhere_once(ways):
    ways.learn()
    fields = {"topic": "t", "group": "g", "queueId": "0", "offset": "2", "timestamp": "-1", "isForce": "true"}
    ways.peer.ask(RemotingCommand(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields))
    answer = ways.pull(False)
    assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (MOVED, "OFFSET_RESET", "2")
    assert len(messages_in(ways.pull(True, offset=2))) == 1


def test_the_subscription_of_a_pull_is_told_from_time_to_time(ways):
    """Given a group without heartbeats that pulls by form, then it does not look as if it were gone."""
    ways.learn()
    remembered = ways.site.broker.consumers._remembered
    assert remembered.pop("g")
    ways.pull(True)
    ways.site.broker.puller._accesses["g", "t"].compensate_again = 0.0
    ways.pull(False)
    assert remembered["g"]["t"][0].sub_string == "*"


def test_sends_and_pulls_of_one_connection_are_both_taken(ways, monkeypatch):
    """Given a connection that sends and pulls in turn, many at once, then each is answered in its place."""
    ways.learn()
    ways.peer.ask(send_request())
    monkeypatch.delitem(ways.site.broker.server._handlers, RequestCode.SEND_MESSAGE_V2)
    pairs = [(send_request(body=b"%d" % n), pull_request(offset=4 + n)) for n in range(50)]
    requests = [request for pair in pairs for request in pair]
    ways.peer.socket.sendall(b"".join(request.encode() for request in requests))
    answers = [ways.peer.answer_to(request) for request in requests]
    assert (ways.taken, {answer.code for answer in answers}) == (1 + 50, {OK})
    assert [messages_in(answer)[0].body for answer in answers[1::2]] == [b"%d" % n for n in range(50)]


def test_one_connection_does_not_make_the_broker_learn_for_ever(ways):
    ways.peer.ask(beat())
    ways.pull(False, serialize_type=ROCKETMQ)
    assert (ways.connection.forms_learned, ways.connection.pull_form) == (0, None)
    for number in range(3 * MAX_LEARNED):
        assert len(messages_in(ways.pull(False, suspend_ms=number))) == 3
    assert ways.connection.forms_learned == MAX_LEARNED
    ways.pull(True, suspend_ms=MAX_LEARNED - 1)  # the last that was learned


def test_pulls_of_a_group_that_never_committed_are_learned(tmp_path: Path) -> None:
    with running(tmp_path) as site:
        peer = site.connect()
        peer.ask(send_request())
        peer.call(pull_request(commitOffset="-1"))
        assert any(item.pull_form is not None for item in site.broker.server.connections)


def test_a_field_that_stands_elsewhere_too_is_not_learned_from_there() -> None:
    text = orjson.dumps({"code": 11, "extFields": pull_request().ext_fields, "flag": 0, "opaque": 7})
    text = text.replace(b'"queueId":"0"', b'"queueId": "0"').replace(b"{", b'{"queueId":"0",', 1)
    assert learn_pull_form(text) is None
