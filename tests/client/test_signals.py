"""Consumers that run for ever, and stop well at Ctrl-C and SIGTERM (stop_on_signals), in both APIs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from kourou import sync
from kourou.client import ClientError, Consumer
from support.sites.clients import bodies, reader, run, send

HEAD = """
    import asyncio, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where a shell runs tests with &
    from kourou import client, sync
    options = dict(group=sys.argv[2], subscribe=sys.argv[3], consume_from="first", stop_on_signals=True)
"""

# Each prints a line for a message, and "closed" when it has come to its end.
PROGRAMS = {
    "handler": """
        consumer = client.Consumer(sys.argv[1], **options)
        @consumer.handler
        async def handle(message):
            print(bytes(message.body).decode(), flush=True)
            await asyncio.sleep(0.2)
        async def main():
            async with consumer:
                await consumer.run()
            print("closed")
        asyncio.run(main())
    """,
    "for": """
        async def main():
            async with client.Consumer(sys.argv[1], **options) as consumer:
                async for message in consumer:
                    print(bytes(message.body).decode(), flush=True)
            print("closed")
        asyncio.run(main())
    """,
    "poll": """
        async def main():
            async with client.PullConsumer(sys.argv[1], **options) as consumer:
                while not consumer.is_stopped:
                    for message in await consumer.poll():
                        print(bytes(message.body).decode(), flush=True)
            print("closed")
        asyncio.run(main())
    """,
    "columns": """
        async def main():
            async with client.Consumer(sys.argv[1], **options) as consumer:
                while not consumer.is_stopped:
                    for body in (await consumer.fetch_arrow()).column("body"):
                        print(body.as_py().decode(), flush=True)
            print("closed")
        asyncio.run(main())
    """,
    "uvloop": """
        import uvloop
        async def main():
            async with client.Consumer(sys.argv[1], **options) as consumer:
                async for message in consumer:
                    print(bytes(message.body).decode(), flush=True)
            print("closed")
        uvloop.run(main())
    """,
    "sync handler": """
        consumer = sync.Consumer(sys.argv[1], **options)
        @consumer.handler
        def handle(message):
            print(f"{bytes(message.body).decode()}\\n", end="", flush=True)  # a line at once, of each thread
            time.sleep(0.2)
        with consumer:
            consumer.run()
        print("closed")
    """,
    "sync for": """
        with sync.Consumer(sys.argv[1], **options) as consumer:
            for message in consumer:
                print(bytes(message.body).decode(), flush=True)
        print("closed")
    """,
    "sync poll": """
        with sync.PullConsumer(sys.argv[1], **options) as consumer:
            while not consumer.is_stopped:
                for message in consumer.poll():
                    print(bytes(message.body).decode(), flush=True)
        print("closed")
    """,
    "two": """
        with (
            sync.Consumer(sys.argv[1], **options) as consumer,
            sync.Consumer(sys.argv[1], **{**options, "group": sys.argv[2] + "-2"}) as second,
        ):
            for message in consumer:
                print(bytes(message.body).decode(), flush=True)
            assert list(second) == []
        print("closed")
    """,
}


def start(program: str, *arguments: str) -> subprocess.Popen[str]:
    text = textwrap.dedent(HEAD) + textwrap.dedent(program)
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_well(target, topic, name, number):
    run(send(target, topic, bodies(5)))
    group = f"G{topic}{number}{name.replace(' ', '')}"
    process = start(PROGRAMS[name], target.namesrv, group, topic)
    assert process.stdout is not None
    seen = [process.stdout.readline().strip() for _ in range(5)]
    process.send_signal(number)
    printed, errors = process.communicate(timeout=30)
    assert (process.returncode, printed, errors) == (0, "closed\n", "")
    assert sorted(seen) == sorted(body.decode() for body in bodies(5))

    async def left() -> list[bytes]:
        """What the group is given when it comes again: nothing, since everything was kept."""
        async with Consumer(target.namesrv, group=group, subscribe=topic, consume_from="first") as consumer:
            await send(target, topic, [b"new"])
            return [bytes((await anext(consumer)).body)]

    assert run(left()) == [b"new"]


def test_a_second_signal_ends_the_program(target, topic):
    run(send(target, topic, [b"x"]))
    program = """
        with sync.Consumer(sys.argv[1], **options) as consumer:
            for message in consumer:
                print("got it", flush=True)
                time.sleep(0.5)  # the first signal comes here
                print("going on", flush=True)
                time.sleep(30)
    """
    process = start(program, target.namesrv, f"G{topic}", topic)
    assert process.stdout is not None
    assert process.stdout.readline() == "got it\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "going on\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "Task" not in errors


@pytest.mark.parametrize("name", ["for", "sync for"])
def test_without_the_option_ctrl_c_interrupts_and_nothing_is_left_behind(target, topic, name):
    run(send(target, topic, [b"x"]))
    program = PROGRAMS[name].replace("**options", "**{**options, 'stop_on_signals': False}")
    process = start(program, target.namesrv, f"G{topic}", topic)
    assert process.stdout is not None
    assert process.stdout.readline() == "x\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") <= 2  # asyncio shows where it was cancelled, too
    assert "never retrieved" not in errors
    assert "pending" not in errors


def test_handlers_of_signals_are_given_back(target, topic):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with sync.Consumer(target.namesrv, group=f"G{topic}", subscribe=topic, stop_on_signals=True) as consumer:
        assert signal.getsignal(signal.SIGTERM) is not before[1]
        assert not consumer.is_stopped
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with pytest.raises(ClientError, match="start_timeout_s"):
        sync.Consumer(
            "127.0.0.1:1", group="G", subscribe="t", stop_on_signals=True, start_timeout_s=0.1
        ).start()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_signals_are_for_the_main_thread(target, topic):
    failures: list[BaseException] = []

    def work() -> None:
        try:
            sync.Consumer(target.namesrv, group="G", subscribe=topic, stop_on_signals=True).start()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in str(failures[0])


async def test_a_program_may_stop_a_consumer_itself(target, topic):
    await send(target, topic, bodies(3))
    consumer = reader(target, topic)
    async with consumer:
        async for _ in consumer:
            consumer.stop()
        assert consumer.is_stopped
    async with asyncio.timeout(5):
        await consumer.close()  # again: nothing is left to do
    with sync.Consumer(target.namesrv, group=f"S{topic}", subscribe=topic, consume_from="first") as other:
        threading.Timer(0.2, other.stop).start()
        assert len(list(other)) == 3
