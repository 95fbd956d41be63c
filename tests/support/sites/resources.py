"""Every request that is served, the resources that it touches, and the right that each of them needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from kourou.auth.model import ACTIONS
from kourou.message.recall import RecallHandle
from kourou.message.topics import TRANS_CHECK_MAX_TIME_TOPIC
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.store.put import InnerMessage
from support.sites.broker import Site, send_request
from support.sites.guarded_site import User

OK = ResponseCode.SUCCESS
NOT_ONLINE = ResponseCode.SYSTEM_ERROR  # of clients that are asked: none is there
CLUSTER = "Cluster:DefaultCluster"


@dataclass(frozen=True)
class Case:
    """A request. `needs` are the resources with the actions of which one is needed."""

    code: str
    needs: str
    fields: dict[str, str] = field(default_factory=dict)
    body: Any = None
    answer: int = OK

    def request(self, scene: dict[str, str]) -> RemotingCommand:
        fields = {name: value.format(**scene) for name, value in self.fields.items()}
        body = self.body
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        return RemotingCommand(RequestCode[self.code], fields, body)

    def rights(self, lacking: int | None = None) -> dict[str, list[str]]:
        """Exactly what is needed; or all but one need, with all else on the resource of that one."""
        rights: dict[str, list[str]] = {}
        for number, need in enumerate(self.needs.split(", ")):
            resource, actions = need.split()
            allowed = actions.split("/")[:1]
            if number == lacking:
                allowed = [action for action in ACTIONS[1:] if action not in actions.split("/")]
            rights.setdefault(resource, []).extend(allowed)
        return rights


def cases(needs: str, codes: str, answer: int = OK) -> list[Case]:
    """Requests that need no more than their code says."""
    return [Case(code, needs, answer=answer) for code in codes.split()]


MINE = {"consumerGroup": "mine", "group": "mine", "topic": "mine", "queueId": "0"}
QUEUE = {"topic": "mine", "brokerName": "broker-a", "queueId": 0}
LONG = {
    "producerGroup": "p", "topic": "mine", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0",
}  # fmt: skip
SHORT = dict(send_request("mine").ext_fields)
PULL = {
    **MINE, "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0",
    "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
}  # fmt: skip
POP = {
    **MINE, "queueId": "-1", "maxMsgNums": "1", "invisibleTime": "60000", "pollTime": "0", "initMode": "0",
    "bornTime": "99999999999999", "extraInfo": "0 1 1 0 0 broker-a 0 0",
}  # fmt: skip
BATCH_ACK = {"t": "mine", "c": "mine", "b": "AQ==", "it": 1, "pt": 1, "q": 0, "r": "0", "rq": 0, "so": 0}
LIGHT = "UNIQ_KEY\x01U\x02INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02"
LIGHT_NEEDS = "Topic:mine Pub, Topic:%LMQ%a Pub, Topic:%LMQ%b Pub"
CONSUMER = {"groupName": "mine", "subscriptionDataSet": [{"topic": "mine"}, {"topic": "%RETRY%mine"}]}
END = {
    "producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "{half}", "commitOrRollback": "8",
    "msgId": "H",
}  # fmt: skip
BATCH = bytes.fromhex("00000018 00000000 00000000 00000000 00000002 7878 0000".replace(" ", ""))
TOPIC_FIELDS = {
    "topic": "new", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}  # fmt: skip
USER = json.dumps({"password": "x"}).encode()
ACL = {"policies": [{"entries": [{"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}]}]}

BROKER = [
    # Messages that come
    Case("SEND_MESSAGE", "Topic:mine Pub", LONG, b"x"),
    Case("SEND_MESSAGE", "Group:mine Sub", {**LONG, "topic": "%RETRY%mine"}, b"x"),
    Case("SEND_MESSAGE", LIGHT_NEEDS, {**LONG, "properties": LIGHT}, b"x"),
    Case("SEND_MESSAGE_V2", "Topic:mine Pub", SHORT, b"x"),
    Case("SEND_MESSAGE_V2", "Topic:%DLQ%theirs Pub", {**SHORT, "b": "%DLQ%theirs"}, b"x"),
    Case("SEND_MESSAGE_V2", LIGHT_NEEDS, {**SHORT, "i": LIGHT}, b"x"),
    Case("SEND_MESSAGE_V2", "Topic:new Pub", {**SHORT, "b": "new"}, b"x"),  # it makes the topic
    Case("SEND_BATCH_MESSAGE", "Topic:mine Pub", {**SHORT, "m": "true"}, BATCH),
    Case("SEND_REPLY_MESSAGE", "Topic:mine Pub", {**LONG, "properties": "UNIQ_KEY\x01U"}, b"x", NOT_ONLINE),
    Case("SEND_REPLY_MESSAGE_V2", "Topic:mine Pub", SHORT, b"x", NOT_ONLINE),
    Case("SEND_REPLY_MESSAGE_V2", LIGHT_NEEDS, {**SHORT, "i": LIGHT}, b"x", NOT_ONLINE),
    Case("END_TRANSACTION", "Topic:theirs Pub", END),
    Case("END_TRANSACTION", "Topic:mine Pub, Topic:theirs Pub", {**END, "topic": "mine"}),
    Case("RESUME_CHECK_HALF_MESSAGE", "Topic:mine Update, Topic:theirs Update",
         {"topic": "mine", "msgId": "{given_up}"}),
    Case("RECALL_MESSAGE", "Topic:mine Pub", {"topic": "mine", "recallHandle": "{handle}"}),
    Case("CONSUMER_SEND_MSG_BACK", "Group:mine Sub, Topic:theirs Sub",
         {"group": "mine", "offset": "{theirs}", "delayLevel": "0"}),
    # Messages that go
    Case("PULL_MESSAGE", "Topic:mine Sub, Group:mine Sub", PULL),
    Case("PULL_MESSAGE", "Group:theirs Sub, Group:mine Sub", {**PULL, "topic": "%RETRY%theirs"},
         answer=ResponseCode.PULL_NOT_FOUND),
    Case("PULL_MESSAGE", "Topic:%DLQ%theirs Sub, Group:mine Sub", {**PULL, "topic": "%DLQ%theirs"},
         answer=ResponseCode.PULL_NOT_FOUND),
    Case("LITE_PULL_MESSAGE", "Topic:mine Sub, Group:mine Sub", PULL),
    Case("POP_MESSAGE", "Topic:mine Sub, Group:mine Sub", POP, answer=ResponseCode.POLLING_TIMEOUT),
    Case("PEEK_MESSAGE", "Topic:mine Sub, Group:mine Sub", POP, answer=ResponseCode.PULL_NOT_FOUND),
    Case("NOTIFICATION", "Topic:mine Sub, Group:mine Sub", POP),
    Case("POLLING_INFO", "Topic:mine Sub/Get, Group:mine Sub/Get", POP),
    Case("ACK_MESSAGE", "Topic:mine Sub, Group:mine Sub", {**POP, "queueId": "0", "offset": "0"}),
    Case("ACK_MESSAGE", "Topic:theirs Sub, Group:mine Sub",
         {**POP, "topic": "%RETRY%mine_theirs", "queueId": "0", "offset": "0"},
         answer=ResponseCode.TOPIC_NOT_EXIST),
    Case("CHANGE_MESSAGE_INVISIBLETIME", "Topic:mine Sub, Group:mine Sub",
         {**POP, "queueId": "0", "offset": "0"}),
    Case("BATCH_ACK_MESSAGE", "Topic:mine Sub, Group:mine Sub, Topic:theirs Sub, Group:theirs Sub", {},
         {"brokerName": "b", "acks": [BATCH_ACK, {**BATCH_ACK, "t": "theirs", "c": "theirs"}]}),
    Case("QUERY_MESSAGE", "Topic:mine Sub/Get",
         {"topic": "mine", "key": "U", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"},
         answer=ResponseCode.QUERY_NOT_FOUND),
    Case("VIEW_MESSAGE_BY_ID", "Topic:mine Get, Topic:theirs Get", {"topic": "mine", "offset": "{theirs}"}),
    Case("CONSUME_MESSAGE_DIRECTLY", "Topic:mine Sub, Group:mine Sub, Topic:theirs Sub",
         {**MINE, "clientId": "c", "msgId": "{theirs_id}"}, answer=NOT_ONLINE),
    Case("QUERY_CONSUME_QUEUE", "Topic:mine Get, Group:mine Get", {**MINE, "index": "0", "count": "1"}),
    # Clients
    Case("HEART_BEAT", "Group:mine Sub, Topic:mine Sub", {},
         {"clientID": "c", "consumerDataSet": [CONSUMER]}),
    Case("UNREGISTER_CLIENT", "Group:mine Sub", {"clientID": "c", "consumerGroup": "mine"}),
    Case("CHECK_CLIENT_CONFIG", "Group:mine Sub, Topic:mine Sub", {},
         {"clientId": "c", "group": "mine", "subscriptionData": {"topic": "mine"}}),
    Case("LOCK_BATCH_MQ", "Group:mine Sub, Topic:mine Sub", {},
         {"consumerGroup": "mine", "clientId": "c", "mqSet": [QUEUE]}),
    Case("UNLOCK_BATCH_MQ", "Group:mine Sub, Topic:mine Sub", {},
         {"consumerGroup": "mine", "clientId": "c", "mqSet": [QUEUE]}),
    Case("QUERY_ASSIGNMENT", "Group:mine Sub, Topic:mine Sub", {},
         {"consumerGroup": "mine", "topic": "mine", "clientId": "c"}),
    Case("SET_MESSAGE_REQUEST_MODE", "Group:mine Update, Topic:mine Update", {},
         {"consumerGroup": "mine", "topic": "mine", "mode": "PULL"}),
    Case("GET_CONSUMER_LIST_BY_GROUP", "Group:mine Sub/Get", MINE, answer=NOT_ONLINE),
    Case("GET_CONSUMER_CONNECTION_LIST", "Group:mine Get", MINE, answer=ResponseCode.CONSUMER_NOT_ONLINE),
    Case("GET_PRODUCER_CONNECTION_LIST", f"{CLUSTER} Get", {"producerGroup": "p"}, answer=NOT_ONLINE),
    Case("GET_CONSUMER_RUNNING_INFO", "Group:mine Get", {**MINE, "clientId": "c"}, answer=NOT_ONLINE),
    # Offsets
    Case("QUERY_CONSUMER_OFFSET", "Topic:mine Sub/Get, Group:mine Sub/Get", MINE),
    Case("UPDATE_CONSUMER_OFFSET", "Topic:mine Sub/Update, Group:mine Sub/Update",
         {**MINE, "commitOffset": "1"}),
    Case("UPDATE_CONSUMER_OFFSET", "Group:theirs Sub/Update, Group:mine Sub/Update",
         {**MINE, "topic": "%RETRY%theirs", "commitOffset": "1"}),
    Case("SEARCH_OFFSET_BY_TIMESTAMP", "Topic:mine Get/Sub", {**MINE, "timestamp": "0"}),
    Case("GET_MAX_OFFSET", "Topic:mine Get/Sub", MINE),
    Case("GET_MIN_OFFSET", "Topic:mine Get/Sub", MINE),
    Case("GET_EARLIEST_MSG_STORETIME", "Topic:mine Get", MINE),
    Case("QUERY_CORRECTION_OFFSET", "Topic:mine Get, Group:theirs Get, Group:mine Get",
         {"topic": "mine", "compareGroup": "theirs"}),  # whoever has consumed the topic counts: `mine`
    Case("CLONE_GROUP_OFFSET", "Group:mine Get, Group:theirs Update, Topic:mine Update",
         {"srcGroup": "mine", "destGroup": "theirs", "topic": "mine"}),
    Case("CLONE_GROUP_OFFSET", "Group:mine Get, Group:theirs Update, Topic:mine Update, Topic:second Update",
         {"srcGroup": "mine", "destGroup": "theirs"}),
    Case("INVOKE_BROKER_TO_RESET_OFFSET", "Topic:mine Update, Group:mine Update",
         {**MINE, "timestamp": "-1", "isForce": "true"}),
    Case("INVOKE_BROKER_TO_GET_CONSUMER_STATUS", "Topic:mine Get, Group:mine Get", MINE, answer=NOT_ONLINE),
    Case("GET_CONSUME_STATS", "Group:mine Get, Topic:mine Get", MINE),
    Case("GET_CONSUME_STATS", "Group:mine Get, Topic:mine Get, Topic:second Get", {"consumerGroup": "mine"}),
    Case("GET_CONSUME_STATS", "Group:mine Get, Topic:theirs Get, Topic:second Get",
         {"consumerGroup": "mine", "topicList": "theirs;second"}),
    Case("QUERY_CONSUME_TIME_SPAN", "Topic:mine Get, Group:mine Get", MINE),
    # Topics and groups
    Case("UPDATE_AND_CREATE_TOPIC", "Topic:new Create", TOPIC_FIELDS),
    Case("UPDATE_AND_CREATE_TOPIC_LIST", "Topic:new Create, Topic:mine Create", {},
         {"topicConfigList": [{"topicName": "new"}, {"topicName": "mine"}]}),
    Case("DELETE_TOPIC_IN_BROKER", "Topic:mine Delete", {"topic": "mine"}),
    Case("GET_TOPIC_CONFIG", "Topic:mine Get", {"topic": "mine"}),
    Case("GET_TOPIC_STATS_INFO", "Topic:mine Get", {"topic": "mine"}),
    Case("QUERY_TOPIC_CONSUME_BY_WHO", "Topic:mine Get", {"topic": "mine"}),
    Case("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "Group:new Create", {}, {"groupName": "new"}),
    Case("UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST", "Group:new Create, Group:mine Create", {},
         {"groupConfigList": [{"groupName": "new"}, {"groupName": "mine"}]}),
    Case("DELETE_SUBSCRIPTIONGROUP", "Group:mine Delete", {"groupName": "mine", "cleanOffset": "true"}),
    Case("GET_SUBSCRIPTIONGROUP_CONFIG", "Group:mine Get", MINE),
    Case("UPDATE_AND_GET_GROUP_FORBIDDEN", "Group:mine Update, Topic:mine Update",
         {**MINE, "readable": "false"}),
    Case("QUERY_TOPICS_BY_CONSUMER", "Group:mine Get", MINE),
    Case("QUERY_SUBSCRIPTION_BY_CONSUMER", "Group:mine Get, Topic:mine Get", MINE),
    *cases("Topic:* Get/List", "GET_ALL_TOPIC_CONFIG"),
    *cases("Group:* Get/List", "GET_ALL_SUBSCRIPTIONGROUP_CONFIG"),
    # The broker
    *cases(
        f"{CLUSTER} Get",
        "GET_BROKER_CONFIG GET_BROKER_RUNTIME_INFO GET_ALL_CONSUMER_OFFSET GET_ALL_DELAY_OFFSET"
        " GET_TIMER_CHECK_POINT GET_TIMER_METRICS GET_SYSTEM_TOPIC_LIST_FROM_BROKER GET_ALL_PRODUCER_INFO"
        " GET_BROKER_HA_STATUS GET_COLD_DATA_FLOW_CTR_INFO AUTH_LIST_USER AUTH_LIST_ACL"
        " GET_ALL_MESSAGE_REQUEST_MODE",
    ),
    Case("GET_BROKER_CONSUME_STATS", f"{CLUSTER} Get", {"isOrder": "false"}),
    Case("VIEW_BROKER_STATS_DATA", f"{CLUSTER} Get", {"statsName": "x", "statsKey": "y"}, answer=NOT_ONLINE),
    Case("AUTH_GET_USER", f"{CLUSTER} Get", {"username": "app"}),
    Case("AUTH_GET_ACL", f"{CLUSTER} Get", {"subject": "User:app"}),
    *cases(
        f"{CLUSTER} Update",
        "CLEAN_EXPIRED_CONSUMEQUEUE CLEAN_UNUSED_TOPIC DELETE_EXPIRED_COMMITLOG NOTIFY_MIN_BROKER_ID_CHANGE"
        " EXCHANGE_BROKER_HA_INFO RESET_MASTER_FLUSH_OFFSET",
    ),
    Case("UPDATE_BROKER_CONFIG", f"{CLUSTER} Update", {}, b"regionId=changed"),
    Case("SWITCH_TIMER_ENGINE", f"{CLUSTER} Update", {"E_T": "F"}),
    Case("AUTH_CREATE_USER", f"{CLUSTER} Update", {"username": "new"}, USER),
    Case("AUTH_UPDATE_USER", f"{CLUSTER} Update", {"username": "other"}, USER),
    Case("AUTH_DELETE_USER", f"{CLUSTER} Update", {"username": "other"}),
    Case("AUTH_CREATE_ACL", f"{CLUSTER} Update", {"subject": "User:other"}, ACL),
    Case("AUTH_UPDATE_ACL", f"{CLUSTER} Update", {"subject": "User:other"}, ACL),
    Case("AUTH_DELETE_ACL", f"{CLUSTER} Update", {"subject": "User:other"}),
]  # fmt: skip

# A broker `b` of the cluster `two` is registered, with the topic `t`.
OURS = {
    "clusterName": "two",
    "brokerName": "b",
    "brokerAddr": "127.0.0.1:9",
    "brokerId": "0",
    "haServerAddr": "",
}
TWO = "Cluster:two"
REGISTERED = {"topicConfigSerializeWrapper": {"topicConfigTable": {"t": {"topicName": "t"}, "u": {}}}}
NAME_SERVER = [
    Case("GET_ROUTEINFO_BY_TOPIC", "Topic:t Pub/Sub/Get", {"topic": "t"}),
    Case("GET_ROUTEINFO_BY_TOPIC", "Group:g Sub/Get", {"topic": "%RETRY%g"},
         answer=ResponseCode.TOPIC_NOT_EXIST),
    *cases(
        "Topic:* List",
        "GET_ALL_TOPIC_LIST_FROM_NAMESERVER GET_SYSTEM_TOPIC_LIST_FROM_NS GET_UNIT_TOPIC_LIST"
        " GET_HAS_UNIT_SUB_TOPIC_LIST GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST",
    ),
    Case("GET_TOPICS_BY_CLUSTER", "Topic:* List", {"cluster": "two"}),
    *cases(f"{CLUSTER} Get", "GET_BROKER_CLUSTER_INFO GET_NAMESRV_CONFIG"),
    Case("GET_KV_CONFIG", f"{CLUSTER} Get", {"namespace": "n", "key": "k"}),
    Case("GET_KVLIST_BY_NAMESPACE", f"{CLUSTER} Get", {"namespace": "n"}),
    Case("PUT_KV_CONFIG", f"{CLUSTER} Update", {"namespace": "n", "key": "k", "value": "w"}),
    Case("DELETE_KV_CONFIG", f"{CLUSTER} Update", {"namespace": "n", "key": "k"}),
    Case("UPDATE_NAMESRV_CONFIG", f"{CLUSTER} Update", {}, b"productEnvName=changed"),
    # Brokers are of the cluster that they registered with, whichever one a request names.
    Case("REGISTER_BROKER", f"{TWO} Update", OURS, REGISTERED),
    Case("REGISTER_BROKER", f"Cluster:three Update, {TWO} Update",
         {**OURS, "clusterName": "three", "brokerAddr": "127.0.0.1:666"}, REGISTERED),
    Case("UNREGISTER_BROKER", f"{TWO} Update", OURS),
    Case("UNREGISTER_BROKER", f"Cluster:three Update, {TWO} Update", {**OURS, "clusterName": "three"}),
    Case("BROKER_HEARTBEAT", f"{TWO} Update", OURS),
    Case("QUERY_DATA_VERSION", f"{TWO} Get", OURS, {"counter": 1}),
    Case("GET_BROKER_MEMBER_GROUP", f"{TWO} Get", OURS),
    Case("GET_BROKER_MEMBER_GROUP", f"Cluster:three Get, {TWO} Get", {**OURS, "clusterName": "three"}),
    Case("WIPE_WRITE_PERM_OF_BROKER", f"{CLUSTER} Update, {TWO} Update", {"brokerName": "b"}),
    Case("ADD_WRITE_PERM_OF_BROKER", f"{CLUSTER} Update, {TWO} Update", {"brokerName": "b"}),
    Case("REGISTER_TOPIC_IN_NAMESRV", f"{CLUSTER} Update, {TWO} Update", {"topic": "v"},
         {"queueDatas": [{"brokerName": "b", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}]}),
    Case("DELETE_TOPIC_IN_NAMESRV", f"{TWO} Update", {"topic": "t", "clusterName": "two"}),
    Case("DELETE_TOPIC_IN_NAMESRV", f"{CLUSTER} Update, {TWO} Update", {"topic": "t"}),
]  # fmt: skip


def prepare(site: Site) -> dict[str, str]:
    """Messages and offsets to ask for, and where they are."""
    admin = User(site, "admin")

    def place(request: RemotingCommand) -> str:
        return admin.ask(request).ext_fields["msgId"]

    place(send_request("mine"))
    theirs = place(send_request("theirs"))
    half = place(send_request("theirs", b"x", {"UNIQ_KEY": "H", "TRAN_MSG": "true", "PGROUP": "p"}, f="4"))
    given_up = {"UNIQ_KEY": "G", "PGROUP": "p", "REAL_TOPIC": "theirs", "REAL_QID": "0"}
    put = InnerMessage.of(
        TRANS_CHECK_MAX_TIME_TOPIC, 0, b"x", given_up, store_host=site.broker.sender.store_host
    )
    found = site.do(site.broker.store.look_message, site.do(site.broker.put, put).physical_offset)
    assert found is not None
    for topic in ("mine", "second"):
        site.do(site.broker.offsets.commit, "x", "mine", topic, 0, 1)
    due_ms = site.broker.clock.now_ms() + 600_000
    return {
        "theirs": str(int(theirs[16:], 16)),
        "theirs_id": theirs,
        "half": str(int(half[16:], 16)),
        "given_up": found.offset_message_id,
        "handle": RecallHandle("mine", "broker-a", str(due_ms), "U").encode(),
    }
