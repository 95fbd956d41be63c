"""Sender: the way of one message to a broker, with its tries (DefaultMQProducerImpl.sendDefaultImpl)."""

from __future__ import annotations

import asyncio
import time

from kourou.client.background import notify
from kourou.client.core import ClientCore, ClientError
from kourou.client.options import ProducerOptions
from kourou.client.produce.delay_levels import DelayLevels
from kourou.client.produce.faults import LatencyFaults
from kourou.client.produce.publication import Publications, Select, SendRequest, Target
from kourou.client.produce.receipts import (
    SEND_OK,
    STORED,
    OnSend,
    SendEvent,
    SendReceipt,
    SendRefusedError,
    read_receipt,
    sending_failed,
)
from kourou.errors import KourouError
from kourou.message import Message, properties
from kourou.message.topics import RETRY_PREFIX
from kourou.remoting.protocol.codes import RequestCode

MIN_TRY_S = 0.001  # a timer may be early by that: what is left then is no time for another try


class Sender:
    """Sends messages as the options of a producer say."""

    def __init__(
        self, core: ClientCore, publications: Publications, group: str, options: ProducerOptions
    ) -> None:
        self._core = core
        self._publications = publications
        self._group = group
        self._options = options
        self._faults = LatencyFaults() if options.latency_fault_tolerance else None
        self._delay_levels = DelayLevels(core)
        self.on_send: list[OnSend] = []

    async def send(
        self,
        message: Message,
        code: RequestCode,
        body: bytes | memoryview,
        sys_flag: int,
        select: Select | None,
        timeout_s: float | None,
        message_id: str | None = None,
    ) -> SendReceipt:
        """Send until a broker takes the message, or none is left to try. Hot."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (timeout_s or self._options.timeout_s)
        tries = 1 if select is not None else 1 + self._options.retries
        message_id = message_id or message.properties[properties.UNIQ_KEY]
        avoid: str | None = None
        failures: list[KourouError] = []
        receipt: SendReceipt | None = None
        for attempt in range(1, tries + 1):
            try:
                publication = await self._publications.get(message.topic)
                if select is not None:
                    target = publication.select(select)
                else:
                    target = publication.next(avoid, self._faults, attempt > 1)
            except KourouError as error:
                if not failures:
                    raise
                failures.append(error)  # meanwhile the topic is gone
                break
            started = loop.time()
            left_s = deadline - started
            if left_s < MIN_TRY_S:
                break
            if self._options.timeout_per_try_s is not None and attempt < tries:
                left_s = min(left_s, self._options.timeout_per_try_s)
            if not self._core.has_heartbeat(target.address):
                self._start_heartbeat(target.address)
            if properties.DELAY_TIME_LEVEL in message.properties:
                await self._delay_levels.check(message, target)
            started_ns = time.time_ns() if self.on_send else 0
            try:
                answer = await self._core.call(
                    target.address, _make_request(code, target, message, body, sys_flag), left_s
                )
                if answer.code in STORED:
                    receipt = read_receipt(message_id, target.queue, answer)
                    if self._faults is not None:
                        self._faults.record(target.queue.broker_name, loop.time() - started)
                    if self.on_send:
                        self._tell(message, target, attempt, started_ns, receipt)
                    if receipt.status == SEND_OK or not self._options.retry_not_stored:
                        return receipt
                    avoid = target.queue.broker_name
                    continue
                failure: KourouError = SendRefusedError(target.queue, target.address, answer)
                may_retry, has_answered = answer.code in self._options.retry_codes, True
            except ClientError:
                raise  # no broker would take the message
            except KourouError as error:
                failure, may_retry, has_answered = error, True, False
            avoid = target.queue.broker_name
            failures.append(failure)
            if self._faults is not None:
                # As in Java: a broker that answers with an error is unreachable, one that is silent is not.
                took_s = loop.time() - started
                self._faults.record(avoid, took_s, has_failed=True, is_reachable=not has_answered)
            if self.on_send:
                self._tell(message, target, attempt, started_ns, error=failure)
            if not may_retry:
                break
            if not has_answered and attempt < tries:
                await self._publications.learn(publication, deadline)
        if receipt is not None:
            return receipt
        raise sending_failed(message.topic, failures)

    async def send_oneway(
        self,
        message: Message,
        code: RequestCode,
        body: bytes | memoryview,
        sys_flag: int,
        select: Select | None,
    ) -> None:
        """Send a message once, and do not wait for anything."""
        publication = await self._publications.get(message.topic)
        target = publication.next(None, self._faults, False) if select is None else publication.select(select)
        if not self._core.has_heartbeat(target.address):
            self._start_heartbeat(target.address)
        if properties.DELAY_TIME_LEVEL in message.properties:
            await self._delay_levels.check(message, target)
        started_ns = time.time_ns()
        await self._core.send_oneway(target.address, _make_request(code, target, message, body, sys_flag))
        if self.on_send:
            self._tell(message, target, 1, started_ns)

    def _start_heartbeat(self, address: str) -> None:
        """Send a heartbeat without delaying the message that is being sent."""
        self._core.background.start(self._core.ensure_heartbeat(address), f"a heartbeat to {address}")

    def _tell(
        self,
        message: Message,
        target: Target,
        attempt: int,
        started_ns: int,
        receipt: SendReceipt | None = None,
        error: KourouError | None = None,
    ) -> None:
        event = SendEvent(
            message, self._group, target.queue, target.address, attempt, started_ns // 1_000_000,
            (time.time_ns() - started_ns) / 1e9, receipt, error,
        )  # fmt: skip
        for on_send in self.on_send:
            notify(on_send, event)


def _make_request(
    code: RequestCode,
    target: Target,
    message: Message,
    body: bytes | memoryview,
    sys_flag: int,
) -> SendRequest:
    if message.topic[0] != RETRY_PREFIX[0] or not message.topic.startswith(RETRY_PREFIX):
        return SendRequest.of(code, target, message, body, sys_flag)
    # How often it was consumed stands in the header of a message that comes back, not in its properties.
    plain = Message(message.topic, b"", message.properties, message.flag)
    times = plain.properties.pop(properties.RECONSUME_TIME, None)
    max_times = plain.properties.pop(properties.MAX_RECONSUME_TIMES, None)
    request = SendRequest.of(code, target, plain, body, sys_flag)
    request.reconsumed(int(times or 0), None if max_times is None else int(max_times))
    return request
