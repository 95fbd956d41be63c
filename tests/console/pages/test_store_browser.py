"""The store browser: golden stores of Java's, read as Java reads them, and looked at in a browser."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from kourou.console.config import ConsoleConfig
from kourou.console.door.sessions import Access, ForbiddenError
from kourou.console.door.users import Role, Users
from kourou.console.store.reading import check_path
from kourou.inspect import StoreDirectory
from kourou.inspect.log_scan import log_end
from kourou.inspect.look.chains import describe_file, walk_chains
from kourou.inspect.look.fields import dissect
from kourou.inspect.look.files import draw_files
from kourou.inspect.look.pages import read_entries, read_record, read_records
from kourou.message.codec import SIZE_AND_MAGIC
from support.browser import expect
from support.recorded import golden

FITS = "document.documentElement.scrollWidth <= window.innerWidth"
SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
FIRST = "commitlog/00000000000000000000"
GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """`unpacked("plain")`: a golden store, unpacked once."""
    root = tmp_path_factory.mktemp("golden")
    known = {}

    def get(name: str) -> golden.GoldenStore:
        if name not in known:
            known[name] = golden.unpack(name, root)
        return known[name]

    return get


def address(path, **parameters) -> str:
    return f"/store?{urlencode({'path': path, **parameters})}"


# What is read


@pytest.mark.parametrize("name", ["plain", "ipv6", "transaction", "propcrc", "batch"])
def test_a_record_is_taken_apart_as_java_reads_it(unpacked, name):
    found = unpacked(name)
    with StoreDirectory.open(found.path) as store:
        for wanted in found.expected["commitlog"]["records"]:
            offset = wanted["physicalOffset"]
            record = read_record(store, offset)
            fields = dissect(record.data, offset)
            assert fields[0].start == 0
            assert fields[-1].end == len(record.data) == wanted["storeSize"]
            assert all(one.end == other.start for one, other in pairwise(fields))
            values = {field.kind: field.value for field in fields}
            assert values["QUEUEID"] == str(wanted["queueId"])
            assert values["QUEUEOFFSET"] == str(wanted["queueOffset"])
            assert values["PHYSICALOFFSET"] == str(offset)
            assert values["TOPIC"] == wanted["topic"]
            assert values["BORNHOST"] == wanted["bornHost"]
            assert values["STOREHOST"] == wanted["storeHost"]
            assert values["STORETIMESTAMP"].startswith(str(wanted["storeTimestamp"]))
            assert values["BODYCRC"] == f"{wanted['bodyCRC']:08x}"
            properties = b"".join(
                record.data[one.start : one.end] for one in fields if one.kind == "PROPERTY"
            )
            assert properties.decode() == wanted["propertiesRaw"]
            assert [field.name for field in fields if field.verdict is False] == []
            assert "REST" not in values


def test_damage_is_shown_where_it_is(unpacked):
    found = unpacked("crash_flip")
    end = found.expected["recovered"]["maxPhyOffset"]
    with StoreDirectory.open(found.path) as store:
        record = read_record(store, end)
        fields = dissect(record.data, end)
        assert [field.name for field in fields if field.verdict is False] == ["BODYCRC"]
        log_file = store.log_file(end)
        assert log_file is not None
        file = store.relative(log_file.path)
        row = read_records(store, file, end).rows[0]
        assert row["offset"] == end
        assert "CRC" in row["state"]


@pytest.mark.parametrize("size", [3, 20, 60, 88, 95])
def test_a_record_of_which_some_is_missing_is_taken_apart_as_far_as_it_goes(unpacked, size):
    with StoreDirectory.open(unpacked("plain").path) as store:
        data = read_record(store, 0).data[:size]
    fields = dissect(data, 0)
    assert fields[-1].end == size
    assert all(one.end == other.start for one, other in pairwise(fields))


def test_pages_of_records_are_all_records(unpacked):
    found = unpacked("plain")
    wanted = [record["physicalOffset"] for record in found.expected["commitlog"]["records"]]
    blanks = [blank["physicalOffset"] for blank in found.expected["commitlog"]["blanks"]]
    seen, gaps = [], []
    with StoreDirectory.open(found.path) as store:
        for file in store.log_files:
            begin: int | None = file.base
            while begin is not None:
                page = read_records(store, store.relative(file.path), begin)
                assert len(page.rows) <= 50
                seen += [row["offset"] for row in page.rows if not row["state"]]
                gaps += [row["offset"] for row in page.rows if row["state"]]
                begin = page.following
    assert seen == wanted
    assert gaps == blanks


def test_a_place_between_records_leads_to_the_next_one(unpacked):
    found = unpacked("plain")
    offsets = [record["physicalOffset"] for record in found.expected["commitlog"]["records"]]
    with StoreDirectory.open(found.path) as store:
        assert read_records(store, FIRST, offsets[3] + 1).rows[0]["offset"] == offsets[4]


def test_entries_of_a_queue_are_javas(unpacked):
    found = unpacked("plain")
    queues = found.expected["recovered"]["queues"]
    with StoreDirectory.open(found.path) as store:
        for queue in store.queues:
            wanted = queues[queue.topic][str(queue.queue_id)]["entries"]
            rows = []
            for file in queue.files:
                page = read_entries(store, store.relative(file.path), None)
                rows += page.rows
            assert [[row["place"], row["offset"], row["size"], row["tags"]] for row in rows] == [
                entry[:4] for entry in wanted
            ]
            assert {row["state"] for row in rows} == {"ok"}


def test_the_chain_of_a_key_leads_where_javas_index_does(unpacked):
    found = unpacked("plain")
    queries = found.expected["recovered"]["indexQueries"]
    with StoreDirectory.open(found.path) as store:
        for query in queries[:60]:
            chains = walk_chains(store, query["topic"], query["key"], is_tag=query["type"] == "T")
            links = [link.offset for chain in chains for link in chain.links if link.is_same_hash]
            assert links[: len(query["phyOffsets"])] == query["phyOffsets"]
            assert all(link.previous < link.number for chain in chains for link in chain.links)
        described, shares = describe_file(store, os.path.basename(store.index_paths[0]))
    header = found.expected["index"]["files"][0]["header"]
    assert described["slotsUsed"] == header["hashSlotCount"]
    assert sum(share > 0 for share in shares) == header["hashSlotCount"]  # a part has one slot here, or none


def test_files_are_drawn_as_they_are_filled(unpacked):
    found = unpacked("plain")
    blanks = {blank["file"]: blank["size"] for blank in found.expected["commitlog"]["blanks"]}
    with StoreDirectory.open(found.path) as store:
        drawing = draw_files(store, log_end(store))
    for bar in drawing.log[:-1]:
        parts = dict(bar.parts)
        assert parts == {"used": bar.size_bytes - blanks[bar.name[-20:]], "blank": blanks[bar.name[-20:]]}
    last = drawing.log[-1]
    assert dict(last.parts) == {"used": found.expected["commitlog"]["endOffset"] - int(last.name[-20:])}
    assert [bar.entries for bar in drawing.index] == [
        file["header"]["indexCount"] - 1 for file in found.expected["index"]["files"]
    ]
    assert sum(bar.entries for bar in drawing.queues) == len(found.expected["commitlog"]["records"])


def test_what_is_not_on_disk_by_the_checkpoint_and_what_is_torn_is_told_apart(unpacked):
    found = unpacked("crash_flip")
    with StoreDirectory.open(found.path) as store:
        end = log_end(store)
        drawing = draw_files(store, end)
        checkpoint = store.checkpoint
    assert checkpoint is not None
    late = [
        record["physicalOffset"]
        for record in found.expected["commitlog"]["records"]
        if record["storeTimestamp"] > checkpoint.physic_msg_timestamp
    ]
    unflushed = sum(size for bar in drawing.log for kind, size in bar.parts if kind == "unflushed")
    blank = sum(
        one["size"] for one in found.expected["commitlog"]["blanks"] if one["physicalOffset"] > late[0]
    )
    assert unflushed == end.offset - late[0] - blank
    assert sum(size for bar in drawing.log for kind, size in bar.parts if kind == "damaged") > 0
    assert drawing.log[-1].parts == []  # a file that was made ahead of its time


def test_a_file_of_a_gigabyte_costs_what_it_holds(tmp_path):
    found = golden.unpack("timer", tmp_path)
    os.truncate(found.path / FIRST, GIGABYTE)
    with StoreDirectory.open(found.path) as store:
        page = read_records(store, FIRST, 0)
        assert len(page.rows) == len(found.expected["commitlog"]["records"])
        assert read_records(store, FIRST, GIGABYTE // 2).rows == []
        drawing = draw_files(store, log_end(store))
    assert drawing.log[0].size_bytes == GIGABYTE
    assert dict(drawing.log[0].parts) == {"used": found.expected["commitlog"]["endOffset"]}


# Who may open what


def view_of(config: ConsoleConfig, role: Role = Role.ADMIN):
    users = None
    if config.users_file is not None:
        users = Users(config.users_file)
        users.put("somebody", role, "correct horse")
    access = Access(users, read_only=config.read_only)
    session = access.open("somebody") if users else access.find(None)
    assert session is not None
    return SimpleNamespace(
        config=config, access=access, session=session, may=lambda r: access.may(session, r)
    )


@pytest.mark.parametrize("role", list(Role))
def test_with_users_only_named_stores_are_opened(tmp_path, role):
    named = tmp_path / "named"
    named.mkdir()
    view = view_of(ConsoleConfig("a:1", users_file=tmp_path / "users.json", stores=(named,)), role)
    assert check_path(view, str(named)) == str(named)
    for path in (tmp_path, "/", f"{named}/..", f"{named}/commitlog"):
        with pytest.raises(ForbiddenError, match="--store"):
            check_path(view, str(path))


@pytest.mark.parametrize(
    "config",
    [
        ConsoleConfig("a:1", host="0.0.0.0", insecure=True),
        ConsoleConfig("a:1", read_only=True),
    ],
)
def test_any_path_is_for_this_machine_alone(config):
    with pytest.raises(ForbiddenError):
        check_path(view_of(config), "/somewhere")
    assert check_path(view_of(ConsoleConfig("a:1")), "/somewhere") == "/somewhere"


# In a browser


def test_from_a_file_to_a_byte_and_back(open_context, start_console, unpacked):
    found = unpacked("plain")
    record = found.expected["commitlog"]["records"][1]
    with start_console("-n", "127.0.0.1:1", "--store", str(found.path)) as console:
        page = open_context(console.url).new_page()
        page.goto("/store")  # the only store is opened at once
        expect(page.locator("[data-stat=store-messages]")).to_have_text(
            str(len(found.expected["commitlog"]["records"]))
        )
        page.get_by_role("link", name=FIRST).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(FIRST)
        page.get_by_role("link", name=str(record["physicalOffset"]), exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Record at {record['physicalOffset']}")
        expect(page.locator(".k-fields")).to_contain_text(record["topic"])
        shown = "".join(page.locator(".k-hex-bytes").all_text_contents())
        assert bytes.fromhex(re.sub(r"\s", "", shown))[:8] == SIZE_AND_MAGIC.pack(
            record["storeSize"], record["magic"]
        )
        topic = page.locator(".k-field", has_text="TOPIC LENGTH").locator("xpath=following-sibling::*[1]")
        topic.hover()
        lit = page.locator(".k-hex-text .kg-topic").first
        expect(lit).to_have_css("--lit", "1")
        page.get_by_role("button", name="Its queue entry").click()
        expect(page.locator("main")).to_contain_text("ConsumeQueue, consumequeue/")
        page.get_by_role("link", name=str(record["physicalOffset"]), exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Record at {record['physicalOffset']}")

        page.goto(address(found.path, topic="GoldenAlpha", key="key-0"))
        expect(page.locator(".k-link-box.k-hit")).to_have_count(1)
        page.goto(address("/nowhere/at/all"))
        expect(page.get_by_role("alert").last).to_contain_text("is no directory")
        page.goto(address(found.path, file="commitlog/../../../etc/passwd"))
        expect(page.get_by_role("alert").last).to_contain_text("there is no log file")


def test_a_check_tells_what_is_damaged(open_context, start_console, unpacked):
    found = unpacked("crash_flip")
    with start_console("-n", "127.0.0.1:1", "--store", str(found.path)) as console:
        page = open_context(console.url).new_page()
        page.goto(address(found.path, show="check"))
        expect(page.locator("main")).to_contain_text("are cut off")
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.locator("main")).to_contain_text("torn-tail")
        expect(page.locator("main")).to_contain_text("0 faults")
        page.get_by_role("link", name=re.compile("^commitlog.+ [0-9]+$")).first.click()
        expect(page.locator("main")).to_contain_text("damaged")


def test_the_store_of_a_broker_that_writes(open_context, scene, console):
    broker = scene.cluster.brokers[0]
    page = open_context(console.url).new_page()
    page.goto(address(broker.store.config.store_path_root_dir))
    expect(page.locator("main")).to_contain_text("in use by")
    page.get_by_role("link", name=FIRST).click()
    page.locator("td.k-id a").first.click()
    expect(page.locator("main")).to_contain_text("CRC is right")


def test_who_is_logged_in_sees_the_named_stores_only(log_in, unpacked):
    page = log_in("admin")
    page.goto("/store")
    expect(page.locator("main")).to_contain_text("This console has no stores")
    page.goto(address(unpacked("plain").path))
    expect(page.get_by_role("alert").last).to_contain_text("none of the stores")


def test_its_pages_fit_the_screen(open_context, start_console, unpacked):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    plain, flip = unpacked("plain").path, unpacked("crash_flip").path
    with StoreDirectory.open(plain) as store:
        queue = store.relative(store.queues[0].files[0].path)
        index = store.relative(store.index_paths[0])
    pages = {
        "store": (address(plain), "Consume queues"),
        "store-log-file": (address(plain, file=FIRST), "GoldenAlpha"),
        "store-record": (address(plain, file=FIRST, offset=0), "TOTALSIZE"),
        "store-queue": (address(plain, file=queue), "GoldenAlpha"),
        "store-index": (address(plain, file=index), "Longest chain"),
        "store-key": (address(plain, topic="GoldenAlpha", key="TagA", kind="tag"), "has the key"),
        "store-checkpoint": (address(plain, file="checkpoint"), "physicMsgTimestamp"),
        "store-recovery": (address(flip, show="check"), "The log ends at"),
        "store-damage": (address(flip), "damaged, or cut off"),
        "store-timers": (address(unpacked("timer").path, file="timerwheel"), "Due"),
    }
    with start_console("-n", "127.0.0.1:1") as console:
        for theme in ("light", "dark"):
            context = open_context(console.url)
            context.add_cookies([{"name": "kourou_theme", "value": theme, "url": console.url}])
            page = context.new_page()
            for name, (path, text) in pages.items():
                page.set_viewport_size({"width": 1280, "height": 900})
                page.goto(path)
                expect(page.locator("main")).to_contain_text(text)
                for width in (1280, 390):
                    page.set_viewport_size({"width": width, "height": 900})
                    page.wait_for_function(FITS)  # once the navigation has moved aside
                    file = SCREENSHOTS / f"{name}-{width}-{theme}.png"
                    page.screenshot(path=file, full_page=True, animations="disabled")
