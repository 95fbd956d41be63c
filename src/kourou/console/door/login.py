"""The login page: plain HTML and a form, so that nothing else is reachable before somebody is logged in."""

from __future__ import annotations

import asyncio
import math
from html import escape
from urllib.parse import parse_qs

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from kourou.console.config import ConsoleConfig
from kourou.console.door.gate import COOKIE
from kourou.console.door.guesses import Guesses, origin_of
from kourou.console.door.sessions import Access
from kourou.console.texts import language_of, translate

MAX_FORM_BYTES = 8192

_PAGE = """<!doctype html>
<html lang="{language}"><head><meta charset="utf-8"><title>Kourou</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; --page: #f5f7fb; --card: #fff; --line: #dfe4ee; --text: #16202f;
  --soft: #5d6b82; --accent: #3457d5; --bad: #b42318 }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #0e131b; --card: #161d28; --line: #2a3444;
  --text: #e6ebf4; --soft: #93a1b8; --accent: #6d8cff; --bad: #ff8a7a }} }}
body {{ margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--page);
  color: var(--text); font: 15px/1.5 system-ui, "Noto Sans CJK SC", sans-serif }}
form {{ box-sizing: border-box; width: min(360px, calc(100vw - 32px)); padding: 32px; background: var(--card);
  border: 1px solid var(--line); border-radius: 14px; box-shadow: 0 12px 40px rgb(16 24 40 / 8%) }}
h1 {{ margin: 0 0 4px; font-size: 22px }} p {{ margin: 0 0 20px; color: var(--soft) }}
label {{ display: block; margin: 14px 0 4px; font-size: 13px; color: var(--soft) }}
input {{ box-sizing: border-box; width: 100%; padding: 10px 12px; font: inherit; color: inherit;
  background: transparent; border: 1px solid var(--line); border-radius: 8px }}
button {{ width: 100%; margin-top: 24px; padding: 11px; font: inherit; font-weight: 600; color: #fff;
  background: #3457d5; border: 0; border-radius: 8px; cursor: pointer }}
.bad {{ margin: 16px 0 0; color: var(--bad) }}
</style></head><body>
<form method="post" action="/login">
<h1>Kourou</h1><p>{intro}</p>
<input type="hidden" name="next" value="{next}">
<label for="name">{name}</label><input id="name" name="name" autocomplete="username" required autofocus>
<label for="password">{password}</label>
<input id="password" name="password" type="password" autocomplete="current-password" required>
{failure}<button type="submit">{log_in}</button>
</form></body></html>"""


def add_login(app: FastAPI, config: ConsoleConfig, access: Access) -> None:
    """Let people log in and out."""
    guesses = Guesses()

    async def show(request: Request) -> Response:
        if access.users is None:
            return RedirectResponse("/", 303)
        return _page(request, _local(request.query_params.get("next", "/")))

    async def log_in(request: Request) -> Response:
        form = await _form(request)
        if form is None or access.users is None:
            return PlainTextResponse("no form", 400)
        name, following = form.get("name", ""), _local(form.get("next", "/"))
        peer = request.client.host if request.client else ""
        address = origin_of(peer, request.headers.getlist("x-forwarded-for"), config.trusted_proxies)
        wait_s = guesses.begin(address, name)
        if wait_s:
            return _page(request, following, wait_s=wait_s)
        try:
            await asyncio.sleep(guesses.slow_s(name))
            is_right = await asyncio.to_thread(access.users.verify, name, form.get("password", ""))
        finally:
            guesses.end(address)
        if not is_right:
            return _page(request, following, is_wrong=True)
        guesses.succeeded(address, name)
        response = RedirectResponse(following, 303)
        response.set_cookie(
            COOKIE,
            access.open(name).token,
            httponly=True,
            samesite="strict",
            secure=config.tls_cert is not None,
        )
        return response

    async def log_out(request: Request) -> Response:
        access.close(request.cookies.get(COOKIE))
        response = RedirectResponse("/login", 303)
        response.delete_cookie(COOKIE)
        return response

    app.add_route("/login", show, methods=["GET"])
    app.add_route("/login", log_in, methods=["POST"])
    app.add_route("/logout", log_out, methods=["POST"])


async def _form(request: Request) -> dict[str, str] | None:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            return None
    return {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}


def _local(path: str) -> str:
    """A page of this console to go on to; the first one where something else is asked for."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path and path.isprintable()
    return path if is_local else "/"


def _page(request: Request, following: str, *, is_wrong: bool = False, wait_s: float = 0.0) -> HTMLResponse:
    language = language_of(request)

    def t(text: str) -> str:
        return escape(translate(text, language))

    failure, status = "", 200
    if is_wrong:
        failure, status = t("Wrong name or password."), 401
    if wait_s:
        seconds = math.ceil(wait_s)
        failure = t("Too many tries. Wait {seconds} s, then try again.").format(seconds=seconds)
        status = 429
    text = _PAGE.format(
        language=language,
        intro=t("RocketMQ console"),
        next=escape(following, quote=True),
        name=t("Name"),
        password=t("Password"),
        failure=f'<div class="bad" role="alert">{failure}</div>' if failure else "",
        log_in=t("Log in"),
    )
    return HTMLResponse(text, status, {"Cache-Control": "no-store"})
