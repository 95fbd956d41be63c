"""Who gets which queues, and how: PULL or POP (QueryAssignmentProcessor, MessageRequestModeManager).

Modes that were set are kept in messageRequestMode.json:

    {"messageRequestModeMap": {topic: {group: {"consumerGroup": …, "mode": "POP", "popShareQueueNum": 4,
     "topic": …}}}}
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from kourou.errors import KourouError
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.budgets import UNBOUND, Bound
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body, read_int, read_text
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.heartbeat import BROADCASTING, CLUSTERING
from kourou.remoting.protocol.topic_config import PERM_READ
from kourou.store.queue.queue_store import is_lmq

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

FILE_NAME = "messageRequestMode.json"
PULL, POP = "PULL", "POP"
ROUTE_TIMEOUT_S = 3.0
LMQ_QUEUE_ID = 0


class RequestMode(NamedTuple):
    """How a group takes the messages of a topic."""

    mode: str
    shared_queues: int = 0  # with POP: of how many other clients a client takes the queues too; 0 of all


class RequestModes:
    """The modes that were set."""

    def __init__(self, *, bound: Bound = UNBOUND) -> None:
        self._bound = bound
        self.table: dict[str, dict[str, RequestMode]] = {}  # topic -> group
        self.dirty = False

    def get(self, topic: str, group: str) -> RequestMode | None:
        """What was set; None if nothing was."""
        return self.table.get(topic, {}).get(group)

    def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set a mode. BudgetSpentError if there are too many already."""
        if self.get(topic, group) is None:
            self._bound.check(sum(map(len, self.table.values())) + 1)
        self.table.setdefault(topic, {})[group] = mode
        self.dirty = True

    def to_json(self) -> dict[str, Any]:
        """As Java's file and answers have it."""
        table = {
            topic: {
                group: {
                    "consumerGroup": group,
                    "mode": mode.mode,
                    "popShareQueueNum": mode.shared_queues,
                    "topic": topic,
                }
                for group, mode in groups.items()
            }
            for topic, groups in self.table.items()
        }
        return {"messageRequestModeMap": table}

    def encode(self) -> bytes:
        """The table as Java's file has it."""
        return lenient_json.dumps(self.to_json())

    def decode(self, value: Any) -> None:
        """Take the table of a file."""
        self.table = {
            topic: {
                group: RequestMode(read_text(mode, "mode", PULL), read_int(mode, "popShareQueueNum", 0))
                for group, mode in groups.items()
            }
            for topic, groups in (value.get("messageRequestModeMap") or {}).items()
        }


# Requests


def set_mode(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """SET_MESSAGE_REQUEST_MODE: how a group shall take a topic from now on."""
    body = read_body(request.body, "SET_MESSAGE_REQUEST_MODE")
    topic, group = read_text(body, "topic"), read_text(body, "consumerGroup")
    if topic.startswith(RETRY_PREFIX):
        return request.response(ResponseCode.NO_PERMISSION, remark="retry topic is not allowed to set mode")
    if broker.topics.get(topic) is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
    if broker.groups.find(group) is None:
        remark = "subscription group does not exist"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    mode = read_text(body, "mode", PULL)
    if mode not in (PULL, POP):
        return request.response(
            ResponseCode.INVALID_PARAMETER, remark=f"the mode {mode[:20]!r} is not PULL or POP"
        )
    broker.modes.set(topic, group, RequestMode(mode, read_int(body, "popShareQueueNum", 0)))
    broker.answer_settled(connection, request, FILE_NAME)
    return None


def get_all_modes(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_ALL_MESSAGE_REQUEST_MODE: the modes that were set, for slaves."""
    return request.response(body=broker.modes.encode())


def query_assignment(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """QUERY_ASSIGNMENT: the queues of a topic that a client of a group shall take, and how."""
    body = read_body(request.body, "QUERY_ASSIGNMENT")
    work = _assign(
        broker,
        request,
        read_text(body, "topic"),
        read_text(body, "consumerGroup"),
        read_text(body, "clientId"),
        read_text(body, "messageModel", CLUSTERING),
        read_text(body, "strategyName", ""),
    )
    broker.answer_later(connection, request, work)


async def _assign(
    broker: Broker,
    request: RemotingCommand,
    topic: str,
    group_name: str,
    client_id: str,
    message_model: str,
    strategy: str,
) -> RemotingCommand:
    """Without assignments in its answer, a client keeps what it has; with none among them, it has none."""
    mode = broker.modes.get(topic, group_name)
    if mode is None:
        config = broker.config
        is_pop = config.default_message_request_mode == POP and not topic.startswith(RETRY_PREFIX)
        mode = RequestMode(POP, config.default_pop_share_queue_num) if is_pop else RequestMode(PULL)
    queues = await _queues_of(broker, topic)
    if message_model != BROADCASTING and broker.config.server_load_balancer_enable:
        group = broker.consumers.get(group_name)
        clients = [] if group is None else sorted(group.client_ids())
        if group is None or not queues:
            queues = None
        elif mode.mode == POP:
            queues = _allocate_to_pop(strategy, queues, client_id, clients, mode.shared_queues)
        else:
            queues = _allocate(strategy, queues, client_id, clients)
    if queues is None:
        return request.response(body=b"{}")
    assignments = [{"messageQueue": queue, "mode": mode.mode} for queue in queues]
    return request.response(body=lenient_json.dumps({"messageQueueAssignments": assignments}))


async def _queues_of(broker: Broker, topic: str) -> list[MessageQueue] | None:
    """The queues that can be read, of all brokers that the name server knows; None if there is no topic."""
    name = broker.config.broker_name
    if is_lmq(topic):
        return [MessageQueue(topic, name, LMQ_QUEUE_ID)]
    for server in broker.config.name_servers:
        question = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        try:
            answer = await broker.client.call(server, question, ROUTE_TIMEOUT_S)
            if answer.code != ResponseCode.SUCCESS or not answer.body:
                continue
            return sorted(
                MessageQueue(topic, str(data["brokerName"]), queue_id)
                for data in lenient_json.loads(answer.body)["queueDatas"]
                if data["perm"] & PERM_READ
                for queue_id in range(data["readQueueNums"])
            )
        except (KourouError, KeyError, TypeError, ValueError) as error:
            log.warning("name server %s does not say where %s is: %s", server, topic, error)
    config = broker.topics.get(topic)
    if config is None or not config.perm & PERM_READ:
        return None
    return [MessageQueue(topic, name, queue_id) for queue_id in range(config.read_queue_nums)]


def _allocate(
    strategy: str, queues: list[MessageQueue], client_id: str, clients: list[str]
) -> list[MessageQueue] | None:
    """The share of a client, by Java's strategies; None if there is no such strategy."""
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        return None
    if client_id not in clients:
        return []
    place, count = clients.index(client_id), len(clients)
    if strategy == "AVG_BY_CIRCLE":
        return queues[place::count]
    share, rest = divmod(len(queues), count)
    start = place * share + min(place, rest)
    return queues[start : start + share + (place < rest)]


def _allocate_to_pop(
    strategy: str, queues: list[MessageQueue], client_id: str, clients: list[str], shared: int
) -> list[MessageQueue] | None:
    """The queues that a client pops: all of each broker (-1), or its own share and those of some others."""
    if strategy not in ("AVG", "AVG_BY_CIRCLE"):
        return None
    if shared <= 0 or shared >= len(clients) - 1:
        brokers = sorted({(queue.topic, queue.broker_name) for queue in queues})
        return [MessageQueue(topic, name, -1) for topic, name in brokers]
    if client_id not in clients:
        return []
    place = clients.index(client_id)
    if len(clients) > len(queues):
        return [queues[place % len(queues)]]
    found: list[MessageQueue] = []
    for step in range(shared + 1):
        found += _allocate(strategy, queues, clients[(place + step) % len(clients)], clients) or []
    return found


HANDLERS = {
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: get_all_modes,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
}
