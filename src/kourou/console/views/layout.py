"""The frame of every page: header, navigation, search, theme, language, user."""

from __future__ import annotations

from typing import Any

from nicegui import ui
from starlette.requests import Request

from kourou.console.door.users import Role
from kourou.console.pages import PAGES, Entry
from kourou.console.texts import CHINESE_CODE, ENGLISH_CODE, LANGUAGE_COOKIE, current_language, t
from kourou.console.views.components import empty
from kourou.console.views.search import add_search
from kourou.console.views.view import View

THEME_COOKIE = "kourou_theme"
COOKIE_S = 365 * 24 * 3600
REFRESH_S = 2.0


class Pages(ui.sub_pages):
    """The pages, and what is shown where there is none."""

    def _render_404(self) -> None:
        with ui.element("div").classes("k-card"):
            empty("travel_explore", t("There is no such page"), t("See the navigation, or search with /"))

    def _render_error(self, _: Exception) -> None:
        with ui.element("div").classes("k-card k-error"):
            empty(
                "error_outline", t("This page failed"), t("The log of the console says why. Reload the page.")
            )


def draw_frame(view: View, request: Request) -> None:
    """Draw the frame, and in it the page that was asked for."""
    ui.colors(primary="#3457d5", positive="#137a4b", negative="#c0362c", warning="#b06a00", dark="#151c27")
    dark = ui.dark_mode(request.cookies.get(THEME_COOKIE) == "dark")
    search = add_search(view)
    links: dict[str, ui.link] = {}
    with ui.left_drawer(value=None).props("width=228 mini-width=60 breakpoint=1000").classes("p-0") as drawer:
        _draw_navigation(links)
    with ui.header().classes("k-header items-center no-wrap gap-2 px-3 py-2"):
        ui.button(icon="menu", on_click=drawer.toggle).props(
            f'flat round dense color=grey-7 aria-label="{t("Menu")}"'
        )
        ui.link("Kourou", "/").classes("k-brand")
        cluster = ui.label().classes("k-cluster ellipsis k-hide-small")
        ui.space()
        with ui.element("button").classes("k-search-button k-hide-small").on("click", search.open):
            ui.icon("search")
            ui.label(t("Search")).classes("grow text-left")
            ui.html("<kbd>/</kbd>", sanitize=False)
        ui.button(icon="search", on_click=search.open).props(
            f'flat round dense color=grey-7 aria-label="{t("Search")}"'
        ).classes("lt-sm")
        _draw_theme(dark)
        _draw_language()
        _draw_user(view)
    with ui.element("div").classes("k-page"):
        _draw_banners(view)
        Pages({entry.path: entry.draw for entry in PAGES}, data={"view": view}).classes(
            "w-full flex flex-col gap-4 min-w-0"
        )

    def refresh() -> None:
        if not view.may(Role.VIEWER):  # logged out elsewhere, or not a user any more
            ui.run_javascript("location.reload()")
        names = view.snapshot.clusters
        cluster.set_text(", ".join(names) or view.config.namesrv)

    def mark(path: str) -> None:
        view.access.find(view.session.token)  # who turns pages is not idle
        current = _current(path)
        for entry_path, link in links.items():
            link.classes(remove="k-current")
            if entry_path == current:
                link.classes("k-current")

    router = ui.context.client.sub_pages_router
    router.on_path_changed(mark)
    mark(router.current_path)
    ui.timer(REFRESH_S, refresh)


def _current(path: str) -> str:
    """The page in the navigation that a path belongs to."""
    path = path.partition("?")[0]
    fitting = [
        entry.path for entry in PAGES if entry.title and (path + "/").startswith(entry.path.rstrip("/") + "/")
    ]
    return max(fitting, key=len, default="/")


def _draw_navigation(links: dict[str, Any]) -> None:
    section = ""
    for entry in PAGES:
        if not entry.title:
            continue
        if entry.section != section:
            section = entry.section
            ui.label(t(section)).classes("k-nav-section")
        links[entry.path] = _draw_link(entry)


def _draw_link(entry: Entry) -> ui.link:
    with ui.link(target=entry.path).classes("k-nav") as link:
        ui.icon(entry.icon)
        ui.label(t(entry.title)).classes("k-nav-text")
    return link


def _draw_theme(dark: ui.dark_mode) -> None:
    def toggle() -> None:
        dark.toggle()
        _set_cookie(THEME_COOKIE, "dark" if dark.value else "light")
        button.props(f"icon={_icon()}")

    def _icon() -> str:
        return "light_mode" if dark.value else "dark_mode"

    button = ui.button(icon=_icon(), on_click=toggle).props(
        f'flat round dense color=grey-7 aria-label="{t("Dark mode")}"'
    )


def _draw_language() -> None:
    def choose(language: str) -> None:
        _set_cookie(LANGUAGE_COOKIE, language)
        ui.run_javascript("location.reload()")

    with (
        ui.button(icon="translate").props(f'flat round dense color=grey-7 aria-label="{t("Language")}"'),
        ui.menu(),
    ):
        for language, name in ((ENGLISH_CODE, "English"), (CHINESE_CODE, "中文")):
            with ui.menu_item(on_click=lambda language=language: choose(language)):
                ui.label(name).classes("font-bold" if language == current_language() else "")


def _draw_user(view: View) -> None:
    if view.access.users is None:
        return
    role = view.access.role(view.session) or Role.VIEWER
    with (
        ui.button(icon="account_circle").props(f'flat round dense color=grey-7 aria-label="{t("User")}"'),
        ui.menu(),
    ):
        with ui.element("div").classes("px-4 py-3"):
            ui.label(view.session.user).classes("font-bold")
            ui.label({1: t("viewer"), 2: t("operator"), 3: t("admin")}[int(role)]).classes("k-subtitle")
        ui.separator()
        ui.menu_item(
            t("Log out"),
            on_click=lambda: ui.run_javascript(
                "const f = document.createElement('form'); f.method = 'post'; f.action = '/logout';"
                " document.body.append(f); f.submit()"
            ),
        )


def _draw_banners(view: View) -> None:
    if view.config.read_only:
        with ui.element("div").classes("k-banner k-info"):
            ui.icon("lock").classes("text-lg")
            ui.label(t("Read-only: this console changes nothing."))
    if view.access.users is None:
        with ui.element("div").classes("k-banner k-warn"):
            ui.icon("shield").classes("text-lg")
            ui.label(
                t("No login: everybody who reaches this address may change everything (--insecure).")
                if view.config.insecure
                else t(
                    "No login: for this machine only. For others, make users with `kourou console add-user`."
                )
            )
    with ui.element("div").classes("k-banner k-bad").props("role=alert") as trouble:
        ui.icon("cloud_off").classes("text-lg")
        text = ui.label()

    def refresh() -> None:
        error = view.snapshot.error
        trouble.set_visibility(error is not None)
        if error is not None:
            text.set_text(t("The cluster cannot be asked: {error}", error=error))

    refresh()
    ui.timer(REFRESH_S, refresh)


def _set_cookie(name: str, value: str) -> None:
    ui.run_javascript(f"document.cookie = '{name}={value}; path=/; max-age={COOKIE_S}; SameSite=Lax'")
