"""What each request asks of a name server: one function a request code (Java's DefaultRequestProcessor).

Where Java's response has a header of its own, extFields are there even if empty; otherwise they are not.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from kourou.auth import Guard, Resource
from kourou.auth.model import CLUSTER
from kourou.auth.rules import GET, UPDATE
from kourou.clock import Clock
from kourou.errors import ConfigError
from kourou.files import write_atomically
from kourou.namesrv.config import NameServerConfig
from kourou.namesrv.kv import ORDER_TOPIC_CONFIG, KvConfig
from kourou.namesrv.routes import BrokerIdentity, QueueData, RouteTable
from kourou.properties_file import parse_properties
from kourou.remoting.budgets import Budgets
from kourou.remoting.connection import Connection, Handler
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import MAX_LENIENT_TOKENS
from kourou.remoting.protocol.codes import ADVICE, RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError, is_true
from kourou.remoting.protocol.headers import RegisterBroker, UnregisterBroker
from kourou.remoting.protocol.registration import V4_9_4, Registration, decode_registration
from kourou.remoting.protocol.topic_config import UNIT_FLAG, UNIT_SUB_FLAG, DataVersion

log = logging.getLogger(__name__)

ZONE_NAME = "__ZONE_NAME"
ZONE_MODE = "__ZONE_MODE"

_QUEUE_NUMBERS = ("readQueueNums", "writeQueueNums", "perm", "topicSysFlag")


@dataclass(frozen=True, slots=True)
class Context:
    """What requests are answered from."""

    config: NameServerConfig
    routes: RouteTable
    kv: KvConfig
    clock: Clock
    started_ms: int  # elapsed time
    guard: Guard
    budgets: Budgets
    answer_later: Callable[[Connection, RemotingCommand, Coroutine[Any, Any, RemotingCommand]], None]


def make_handlers(context: Context) -> dict[int, Handler]:
    """The handlers by request code."""
    return {int(code): partial(handler, context) for code, handler in HANDLERS.items()}


# Brokers


def register_broker(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand | None:
    """A broker registers, or renews its registration. A worker reads its topics, which may be many."""
    header = RegisterBroker.read(request)
    body, crc = _body(request), header.body_crc32
    if crc != 0 and crc != zlib.crc32(body or b"") & 0x7FFFFFFF:
        log.warning("the body of a registration from %s has another checksum", connection.peer)
        return request.response(ResponseCode.SYSTEM_ERROR, {}, remark="crc32 not match")
    who = _broker(header)
    _require_clusters(context, connection, request, context.routes.clusters_of(who.name), UPDATE)
    decode = partial(
        decode_registration,
        body,
        compressed=header.compressed,
        version=request.version,
        max_topics=context.budgets.max_registered_topics,
    )
    context.answer_later(connection, request, _register(context, connection, request, header, decode))
    return None


async def _register(
    context: Context,
    connection: Connection,
    request: RemotingCommand,
    header: RegisterBroker,
    decode: Callable[[], Registration],
) -> RemotingCommand:
    registration = await asyncio.get_running_loop().run_in_executor(None, decode)
    if not connection.is_open:  # the connection is gone: nothing would unregister the broker again
        return request.response(ResponseCode.SYSTEM_ERROR, {}, remark="register broker failed")
    result = context.routes.register(
        _broker(header),
        registration,
        ha_address=header.ha_server_addr,
        zone=request.ext_fields.get(ZONE_NAME) or None,
        timeout_ms=header.heartbeat_timeout_millis,
        enable_acting_master=header.enable_acting_master,
        connection=connection,
    )
    if result is None:
        return request.response(ResponseCode.SYSTEM_ERROR, {}, remark="register broker failed")
    answer = {"haServerAddr": result.ha_address, "masterAddr": result.master_address}
    ordered = None
    if context.config.return_order_topic_config_to_broker:
        ordered = context.kv.get_namespace(ORDER_TOPIC_CONFIG)
    return request.response(
        ext_fields={name: value for name, value in answer.items() if value is not None},
        body=None if ordered is None else _json({"table": ordered}),
    )


def unregister_broker(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """A broker leaves."""
    header = UnregisterBroker.read(request)
    who = _broker(header)
    _require_clusters(context, connection, request, context.routes.clusters_of(who.name), UPDATE)
    context.routes.unregister(who)
    return request.response()


def broker_heartbeat(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """A broker lives."""
    context.routes.seen(_required(request, "clusterName"), _required(request, "brokerAddr"))
    return request.response()


def query_data_version(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """Whether a broker has other topics than it registered; asking is a sign of life, of who may give one."""
    cluster, address = _required(request, "clusterName"), _required(request, "brokerAddr")
    body = _body(request)
    version = None if body is None else DataVersion.from_json(_parse(body))
    changed = context.routes.is_changed(cluster, address, version)
    if context.guard.allows(request, connection.peer, Resource(CLUSTER, cluster), UPDATE):
        context.routes.seen(cluster, address)
    known = context.routes.data_version(cluster, address)
    return request.response(
        ext_fields={"changed": str(changed).lower()}, body=None if known is None else _json(known.to_json())
    )


def get_broker_member_group(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """The addresses of a broker name."""
    cluster, name = _required(request, "clusterName"), _required(request, "brokerName")
    _require_clusters(context, connection, request, context.routes.clusters_of(name), GET)
    group = context.routes.member_group(cluster, name)
    # The remark is Java's: it forgets to clear it.
    return request.response(body=_json({"brokerMemberGroup": group}), remark="not set any response code")


def get_broker_cluster_info(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """All clusters and brokers."""
    return request.response(body=_json(context.routes.cluster_info()))


def change_write_permission(
    counted_as: str,
    change: Callable[[RouteTable, str], int],
    context: Context,
    connection: Connection,
    request: RemotingCommand,
) -> RemotingCommand:
    """WIPE_WRITE_PERM_OF_BROKER and ADD_WRITE_PERM_OF_BROKER: for all topics of a broker."""
    name = _required(request, "brokerName")
    _require_clusters(context, connection, request, context.routes.clusters_of(name), UPDATE)
    return request.response(ext_fields={counted_as: str(change(context.routes, name))})


# Routes and topics


def get_route_info_by_topic(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """The route of a topic: strict JSON for clients since 4.9.4 and whoever asks for it."""
    config, fields, topic = context.config, request.ext_fields, _required(request, "topic")
    age_ms = context.clock.elapsed_ms() - context.started_ms
    if config.need_wait_for_service and age_ms < config.wait_seconds_for_service * 1000:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="name server not ready")
    zone = fields.get(ZONE_NAME, "").strip() if is_true(fields.get(ZONE_MODE)) else ""
    route = context.routes.route(topic, zone or None)
    if route is None:
        return request.response(
            ResponseCode.TOPIC_NOT_EXIST,
            remark=f"No topic route info in name server for the topic: {topic}{ADVICE}",
        )
    if config.order_message_enable:
        order = context.kv.get(ORDER_TOPIC_CONFIG, topic)
        if order is not None:
            route["orderTopicConf"] = order
    strict = request.version >= V4_9_4 or is_true(fields.get("acceptStandardJsonOnly"))
    if strict and not zone:  # the filter of zones writes Java's own form again
        body = orjson.dumps(route, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    else:
        body = _json(dict(sorted(route.items())))
    return request.response(body=body)


def get_all_topic_list(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """All topics."""
    return _topic_list(request, context.config.enable_all_topic_list, context.routes.topics())


def get_topics_by_cluster(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """The topics of a cluster."""
    topics = context.routes.topics_of_cluster(_required(request, "cluster"))
    return _topic_list(request, context.config.enable_topic_list, topics)


def get_system_topic_list(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """The topics named after clusters and brokers, and a broker to ask for more."""
    topics, address = context.routes.system_topics()
    return request.response(body=_json({"brokerAddr": address, "topicList": topics}))


def get_unit_topic_list(
    wanted: int, unwanted: int, context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """The topics with one flag of units and without another."""
    topics = context.routes.topics_with_flags(wanted, unwanted)
    return _topic_list(request, context.config.enable_topic_list, topics)


def register_topic(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """A topic is at these brokers."""
    topic, body = _required(request, "topic"), _body(request)
    route = {} if body is None else _parse(body)
    try:
        queues = [
            QueueData(str(data["brokerName"]), *(int(data.get(key, 0)) for key in _QUEUE_NUMBERS))
            for data in route.get("queueDatas") or []
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadRequestError(f"queueDatas of topic {topic}: {error}") from error
    clusters = context.routes.clusters_of(*(data.broker_name for data in queues))
    _require_clusters(context, connection, request, clusters, UPDATE)
    context.routes.register_topic(topic, queues)
    return request.response()


def delete_topic(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """A topic is gone, everywhere or from a cluster."""
    topic, cluster = _required(request, "topic"), request.ext_fields.get("clusterName")
    if not cluster:
        clusters = context.routes.clusters_of(*context.routes.brokers_of(topic))
        _require_clusters(context, connection, request, clusters, UPDATE)
    context.routes.delete_topic(topic, cluster)
    return request.response()


# KV config


def put_kv_config(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """Set a value."""
    namespace, key, value = (_required(request, name) for name in ("namespace", "key", "value"))
    context.kv.put(namespace, key, value)
    return request.response()


def get_kv_config(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """A value."""
    namespace, key = _required(request, "namespace"), _required(request, "key")
    value = context.kv.get(namespace, key)
    if value is None:
        remark = f"No config item, Namespace: {namespace} Key: {key}"
        return request.response(ResponseCode.QUERY_NOT_FOUND, {}, remark=remark)
    return request.response(ext_fields={"value": value})


def delete_kv_config(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """Forget a value."""
    context.kv.delete(_required(request, "namespace"), _required(request, "key"))
    return request.response()


def get_kv_list_by_namespace(
    context: Context, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """All values of a namespace."""
    namespace = _required(request, "namespace")
    table = context.kv.get_namespace(namespace)
    if table is None:
        remark = f"No config item, Namespace: {namespace}"
        return request.response(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return request.response(body=_json({"table": table}))


# The server's own configuration


def update_config(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """Change configuration keys, and keep them in the file."""
    body = _body(request)
    if body is None:
        return request.response()
    try:
        properties = parse_properties(body.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"string2Properties error: {error}") from error
    if any(context.config.forbids_update_of(key) for key in properties):
        return request.response(ResponseCode.NO_PERMISSION, remark="Can not update config in black list.")
    context.config.update(properties)
    write_atomically(context.config.config_store_path, context.config.to_text(with_secrets=True).encode())
    log.info("configuration changed by %s: %s", connection.peer, properties)
    return request.response()


def get_config(context: Context, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """All configuration keys and values."""
    return request.response(body=context.config.to_text().encode())


# Fields and bodies


def _require_clusters(
    context: Context, connection: Connection, request: RemotingCommand, clusters: set[str], action: str
) -> None:
    """Raises AccessError unless the action is allowed in all these clusters."""
    for cluster in clusters:
        context.guard.require(request, connection.peer, Resource(CLUSTER, cluster), action)


def _broker(header: UnregisterBroker) -> BrokerIdentity:
    return BrokerIdentity(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)


def _required(request: RemotingCommand, name: str) -> str:
    value = request.ext_fields.get(name)
    if value is None:
        raise BadRequestError(f"the custom field <{name}> is null")
    return value


def _body(request: RemotingCommand) -> bytes | None:
    return None if request.body is None else bytes(request.body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = lenient_json.loads(body, MAX_LENIENT_TOKENS)
    except ValueError as error:
        raise BadRequestError(f"the body is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequestError("the body is no JSON object")
    return value


def _json(value: Any) -> bytes:
    return lenient_json.dumps(value)


def _topic_list(request: RemotingCommand, enabled: bool, topics: list[str]) -> RemotingCommand:
    if not enabled:
        return request.response(ResponseCode.SYSTEM_ERROR, remark="disable")
    return request.response(body=_json({"topicList": topics}))


HANDLERS: dict[RequestCode, Callable[[Context, Connection, RemotingCommand], RemotingCommand | None]] = {
    RequestCode.PUT_KV_CONFIG: put_kv_config,
    RequestCode.GET_KV_CONFIG: get_kv_config,
    RequestCode.DELETE_KV_CONFIG: delete_kv_config,
    RequestCode.REGISTER_BROKER: register_broker,
    RequestCode.UNREGISTER_BROKER: unregister_broker,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: get_route_info_by_topic,
    RequestCode.GET_BROKER_CLUSTER_INFO: get_broker_cluster_info,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(
        change_write_permission, "wipeTopicCount", RouteTable.wipe_write_permission
    ),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: get_all_topic_list,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: delete_topic,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: register_topic,
    RequestCode.GET_KVLIST_BY_NAMESPACE: get_kv_list_by_namespace,
    RequestCode.GET_TOPICS_BY_CLUSTER: get_topics_by_cluster,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: get_system_topic_list,
    RequestCode.GET_UNIT_TOPIC_LIST: partial(get_unit_topic_list, UNIT_FLAG, 0),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: partial(get_unit_topic_list, UNIT_SUB_FLAG, 0),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: partial(get_unit_topic_list, UNIT_SUB_FLAG, UNIT_FLAG),
    RequestCode.UPDATE_NAMESRV_CONFIG: update_config,
    RequestCode.GET_NAMESRV_CONFIG: get_config,
    RequestCode.QUERY_DATA_VERSION: query_data_version,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(
        change_write_permission, "addTopicCount", RouteTable.add_write_permission
    ),
    RequestCode.GET_BROKER_MEMBER_GROUP: get_broker_member_group,
    RequestCode.BROKER_HEARTBEAT: broker_heartbeat,
}
