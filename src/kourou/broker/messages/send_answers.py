"""What senders are told: response codes, remarks, and the header of most answers as a template."""

from __future__ import annotations

import struct
from functools import lru_cache

from kourou.broker.config import BrokerConfig
from kourou.errors import KourouError
from kourou.remoting.protocol.codes import ResponseCode
from kourou.remoting.protocol.command import (
    JSON,
    LANGUAGE,
    LANGUAGES,
    RESPONSE_FLAG,
    ROCKETMQ,
    VERSION,
    RemotingCommand,
    frame_head,
)
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


class NotTakenError(KourouError):
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


class AnswerForms:
    """The frames of answers to sends, in both forms of headers, with places for what differs. Hot."""

    def __init__(self, fields: dict[str, str], host_text: str) -> None:
        self._host = host_text
        self._json = _json_template(fields, host_text)
        joined = b"".join(map(_binary_field, fields.items()))
        msg_id_length = len(host_text) + 16
        self._begin = b"%b%b%b" % (joined, _binary_name("msgId", msg_id_length), host_text.encode())
        self._fixed_length = len(self._begin) + 16 + sum(len(_binary_name(name, 0)) for name in _VARYING)

    def frame(
        self, serialize_type: int, opaque: int, offset: int, queue_id: int, queue_offset: int, unique_id: str
    ) -> bytes:
        """The frame of an answer; the id must need no escapes."""
        if serialize_type == JSON:
            header = self._json % (offset, queue_id, queue_offset, unique_id.encode(), opaque)
            length = len(header)
            return _FRAME_HEAD.pack(4 + length, length) + header
        queue_text, offset_text, id_text = b"%d" % queue_id, b"%d" % queue_offset, unique_id.encode()
        length = self._fixed_length + len(queue_text) + len(offset_text) + len(id_text)
        header = b"".join(
            (
                _BINARY_OK.pack(0, _LANGUAGE_CODE, VERSION, opaque, RESPONSE_FLAG, 0, length), self._begin,
                b"%016X" % offset, _binary_name("queueId", len(queue_text)), queue_text,
                _binary_name("queueOffset", len(offset_text)), offset_text,
                _binary_name("transactionId", len(id_text)), id_text,
            )
        )  # fmt: skip
        return frame_head(ROCKETMQ, header)


_VARYING = ("queueId", "queueOffset", "transactionId")
_FRAME_HEAD = struct.Struct(">iI")
_BINARY_OK = struct.Struct(">hBhiiii")
_LANGUAGE_CODE = LANGUAGES.index(LANGUAGE)


@lru_cache(maxsize=1024)
def _binary_name(name: str, value_length: int) -> bytes:
    """What stands before the value of a field in a ROCKETMQ header."""
    return len(name).to_bytes(2, "big") + name.encode() + value_length.to_bytes(4, "big")


def _binary_field(field: tuple[str, str]) -> bytes:
    value = field[1].encode()
    return _binary_name(field[0], len(value)) + value


def _json_template(fields: dict[str, str], host_text: str) -> bytes:
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
