"""The broker itself: its configuration, its files, its peers (AdminBrokerProcessor)."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from kourou.broker.config import BrokerConfig
from kourou.broker.state.versions import next_version
from kourou.files import write_atomically
from kourou.properties_file import parse_properties
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.headers import NotifyMinBrokerIdChange

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)

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


HANDLERS = {
    RequestCode.GET_BROKER_CONFIG: get_config,
    RequestCode.UPDATE_BROKER_CONFIG: update_config,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: clean_expired_queues,
    RequestCode.DELETE_EXPIRED_COMMITLOG: delete_expired_log,
    RequestCode.SWITCH_TIMER_ENGINE: switch_timer_engine,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: get_cold_data_info,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: min_broker_changed,
}
