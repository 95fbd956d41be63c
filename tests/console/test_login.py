"""Logging in, what each role is shown and allowed, and what is refused at the door."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from kourou.console.door.users import Role, Users
from support.browser import expect
from support.sites.certificates import certificates

PASSWORD = "correct horse"


def request(
    url: str, method: str, path: str, body: str | None = None, **headers: str
) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request(method, path, body, {"Content-Type": "application/x-www-form-urlencoded", **headers})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_a_user_logs_in_and_out(open_context, guarded):
    page = open_context(guarded.url).new_page()
    page.goto("/topics/orders")
    expect(page).to_have_url(f"{guarded.url}/login?next=/topics/orders")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill("wrong password")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("Wrong name or password.")
    page.get_by_label("Name").fill("admin")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    page.get_by_role("button", name="User").click()
    expect(page.get_by_text("admin").first).to_be_visible()
    page.get_by_text("Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


@pytest.mark.parametrize(
    ("role", "may_send", "may_delete"), [("viewer", 0, 0), ("operator", 1, 0), ("admin", 1, 1)]
)
def test_each_role_is_shown_what_it_may_do(log_in, role, may_send, may_delete):
    page = log_in(role)
    page.goto("/topics/orders")
    expect(page.locator("[data-stat=messages]")).not_to_have_text("—")
    expect(page.get_by_role("button", name="Send")).to_have_count(may_send)
    expect(page.get_by_role("button", name="More")).to_have_count(may_delete)
    page.goto("/topics")
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Create topic")).to_have_count(may_delete)
    page.goto("/groups/billing")
    expect(page.locator("[data-stat=clients]")).to_have_text("1")
    expect(page.get_by_role("button", name="Offsets")).to_have_count(may_send)


def test_who_may_no_longer_is_refused_in_a_page_that_is_open(open_context, start_console, scene, tmp_path):
    users = Users(tmp_path / "users.json")
    users.put("ann", Role.ADMIN, PASSWORD)
    with start_console("-n", scene.cluster.namesrv, "--users", str(tmp_path / "users.json")) as console:
        page = open_context(console.url).new_page()
        page.goto("/topics")
        page.get_by_label("Name").fill("ann")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Create topic").click()
        users.put("ann", Role.VIEWER, PASSWORD)
        page.get_by_role("dialog").get_by_label("Name").fill("not-made")
        page.get_by_role("dialog").get_by_role("button", name="Create").click()
        expect(page.get_by_role("alert").filter(has_text="needs the role admin")).to_be_visible()
        page.goto("/topics")
        expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
        expect(page.get_by_role("link", name="not-made")).to_have_count(0)


def test_who_logs_out_is_logged_out_in_all_tabs(log_in):
    page = log_in("operator")
    other = page.context.new_page()
    other.goto("/topics")
    expect(other.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.get_by_role("button", name="User").click()
    page.get_by_text("Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    expect(other.get_by_role("button", name="Log in")).to_be_visible()


def test_read_only_offers_no_change(open_context, start_console, scene):
    with start_console("-n", scene.cluster.namesrv, "--read-only") as console:
        page = open_context(console.url).new_page()
        page.goto("/topics/orders")
        expect(page.get_by_text("Read-only: this console changes nothing.")).to_be_visible()
        expect(page.locator("[data-stat=messages]")).not_to_have_text("—")
        for name in ("Send", "More"):
            expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)


def test_guesses_are_limited_and_next_pages_are_ours(start_console, scene, users_file):
    with start_console("-n", scene.cluster.namesrv, "--users", str(users_file)) as console:
        own = {"Origin": console.url}
        form = f"name=admin&password={PASSWORD.replace(' ', '+')}&next="
        answer = request(console.url, "POST", "/login", f"{form}//evil.example/", **own)
        assert (answer.status, answer.getheader("location")) == (303, "/")
        cookie = str(answer.getheader("set-cookie")).lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        answer = request(console.url, "POST", "/login", f"{form}/topics", **own)
        assert (answer.status, answer.getheader("location")) == (303, "/topics")
        assert request(console.url, "POST", "/login", form, Origin="http://evil.example").status == 403
        found = [
            request(console.url, "POST", "/login", "name=admin&password=no", **own).status for _ in range(6)
        ]
        assert found == [401] * 5 + [429]
        assert request(console.url, "POST", "/login", form, **own).status == 429


def test_a_page_of_another_site_gets_no_web_socket(console):
    headers = {
        "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }  # fmt: skip
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert request(console.url, "GET", path, Origin="http://evil.example", **headers).status == 403
    assert (
        request(console.url, "GET", path, Host="evil.example", Origin="http://evil.example", **headers).status
        == 403
    )
    polling = "/_nicegui_ws/socket.io/?EIO=4&transport=polling"
    assert request(console.url, "GET", polling, Origin="http://evil.example").status == 403
    assert request(console.url, "GET", polling).status == 200


def run_kourou(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kourou", *arguments],
        input=text, capture_output=True, encoding="utf-8", timeout=60, check=False,
    )  # fmt: skip


def test_users_are_made_by_a_command(tmp_path):
    file = str(tmp_path / "users.json")
    done = run_kourou(
        "console", "add-user", "ann", "--role", "operator", "--users", file, text=f"{PASSWORD}\n"
    )
    assert done.returncode == 0, done.stderr
    assert Users(tmp_path / "users.json").verify("ann", PASSWORD)
    assert run_kourou("console", "list-users", "--users", file).stdout == "ann\toperator\n"
    assert run_kourou("console", "remove-user", "ann", "--users", file).returncode == 0
    done = run_kourou("console", "remove-user", "ann", "--users", file)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    done = run_kourou("console", "add-user", "ann", "--users", file, text="short\n")
    assert done.returncode == 2
    assert "at least 8" in done.stderr


def test_what_is_unsafe_is_refused_in_one_line(tmp_path):
    for options, why in (
        (["--host", "0.0.0.0"], "--users"),
        (["--tls-cert", "cert.pem"], "belong together"),
        (["--users", str(tmp_path / "none.json")], "add-user"),
    ):
        done = run_kourou("console", "--port", "0", *options)
        assert done.returncode == 2
        assert why in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_with_a_page_open(open_context, start_console, number):
    """Given a cluster that is not there, then the page says so, and the console ends when it is told to."""
    with start_console("-n", "127.0.0.1:1") as console:
        page = open_context(console.url).new_page()
        page.goto("/")
        expect(page.get_by_role("alert").filter(has_text="no name server answers").first).to_be_visible()
        console.process.send_signal(number)
        assert console.process.wait(30) == 0


def test_it_is_served_over_tls(browser, start_console, scene):
    found = certificates().server
    options = ("--tls-cert", str(found.cert), "--tls-key", str(found.key))
    with start_console("-n", scene.cluster.namesrv, *options) as console:
        assert console.url.startswith("https://")
        context = browser.new_context(ignore_https_errors=True)
        page = context.new_page()
        page.goto(f"{console.url}/topics")
        expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible(timeout=30_000)
        context.close()
