"""What the simulator found in brokers that lost their power or had to wait for the disk, as small tests."""

from __future__ import annotations

import pytest

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.command import RemotingCommand
from support.sites.broker import UNIQUE_ID, Site, running, send_request, until
from support.stores.fault_disk import FaultDisk
from support.stores.store import ManualClock

# Nothing is flushed that nobody asks for.
UNFLUSHED = {
    "messageDelayLevel": "1s",
    "flushIntervalCommitLog": "600000",
    "flushCommitLogThoroughInterval": "600000",
    "flushConsumerOffsetInterval": "600000",
}


def late_message(body: bytes = b"late") -> RemotingCommand:
    return send_request(body=body, properties={"UNIQ_KEY": UNIQUE_ID, "DELAY": "1"})


def is_flushed(site: Site) -> bool:
    log = site.broker.store.commit_log
    return log.files.flushed_where == log.max_offset


def test_the_log_is_on_the_disk_before_a_delay_counts_as_delivered(tmp_path):
    clock = ManualClock()
    with running(tmp_path, UNFLUSHED, clock=clock) as site:
        site.make_topic("t")
        site.connect().ask(late_message())
        clock.advance(1000)
        site.do(site.broker.delay._deliver, 1)
        assert not is_flushed(site)

        site.run(site.broker.save())

        saved = lenient_json.loads((tmp_path / "store" / "config" / "delayOffset.json").read_bytes())
        assert saved["offsetTable"] == {"1": 1}
        assert is_flushed(site)


def test_offsets_are_not_saved_while_the_log_cannot_be_flushed_but_other_tables_are(tmp_path):
    clock, disk = ManualClock(), FaultDisk()
    config = tmp_path / "store" / "config"
    failure = pytest.raises(OSError, match="the log cannot be brought to the disk")  # of the stop, too
    with failure, running(tmp_path, UNFLUSHED, clock=clock, disk=disk) as site:
        site.make_topic("t")
        site.connect().ask(late_message())
        clock.advance(1000)
        site.do(site.broker.delay._deliver, 1)
        disk.fail_syncs("/commitlog/")
        site.do(site.broker.offsets.commit, "client", "g", "t", 0, 1)
        site.make_topic("another")

        with pytest.raises(OSError, match="the log cannot be brought to the disk"):
            site.run(site.broker.save())

        assert not (config / "delayOffset.json").exists()
        assert b"another" in (config / "topics.json").read_bytes()


def test_a_delayed_message_whose_entry_comes_late_is_looked_for_again(tmp_path):
    disk = FaultDisk()
    config = {"messageDelayLevel": "1s", "flushDiskType": "SYNC_FLUSH"}
    with running(tmp_path, config, disk=disk) as site:
        site.make_topic("t")
        peer = site.connect()
        peer.ask(late_message(b"first"))  # its level has a queue
        until(lambda: site.max_offset("t") == 1, "the first to be delivered")
        with disk.held_syncs("/commitlog/"):
            end = site.log_end()
            request = peer.send(late_message(b"second"))
            until(lambda: site.log_end() > end, "the second to be in the log")
            site.do(site.broker.delay._deliver, 1)
            assert site.do(lambda: 1 in site.broker.delay._timers)
        peer.answer_to(request)

        until(lambda: site.max_offset("t") == 2, "the second to be delivered")
