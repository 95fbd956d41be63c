"""What brokers ask consumers, mostly for an operator (ClientRemotingProcessor): somebody came or went, go on
at other offsets, say what you do, consume this message now."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kourou.client.consume.received import MessageBatch, ReconsumeLater
from kourou.client.core import ClientCore
from kourou.message.model import MessageQueue
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.bodies import read_body
from kourou.remoting.protocol.codes import RequestCode, ResponseCode
from kourou.remoting.protocol.command import VERSION, RemotingCommand
from kourou.remoting.protocol.headers import (
    ConsumeMessageDirectly,
    ConsumerGroupName,
    GetConsumerRunningInfo,
    GetConsumerStatus,
    ResetOffset,
)
from kourou.remoting.protocol.heartbeat import CONSUME_PASSIVELY
from kourou.remoting.protocol.subscription import SubscriptionData

if TYPE_CHECKING:
    from kourou.client.consume.consumer import Consumer
    from kourou.client.consume.process_queue import ProcessQueue

log = logging.getLogger(__name__)


def answer_brokers(consumer: Consumer) -> None:
    """Have what brokers ask of a consumer answered."""
    answers = _Answers(consumer)
    core = consumer.core
    core.add_handler(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, answers.ids_changed)
    core.add_handler(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, answers.reset_offset)
    core.add_handler(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, answers.consumer_status)
    core.add_handler(RequestCode.GET_CONSUMER_RUNNING_INFO, answers.running_info)
    core.add_handler(RequestCode.CONSUME_MESSAGE_DIRECTLY, answers.consume_directly)


class _Answers:
    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def _is_ours(self, group: str) -> bool:
        return group == self._consumer.group

    def _not_ours(self, request: RemotingCommand, group: str) -> RemotingCommand:
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)

    def ids_changed(self, connection: Connection, request: RemotingCommand) -> None:
        """NOTIFY_CONSUMER_IDS_CHANGED: the queues of the group are to be shared anew."""
        if self._is_ours(ConsumerGroupName.read(request).consumer_group):
            self._consumer.assignment.request_rebalance()

    def reset_offset(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """RESET_CONSUMER_CLIENT_OFFSET: go on at these offsets."""
        header = ResetOffset.read(request)
        if not self._is_ours(header.group):
            return self._not_ours(request, header.group)
        table = read_body(request.body, "a reset of offsets").get("offsetTable") or {}
        assignment = self._consumer.assignment
        for text, offset in table.items():
            name = MessageQueue.from_json(text)
            queue = assignment.queues.get(name)
            if queue is not None and name.topic == header.topic:
                log.warning("%s: reset to offset %d, it was %d", name, offset, queue.commit_offset)
                assignment.seek(queue, int(offset))
        self._later(assignment.offsets.persist())
        return request.response()

    def consumer_status(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """GET_CONSUMER_STATUS_FROM_CLIENT: the offsets of a topic's queues."""
        header = GetConsumerStatus.read(request)
        if not self._is_ours(header.group):
            return self._not_ours(request, header.group)
        table = {
            name: queue.commit_offset
            for name, queue in self._consumer.assignment.queues.items()
            if name.topic == header.topic
        }
        return request.response(body=lenient_json.dumps({"messageQueueTable": table, "consumerTable": {}}))

    def running_info(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """GET_CONSUMER_RUNNING_INFO: what this consumer does."""
        header = GetConsumerRunningInfo.read(request)
        if not self._is_ours(header.consumer_group):
            return self._not_ours(request, header.consumer_group)
        consumer = self._consumer
        subscriptions = consumer.assignment.subscriptions
        pops = consumer.pops.queues
        body = running_info(
            consumer.core,
            {
                "PROP_CONSUME_TYPE": CONSUME_PASSIVELY,
                "PROP_CONSUMER_START_TIMESTAMP": str(consumer.started_ms),
                "PROP_THREADPOOL_CORE_SIZE": str(consumer.options.concurrency),
                "PROP_CONSUMEORDERLY": str(consumer.options.orderly).lower(),
            },
            subscriptions.values(),
            queues={name: _queue_info(queue) for name, queue in consumer.assignment.queues.items()},
            pops={name: pop_info(queue.count, queue.last_pull_at) for name, queue in pops.items()},
            states={topic: consumer.stats.to_json(topic) for topic in subscriptions},
            with_stacks=header.jstack_enable,
        )
        return request.response(body=body)

    def consume_directly(self, connection: Connection, request: RemotingCommand) -> RemotingCommand | None:
        """CONSUME_MESSAGE_DIRECTLY: give a message to the handler now, and say what became of it."""
        header = ConsumeMessageDirectly.read(request)
        if not self._is_ours(header.consumer_group):
            return self._not_ours(request, header.consumer_group)
        if not self._consumer.has_handler:
            remark = f"consumer {self._consumer.core.client_id} has no handler to give the message to"
            return request.response(ResponseCode.SYSTEM_ERROR, remark=remark)
        body = bytes(request.body or b"")
        queue = MessageQueue(header.topic or "", header.broker_name or "", 0)
        self._later(self._consume(connection, request, MessageBatch(queue, body, 0, 0)))
        return None

    async def _consume(self, connection: Connection, request: RemotingCommand, batch: MessageBatch) -> None:
        started = time.monotonic()
        failure: Exception | None
        try:
            failure = await self._consumer.call_handler(batch.messages)
        except Exception as error:
            failure = error
        result: dict[str, Any] = {
            "order": self._consumer.options.orderly,
            "autoCommit": True,
            "consumeResult": _result_of(failure),
            "remark": None if failure is None else f"{type(failure).__name__}: {failure}",
            "spentTimeMills": int((time.monotonic() - started) * 1000),
        }
        connection.send(request.response(body=lenient_json.dumps(result)))

    def _later(self, work: Coroutine[Any, Any, object]) -> None:
        self._consumer.core.background.start(work, f"a broker's request to group {self._consumer.group}")


def _result_of(failure: Exception | None) -> str:
    if failure is None:
        return "CR_SUCCESS"
    return "CR_LATER" if isinstance(failure, ReconsumeLater) else "CR_THROW_EXCEPTION"


def _queue_info(queue: ProcessQueue) -> dict[str, Any]:
    """ProcessQueueInfo."""
    return {
        "commitOffset": queue.commit_offset,
        "cachedMsgMinOffset": queue.commit_offset if queue.count else 0,
        "cachedMsgMaxOffset": queue.position - 1 if queue.count else 0,
        "cachedMsgCount": queue.count,
        "cachedMsgSizeInMiB": queue.size_bytes >> 20,
        "transactionMsgMinOffset": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgCount": 0,
        "locked": queue.needs_lock and queue.has_lock,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": int((time.time() - (time.monotonic() - queue.locked_at)) * 1000),
        "droped": queue.is_dropped,  # the spelling is Java's
        "lastPullTimestamp": int(queue.last_pull_at * 1000),
        "lastConsumeTimestamp": int(queue.last_consume_at * 1000),
    }


def pop_info(count: int, popped_at: float) -> dict[str, Any]:
    """PopProcessQueueInfo: how much is not acknowledged, and when the last pop was."""
    return {
        "waitAckCount": count,
        "droped": False,  # the spelling is Java's
        "lastPopTimestamp": int(popped_at * 1000),
    }


def running_info(
    core: ClientCore,
    properties: Mapping[str, str],
    subscriptions: Iterable[SubscriptionData],
    *,
    queues: Mapping[MessageQueue, Any],
    pops: Mapping[MessageQueue, Any],
    states: Mapping[str, Any],
    with_stacks: bool,
) -> bytes:
    """ConsumerRunningInfo."""
    info = {
        "properties": {
            "PROP_NAMESERVER_ADDR": ";".join(core.name_servers) + ";",
            "PROP_CLIENT_VERSION": f"V{VERSION}",
            **properties,
        },
        "subscriptionSet": [subscription.to_json() for subscription in subscriptions],
        "mqTable": dict(queues),
        "mqPopTable": dict(pops),
        "statusTable": dict(states),
        "userConsumerInfo": {},
        "jstack": _stacks() if with_stacks else None,
    }
    return lenient_json.dumps(info)


def _stacks() -> str:
    """Where each thread is, as an operator who looks for what hangs wants to see it."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
