"""What a Java broker left undone goes on here: its delayed messages, retries and dead letters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from kourou.remoting.protocol import lenient_json
from kourou.remoting.protocol.codes import RequestCode
from kourou.remoting.protocol.command import RemotingCommand
from support.recorded.golden import unpack
from support.sites.broker import Site, running, until
from support.stores.store import ManualClock

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
HOURS_MS = 3 * 3_600_000  # more than the longest level
GROUP = "golden_retry_cgroup"
RETRIES, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"


def take_over(name: str, directory: Path) -> dict[str, str]:
    """Put a golden store where the broker finds it; its configuration."""
    golden = unpack(name, directory)
    golden.path.rename(directory / "store")
    return {key: str(value).lower() for key, value in golden.expected["config"].items()}


def delayed(site: Site) -> list[tuple[str, str, int]]:
    """The unique ids of all that was ever delayed, with topic and queue to go to."""
    return [
        (item.properties["UNIQ_KEY"], item.properties["REAL_TOPIC"], int(item.properties["REAL_QID"]))
        for level in range(18)
        for item in site.stored(SCHEDULE, level)
    ]


def test_every_delayed_message_of_java_comes_once(tmp_path):
    config = take_over("delay_before", tmp_path)
    clock = ManualClock()
    state = lenient_json.loads((tmp_path / "store/config/delayOffset.json").read_bytes())
    clock.time_ms = int(state["dataVersion"]["timestamp"])
    with running(tmp_path, config, clock=clock) as site:
        (last,) = site.stored(SCHEDULE, 17)[-1:]
        wanted = delayed(site)
        offsets = {int(level): offset for level, offset in state["offsetTable"].items()}
        assert site.do(lambda: site.broker.delay.offsets) == offsets
        assert sum(offsets.values()) < len(wanted)

        clock.time_ms = last.store_timestamp + HOURS_MS
        for level in range(1, 19):
            site.do(site.broker.delay._deliver, level)
        until(
            lambda: sum(site.max_offset("GoldenDelay", number) for number in range(4)) >= len(wanted), "all"
        )

        found = [
            (item.properties["UNIQ_KEY"], "GoldenDelay", number)
            for number in range(4)
            for item in site.stored("GoldenDelay", number)
        ]
        assert Counter(found) == Counter(wanted)


def test_retries_of_java_are_counted_on_until_they_are_dead(tmp_path):
    config = take_over("retry_dlq", tmp_path)
    with running(tmp_path, config, clock=ManualClock()) as site:
        peer = site.connect()
        fields = {"consumerGroup": GROUP, "topic": RETRIES, "queueId": "0"}
        offset = peer.ask(RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, fields)).ext_fields["offset"]
        assert int(offset) == site.max_offset(RETRIES)
        retry, dead = site.stored(RETRIES)[-1], site.stored(DEAD)
        assert retry.reconsume_times > 0
        assert dead

        for limit in (retry.reconsume_times + 1, retry.reconsume_times):
            back = {
                "offset": str(retry.physical_offset), "group": GROUP, "delayLevel": "0",
                "maxReconsumeTimes": str(limit),
            }  # fmt: skip
            peer.ask(RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, back))

        waiting = site.stored(SCHEDULE, 3 + retry.reconsume_times - 1)[-1]
        assert waiting.properties["UNIQ_KEY"] == retry.properties["UNIQ_KEY"]
        assert waiting.reconsume_times == retry.reconsume_times + 1
        (added,) = site.stored(DEAD)[len(dead) :]
        assert added.properties["UNIQ_KEY"] == retry.properties["UNIQ_KEY"]
        assert added.reconsume_times == retry.reconsume_times + 1
