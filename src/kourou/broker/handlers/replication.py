"""Replication between brokers: how it is, and where the master is (AdminBrokerProcessor)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.headers import ExchangeHAInfo, ResetMasterFlushOffset

if TYPE_CHECKING:
    from kourou.broker.server import Broker

log = logging.getLogger(__name__)


def get_ha_status(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """GET_BROKER_HA_STATUS: how replication is, at a master or a slave (haStatus)."""
    status = broker.replication.status()
    client = status.client
    body: dict[str, Any] = {
        "haClientRuntimeInfo": {
            "lastReadTimestamp": client.last_read_ms,
            "lastWriteTimestamp": client.last_write_ms,
            "masterFlushOffset": 0 if broker.slave is None else broker.slave.master_flush_offset,
            "maxOffset": client.max_offset,
            "transferredByteInSecond": client.transferred_bytes_in_second,
        },
        "haConnectionInfo": [
            {
                "addr": slave.address,
                "diff": slave.diff,
                "inSync": slave.in_sync,
                "slaveAckOffset": slave.ack_offset,
                "transferFromWhere": slave.transfer_from,
                "transferredByteInSecond": slave.transferred_bytes_in_second,
            }
            for slave in status.slaves
        ],
        "inSyncSlaveNums": status.in_sync_slaves,
        "master": status.is_master,
        "masterCommitLogMaxOffset": status.max_offset,
    }
    if client.master_address:
        body["haClientRuntimeInfo"]["masterAddr"] = client.master_address
    return request.response(body=lenient_json.dumps(body))


def exchange_ha_info(broker: Broker, connection: Connection, request: RemotingCommand) -> RemotingCommand:
    """EXCHANGE_BROKER_HA_INFO: a slave is told where its master is; a master tells where it is itself."""
    header = ExchangeHAInfo.read(request)
    if header.master_ha_address is not None:
        if broker.slave is not None:
            log.info("%s says where the master is: %s", connection.peer, header)
            broker.slave.master_is(header.master_address, header.master_ha_address)
        return request.response(ext_fields={})
    if broker.slave is not None:
        return request.response(ext_fields={})
    answer = ExchangeHAInfo(broker.config.ha_address, broker.init_max_offset, broker.config.address)
    return request.response(ext_fields=answer.fields())


def reset_master_flush_offset(
    broker: Broker, connection: Connection, request: RemotingCommand
) -> RemotingCommand:
    """RESET_MASTER_FLUSH_OFFSET: a slave is told how far its master's disk is."""
    header = ResetMasterFlushOffset.read(request)
    if broker.slave is not None and header.master_flush_offset is not None:
        broker.slave.master_flush_offset = header.master_flush_offset
    return request.response()


HANDLERS = {
    RequestCode.GET_BROKER_HA_STATUS: get_ha_status,
    RequestCode.EXCHANGE_BROKER_HA_INFO: exchange_ha_info,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: reset_master_flush_offset,
}
