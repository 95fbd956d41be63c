"""Receipts: what a broker says of a message that it was sent (SendResult), and what others are told of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kourou.client.core import ClientError, RefusedError
from kourou.errors import KourouError
from kourou.message import Message, properties
from kourou.message.model import MessageQueue
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import RemotingCommand

SEND_OK = "SEND_OK"
DEFAULT_REGION = "DefaultRegion"

# Answers to a message that is stored, if not everywhere it should be
STORED: dict[int, str] = {
    ResponseCode.SUCCESS: SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: "FLUSH_DISK_TIMEOUT",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "FLUSH_SLAVE_TIMEOUT",
    ResponseCode.SLAVE_NOT_AVAILABLE: "SLAVE_NOT_AVAILABLE",
}

_ADVICE: dict[int, str] = {
    ResponseCode.TOPIC_NOT_EXIST: "create the topic, or allow autoCreateTopicEnable at the broker",
    ResponseCode.NO_PERMISSION: "see the permissions of the topic, brokerPermission and the client's rights",
    ResponseCode.SYSTEM_BUSY: "the broker has more to do than it can: send less at once, or later",
    ResponseCode.SERVICE_NOT_AVAILABLE: "the broker takes nothing now: see its log, its role and its disk",
    ResponseCode.MESSAGE_ILLEGAL: "see maxMessageSize of the broker, and the names and lengths of properties",
    ResponseCode.INVALID_PARAMETER: "see whether the topic has that queue",
    ResponseCode.SYSTEM_ERROR: "see the log of the broker",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "the broker is too old for this kind of request",
}


class SendReceipt(NamedTuple):
    """The receipt of a message. Hot: a tuple is made in half the time of a dataclass."""

    status: str  # SEND_OK, or what the broker could not wait for
    message_id: str  # the unique id; of a batch, of all its messages with commas
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None  # of a timer message, for Producer.recall
    region: str = DEFAULT_REGION
    trace_on: bool = True


class SendEvent(NamedTuple):
    """One try to send a message, for `on_send`: it has a `receipt` or an `error`, or neither if it was a
    one-way message."""

    message: Message
    group: str
    queue: MessageQueue
    address: str
    attempt: int  # from 1
    started_ms: int
    duration_s: float
    receipt: SendReceipt | None = None
    error: KourouError | None = None


OnSend = Callable[[SendEvent], None]


class SendRefusedError(RefusedError):
    """A broker did not take a message."""

    def __init__(self, queue: MessageQueue, address: str, answer: RemotingCommand, what: str = "") -> None:
        what = f"{what} a message for topic {queue.topic}".strip()
        super().__init__(f"broker {queue.broker_name} at {address}", what, answer)
        advice = _ADVICE.get(answer.code)
        if advice is not None:
            self.args = (f"{self.args[0]}; {advice}",)


class NotSentError(ClientError):
    """No broker answered. The message may be stored all the same: an answer can be lost."""


def read_receipt(message_id: str, queue: MessageQueue, answer: RemotingCommand) -> SendReceipt:
    """The receipt in the answer of a broker. Hot."""
    fields = answer.ext_fields
    get = fields.get
    queue_id = int(get("queueId", queue.queue_id))
    if queue_id != queue.queue_id:
        queue = queue._replace(queue_id=queue_id)
    return SendReceipt(
        STORED[answer.code],
        get("batchUniqId") or message_id,
        get("msgId", ""),
        queue,
        int(get("queueOffset", -1)),
        get("transactionId"),
        get("recallHandle"),
        get(properties.MSG_REGION) or DEFAULT_REGION,
        get(properties.TRACE_SWITCH) != "false",
    )


def sending_failed(topic: str, failures: list[KourouError]) -> KourouError:
    """What is raised for a message that nobody took."""
    if not failures:
        return NotSentError(
            f"no time was left to send a message for topic {topic}: give it a longer timeout_s"
        )
    last = failures[-1]
    if isinstance(last, SendRefusedError) and len(failures) == 1:
        return last
    told = "; ".join(str(failure) for failure in failures)
    error = NotSentError(
        f"no broker took a message for topic {topic} in {len(failures)} tries: {told}. "
        f"It may be stored all the same, where an answer was lost"
    )
    error.__cause__ = last
    return error
