"""What senders are told: response codes, remarks, and the header of most answers as a template."""

from __future__ import annotations

from kourou.broker.config import BrokerConfig
from kourou.errors import KourouError
from kourou.remoting.codes import ResponseCode
from kourou.remoting.command import RemotingCommand
from kourou.store.status import PutMessageResult, PutMessageStatus

FAILURES = {
    PutMessageStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.CREATE_MAPPED_FILE_FAILED: ResponseCode.SYSTEM_ERROR,
    PutMessageStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
    PutMessageStatus.SERVICE_NOT_AVAILABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutMessageStatus.OS_PAGE_CACHE_BUSY: ResponseCode.SYSTEM_BUSY,
    PutMessageStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: ResponseCode.LMQ_QUOTA_EXCEEDED,
    PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
}
STORED = {
    PutMessageStatus.PUT_OK: ResponseCode.SUCCESS,
    PutMessageStatus.FLUSH_DISK_TIMEOUT: ResponseCode.FLUSH_DISK_TIMEOUT,
    PutMessageStatus.FLUSH_SLAVE_TIMEOUT: ResponseCode.FLUSH_SLAVE_TIMEOUT,
    PutMessageStatus.SLAVE_NOT_AVAILABLE: ResponseCode.SLAVE_NOT_AVAILABLE,
}


class SendRefusedError(KourouError):
    """A message that is not taken, with the response code that says why."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.response_code = int(code)


def remark_of(result: PutMessageResult, config: BrokerConfig) -> str:
    """Why a message was not taken."""
    match result.status:
        case PutMessageStatus.OS_PAGE_CACHE_BUSY:
            return "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
        case PutMessageStatus.SERVICE_NOT_AVAILABLE:
            return f"service not available now. {result.reason}"
        case PutMessageStatus.MESSAGE_ILLEGAL | PutMessageStatus.PROPERTIES_SIZE_EXCEEDED:
            return f"the message is illegal: {result.reason}"
        case PutMessageStatus.WHEEL_TIMER_MSG_ILLEGAL:
            most_ms = config.store.timer_max_delay_sec * 1000
            return f"timer message illegal: {result.reason} (the longest delay is {most_ms}ms)"
        case PutMessageStatus.WHEEL_TIMER_FLOW_CONTROL:
            limit = config.store.timer_congest_num_each_slot
            return f"timer message is under flow control: more than {limit} messages are due at that time"
        case PutMessageStatus.WHEEL_TIMER_NOT_ENABLE:
            return "accurate timer message is not enabled, timerWheelEnable is false"
    return f"{result.status.name}: {result.reason}" if result.reason else result.status.name


def answer_template(fields: dict[str, str], host_text: str) -> bytes:
    """The JSON header of an answer, with places for offset, queue, queue offset, unique id and opaque."""
    holes = {"msgId": "MSG", "queueId": "QUEUE", "queueOffset": "OFFSET", "transactionId": "UNIQUE"}
    model = RemotingCommand(ResponseCode.SUCCESS, {**fields, **holes}, opaque=0, flag=1)
    text = model.encode_header().replace(b"%", b"%%")
    for hole, place in (
        (b'"MSG"', b'"' + host_text.encode() + b'%016X"'),
        (b'"QUEUE"', b'"%d"'),
        (b'"OFFSET"', b'"%d"'),
        (b'"UNIQUE"', b'"%b"'),
        (b'"opaque":0', b'"opaque":%d'),
    ):
        assert text.count(hole) == 1
        text = text.replace(hole, place)
    return text
