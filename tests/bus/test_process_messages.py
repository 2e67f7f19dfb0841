"""Messages between real processes of one machine: processes that die, that hang, and homes with long paths."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import hocket
from hocket.bus import process_messages
from hocket.bus.process_messages import ProcessMessages

pytestmark = pytest.mark.touches("GR-05")

PATIENCE_S = 60.0
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(hocket.__file__).parents[1])}
LISTEN = """
import asyncio, sys, pathlib
from hocket.bus.process_messages import ProcessMessages
async def main():
    bus = ProcessMessages(pathlib.Path(sys.argv[1]))
    queue = await bus.subscribe("t.>", capacity=100_000)
    print("ready", flush=True)
    while (message := await queue.get(60)) is not None:
        print(message.subject, message.data.decode(), flush=True)
asyncio.run(main())
"""
PUBLISH = """
import asyncio, sys, pathlib
from hocket.bus.process_messages import ProcessMessages
async def main():
    bus = ProcessMessages(pathlib.Path(sys.argv[1]))
    for number in range(int(sys.argv[3])):
        await bus.publish("t." + sys.argv[2], b"%d" % number)
    print(bus.state.lost)
asyncio.run(main())
"""


def process(code: str, *words: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT, text=True)


def line(of: "subprocess.Popen[str]") -> str:
    assert of.stdout is not None
    return of.stdout.readline().strip()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(body())


def test_messages_go_between_processes_whole_and_in_the_order_of_each(tmp_path: Path) -> None:
    listening = process(LISTEN, tmp_path)
    try:
        assert line(listening) == "ready"
        publishing = [process(PUBLISH, tmp_path, name, 500) for name in "abc"]
        lost = [int(line(each)) for each in publishing]
        got: dict[str, list[int]] = {}
        for _ in range(1_500 - sum(lost)):
            subject, number = line(listening).split()
            got.setdefault(subject, []).append(int(number))
        assert set(got) == {"t.a", "t.b", "t.c"}
        assert all(numbers == sorted(numbers) for numbers in got.values())
        assert [500 - len(got[f"t.{name}"]) for name in "abc"] == lost, "what was lost is counted"
        for each in publishing:
            each.wait(PATIENCE_S)
    finally:
        listening.kill()
        listening.wait()


def test_the_socket_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    listening = process(LISTEN, tmp_path)
    assert line(listening) == "ready"

    async def test() -> None:
        bus = ProcessMessages(tmp_path)
        await bus.publish("t.k", b"1")
        assert line(listening) == "t.k 1"
        listening.kill()
        listening.wait()
        assert len(list(tmp_path.glob("*.messages"))) == 1
        await bus.publish("other.subject", b"2")
        await bus.publish("t.k", b"2")
        assert list(tmp_path.glob("*.messages")) == []
        assert bus.state.lost == 0
        await bus.close()

    run(test)


def test_a_frozen_process_costs_one_short_wait_and_counted_messages(tmp_path: Path) -> None:
    listening = process(LISTEN, tmp_path)
    assert line(listening) == "ready"

    async def test() -> None:
        bus = ProcessMessages(tmp_path)
        listening.send_signal(signal.SIGSTOP)
        waits, pause = 0, asyncio.sleep

        async def counted(delay_s: float) -> None:
            nonlocal waits
            waits += delay_s > 0
            await pause(delay_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process_messages.asyncio, "sleep", counted)
            sent = 0
            while bus.state.lost < 50:
                await bus.publish("t.k", b"%d" % sent)
                sent += 1
                if bus.state.lost == 1:
                    waited, waits = waits, 0
        assert waited > 0 and waits == 0, "it waits for that process once, and not again"
        listening.send_signal(signal.SIGCONT)
        for number in range(sent - 50):
            assert line(listening) == f"t.k {number}"
        lost = bus.state.lost
        await bus.publish("t.k", b"again")
        assert line(listening) == "t.k again" and bus.state.lost == lost
        await bus.close()

    try:
        run(test)
    finally:
        listening.kill()
        listening.wait()


def test_a_home_may_have_a_long_path_and_a_pattern_any_length(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 200)
    deep.mkdir()
    wide = f"t.{'x' * 300}.*"

    async def test() -> None:
        bus = ProcessMessages(deep)
        queue = await bus.subscribe(wide)
        await bus.publish("t.other", b"")
        await bus.publish(wide.replace("*", "k"), b"1")
        message = await queue.get(PATIENCE_S)
        assert message is not None and message.data == b"1"
        await bus.close()

    run(test)


def test_noise_in_the_directory_and_in_a_socket_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "1-ab.not base64!.messages").write_bytes(b"not a socket")
    (tmp_path / "noise.messages").mkdir()

    async def test() -> None:
        bus = ProcessMessages(tmp_path)
        (tmp_path / "announced" / "noise.kept").write_bytes(b"noise")
        (tmp_path / "announced" / f"{2**50:015d}-1.kept").write_bytes(b"\xff" * 100)
        queue = await bus.subscribe("t.k", since_s=60)
        (path,) = tmp_path.glob(f"{os.getpid()}-*.messages")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            fd = os.open(path, os.O_PATH)
            for noise in (b"", b"\0", b"\2\1t\0\0", b"\xff" * 1_000):
                stranger.sendto(noise, f"/proc/self/fd/{fd}")
            os.close(fd)
        await bus.announce("t.k", b"1")
        message = await queue.get(PATIENCE_S)
        assert message is not None and message.data == b"1"
        await bus.close()

    run(test)


def test_announcements_are_bounded_in_number_and_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_messages, "ANNOUNCED_MAX", 10)
    monkeypatch.setattr(process_messages, "SWEEP_EVERY", 1)
    now_s = 1_750_000_000.0

    async def test() -> None:
        nonlocal now_s
        bus = ProcessMessages(tmp_path, wall=lambda: now_s)
        for number in range(30):
            now_s += 10
            await bus.announce("t.k", b"%d" % number)
        assert len(list((tmp_path / "announced").iterdir())) <= 11
        queue = await bus.subscribe("t.k", since_s=45)
        got = [await queue.get(0.01) for _ in range(6)]
        assert [each and each.data for each in got] == [b"25", b"26", b"27", b"28", b"29", None]
        now_s += 601
        assert await (await bus.subscribe("t.k", since_s=10_000)).get(0.01) is None
        await bus.announce("t.k", b"sweeps")
        assert len(list((tmp_path / "announced").iterdir())) <= 2
        await bus.close()

    run(test)
