"""What handlers print and log finds its run, and nothing else does: on threads, on the event loop, after the run."""

import asyncio
import contextvars
import io
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hocket
from hocket.node.runtime import Runtime
from hocket.work.output_capture import LINE_CHARS_MAX, Capture, captured, catching, job_of
from hocket.work.output_files import HANDLER

log = logging.getLogger("acme.tasks")


class Kept:
    """A capture in memory, as the other side of a pipe would have one."""

    def __init__(self, job_id: str = "J") -> None:
        self.data = b""
        self.capture = Capture(job_id, self._write)

    def _write(self, data: bytes) -> None:
        self.data += data


@contextmanager
def fresh_streams() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Another stdout and stderr, in memory."""
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding="utf-8", write_through=True))
        patch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding="utf-8", write_through=True))
        yield out, err


def test_prints_go_to_the_run_and_where_they_went_before() -> None:
    kept = Kept()
    with fresh_streams() as (out, err):
        before = sys.stdout, sys.stderr
        with catching():
            print("before")
            with captured(kept.capture):
                print("out")
                print("err", file=sys.stderr)
                sys.stdout.writelines(["one\n", "two\n"])
                sys.stdout.buffer.write(b"\xff\n")
                assert sys.stdout.encoding == "utf-8" and not sys.stdout.isatty()
            print("after")
        assert (sys.stdout, sys.stderr) == before
    assert kept.data == b"out\nerr\none\ntwo\n\xff\n"
    assert out.getvalue() == b"before\nout\none\ntwo\n\xff\nafter\n"
    assert err.getvalue() == b"err\n"


def test_each_thread_and_each_coroutine_has_its_own_run() -> None:
    kept = [Kept(str(number)) for number in range(8)]
    meet = threading.Barrier(4)

    def in_thread(each: Kept) -> None:
        with captured(each.capture):
            for number in range(50):
                meet.wait()
                print(each.capture.job_id, number)

    async def on_loop(each: Kept) -> None:
        with captured(each.capture):
            for number in range(50):
                print(each.capture.job_id, number)
                await asyncio.sleep(0)
            await asyncio.to_thread(print, each.capture.job_id, "beside")

    async def all_on_loop() -> None:
        await asyncio.gather(*(asyncio.create_task(on_loop(each)) for each in kept[4:]))

    with catching():
        threads = [threading.Thread(target=in_thread, args=(each,)) for each in kept[:4]]
        for thread in threads:
            thread.start()
        asyncio.run(all_on_loop())
        for thread in threads:
            thread.join()
    for number, each in enumerate(kept):
        lines = [f"{number} {line}" for line in range(50)] + [f"{number} beside"] * (number >= 4)
        assert each.data.decode().splitlines() == lines


def test_a_thread_of_a_handler_belongs_to_it_in_a_copy_of_its_context() -> None:
    kept = Kept()
    with catching(), captured(kept.capture):
        for run in (lambda act, text: act(text), contextvars.copy_context().run):
            thread = threading.Thread(target=run, args=(print, "said"))
            thread.start()
            thread.join()
    assert kept.data == b"said\n"


def test_records_are_tagged_and_kept_whoever_shows_them(caplog: pytest.LogCaptureFixture) -> None:
    kept = Kept("01J9ZC")
    caplog.set_level(logging.INFO)
    with catching():
        log.info("outside")
        with captured(kept.capture):
            log.debug("not wanted")
            log.info("frame %d", 7)
            try:
                raise ValueError("no such frame")
            except ValueError:
                log.exception("broken")
    lines = kept.data.decode().splitlines()
    assert lines[0].endswith("INFO acme.tasks: frame 7") and lines[1].endswith("ERROR acme.tasks: broken")
    assert lines[-1] == "ValueError: no such frame"
    assert [(record.getMessage(), job_of(record)) for record in caplog.records] == [
        ("outside", None),
        ("frame 7", "01J9ZC"),
        ("broken", "01J9ZC"),
    ]


def test_a_bad_log_call_hurts_nobody(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept()
    monkeypatch.setattr(logging, "raiseExceptions", False)
    caplog.handler.setLevel(logging.CRITICAL)
    with catching(), captured(kept.capture):
        log.error("frame %d", "seven")
    assert b"TypeError in a log message" in kept.data


def test_catching_twice_catches_once_and_ends_with_the_last() -> None:
    kept, made = Kept(), logging.getLogRecordFactory()
    with catching():
        with catching(), captured(kept.capture):
            print("one")
        with captured(kept.capture):
            print("two")
    with captured(kept.capture):
        print("three")
    assert kept.data == b"one\ntwo\n" and logging.getLogRecordFactory() is made


def test_lines_can_be_shown_in_another_way() -> None:
    kept, lines = Kept(), []
    with fresh_streams() as (out, err):
        with catching(lambda *line: lines.append(line)):
            with captured(kept.capture):
                print("one\ntwo", end="")
                sys.stderr.buffer.write(b"beside\n")
                print(" and more")
                print("half", end="")
            print("outside")
        print("after")
        assert (out.getvalue(), err.getvalue()) == (b"outside\nafter\n", b"")
    assert lines == [
        ("J", "stdout", "one"),
        ("J", "stderr", "beside"),
        ("J", "stdout", "two and more"),
        ("J", "stdout", "half"),
    ]
    assert kept.data == b"one\ntwobeside\n and more\nhalf"


def test_a_line_that_does_not_end_is_shown_in_parts() -> None:
    lines = []
    with fresh_streams(), catching(lambda job_id, stream, line: lines.append(line)), captured(Kept().capture):
        for _ in range(5):
            print("x" * LINE_CHARS_MAX, end="")
        assert "".join(lines) == "x" * len(lines) * LINE_CHARS_MAX and len(lines) == 5


def test_a_stream_that_was_replaced_meanwhile_stays() -> None:
    mine = io.StringIO()
    with fresh_streams():
        with catching():
            sys.stdout = mine
        assert sys.stdout is mine


# A program that embeds a worker.


@hocket.job("captured.sync")
def both(ctx: hocket.Context) -> None:
    print("printed")
    log.warning("logged")


@hocket.job("captured.async")
async def meanwhile(ctx: hocket.Context) -> None:
    print("first", ctx.job_id)
    await asyncio.sleep(0.01)
    print("second", ctx.job_id)


def test_an_embedded_worker_keeps_the_output_of_its_handlers(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")
    with hocket.open(tmp_path / "home") as node:
        sync = node.submit(both).job_id
        several = [node.submit(meanwhile).job_id for _ in range(4)]
        node.work([both, meanwhile], until_idle=True)

        def output(job_id: str) -> list[str]:
            part = node.runtime.output.read(job_id, HANDLER, 0, 0, 1_000_000)
            assert part is not None and part.is_over and part.fence == 1
            return part.data.decode().splitlines()

        printed, logged = output(sync)
        assert printed == "printed" and logged.endswith("WARNING acme.tasks: logged")
        assert [output(each) for each in several] == [[f"first {each}", f"second {each}"] for each in several]


EMBEDDED = """
import logging, sys
import hocket

log = logging.getLogger("acme")

@hocket.job("embedded.talk", retries=0)
def talk(ctx):
    print("printed")
    log.info("not wanted")
    log.warning("warned")
    raise ValueError("broken")

with hocket.open(sys.argv[1]) as node:
    job = node.submit(talk).job_id
    node.work([talk], until_idle=True)
    print(job)
"""


def test_a_program_without_handlers_shows_what_it_showed_and_nothing_of_ours(tmp_path: Path) -> None:
    """`logging` prints warnings of a program that configures nothing, but not ours. No line is kept twice."""
    hocket.init(tmp_path / "home")
    done = subprocess.run(
        [sys.executable, "-c", EMBEDDED, str(tmp_path / "home")], capture_output=True, text=True, timeout=60
    )
    printed, job_id = done.stdout.splitlines()
    assert (printed, done.stderr) == ("printed", "warned\n")
    with Runtime.open(tmp_path / "home") as runtime:
        part = runtime.output.read(job_id, HANDLER, 0, 0, 1_000)
        assert part is not None and part.data == b"printed\nwarned\n"
