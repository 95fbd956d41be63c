"""When servers are gone the console says so soon, and goes on."""

from __future__ import annotations

from kourou.testing import Cluster
from support.browser import expect


def test_a_broker_that_is_gone_is_shown_as_down(open_context, start_console):
    with Cluster(brokers=2) as cluster, start_console("-n", cluster.namesrv) as console:
        cluster.create_topic("orders")
        page = open_context(console.url).new_page()
        page.goto("/cluster")
        table = page.locator(".k-table tbody")
        expect(table.first.get_by_text("up", exact=True)).to_have_count(2)
        gone = cluster.brokers[1]
        cluster.stop_broker(gone)
        row = page.get_by_role("row").filter(has_text=gone.config.address)
        expect(row.get_by_text("down", exact=True)).to_be_visible()
        problem = page.get_by_role("alert").filter(has_text=gone.config.address)
        expect(problem).to_contain_text("not registered")
        page.goto("/topics/orders")
        expect(page.get_by_text("broker-a").first).to_be_visible()
        cluster.restart_broker(gone)
        page.goto("/cluster")
        expect(table.first.get_by_text("up", exact=True)).to_have_count(2)


def test_a_name_server_that_is_gone_is_told(open_context, start_console):
    """Given a name server that does not answer, then pages say so, and what was known stays there."""
    with Cluster() as cluster, start_console("-n", cluster.namesrv) as console:
        cluster.create_topic("orders")
        page = open_context(console.url).new_page()
        page.goto("/topics")
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        cluster.run(cluster.name_server.stop())
        expect(page.get_by_role("alert").filter(has_text="The cluster cannot be asked").first).to_be_visible()
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        page.goto("/groups")
        expect(page.get_by_role("heading", level=1)).to_have_text("Consumer groups")
