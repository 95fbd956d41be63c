"""The broker itself: its configuration, its files, its peers (AdminBrokerProcessor), and who gets which
queues (QueryAssignmentProcessor)."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from kourou.broker.config import BrokerConfig
from kourou.broker.state.versions import next_version
from kourou.errors import KourouError
from kourou.files import write_atomically
from kourou.message.model import MessageQueue
from kourou.message.topics import RETRY_PREFIX
from kourou.properties_file import parse_properties
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body, read_text
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import NotifyMinBrokerIdChange
from kourou.remoting.protocol.heartbeat import BROADCASTING, CLUSTERING
from kourou.remoting.protocol.topic_config import PERM_READ
from kourou.store.queue.queue_store import is_lmq

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

ROUTE_TIMEOUT_S = 3.0
LMQ_QUEUE_ID = 0
PULL_MODE = "PULL"
TIMER_ENGINE_TYPE, FILE_TIME_WHEEL = "E_T", "F"

_writing = threading.Lock()  # one write of a configuration at a time; the last one has all changes


# Configuration


def get_config(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_BROKER_CONFIG: all keys and values, and their version."""
    version = lenient_json.dumps(broker.config.data_version.to_json()).decode()
    return request.response(ext_fields={"version": version}, body=broker.config.to_text().encode())


def update_config(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
    """UPDATE_BROKER_CONFIG: change keys now, and in the file that the broker was started with."""
    if not request.body:
        return request.response()
    try:
        properties = parse_properties(str(request.body, "utf-8"))
    except UnicodeDecodeError:
        raise BadRequestError("the body of UPDATE_BROKER_CONFIG is no UTF-8") from None
    if any(map(broker.config.forbids_update_of, properties)):
        log.warning("%s may not change all of the keys %s", connection.peer, sorted(properties))
        remark = "Can not update config in black list."
        return request.response(ResponseCode.NO_PERMISSION, remark=remark)
    broker.config.update(properties)
    log.info("%s changed the configuration: %s", connection.peer, properties)
    now_ms = broker.clock.now_ms()
    broker.config.data_version = next_version(broker.config.data_version, now_ms)
    broker.configure()
    if "brokerPermission" in properties:
        broker.topics.data_version = next_version(broker.topics.data_version, now_ms)
    broker.answer_later(connection, request, _configured(broker, request, "brokerPermission" in properties))
    return None


async def _configured(broker: Broker, request: RemotingCommand, registers: bool) -> RemotingCommand:
    """An answer that is given when a change is in the file and, of permissions, at the name servers."""
    if registers:
        await broker.registrar.register_all()
    if broker.config.broker_config_path:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, _write_config, broker.config)
        except OSError as error:
            log.error("the configuration has changed but cannot be kept: %s", error)
            remark = f"the change counts until the broker stops, for its file cannot be written: {error}"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
    return request.response()


def _write_config(config: BrokerConfig) -> None:
    with _writing:
        write_atomically(config.broker_config_path, config.to_text(with_secrets=True).encode())


# Files


def clean_expired_queues(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """CLEAN_EXPIRED_CONSUMEQUEUE: remove the queues of which no message is left, and which nobody uses.

    The next message of a queue that is removed has offset 0: a group that is further would not see it.
    """
    used = broker.topics.topics.keys() | broker.offsets.topics()
    removed = broker.store.queues.clean_expired(broker.store.commit_log.min_offset, used)
    log.info("%s has expired queues removed: %s", connection.peer, removed)
    return request.response()


def delete_expired_log(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """DELETE_EXPIRED_COMMITLOG: have log files that are past their time deleted soon, whatever the hour."""
    log.info("%s has expired log files deleted", connection.peer)
    broker.store.retention.delete_now()
    return request.response()


# What this broker has one way of


def set_request_mode(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """SET_MESSAGE_REQUEST_MODE: a group shall PULL a topic, as all do here; POP is refused."""
    body = read_body(request.body, "SET_MESSAGE_REQUEST_MODE")
    topic, group = read_text(body, "topic"), read_text(body, "consumerGroup")
    if topic.startswith(RETRY_PREFIX):
        return request.response(ResponseCode.NO_PERMISSION, remark="retry topic is not allowed to set mode")
    if broker.topics.get(topic) is None:
        return request.response(ResponseCode.TOPIC_NOT_EXIST, remark=f"topic[{topic}] not exist")
    if broker.groups.find(group) is None:
        remark = "subscription group does not exist"
        return request.response(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    if read_text(body, "mode") != PULL_MODE:
        remark = "this broker serves PULL only: POP is a mode that it does not have"
        return request.response(ResponseCode.INVALID_PARAMETER, remark=remark)
    return request.response()


def switch_timer_engine(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """SWITCH_TIMER_ENGINE: timers are on the time wheel (F), and cannot be anywhere else."""
    if not broker.timers.enabled:
        return request.response(ResponseCode.INVALID_PARAMETER, remark="broker timerWheelEnable is false")
    if request.ext_fields.get(TIMER_ENGINE_TYPE) != FILE_TIME_WHEEL:
        remark = "this broker has the engine F only, the time wheel in files"
        return request.response(ResponseCode.INVALID_PARAMETER, remark=remark)
    return request.response()


def get_cold_data_info(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_COLD_DATA_FLOW_CTR_INFO: nobody is slowed down for reading what is not in memory."""
    others = broker.config.others
    body = {
        "cgColdReadThreshold": int(others.get("cgColdReadThreshold", 3 * 1024 * 1024)),
        "configTable": {},
        "globalAcc": 0,
        "globalColdReadThreshold": int(others.get("globalColdReadThreshold", 100 * 1024 * 1024)),
        "runtimeTable": {},
    }
    return request.response(body=lenient_json.dumps(body))


# Peers


def min_broker_changed(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """NOTIFY_MIN_BROKER_ID_CHANGE: another broker of this name is the one with the lowest id."""
    header = NotifyMinBrokerIdChange.read(request)
    log.info("%s: the lowest broker id has changed: %s", connection.peer, header)
    if broker.group is not None:
        broker.group.changed(header)
    return request.response()


# Queues of a client that leaves their distribution to the broker


def query_assignment(broker: Broker, connection: Connection, request: RemotingCommand) -> None:
    """QUERY_ASSIGNMENT: the queues of a topic that a client of a group shall pull."""
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
    queues = await _queues_of(broker, topic)
    if message_model != BROADCASTING and broker.config.server_load_balancer_enable:
        group = broker.consumers.get(group_name)
        queues = None if group is None else _allocate(strategy, queues or [], client_id, group.client_ids())
    if queues is None:
        return request.response(body=b"{}")
    assignments = [{"messageQueue": queue, "mode": "PULL"} for queue in queues]
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
    strategy: str, queues: list[MessageQueue], client_id: str, client_ids: list[str]
) -> list[MessageQueue] | None:
    """The share of a client, by Java's strategies; None if there is no such strategy, or nothing to share."""
    if strategy not in ("AVG", "AVG_BY_CIRCLE") or not queues:
        return None
    clients = sorted(client_ids)
    if client_id not in clients:
        return []
    place, count = clients.index(client_id), len(clients)
    if strategy == "AVG_BY_CIRCLE":
        return queues[place::count]
    share, rest = divmod(len(queues), count)
    start = place * share + min(place, rest)
    return queues[start : start + share + (place < rest)]


HANDLERS = {
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_expired_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_log,
    RequestCode.SET_MESSAGE_REQUEST_MODE: set_request_mode,
    RequestCode.SWITCH_TIMER_ENGINE: switch_timer_engine,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: get_cold_data_info,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: min_broker_changed,
    RequestCode.QUERY_ASSIGNMENT: query_assignment,
}
