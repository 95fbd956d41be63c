"""The matrix of every request and every role: who may ask what, written down once more by hand."""

from __future__ import annotations

import pytest

from kourou.auth import AccessError, AccessTables, Acl, AuthConfig, Guard
from kourou.auth.model import ACTIONS, ALL_ACTIONS
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.signing import Credentials
from support.sites.access import SERVED, request_of

# Resource and the actions of which one is needed; all of them, where there are several -> the requests
PRIVILEGES = {
    "Topic:T Pub": "SEND_MESSAGE SEND_MESSAGE_V2 SEND_BATCH_MESSAGE SEND_REPLY_MESSAGE SEND_REPLY_MESSAGE_V2"
    " END_TRANSACTION RECALL_MESSAGE",
    "Topic:T Pub/Sub/Get": "GET_ROUTEINFO_BY_TOPIC",
    "Topic:T Sub/Get": "QUERY_MESSAGE SEARCH_OFFSET_BY_TIMESTAMP GET_MAX_OFFSET GET_MIN_OFFSET",
    "Topic:T Get": "GET_EARLIEST_MSG_STORETIME VIEW_MESSAGE_BY_ID GET_TOPIC_STATS_INFO"
    " QUERY_TOPIC_CONSUME_BY_WHO GET_TOPIC_CONFIG",
    "Topic:T Create": "UPDATE_AND_CREATE_TOPIC UPDATE_AND_CREATE_TOPIC_LIST",
    "Topic:T Update": "RESUME_CHECK_HALF_MESSAGE",
    "Topic:T Delete": "DELETE_TOPIC_IN_BROKER",
    "Topic:T Sub, Group:G Sub": "PULL_MESSAGE LITE_PULL_MESSAGE HEART_BEAT LOCK_BATCH_MQ UNLOCK_BATCH_MQ"
    " CONSUME_MESSAGE_DIRECTLY QUERY_ASSIGNMENT CHECK_CLIENT_CONFIG POP_MESSAGE PEEK_MESSAGE ACK_MESSAGE"
    " NOTIFICATION CHANGE_MESSAGE_INVISIBLETIME BATCH_ACK_MESSAGE",
    "Topic:T Sub/Get, Group:G Sub/Get": "QUERY_CONSUMER_OFFSET POLLING_INFO",
    "Topic:T Sub/Update, Group:G Sub/Update": "UPDATE_CONSUMER_OFFSET",
    "Topic:T Get, Group:G Get": "GET_CONSUME_STATS INVOKE_BROKER_TO_GET_CONSUMER_STATUS"
    " QUERY_CONSUME_TIME_SPAN QUERY_CORRECTION_OFFSET QUERY_CONSUME_QUEUE QUERY_SUBSCRIPTION_BY_CONSUMER",
    "Topic:T Update, Group:G Update": "INVOKE_BROKER_TO_RESET_OFFSET"
    " UPDATE_AND_GET_GROUP_FORBIDDEN SET_MESSAGE_REQUEST_MODE",
    "Topic:T Update, Group:G Update, Group:G Get": "CLONE_GROUP_OFFSET",
    "Topic:* List": "GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_TOPICS_BY_CLUSTER GET_SYSTEM_TOPIC_LIST_FROM_NS"
    " GET_UNIT_TOPIC_LIST GET_HAS_UNIT_SUB_TOPIC_LIST GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST",
    "Topic:* Get/List": "GET_ALL_TOPIC_CONFIG",
    "Group:* Get/List": "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
    "Group:G Sub": "UNREGISTER_CLIENT CONSUMER_SEND_MSG_BACK",
    "Group:G Sub/Get": "GET_CONSUMER_LIST_BY_GROUP",
    "Group:G Get": "GET_CONSUMER_CONNECTION_LIST GET_CONSUMER_RUNNING_INFO QUERY_TOPICS_BY_CONSUMER"
    " GET_SUBSCRIPTIONGROUP_CONFIG",
    "Group:G Create": "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST",
    "Group:G Delete": "DELETE_SUBSCRIPTIONGROUP",
    "Cluster:C Get": "GET_BROKER_CONFIG GET_BROKER_RUNTIME_INFO GET_ALL_CONSUMER_OFFSET GET_ALL_DELAY_OFFSET"
    " GET_TIMER_CHECK_POINT GET_TIMER_METRICS GET_KV_CONFIG GET_BROKER_CLUSTER_INFO"
    " GET_PRODUCER_CONNECTION_LIST GET_KVLIST_BY_NAMESPACE GET_SYSTEM_TOPIC_LIST_FROM_BROKER"
    " VIEW_BROKER_STATS_DATA GET_BROKER_CONSUME_STATS GET_NAMESRV_CONFIG QUERY_DATA_VERSION"
    " GET_ALL_PRODUCER_INFO GET_BROKER_MEMBER_GROUP GET_BROKER_HA_STATUS GET_COLD_DATA_FLOW_CTR_INFO"
    " AUTH_GET_USER AUTH_LIST_USER AUTH_GET_ACL AUTH_LIST_ACL GET_ALL_MESSAGE_REQUEST_MODE",
    "Cluster:C Update": "UPDATE_BROKER_CONFIG PUT_KV_CONFIG DELETE_KV_CONFIG REGISTER_BROKER"
    " UNREGISTER_BROKER WIPE_WRITE_PERM_OF_BROKER ADD_WRITE_PERM_OF_BROKER DELETE_TOPIC_IN_NAMESRV"
    " REGISTER_TOPIC_IN_NAMESRV CLEAN_EXPIRED_CONSUMEQUEUE CLEAN_UNUSED_TOPIC UPDATE_NAMESRV_CONFIG"
    " DELETE_EXPIRED_COMMITLOG BROKER_HEARTBEAT NOTIFY_MIN_BROKER_ID_CHANGE EXCHANGE_BROKER_HA_INFO"
    " RESET_MASTER_FLUSH_OFFSET"
    " AUTH_CREATE_USER AUTH_UPDATE_USER AUTH_DELETE_USER AUTH_CREATE_ACL AUTH_UPDATE_ACL AUTH_DELETE_ACL"
    " SWITCH_TIMER_ENGINE",
}
NEEDS: dict[str, list[tuple[str, set[str]]]] = {
    name: [(part.split()[0], set(part.split()[1].split("/"))) for part in needs.split(", ")]
    for needs, names in PRIVILEGES.items()
    for name in names.split()
}
PLACES = ("Topic:T", "Group:G", "Cluster:C")
PEER = "192.0.2.7:4711"


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> AccessTables:
    """A user for each role, whose name is its secret."""
    tables = AccessTables(tmp_path_factory.mktemp("access"))
    tables.open(AuthConfig(True, True, first_user=Credentials("super", "super")))
    for name in ("nothing", "all", "denied", "elsewhere", "disabled", *ACTIONS, *PLACES):
        tables.create_user({"username": name, "password": name})
    for action in ACTIONS:
        put(tables, action, ("*", action, "Allow"))
    for place in PLACES:
        put(tables, place, (f"{place.split(':')[0]}:*", ALL_ACTIONS, "Allow"))
    put(tables, "all", *((f"{place.split(':')[0]}:*", ALL_ACTIONS, "Allow") for place in PLACES))
    denied = [(place, ALL_ACTIONS, "Deny") for place in PLACES]
    put(tables, "denied", ("*", ALL_ACTIONS, "Deny"), *denied)
    put(tables, "elsewhere", ("*", ALL_ACTIONS, "Allow"), ips=["10.0.0.0/8"])
    put(tables, "disabled", ("*", ALL_ACTIONS, "Allow"))
    tables.update_user({"username": "disabled", "userType": "Super", "userStatus": "disable"})
    return tables


def put(
    tables: AccessTables, user: str, *entries: tuple[str, str, str], ips: list[str] | None = None
) -> None:
    values = [
        {"resource": resource, "actions": [action], "decision": decision, "sourceIps": ips or []}
        for resource, action, decision in entries
    ]
    tables.put_acl(Acl.from_json({"subject": f"User:{user}", "policies": [{"entries": values}]}))


def allowed_roles(guard: Guard, code: int) -> set[str]:
    """The roles that may send a request of this code."""
    requests: dict[str, RemotingCommand] = {"nobody": request_of(code)}
    roles = ("super", "nothing", "all", "denied", "elsewhere", "disabled", "stranger", *ACTIONS, *PLACES)
    requests.update({role: Credentials(role, role).sign(request_of(code)) for role in roles})
    requests["wrong secret"] = Credentials("super", "wrong").sign(request_of(code))
    requests["no signature"] = request_of(code, AccessKey="super")
    found = set()
    for role, request in requests.items():
        try:
            guard.check(request, PEER)
        except AccessError:
            continue
        found.add(role)
    return found


def test_the_table_has_every_request_that_is_served():
    assert {int(RequestCode[name]) for name in NEEDS} == set(SERVED)


@pytest.mark.parametrize("name", NEEDS)
def test_who_may_ask(tables, name):
    guard = Guard(AuthConfig(True, True), tables, lambda: "C")
    needs = NEEDS[name]
    wanted = {"super", "all", ALL_ACTIONS}
    wanted |= {action for action in ACTIONS if all(action in actions for _, actions in needs)}
    wanted |= {
        place for place in PLACES if {need.split(":")[0] for need, _ in needs} == {place.split(":")[0]}
    }
    assert allowed_roles(guard, RequestCode[name]) == wanted
