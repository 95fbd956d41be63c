"""MessageStoreConfig: Java's keys and defaults, and Java's .properties files."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kourou.errors import ConfigError
from kourou.properties_file import parse_properties, read_properties_file
from kourou.store import BrokerRole, FlushDiskType, MessageStoreConfig
from kourou.store.config import parse_delay_levels

MIB = 1024 * 1024

# MessageStoreConfig of Apache RocketMQ 5.5.0: every key that this store knows, with Java's default.
JAVA_DEFAULTS: dict[str, object] = {
    "mappedFileSizeCommitLog": 1024 * MIB,
    "mappedFileSizeConsumeQueue": 6_000_000,
    "mapperFileSizeBatchConsumeQueue": 13_800_000,
    "enableConsumeQueueExt": False,
    "mappedFileSizeConsumeQueueExt": 48 * MIB,
    "bitMapLengthConsumeQueueExt": 64,
    "maxHashSlotNum": 5_000_000,
    "maxIndexNum": 20_000_000,
    "messageIndexEnable": True,
    "messageIndexSafe": False,
    "warmMapedFileEnable": False,
    "transientStorePoolEnable": False,
    "transientStorePoolSize": 5,
    "maxMessageSize": 4 * MIB,
    "enabledAppendPropCRC": False,
    "forceVerifyPropCRC": False,
    "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    "enableLmq": False,
    "enableMultiDispatch": False,
    "maxLmqConsumeQueueNum": 20_000,
    "flushDiskType": FlushDiskType.ASYNC_FLUSH,
    "syncFlushTimeout": 5000,
    "flushIntervalCommitLog": 500,
    "flushCommitLogLeastPages": 4,
    "flushCommitLogThoroughInterval": 10_000,
    "commitIntervalCommitLog": 200,
    "commitCommitLogLeastPages": 4,
    "commitCommitLogThoroughInterval": 200,
    "flushIntervalConsumeQueue": 1000,
    "flushConsumeQueueLeastPages": 2,
    "flushConsumeQueueThoroughInterval": 60_000,
    "checkCRCOnRecover": True,
    "commitLogRecoverMaxNum": 10,
    "maxTransferBytesOnMessageInMemory": 256 * 1024,
    "maxTransferCountOnMessageInMemory": 32,
    "maxTransferBytesOnMessageInDisk": 64 * 1024,
    "maxTransferCountOnMessageInDisk": 8,
    "maxFilterMessageSize": 16_000,
    "accessMessageInMemoryMaxRatio": 40,
    "travelCqFileNumWhenGetMessage": 1,
    "maxMsgsNumBatch": 64,
    "maxConsumeQueueScan": 20_000,
    "sampleCountThreshold": 5000,
    "deleteWhen": "04",
    "fileReservedTime": 72,
    "cleanResourceInterval": 10_000,
    "deleteCommitLogFilesInterval": 100,
    "deleteConsumeQueueFilesInterval": 100,
    "redeleteHangedFileInterval": 120_000,
    "deleteFileBatchMax": 10,
    "cleanFileForciblyEnable": True,
    "diskMaxUsedSpaceRatio": 75,
    "diskSpaceCleanForciblyRatio": 85,
    "diskSpaceWarningLevelRatio": 90,
    "timerWheelEnable": True,
    "timerPrecisionMs": 1000,
    "timerMaxDelaySec": 259_200,
    "timerRollWindowSlot": 172_800,
    "timerFlushIntervalMs": 1000,
    "timerCongestNumEachSlot": 0x7FFFFFFF,
    "mappedFileSizeTimerLog": 100 * MIB,
    "timerEnableCheckMetrics": True,
    "timerCheckMetricsWhen": "05",
    "timerMetricSmallThreshold": 1_000_000,
    "appendTopicForTimerDeleteKey": False,
    "brokerRole": BrokerRole.ASYNC_MASTER,
    "haListenPort": 10912,
    "haMasterAddress": "",  # Java: null
    "haSendHeartbeatInterval": 5000,
    "haHousekeepingInterval": 20_000,
    "haTransferBatchSize": 32 * 1024,
    "haMaxGapNotInSync": 256 * MIB,
    "haFlowControlEnable": False,
    "maxHaTransferByteInSecond": 100 * MIB,
    "slaveTimeout": 3000,
    "inSyncReplicas": 1,
    "minInSyncReplicas": 1,
    "enableAutoInSyncReplicas": False,
    "offsetCheckInSlave": False,
    "readUnCommitted": False,
}
PATHS = {"storePathRootDir", "storePathCommitLog", "readOnlyCommitLogStorePaths"}


def other_value(default: object) -> tuple[str, object]:
    """A value that is not the default, as a file has it and as the configuration has it."""
    match default:
        case bool():
            return str(not default).lower(), not default
        case int():
            return str(default * 2), default * 2
        case FlushDiskType():
            return "SYNC_FLUSH", FlushDiskType.SYNC_FLUSH
        case BrokerRole():
            return "SLAVE", BrokerRole.SLAVE
        case _:
            return ("06;18", "06;18") if default in ("04", "05") else ("1s 2d", "1s 2d")


def attribute_of(key: str) -> str:
    """The one attribute that a key changes."""
    text, value = other_value(JAVA_DEFAULTS[key])
    if key == "timerPrecisionMs":
        text, value = "500", 500  # there is none above the default
    before, after = MessageStoreConfig(), MessageStoreConfig.from_properties({key: text})
    changed = [
        item.name for item in fields(before) if getattr(before, item.name) != getattr(after, item.name)
    ]
    assert len(changed) == 1, (key, changed)
    assert getattr(after, changed[0]) == value
    return changed[0]


@pytest.mark.parametrize("key", JAVA_DEFAULTS)
def test_a_key_of_java_sets_its_attribute_and_has_javas_default(key):
    default = getattr(MessageStoreConfig(), attribute_of(key))
    assert (type(default), default) == (type(JAVA_DEFAULTS[key]), JAVA_DEFAULTS[key])


def test_there_is_no_key_that_java_does_not_have():
    names = {item.name for item in fields(MessageStoreConfig)}
    paths = {"store_path_root_dir", "store_path_commit_log", "read_only_commit_log_store_paths"}
    assert names - paths == {attribute_of(key) for key in JAVA_DEFAULTS}


def test_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert MessageStoreConfig().store_path_root_dir == f"{tmp_path}/store"
    assert MessageStoreConfig().store_path_commit_log == f"{tmp_path}/store/commitlog"
    config = MessageStoreConfig.from_properties(
        {
            "storePathRootDir": "/data",
            "storePathCommitLog": "/fast/a,/fast/b",
            "readOnlyCommitLogStorePaths": "/old",
        }
    )
    assert config.commit_log_directories == ["/fast/a", "/fast/b"]
    assert config.read_only_directories == ["/old"]
    monkeypatch.chdir(tmp_path)
    assert MessageStoreConfig(store_path_root_dir="here").store_path_root_dir == f"{tmp_path}/here"


def test_keys_of_others_are_ignored():
    config = MessageStoreConfig.from_properties(
        {"brokerName": "b", "listenPort": "10911", "mappedfilesizecommitlog": "1", "maxMessageSize": "10"}
    )
    assert config == MessageStoreConfig(max_message_size=10)


def test_overrides_come_last():
    config = MessageStoreConfig.from_properties({"maxMessageSize": "10"}, max_message_size=20)
    assert config.max_message_size == 20


@pytest.mark.parametrize(
    ("key", "text", "wanted"),
    [
        ("maxMessageSize", "4MB", "whole number"),
        ("maxMessageSize", "", "whole number"),
        ("maxMessageSize", "1.5", "whole number"),
        ("messageIndexEnable", "yes", "true or false"),
        ("flushDiskType", "SOMETIMES", "SYNC_FLUSH"),
        ("brokerRole", "MASTER", "SYNC_MASTER"),
        ("messageDelayLevel", "1s 5x", "5x"),
        ("messageDelayLevel", "1s s", "'s'"),
        ("deleteWhen", "24", "24"),
        ("deleteWhen", "4am", "4am"),
        ("deleteWhen", "", "hours"),
        ("mappedFileSizeCommitLog", "100", "4096"),
        ("mappedFileSizeCommitLog", "-1", "4096"),
        ("mappedFileSizeConsumeQueue", "0", "mappedFileSizeConsumeQueue"),
        ("mappedFileSizeConsumeQueue", "-20", "mappedFileSizeConsumeQueue"),
        ("mapperFileSizeBatchConsumeQueue", "0", "mapperFileSizeBatchConsumeQueue"),
        ("mappedFileSizeConsumeQueueExt", "0", "mappedFileSizeConsumeQueueExt"),
        ("maxHashSlotNum", "0", "maxHashSlotNum"),
        ("maxIndexNum", "1", "maxIndexNum"),
    ],
)
def test_a_bad_value_is_an_error_that_names_its_key(key, text, wanted):
    with pytest.raises(ConfigError) as caught:
        MessageStoreConfig.from_properties({key: text})
    assert key in str(caught.value)
    assert wanted in str(caught.value)


@pytest.mark.parametrize("text", ["TRUE", "True", " true "])
def test_truth_is_read_as_java_reads_it(text):
    assert MessageStoreConfig.from_properties({"enableLmq": text}).enable_lmq is True


def test_queue_files_hold_whole_entries():
    config = MessageStoreConfig.from_properties(
        {"mappedFileSizeConsumeQueue": "1001", "mapperFileSizeBatchConsumeQueue": "47"}
    )
    assert (config.mapped_file_size_consume_queue, config.mapper_file_size_batch_consume_queue) == (1020, 92)


def test_delay_levels():
    assert parse_delay_levels("1s 2m 3h 1d") == [1000, 120_000, 10_800_000, 86_400_000]
    assert len(parse_delay_levels(MessageStoreConfig().message_delay_level)) == 18


# .properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", {"a": "b"}),
        ("a = b", {"a": "b"}),
        ("a: b", {"a": "b"}),
        ("a b", {"a": "b"}),
        ("a\tb", {"a": "b"}),
        ("   a=b", {"a": "b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=b", {"": "b"}),
        ("a=b=c", {"a": "b=c"}),
        ("a==b", {"a": "=b"}),
        ("a = = b", {"a": "= b"}),
        ("a:b=c", {"a": "b=c"}),
        ("# a=b\n! c=d\ne=f", {"e": "f"}),
        ("  # indented comment\na=b", {"a": "b"}),
        ("a=b # no comment", {"a": "b # no comment"}),
        ("\n\n  \na=b\n\n", {"a": "b"}),
        ("a=b\r\nc=d\re=f", {"a": "b", "c": "d", "e": "f"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=b\\\n  c\\\r\n\td", {"a": "bcd"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\\\\\\nc", {"a": "b\\c"}),
        ("# comment that ends with a backslash \\\na=b", {"a": "b"}),
        ("#\\\n#\\\na=b", {"a": "b"}),
        ("a=one\\\n# two", {"a": "one# two"}),
        ("a\\\n=b", {"a": "b"}),
        ("a\\=b=c", {"a=b": "c"}),
        ("a\\:b c", {"a:b": "c"}),
        ("a\\ b=c", {"a b": "c"}),
        ("a=\\t\\n\\r\\f|", {"a": "\t\n\r\f|"}),
        ("a=\\u00e9\\u4e2d", {"a": "é中"}),
        ("a=\\z\\\"\\'", {"a": "z\"'"}),
        ("a=C:\\\\store", {"a": "C:\\store"}),
        ("a=x\x0by\x1cz\x85w\u2028v", {"a": "x\x0by\x1cz\x85w\u2028v"}),
        ("a=b\\", {"a": "b"}),
    ],
)
def test_a_properties_file_is_read_as_java_reads_it(text, expected):
    assert parse_properties(text) == expected


def test_blanks_behind_a_value_are_dropped():
    """Java keeps them, and then takes no number for what an operator meant as one."""
    assert parse_properties("maxMessageSize = 10 \t\n") == {"maxMessageSize": "10"}


names = st.text(st.sampled_from("abc=: #!\\é中\t"), min_size=1, max_size=6)
values = st.text(st.sampled_from("abc=: #!\\é中\t"), max_size=8).map(str.strip)


@given(table=st.dictionaries(names, values, max_size=5))
def test_what_java_would_store_is_read_back(table):
    """Properties.store: backslashes before separators, blanks, comment signs and what is not Latin-1."""

    def escape(text: str, key: bool) -> str:
        result = ""
        for number, character in enumerate(text):
            if character == "\t":
                result += "\\t"
            elif character in "\\=:#!" or (character == " " and (key or number == 0)):
                result += "\\" + character
            elif ord(character) > 126:
                result += f"\\u{ord(character):04X}"
            else:
                result += character
        return result

    text = "".join(f"{escape(name, True)}={escape(value, False)}\n" for name, value in table.items())
    assert parse_properties(f"#written by a test\n{text}") == table


def test_a_whole_file(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_text(
        "# an operator's own\nbrokerClusterName = DefaultCluster\nstorePathRootDir = /data/store\n"
        "deleteWhen = 05\nflushDiskType = SYNC_FLUSH\nmaxMessageSize=65536\n"
    )
    config = MessageStoreConfig.load(path, enable_lmq=True)
    assert (config.store_path_root_dir, config.delete_when, config.sync_flush) == ("/data/store", "05", True)
    assert (config.max_message_size, config.enable_lmq) == (65536, True)


def test_a_file_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.conf"):
        MessageStoreConfig.load(tmp_path / "no.conf")


def test_a_comment_in_another_encoding_does_no_harm(tmp_path):
    """Java reads the bytes as Latin-1 and has no opinion about them."""
    path = tmp_path / "broker.conf"
    path.write_bytes("# 存储路径\nmaxMessageSize=10\n".encode("gbk"))
    assert MessageStoreConfig.load(path).max_message_size == 10


def test_a_byte_order_mark_does_no_harm(tmp_path):
    path = tmp_path / "broker.conf"
    path.write_bytes(b"\xef\xbb\xbfmaxMessageSize=10\n")
    assert read_properties_file(path) == {"maxMessageSize": "10"}
