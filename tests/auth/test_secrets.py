"""No byte of a message reaches a connection whose user may not read it, whatever is asked or pushed.

Every place that messages lie in holds one with a secret: in its body, its keys, its tag and a property. Users
who may not read them send every request that a broker serves, about every one of these places, while it
pushes what a broker pushes: halves to check, replies, messages to consume, changes of groups. Then every byte
that they were sent is searched.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kourou.message.topics import SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, TRANS_HALF_TOPIC
from kourou.remoting.protocol.codes import RequestCode as Code
from kourou.remoting.protocol.command import RemotingCommand, decode
from kourou.remoting.signing import Credentials
from kourou.store.put import InnerMessage
from support.sites.broker import SUBSCRIPTION as SUBSCRIBES
from support.sites.broker import SUSPEND, WAIT_S, Peer, Site, heartbeat, pull_request, send_request, until
from support.sites.guarded_site import NameServerSite, User, guarded_name_server, guarded_site
from support.sites.resources import BROKER, NAME_SERVER, OURS, REGISTERED, Case, prepare

MARK = "SECRET"
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
LIGHT = "%LMQ%theirs"
# Each place that messages lie in
PLACES = (
    "theirs", "%RETRY%theirs", "%DLQ%theirs", LIGHT, SCHEDULE_TOPIC, TIMER_TOPIC, TRANS_HALF_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC, REPLY_TOPIC,
)  # fmt: skip
OWN = {"Topic:mine": ["All"], "Group:mine": ["All"], "Group:%RETRY%mine": ["All"]}
FULL = {"*": ["All"]}
USERS: dict[str, dict[str, list[str]]] = {
    "nobody": {}, "stranger": {}, "forger": {}, "powerless": {}, "other": OWN,
    "sender": {"Topic:second": ["Pub"], f"Topic:{REPLY_TOPIC}": ["Pub"]},
    "former": {}, "disabled": FULL, "deleted": {}, "producer": {"Topic:theirs": ["Pub"]},
    "watcher": {"Cluster:DefaultCluster": ["Get"]},
}  # fmt: skip
UNKNOWN = ("nobody", "stranger", "forger")
# What users of this name were allowed when they came
BEFORE = {"former": FULL, "disabled": FULL, "deleted": FULL}


class Recorder:
    """A connection that keeps every byte that it is sent, and answers at once what it is asked."""

    def __init__(self, port: int) -> None:
        self._peer = Peer(port)
        self.received = b""
        self._answers: dict[int, RemotingCommand] = {}
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        stream = self._peer.socket.makefile("rb")
        while len(size := stream.read(4)) == 4:
            raw = stream.read(int.from_bytes(size, "big"))
            frame = decode(raw)
            if not frame.is_response and not frame.is_oneway:
                self._peer.send(frame.response())
            with self._came:
                self.received += raw
                if frame.is_response:
                    self._answers[frame.opaque] = frame
                self._came.notify()

    def send(self, request: RemotingCommand) -> None:
        self._peer.send(request)

    def call(self, request: RemotingCommand) -> RemotingCommand:
        self._peer.send(request)
        with self._came:
            assert self._came.wait_for(lambda: request.opaque in self._answers, WAIT_S), request
            return self._answers.pop(request.opaque)

    def close(self) -> None:
        self._peer.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()


class Attacker:
    """A user of one of the kinds, on a recorded connection."""

    def __init__(self, site: Site | NameServerSite, kind: str) -> None:
        self.kind = kind
        self._user = User(site, "admin" if kind in UNKNOWN else kind)
        self.peer = Recorder(site.port if isinstance(site, Site) else site.server.port)
        if kind in USERS and kind not in UNKNOWN:
            self._user.allow(BEFORE.get(kind, USERS[kind]))

    def sign(self, request: RemotingCommand) -> RemotingCommand:
        if self.kind == "nobody":
            return request
        if self.kind == "stranger":
            return Credentials("stranger", "stranger").sign(request)
        if self.kind == "forger":
            return Credentials("admin", "guessed").sign(request)
        return self._user.sign(request)

    def call(self, request: RemotingCommand) -> RemotingCommand:
        return self.peer.call(self.sign(request))


@contextmanager
def attackers_of(site: Site | NameServerSite, kinds: Iterable[str]) -> Iterator[list[Attacker]]:
    with ExitStack() as stack:
        made = [Attacker(site, kind) for kind in kinds]
        for attacker in made:
            stack.callback(attacker.peer.close)
        yield made


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with guarded_site(
        tmp_path,
        enableLmq="true",
        enableMultiDispatch="true",
        recallMessageEnable="true",
        storeReplyMessageEnable="true",
        transactionTimeOut="0",
        transactionCheckInterval="3600000",
        innerClientAuthenticationCredentials=json.dumps({"accessKey": "inner", "secretKey": f"{MARK}-inner"}),
        **{"tls.server.keyPassword": f"{MARK}-password"},
    ) as made:
        for name in ("second", "%RETRY%theirs", "%DLQ%theirs"):
            made.make_topic(name, queues=1)
        yield made


def plant(site: Site) -> dict[str, str]:
    """A message with secrets at each place; the ids of those, by the place."""
    admin = User(site, "admin")

    def properties(where: str, **more: str) -> dict[str, str]:
        return {
            "UNIQ_KEY": f"{MARK}-id-{where}", "KEYS": f"{MARK}-key-{where}", "TAGS": f"{MARK}-tag-{where}",
            "own": f"{MARK}-property-{where}", **more,
        }  # fmt: skip

    def send(where: str, topic: str, fields: dict[str, Any] | None = None, **more: str) -> str:
        body = f"{MARK}-body-{where}".encode()
        answer = admin.ask(send_request(topic, body, properties(where, **more), **(fields or {})))
        return answer.ext_fields["msgId"]

    def put(topic: str) -> str:
        given = properties(topic, PGROUP="p", REAL_TOPIC="theirs", REAL_QID="0")
        body = f"{MARK}-body-{topic}".encode()
        message = InnerMessage.of(topic, 0, body, given, store_host=site.broker.sender.store_host)
        found = site.do(site.broker.store.look_message, site.do(site.broker.put, message).physical_offset)
        assert found is not None
        return found.offset_message_id

    half = {"TRAN_MSG": "true", "PGROUP": "p"}
    return {
        **{name: send(name, name) for name in ("theirs", "%RETRY%theirs", "%DLQ%theirs")},
        LIGHT: send(LIGHT, "theirs", INNER_MULTI_DISPATCH=LIGHT),
        SCHEDULE_TOPIC: send(SCHEDULE_TOPIC, "theirs", DELAY="18"),
        TIMER_TOPIC: send(TIMER_TOPIC, "theirs", TIMER_DELAY_SEC="3600"),
        TRANS_HALF_TOPIC: send(TRANS_HALF_TOPIC, "theirs", {"f": "4"}, **half),
        TRANS_CHECK_MAX_TIME_TOPIC: put(TRANS_CHECK_MAX_TIME_TOPIC),
        REPLY_TOPIC: put(REPLY_TOPIC),
    }


def requests(planted: dict[str, str], scene: dict[str, str]) -> Iterator[RemotingCommand]:
    """Every request of the table, as it is and about each of the places instead of what it is about."""
    for case in sorted(BROKER, key=lambda case: case.code.startswith("DELETE")):
        yield case.request(scene)
        for place, message_id in planted.items():
            yield _about(case, scene, place, message_id)


def _about(case: Case, scene: dict[str, str], place: str, message_id: str) -> RemotingCommand:
    offset = str(int(message_id[16:], 16))
    there = {**scene, "theirs": offset, "theirs_id": message_id, "half": offset, "given_up": message_id}
    group = "theirs"
    names = {"topic": place, "b": place, "group": group, "consumerGroup": group, "groupName": group}
    body = case.body
    if body is not None and not isinstance(body, bytes):
        body = json.loads(
            json.dumps(body).replace('"topic": "mine"', f'"topic": "{place}"').replace('"mine"', '"theirs"')
        )
    fields = {name: names.get(name, text) for name, text in case.fields.items()}
    return replace(case, fields=fields, body=body).request(there)


def reads(planted: dict[str, str]) -> Iterator[RemotingCommand]:
    """What brings messages to who may read: at its begin, by keys that are known, and by place."""
    for place, message_id in planted.items():
        queue_id = 17 if place == SCHEDULE_TOPIC else 0
        for group in ("theirs", "mine"):
            yield pull_request(place, group=group, queue_id=queue_id)
            yield pull_request(place, group=group, queue_id=queue_id, code=Code.LITE_PULL_MESSAGE)
        yield RemotingCommand(
            Code.VIEW_MESSAGE_BY_ID, {"topic": "mine", "offset": str(int(message_id[16:], 16))}
        )


def push_everything(site: Site, planted: dict[str, str], client_ids: list[str]) -> None:
    """Have the broker send to its clients all that it ever does: by the hand of an operator, too."""
    admin = User(site, "admin")
    for _ in range(3):
        site.run(site.broker.transactions.check())
    for client_id in client_ids:
        secret = f"{MARK}-reply-{client_id}"
        properties = {"UNIQ_KEY": "R", "REPLY_TO_CLIENT": client_id, "CORRELATION_ID": "7", "own": secret}
        admin.call(send_request(REPLY_TOPIC, secret.encode(), properties, code=Code.SEND_REPLY_MESSAGE_V2))
        for group in ("mine", "theirs"):
            to = {"consumerGroup": group, "group": group, "clientId": client_id, "topic": "theirs"}
            for message_id in planted.values():
                admin.call(RemotingCommand(Code.CONSUME_MESSAGE_DIRECTLY, {**to, "msgId": message_id}))
            admin.call(RemotingCommand(Code.GET_CONSUMER_RUNNING_INFO, to))
    for group in ("mine", "theirs"):
        about = {"group": group, "topic": "theirs", "timestamp": "-1", "isForce": "true"}
        admin.call(RemotingCommand(Code.INVOKE_BROKER_TO_RESET_OFFSET, about))
        admin.call(RemotingCommand(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, about))
    admin.ask(heartbeat("another", "theirs"))
    admin.ask(send_request("theirs", f"{MARK}-late".encode()))  # for pulls that wait


def marks_in(received: bytes) -> set[str]:
    """The secrets among bytes."""
    return {found.decode() for found in re.findall(MARK.encode() + rb"-([\w%$-]+)", received)}


def is_allowed(kind: str, mark: str) -> bool:
    """Whether a user is meant to see a secret: a reply to what it asked, a half that it may end."""
    if mark == f"reply-{kind}":
        return kind in ("other", "sender", "producer")
    return kind == "producer" and mark.endswith(TRANS_HALF_TOPIC)


def test_no_byte_of_a_message_reaches_who_may_not_read_it(site):
    scene, planted = prepare(site), plant(site)
    with attackers_of(site, USERS) as attackers:
        for attacker in attackers:
            for group in ("theirs",) if attacker.kind in BEFORE else ("mine", "theirs", ""):
                attacker.call(heartbeat(attacker.kind, group, producers=("p",)))
            if attacker.kind in BEFORE:
                flag = SUBSCRIBES | SUSPEND
                held = pull_request("theirs", 0, group="theirs", queue_id=3, flag=flag, suspend_ms=600_000)
                attacker.peer.send(attacker.sign(held))
        until(lambda: site.broker.puller.held == len(BEFORE), "pulls that wait")
        site.do(site.broker.access.update_user, {"username": "disabled", "userStatus": "disable"})
        site.do(site.broker.access.delete_user, "deleted")
        User(site, "former").allow({})

        push_everything(site, planted, list(USERS))
        for attacker in attackers:
            for request in (*requests(planted, scene), *reads(planted)):
                attacker.call(request)
        push_everything(site, planted, [*USERS, "c"])
        for attacker in attackers:
            attacker.call(heartbeat("end", ""))  # what was sent before has come

        by_kind = {attacker.kind: marks_in(attacker.peer.received) for attacker in attackers}
    leaked = {kind: {mark for mark in marks if not is_allowed(kind, mark)} for kind, marks in by_kind.items()}
    assert not any(leaked.values()), leaked
    assert "reply-sender" in by_kind["sender"]  # who may have these gets them: they were there to be had
    assert f"body-{TRANS_HALF_TOPIC}" in by_kind["producer"]


def test_who_may_read_everything_is_sent_every_secret_of_a_message(site):
    """So that the test above looks where there is something to be found."""
    scene, planted = prepare(site), plant(site)
    with attackers_of(site, ["admin"]) as (admin,):
        for request in (*requests(planted, scene), *reads(planted)):
            if not Code(request.code).name.startswith("DELETE"):
                admin.call(request)
        seen = marks_in(admin.peer.received)
    kinds = ("body", "id", "key", "tag", "property")
    assert {f"{kind}-{place}" for kind in kinds for place in PLACES} <= seen
    assert "password" not in seen  # of the configuration: for its own file alone


def test_no_byte_of_a_name_servers_secrets_reaches_who_may_not_read_it(tmp_path):
    secrets = {
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": "i", "secretKey": f"{MARK}-inner"}),
        "tls.client.keyPassword": f"{MARK}-password",
    }
    with guarded_name_server(tmp_path, **secrets) as site:
        admin = User(site, "admin")
        admin.ask(RemotingCommand(Code.REGISTER_BROKER, OURS, json.dumps(REGISTERED).encode()))
        value = {"namespace": "n", "key": "k", "value": f"{MARK}-value"}
        admin.ask(RemotingCommand(Code.PUT_KV_CONFIG, value))
        kinds = (*UNKNOWN, "powerless", "other", "sender", "watcher", "admin")
        with attackers_of(site, kinds) as attackers:
            for attacker in attackers:
                for case in NAME_SERVER:
                    if attacker.kind != "admin" or case.code.startswith("GET"):
                        attacker.call(case.request({}))
            by_kind = {attacker.kind: marks_in(attacker.peer.received) for attacker in attackers}
    assert by_kind.pop("admin") == by_kind.pop("watcher") == {"value"}
    assert not any(by_kind.values()), by_kind
