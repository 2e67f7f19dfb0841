"""Parts of results as they come: from handlers of every form, over buses that lose messages, and for late listeners."""

import asyncio
import random
import signal
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import hocket
from hocket.families.jobs.parts import PART_BYTES_MAX, Part
from hocket.node.message_bus import NodeMessages
from hocket.node.node import Node
from hocket.node.process_loop import on_loop, process_loop
from hocket.testing.lossy_messages import LossyMessages
from tests.node.test_process_loop import interrupt_main_thread

PATIENCE_S = 60.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    hocket.init(tmp_path / "home")
    return tmp_path / "home"


class Gate:
    """Lets a handler go on step by step."""

    def __init__(self) -> None:
        self._steps = threading.Semaphore(0)

    def open(self, steps: int = 1) -> None:
        self._steps.release(steps)

    def passed(self) -> None:
        """An exception can come in between."""
        for _ in range(int(PATIENCE_S * 100)):
            if self._steps.acquire(timeout=0.01):
                return
        raise AssertionError("nobody opened the gate")


def run(home: Path, test: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(PATIENCE_S), hocket.open(home) as node:
            await test(node)

    asyncio.run(body())


def words(ctx: hocket.Context, text: str) -> Iterator[str]:
    for word in text.split():
        yield word + " "


async def words_async(text: str) -> AsyncIterator[str]:
    for word in text.split():
        await asyncio.sleep(0)
        yield word + " "


def words_told(ctx: hocket.Context, text: str) -> None:
    for word in text.split():
        ctx.part(word + " ")


def numbers() -> Iterator[dict[str, int]]:
    yield {"n": 1}
    yield {"n": 2}


def raw() -> Iterator[bytes]:
    yield b"\xff"
    yield b"\x00"


def nothing() -> Iterator[str]:
    yield from ()


def counted(ctx: hocket.Context) -> Generator[str, None, dict[str, int]]:
    yield "a"
    return {"count": 1}


def types(**functions: Callable[..., Any]) -> dict[str, hocket.JobType]:
    return {name: hocket.JobType(f"stream.{name}", function=each) for name, each in functions.items()}


@pytest.mark.parametrize("function", [words, words_async, words_told])
def test_a_handler_gives_parts_and_together_they_are_the_result(home: Path, function: Callable[..., Any]) -> None:
    (job,) = types(words=function).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            handle = await node.submit(job, text="to be or not")
            parts = [part async for part in handle.stream()]
            assert parts == [Part(word, number, 1) for number, word in enumerate(["to ", "be ", "or ", "not "])]
            assert await handle.result() == "to be or not "

    run(home, test)


def test_other_values_are_a_list_bytes_are_joined_and_a_returned_value_is_the_result(home: Path) -> None:
    jobs = types(numbers=numbers, raw=raw, nothing=nothing, counted=counted)

    async def test(node: Node) -> None:
        async with node.working(jobs.values()):
            handles = {name: await node.submit(job) for name, job in jobs.items()}
            parts = {name: [each.value async for each in handle.stream()] for name, handle in handles.items()}
            assert parts == {
                "numbers": [{"n": 1}, {"n": 2}],
                "raw": [b"\xff", b"\x00"],
                "nothing": [],
                "counted": ["a"],
            }
            results = {name: await handle.result() for name, handle in handles.items()}
            assert results == {
                "numbers": [{"n": 1}, {"n": 2}],
                "raw": b"\xff\x00",
                "nothing": None,
                "counted": {"count": 1},
            }

    run(home, test)


def test_parts_come_while_the_handler_runs_also_to_one_who_comes_late(home: Path) -> None:
    gate = Gate()

    def steps() -> Iterator[int]:
        for number in range(4):
            gate.passed()
            yield number

    (job,) = types(steps=steps).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            handle = await node.submit(job)
            first = handle.stream()
            gate.open(2)
            assert [(await anext(first)).value for _ in range(2)] == [0, 1]
            async with hocket.open(home) as other:
                late = other.job(handle.job_id).stream()
                assert [(await anext(late)).value for _ in range(2)] == [0, 1]
                gate.open(2)
                assert [part.value async for part in first] == [2, 3] == [part.value async for part in late]
            assert [part.value async for part in handle.stream()] == [0, 1, 2, 3]

    run(home, test)


def test_synchronous_code_streams_too(home: Path) -> None:
    (job,) = types(words=words).values()
    with hocket.open(home) as node, node.working([job]):
        handle = node.submit(job, text="a b")
        assert [str(part) for part in handle.stream()] == ["a ", "b "]
        assert handle.result(PATIENCE_S) == "a b "


def test_ctrl_c_while_a_stream_waits_ends_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any]) -> Any:
        async def interrupting() -> Any:
            interrupt_main_thread()
            return await work

        return on_loop(loop, interrupting() if work.__name__ == "_next" else work)

    monkeypatch.setattr("hocket.node.node.on_loop", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with hocket.open(home) as node:
            parts = node.submit("test.words").stream()
            with pytest.raises(KeyboardInterrupt):
                next(parts)
            assert not asyncio.all_tasks(process_loop())
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_can_follow_another_job(home: Path) -> None:
    async def relay(ctx: hocket.Context[Node]) -> AsyncIterator[str]:
        handle = await ctx.node.submit("stream.words", text="x y")
        async for part in handle.stream():
            yield str(part).upper()

    def relay_plain(ctx: hocket.Context[hocket.SyncNode]) -> Iterator[str]:
        for part in ctx.node.submit("stream.words", text="x y").stream():
            yield str(part).upper()

    jobs = types(words=words, relay=relay, plain=relay_plain)

    async def test(node: Node) -> None:
        async with node.working(jobs.values()):
            for name in ("relay", "plain"):
                assert await (await node.submit(jobs[name])).result(PATIENCE_S) == "X Y "

    run(home, test)


def test_progress_is_told_beside_the_parts(home: Path) -> None:
    gate = Gate()

    def steps(ctx: hocket.Context) -> Iterator[str]:
        ctx.progress({"done": 1})
        gate.passed()
        yield "a"

    (job,) = types(steps=steps).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            notes: list[Any] = []

            def heard(note: Any) -> None:
                notes.append(note)
                gate.open()

            handle = await node.submit(job)
            assert [part.value async for part in handle.stream(heard)] == ["a"]
            assert notes == [{"done": 1}]

    run(home, test)


def test_a_run_that_fails_ends_the_stream_and_its_retry_begins_again(home: Path) -> None:
    gate = Gate()

    def steps(ctx: hocket.Context) -> Iterator[str]:
        yield f"try {ctx.attempt}"
        gate.passed()
        if ctx.attempt == 1:
            raise ValueError("not yet")

    job = hocket.JobType("stream.steps", function=steps, retries=1).using(retries=1, backoff="1ms")
    once = hocket.JobType("stream.once", function=steps)

    async def test(node: Node) -> None:
        async with node.working([job, once]):
            parts = []
            async for part in (await node.submit(job)).stream():
                parts.append(part)
                gate.open()
            assert parts == [Part("try 1", 0, 1), Part("try 2", 0, 2, is_restart=True)]
            with pytest.raises(hocket.JobFailed, match="not yet"):
                async for _ in (await node.submit(once)).stream():
                    gate.open()

    run(home, test)


@pytest.mark.touches("GR-05")
def test_a_lossy_bus_costs_time_and_no_part(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lossy(node: Node, *rest: Any) -> NodeMessages:
        made = await opened(node, *rest)
        made.messages = LossyMessages(made.messages, random.Random(7))
        return made

    from hocket.node import message_bus

    opened = message_bus.open_message_bus
    monkeypatch.setattr(message_bus, "open_message_bus", lossy)
    gate = Gate()

    def steps() -> Iterator[int]:
        for number in range(300):
            if number % 10 == 0:
                gate.passed()
            yield number

    (job,) = types(steps=steps).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            handle = await node.submit(job)
            gate.open()
            given = []
            async for part in handle.stream():
                given.append(part)
                gate.open()
            assert given == [Part(number, number, 1) for number in range(300)]

    run(home, test)


def test_parts_of_a_node_that_does_not_hold_the_job_do_not_count(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hocket.kernel.clock import Hlc
    from hocket.node import job_stream

    gate, heard = Gate(), job_stream._PartsListener.hear
    forged: list[Any] = []

    def from_a_stranger(self: Any, message: Any) -> list[Part]:
        if message is not None:
            at = message.at
            forged.append(heard(self, message._replace(at=Hlc(at.wall, at.logical, at.node ^ 1))))
        gate.open()
        return []

    monkeypatch.setattr(job_stream._PartsListener, "hear", from_a_stranger)

    def steps() -> Iterator[str]:
        yield "a"
        gate.passed()
        yield "b"

    (job,) = types(steps=steps).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            assert [part.value async for part in (await node.submit(job)).stream()] == ["a", "b"]
        assert forged and not any(forged)

    run(home, test)


def test_a_whole_that_is_too_large_for_a_result_is_an_artifact(home: Path) -> None:
    def large() -> Iterator[str]:
        for number in range(40):
            yield f"{number:02d}" * (PART_BYTES_MAX // 4)

    (job,) = types(large=large).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            handle = await node.submit(job)
            parts = [part.value async for part in handle.stream()]
            assert parts == [f"{number:02d}" * (PART_BYTES_MAX // 4) for number in range(40)]
            (made,) = (await handle.status())["artifacts"]
            assert made["type"] == "hocket.parts" and made["size"] > 1024 * 1024
            assert await node.read(lambda session: True)
            shown = (await handle.status())["result"]
            assert shown == {"artifact_id": made["artifact_id"], "size": made["size"]}
            assert [part.value async for part in handle.stream()] == parts

    run(home, test)


@pytest.mark.parametrize(
    ("parts", "error"),
    [
        (["x" * PART_BYTES_MAX], "at most"),
        ([b"a", "b"], "all bytes, or none"),
        ([float("nan")], "JSON has no such number"),
        ([object()], "unsupported"),
    ],
)
def test_a_part_that_cannot_be_one_fails_the_job(home: Path, parts: list[Any], error: str) -> None:
    def bad() -> Iterator[Any]:
        yield from parts

    (job,) = types(bad=bad).values()

    async def test(node: Node) -> None:
        async with node.working([job]):
            with pytest.raises(hocket.JobFailed, match=error):
                await (await node.submit(job)).result(PATIENCE_S)

    run(home, test)


def test_a_cancelled_job_stops_its_generator_and_ends_the_stream(home: Path) -> None:
    closed = threading.Event()

    def endless() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
                closed.wait(0.001)
        finally:
            closed.set()

    job = hocket.JobType("stream.endless", function=endless, lease_ms=3_600_000)

    async def test(node: Node) -> None:
        async with node.working([job]):
            handle = await node.submit(job)
            with pytest.raises(hocket.JobCancelled, match="enough"):
                async for part in handle.stream():
                    if part.number == 3:
                        await handle.cancel("enough")
            assert await asyncio.to_thread(closed.wait, PATIENCE_S)

    run(home, test)


def test_a_generator_can_be_tested_in_memory() -> None:
    import hocket.testing

    (job,) = types(words=words).values()
    with hocket.testing.node() as node:
        handle = node.submit(job, text="a b")
        node.drain([job])
        assert handle.result() == "a b "


def test_a_listener_that_does_not_read_holds_up_no_handler_and_misses_no_part(home: Path) -> None:
    gate, count = Gate(), 5_000

    def many() -> Iterator[int]:
        yield 0
        gate.passed()
        yield from range(1, count)

    (job,) = types(many=many).values()

    async def test(node: Node) -> None:
        async with node.working([job]), hocket.open(home) as other:
            handle = await node.submit(job)
            idle = other.job(handle.job_id).stream()
            assert (await anext(idle)).value == 0
            gate.open()
            assert len(await handle.result()) == count
            assert [part.number async for part in idle] == list(range(1, count))

    run(home, test)
