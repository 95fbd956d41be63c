"""`kourou bench`: producers and consumers at work, with a chart in the terminal and a report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kourou.cli.output import as_plain, print_json, print_table
from kourou.cli.run import DEFAULT_NAMESRV, Namesrv, client_tls, credentials

if TYPE_CHECKING:
    from rich.panel import Panel

    from kourou.admin.tools.bench import Report, Tick

_BLOCKS = " ▁▂▃▄▅▆▇█"
_WIDTH = 60


def bench(
    topic: Annotated[
        str, typer.Option("-t", "--topic", help="The topic; it is made if there is none.")
    ] = "kourou-bench",
    producers: Annotated[int, typer.Option(min=1, max=1000, help="How many producers.")] = 4,
    in_flight: Annotated[int, typer.Option(min=1, max=1000, help="Messages under way of each.")] = 8,
    consumers: Annotated[int, typer.Option(min=0, max=100, help="How many consumers.")] = 1,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a message.")] = 1024,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10.0,
    rate: Annotated[
        float | None,
        typer.Option(min=0.1, help="At most so many messages a second in all.", show_default=False),
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Send and consume as fast as it goes, or at a rate, and tell how that went.

    Exit code 1 if a message was not sent, or did not arrive.
    """
    import asyncio

    from kourou.admin.tools.bench import Bench
    from kourou.cli.output import quiet_log

    work = Bench(
        namesrv, topic, producers, in_flight, consumers, size, seconds, rate,
        tls=client_tls(), credentials=credentials(),
    )  # fmt: skip
    with quiet_log("kourou.client"):
        if json or not sys.stdout.isatty():
            report = asyncio.run(work.run())
        else:
            report = _run_live(work)
    if json:
        print_json(as_plain(report))
    else:
        print_report(report)
    if report.failed or not report.sent or (consumers and report.received < report.sent):
        raise typer.Exit(1)


def _run_live(work: object) -> Report:
    import asyncio

    from rich.live import Live

    from kourou.admin.tools.bench import Bench

    assert isinstance(work, Bench)
    sends: list[float] = []
    receives: list[float] = []
    with Live(refresh_per_second=4, transient=True) as live:

        def show(tick: Tick) -> None:
            sends.append(tick.send_rate)
            receives.append(tick.receive_rate)
            live.update(chart(tick, sends, receives))

        return asyncio.run(work.run(show))


def chart(tick: Tick, sends: list[float], receives: list[float]) -> Panel:
    """How it goes, as a picture."""
    from rich.panel import Panel
    from rich.text import Text

    top = max(*sends[-_WIDTH:], *receives[-_WIDTH:], 1.0)
    text = Text()
    for name, color, rates in (("sent", "cyan", sends), ("received", "green", receives)):
        text.append(f"{name:>9} {rates[-1]:>10,.0f}/s ")
        text.append(sparkline(rates[-_WIDTH:], top), style=color)
        text.append("\n")
    text.append(f"{tick.sent:,} sent, {tick.received:,} received, {tick.failed:,} failed")
    return Panel(text, title=f"{tick.seconds:.0f} s", title_align="left")


def sparkline(rates: list[float], top: float) -> str:
    """Rates as blocks of different height."""
    return "".join(_BLOCKS[min(round(rate / top * (len(_BLOCKS) - 1)), len(_BLOCKS) - 1)] for rate in rates)


def print_report(report: Report) -> None:
    """The report for a person."""
    send, way = report.send_latency, report.end_to_end_latency
    rows = [
        ("topic", f"{report.topic}, {report.size_bytes} bytes a message"),
        ("clients", f"{report.producers} producers, {report.consumers} consumers"),
        ("sent", f"{report.sent:,} in {report.seconds:.1f} s, {report.failed:,} failed"),
        ("received", f"{report.received:,}"),
        ("send rate", f"{report.send_rate:,.0f}/s, {report.send_mib_per_s:.1f} MiB/s"),
        ("receive rate", f"{report.receive_rate:,.0f}/s"),
        ("send latency", f"p50 {send.p50_ms:.2f} ms, p99 {send.p99_ms:.2f} ms, max {send.max_ms:.2f} ms"),
        ("end to end", f"p50 {way.p50_ms:.1f} ms, p99 {way.p99_ms:.1f} ms, max {way.max_ms:.1f} ms"),
    ]
    if report.error is not None:
        rows.append(("first error", report.error))
    print_table(("", "result"), rows)
