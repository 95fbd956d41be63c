"""Every request that is served, the resources that it touches, and the right that each of them needs.

Checked at running servers: who has exactly these rights is served; who lacks one of them, with every other
right on the same resource, is refused, and nothing is changed. A request that is served and not in the table
fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kourou.namesrv.handlers import HANDLERS as NAME_SERVER_CODES
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.access import BROKER as BROKER_CODES
from support.sites.broker import Site
from support.sites.guarded_site import NameServerSite, User, guarded_name_server, guarded_site
from support.sites.resources import BROKER, NAME_SERVER, OURS, REGISTERED, prepare


def test_every_request_that_is_served_is_in_the_table():
    assert {int(RequestCode[case.code]) for case in BROKER} == BROKER_CODES
    assert {int(RequestCode[case.code]) for case in NAME_SERVER} == set(map(int, NAME_SERVER_CODES))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with guarded_site(
        tmp_path,
        enableLmq="true",
        enableMultiDispatch="true",
        recallMessageEnable="true",
        useServerSideResetOffset="true",
    ) as made:
        for name in ("second", "%RETRY%theirs", "%DLQ%theirs"):
            made.make_topic(name, queues=1)
        yield made


def state_of(site: Site) -> list[object]:
    """Whatever a request could change."""
    broker = site.broker
    return site.do(
        lambda: [
            broker.topics.encode(), broker.groups.encode(), broker.offsets.encode(), broker.delay.encode(),
            broker.store.commit_log.max_offset, broker.config.to_text(), sorted(broker.access.users.items()),
            {name: acl for name, acl in broker.access.acls.items() if name != "User:app"},
            broker.locks.has_locks("mine"), set(broker.consumers.groups), set(broker.producers.groups),
            set(broker.store.queues.table),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("case", BROKER, ids=lambda case: f"{case.code} {case.needs}")
def test_a_broker_serves_who_has_every_right_that_is_needed(site, case):
    scene = prepare(site)
    User(site, "other").allow({"Topic:x": ["Pub"]})
    user = User(site, "app")
    before = state_of(site)
    for lacking in range(len(case.needs.split(", "))):
        user.allow(case.rights(lacking))
        answer = user.call(case.request(scene))
        assert answer.code == ResponseCode.NO_PERMISSION, (lacking, answer)
        assert state_of(site) == before, lacking
    user.allow(case.rights())
    answer = user.call(case.request(scene))
    assert answer.code == case.answer, answer


def routes_of(site: NameServerSite) -> list[object]:
    routes, kv = site.server.routes, site.server.kv
    return site.do(
        lambda: [
            json.dumps(routes.cluster_info(), default=str), json.dumps(routes.route("t"), default=str),
            routes.topics(), kv.get("n", "k"), site.server.config.to_text(),
        ]
    )  # fmt: skip


@pytest.mark.parametrize("case", NAME_SERVER, ids=lambda case: f"{case.code} {case.needs}")
def test_a_name_server_serves_who_has_every_right_that_is_needed(tmp_path, case):
    with guarded_name_server(tmp_path) as site:
        admin = User(site, "admin")
        body = json.dumps(REGISTERED).encode()
        admin.ask(RemotingCommand(RequestCode.REGISTER_BROKER, OURS, body))
        admin.ask(RemotingCommand(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"}))
        user = User(site, "app")
        before = routes_of(site)
        for lacking in range(len(case.needs.split(", "))):
            user.allow(case.rights(lacking))
            answer = user.call(case.request({}))
            assert answer.code == ResponseCode.NO_PERMISSION, (lacking, answer)
            assert routes_of(site) == before, lacking
        user.allow(case.rights())
        answer = user.call(case.request({}))
        assert answer.code == case.answer, answer
