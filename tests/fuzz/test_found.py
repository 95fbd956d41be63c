"""What fuzzing found, one test each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fuzz.texts import try_properties
from fuzz.watch import Findings
from kourou.broker import BrokerConfig
from kourou.inspect import StoreDirectory
from kourou.inspect.check.index_report import look_up
from kourou.inspect.check.whole import check
from kourou.message.codec import StoredMessage, encode
from kourou.message.codec import decode as decode_record
from kourou.namesrv import NameServer, NameServerConfig
from kourou.remoting.connection import Connection
from kourou.remoting.protocol import registration
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from kourou.remoting.protocol.header import BadRequestError
from kourou.remoting.protocol.topic_config import DataVersion, TopicConfig
from kourou.store import InnerMessage
from kourou.store.dispatch import NotARecord, check_record
from kourou.store.index.index_file import SLOT_SIZE, IndexFile, key_hash, key_prefixes
from kourou.store.log.disk import OsDisk
from support.stores.store import message, open_store, put, small_config

SLOTS, ENTRIES = 10, 20


def test_a_configuration_is_read_back_as_it_was_written(tmp_path):
    """Keys with blanks or signs in them, and values that begin with a blank, were others when read again."""
    path = tmp_path / "broker.conf"
    path.write_text("a\\ key\\=x\\:y = \\  value\n\\#b=1\nlast\\\\=2\\\\\n\\tc=\\fd\n", encoding="utf-8")
    findings = Findings()
    try_properties(path, findings)  # it writes the file anew
    assert findings.wrong == []
    others = BrokerConfig.load(path).others
    wanted = {"a key=x:y": "  value", "#b": "1", "last\\": "2\\", "\tc": "\fd"}
    assert wanted.items() <= others.items()


@pytest.mark.parametrize("field", ["attributes", "topicName", "topicFilterType"])
def test_a_topic_with_a_field_of_another_type_is_refused(field):
    """It was taken, and the topics could neither be saved nor registered from then on."""
    with pytest.raises(TypeError, match="is no"):
        TopicConfig.from_json({"topicName": "t", field: 5})


@pytest.mark.parametrize("number", [1 << 63, -(1 << 63) - 1, 1e60, "9" * 30])
def test_numbers_of_more_than_64_bits_are_refused(number):
    """They were taken, and what had one could not be written: no topics, no offsets, no routes any more."""
    with pytest.raises(ValueError, match="more than 64 bits"):
        DataVersion.from_json({"counter": number})
    with pytest.raises(ValueError, match="more than 64 bits"):
        TopicConfig.from_json({"topicName": "t", "perm": number})


def test_a_broker_id_of_more_than_64_bits_is_refused_and_routes_are_given(tmp_path):
    """A broker that registered so made the name server fail for whoever asked for a route of its topics."""
    config = NameServerConfig(kv_config_path=str(tmp_path / "kv.json"))
    request = RemotingCommand(RequestCode.REGISTER_BROKER, {
        "clusterName": "c", "brokerName": "b", "brokerAddr": "127.0.0.1:1", "haServerAddr": "127.0.0.1:2",
        "brokerId": str(1 << 64),
    })  # fmt: skip
    with pytest.raises(BadRequestError, match="brokerId"):
        NameServer(config)._server._handlers[RequestCode.REGISTER_BROKER](Connection({}), request)


def test_attributes_that_are_none_are_left_out_of_a_registration():
    """The same, in the compressed form: there, as in Java, the topic is good without them."""
    topic = registration._topic_of_line('t 4 4 6 SINGLE_TAG ["not","texts"]')
    assert topic.to_json()["attributes"] == {}


def damaged_index(path: Path) -> None:
    """An index file with a key, whose header and slot speak of entries that it has no room for."""
    path.parent.mkdir(exist_ok=True)
    file = IndexFile(OsDisk(), str(path), SLOTS, ENTRIES)
    assert file.put([key_prefixes("t")[0], "k", 7, 1000]) == 1
    file.flush()
    slot_at = 40 + key_hash("t#k") % SLOTS * SLOT_SIZE
    for at, number in ((36, 2**31 - 1), (slot_at, 1_000_000)):
        file.mapping.view[at : at + 4] = number.to_bytes(4, "big")
    file.close()


def test_an_index_file_that_says_it_has_more_than_fits(tmp_path):
    """A query read beyond the file and failed; keys would have been written there."""
    path = tmp_path / "index" / "20261115000000000"
    damaged_index(path)
    file = IndexFile(OsDisk(), str(path), SLOTS, ENTRIES)
    assert file.query("t#k", 8, 0, 1 << 62) == []
    assert file.full
    assert file.put([key_prefixes("t")[0], "k", 8, 1000]) == 0
    file.close()


def test_the_tools_bear_such_an_index_file_and_tell_of_it(tmp_path):
    config = small_config(tmp_path, max_hash_slot_num=SLOTS, max_index_num=ENTRIES)
    with open_store(config) as store:
        put(store, message("t", KEYS="k"))
    path = next((tmp_path / "store" / "index").iterdir())
    path.unlink()
    damaged_index(path)
    with StoreDirectory.open(tmp_path / "store", config) as directory:
        assert list(look_up(directory, "t", "k")) == []
        assert "index-count" in {found.kind for found in check(directory).findings}


def with_crc(digits: str) -> InnerMessage:
    properties: dict[str, Any] = {"__CRC32#": digits}
    return message("t", **properties)


def test_a_property_crc_that_a_client_wrote_is_no_damage(tmp_path):
    """A client that sends `__CRC32#` itself made `kourou store check` report damage."""
    config = small_config(tmp_path)
    with open_store(config) as store:
        put(store, with_crc("1"))
    with StoreDirectory.open(tmp_path / "store", config) as directory:
        assert check(directory).findings == []


def test_a_property_crc_of_thousands_of_digits_ends_the_log_and_not_the_broker(tmp_path):
    """Such a number is more than int() takes: recovery failed with a ValueError."""
    with open_store(small_config(tmp_path)) as store:
        put(store, with_crc("9" * 5000))
        found = store.look_message(0)
    assert isinstance(found, StoredMessage)
    record = encode(found)
    assert decode_record(record).topic == "t"
    verdict = check_record(memoryview(record), 0, len(record), verify_property_crc=True)
    assert isinstance(verdict, NotARecord)
    assert verdict.reason == "record CRC does not match"
