"""The index of a store: how a file of it is filled, and the chain that a key leads through."""

from __future__ import annotations

from html import escape
from typing import Any

from nicegui import ui

from kourou.console.pages.store.record import crumbs
from kourou.console.store.reading import read, store_url
from kourou.console.texts import t
from kourou.console.views.components import Section, card, empty, facts, number, page_title, size
from kourou.console.views.view import View
from kourou.inspect.look.chains import Chain, Link, describe_file, walk_chains
from kourou.inspect.look.fields import show_time


def draw(view: View, root: str, file: str, topic: str, key: str, *, is_tag: bool) -> None:
    """Draw an index file, or what the whole index has of a key."""
    page_title(file or t("Index"), root, parent=crumbs(root))
    draw_search(root, topic, key, is_tag=is_tag)
    if topic and key:
        Section(
            lambda: read(view, root, lambda store: walk_chains(store, topic, key, is_tag=is_tag)),
            lambda chains: _draw_chains(root, chains),
        )
    if file:
        Section(lambda: read(view, root, lambda store: describe_file(store, file)), _draw_file)


def draw_search(root: str, topic: str, key: str, *, is_tag: bool) -> None:
    """Ask for a key, and go where its chain is shown."""
    with card(t("Walk the chain of a key")), ui.row().classes("k-toolbar"):
        topic_input = ui.input(t("Topic"), value=topic).props("outlined dense").classes("grow")
        key_input = ui.input(t("Key, unique id or tag"), value=key).props("outlined dense").classes("grow")
        tag = ui.switch(t("It is a tag"), value=is_tag)

        def go() -> None:
            if topic_input.value and key_input.value:
                kind = "tag" if tag.value else ""
                wanted = {"topic": topic_input.value, "key": key_input.value, "kind": kind}
                ui.navigate.to(store_url(root, **wanted))

        for typed in (topic_input, key_input):
            typed.on("keydown.enter", go)
        ui.button(t("Walk"), icon="account_tree", on_click=go).props("unelevated")


def _draw_chains(root: str, chains: list[Chain]) -> None:
    if not chains:
        with card():
            empty("link_off", t("No slot leads to this key"), t("See topic and key, and whether it is a tag"))
    for chain in chains:
        with card(
            f"index/{chain.file}", t("hash {hash}, slot {slot}", hash=chain.hash, slot=number(chain.slot))
        ):
            boxes = [f"<div class='k-link-box'>{escape(t('Slot'))}<br><b>{chain.slot:,}</b></div>"]
            boxes += [_link_html(root, link) for link in chain.links]
            if chain.is_cut:
                boxes.append(f"<div class='k-link-box'>{escape(t('and more'))}</div>")
            arrow = "<span class='k-arrow'>→</span>"
            ui.html(f"<div class='k-chain'>{arrow.join(boxes)}</div>", sanitize=False).classes("w-full")


def _link_html(root: str, link: Link) -> str:
    if link.has_key:
        verdict, look = t("has the key"), "k-hit"
    else:
        verdict, look = t("same hash, other key") if link.is_same_hash else t("other hash, same slot"), ""
    url = escape(store_url(root, offset=link.offset), quote=True)
    return (
        f"<div class='k-link-box {look}'>{escape(t('Entry'))} <b>{link.number:,}</b> · {escape(verdict)}<br>"
        f"<a class='k-link k-mono' href='{url}'>{link.offset:,}</a><br>"
        f"<span class='k-file-note'>{escape(show_time(link.store_ms))}</span></div>"
    )


def _draw_file(found: tuple[dict[str, Any], list[float]]) -> None:
    described, shares = found
    with card(
        t("Slots"),
        t("{used} of {all} used", used=number(described["slotsUsed"]), all=number(described["slots"])),
    ):
        most = max(shares) or 1.0
        # A part that has few keys is still to be seen beside one that is full.
        parts = "".join(
            f"<i title='{share:.2%}' style='--on:{15 + 85 * share / most if share else 0:.0f}%'></i>"
            for share in shares
        )
        ui.html(f"<div class='k-strip'>{parts}</div>", sanitize=False).classes("w-full mb-4")
        facts(
            {
                t("Size"): size(described["bytes"]),
                t("Keys"): f"{number(described['entries'])} / {number(described['maxEntries'])}",
                t("First stored"): show_time(described["beginTimestamp"]),
                t("Last stored"): show_time(described["endTimestamp"]),
                t("Physical offsets"): f"{described['beginPhyOffset']:,} – {described['endPhyOffset']:,}",
                t("Mean chain"): described["meanChain"],
                t("Longest chain"): described["longestChain"],
                t("99 of 100 chains have at most"): described["p99Chain"],
            }
        )
