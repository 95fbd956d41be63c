"""What fuzzing begins with: the recorded frames of Java, and words that requests are made of."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from functools import cache

import orjson

from kourou.broker.handlers import SERVED
from kourou.errors import KourouError
from kourou.message.batch import encode_batch
from kourou.message.model import Message
from kourou.namesrv.handlers import HANDLERS as NAMESRV_HANDLERS
from kourou.remoting.protocol.command import RemotingCommand, decode
from support.recorded.golden import FIXTURES
from support.sites.broker import heartbeat, pull_request, send_request

MOST_BYTES = 8192  # of a frame of the corpus: those that are larger say nothing more

NUMBERS = (
    "0", "1", "-1", "2", "4", "8", "31", "4096", "2147483647", "2147483648", "-2147483649", "1e3", "0x1",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "9" * 40, "9" * 5000, " 1", "1_0",
    "٣", "NaN", "", "true", "false", "null",
)  # fmt: skip
WORDS = (
    "t", "g", "p", "c", "*", "TagA||TagB", "||", "%RETRY%g", "%DLQ%g", "TBW102", "%LMQ%x", "TopicTest",
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "broker-a", "DefaultCluster",
    "SQL92", "a@b", "../../etc", "..", ".", "/", "名前", '"', "x" * 300, "%", "a b", "\n", "\x00", "TAG", "K",
    "TOPIC_PUT_NUMS", "t@g", "{}", "[]", '{"counter":1}', "+message.type=NORMAL", "+queue.type=BatchCQ",
    "-cleanup.policy", "7F00000100002A9F0000000000000000", "a > 1 AND b IS NOT NULL", "127.0.0.1:10911",
    "\ufffd", "é" * 100,
)  # fmt: skip
PROPERTIES = (
    "UNIQ_KEY\x017F00000100002A9F0000000000000001\x02", "DELAY\x011\x02", "DELAY\x01x\x02", "DELAY\x01²\x02",
    "DELAY\x01" + "9" * 5000 + "\x02", "INNER_NUM\x012\x02", "INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02",
    "INNER_MULTI_DISPATCH\x01,,\x02INNER_MULTI_QUEUE_OFFSET\x01x\x02", "_SYS_MSG_PRIORITY_\x013\x02",
    "TIMER_DELAY_SEC\x015\x02", "TIMER_DELAY_MS\x01-5\x02", "TIMER_DELIVER_MS\x01" + "9" * 30 + "\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01p\x02", "KEYS\x01a b c\x02TAGS\x01TagA\x02", "WAIT\x01false\x02",
    "__LITE_TOPIC\x01l\x02", "REPLY_TO_CLIENT\x01c\x02", "RETRY_TOPIC\x01\x02", "\x01\x02\x01", "TAGS\x01",
    "__CRC32#\x011\x02", "a\x01" + "v" * 40_000 + "\x02",
)  # fmt: skip
VALUES = (*NUMBERS, *WORDS, *PROPERTIES)

_COMMON = {
    "topic": "t", "group": "g", "consumerGroup": "g", "queueId": "0", "offset": "0", "clientID": "c",
    "clientId": "c", "timestamp": "0", "isForce": "true", "delayLevel": "0", "commitOffset": "1", "key": "k",
    "maxNum": "4", "beginTimestamp": "0", "endTimestamp": "9999999999999", "producerGroup": "p",
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6", "srcGroup": "g",
    "destGroup": "h", "topicFilterType": "SINGLE_TAG", "compareGroup": "g", "groupName": "h", "statsKey": "t",
    "statsName": "TOPIC_PUT_NUMS", "isOrder": "false", "jstackEnable": "false", "readable": "true",
    "sysFlag": "0", "flag": "0", "bornTimestamp": "1", "defaultTopicQueueNums": "4", "index": "0",
    "count": "5", "msgId": "7F00000100002A9F0000000000000000", "namespace": "n", "value": "v",
    "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "brokerId": "0",
    "haServerAddr": "127.0.0.1:2",
}  # fmt: skip


def greedy_body(chance: random.Random) -> bytes:
    """A body that asks for much: thousands of entries, keys that only Java writes, texts without an end."""
    number = chance.choice((999, 1001, 5000, 20_000))
    topics = {f"t{i}": {"topicName": f"t{i}", "perm": 6} for i in range(number)}
    return chance.choice(
        (
            lambda: orjson.dumps(
                {"clientID": "c", "consumerDataSet": [{"groupName": f"g{i}"} for i in range(number)]}
            ),
            lambda: orjson.dumps(
                {"clientID": "c", "producerDataSet": [{"groupName": f"p{i}"} for i in range(number)]}
            ),
            lambda: orjson.dumps(
                {
                    "consumerGroup": "g",
                    "clientId": "c",
                    "mqSet": [{"topic": f"t{i}", "brokerName": "b", "queueId": i} for i in range(number)],
                }
            ),
            lambda: orjson.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": topics}}),
            lambda: orjson.dumps({"topicConfigList": list(topics.values())}),
            lambda: zlib.compress(orjson.dumps(list(topics))),
            lambda: b"{%b}" % b",".join(b"%d:{%d:1}" % (i, i) for i in range(number)),
            lambda: b'{"a":' + b'[{1:2},"x"],' * number,
            lambda: b'"' + b'\\"' * number,
            lambda: b"[" * number,
            lambda: b"=\n".join(b"k%d" % i for i in range(number)),
        )
    )()


@cache
def recorded_frames() -> list[RemotingCommand]:
    """Java's frames in both forms, and one of our own for each request that a server of ours knows."""
    found: list[RemotingCommand] = []
    for form in ("json", "rocketmq"):
        with gzip.open(FIXTURES / "wire" / f"remoting-{form}.jsonl.gz") as lines:
            for line in lines:
                frame = base64.b64decode(json.loads(line)["frame"])
                if len(frame) <= MOST_BYTES:
                    try:
                        found.append(decode(frame[4:]))
                    except KourouError:
                        continue
    codes = SERVED | {int(code) for code in NAMESRV_HANDLERS}
    bodies = (None, b'{"topic":"t","consumerGroup":"g","clientId":"c","mqSet":[]}')
    found += [RemotingCommand(code, dict(_COMMON), body) for code in sorted(codes) for body in bodies]
    batch = encode_batch([Message("t", b"one", {"TAGS": "A"}), Message("t", b"two")])
    found += [send_request(), send_request(body=batch, m="true"), pull_request(), heartbeat(producers=("p",))]
    found += [send_request(properties=text) for text in PROPERTIES]
    return found
