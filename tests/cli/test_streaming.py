"""`hocket submit --stream`: parts and progress as they come, between processes of one machine."""

import json
import os
import signal
from pathlib import Path

import pytest

from .conftest import Program, until

STREAMS = """
import time
from pathlib import Path

import hocket


def wait_for(path):
    until = time.monotonic() + 60
    while not Path(path).exists():
        assert time.monotonic() < until
        time.sleep(0.01)


@hocket.job("test.words", retries=1, backoff="1ms")
def words(ctx, text, gate=None, fail=False):
    ctx.progress({"words": len(text.split())})
    for number, word in enumerate(text.split()):
        yield word + " "
        if gate and number == 1:
            wait_for(gate)
            if fail and ctx.attempt == 1:
                raise ValueError("not yet")


@hocket.job("test.numbers")
async def numbers(count):
    for number in range(count):
        yield {"n": number}


@hocket.job("test.raw")
def raw():
    yield b"\\xff\\xfe"


@hocket.job("test.plain")
def plain():
    return {"no": "parts"}
"""


@pytest.fixture
def streams(hocket: Program) -> Program:
    (hocket.home.parent / "streams.py").write_text(STREAMS)
    hocket.start("work", "streams.py")
    return hocket


def words(**payload: object) -> str:
    return json.dumps({"text": "to be or not", **payload})


@pytest.mark.parametrize("processes", [(), ("--processes", "1")])
def test_parts_are_printed_while_the_handler_runs(hocket: Program, tmp_path: Path, processes: tuple[str, ...]):
    (hocket.home.parent / "streams.py").write_text(STREAMS)
    hocket.start("work", "streams.py", *processes)
    gate = tmp_path / "gate"
    process = hocket.start("submit", "test.words", words(gate=str(gate)), "--stream")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("submitted test.words ")
    fd = process.stdout.fileno()
    begun = ""
    while not begun.endswith("to be "):
        begun += os.read(fd, 100).decode()
    assert process.stderr is not None
    while process.stderr.readline() != 'hocket: progress: {"words":4}\n':
        assert process.poll() is None
    gate.touch()
    assert hocket.finished(process).out == "or not \n"


def test_values_are_lines_bytes_are_bytes_and_a_job_without_parts_prints_its_result(streams: Program):
    said = streams("submit", "test.numbers", '{"count": 2}', "--stream", code=0)
    assert said.out.splitlines()[1:] == ['{"n":0}', '{"n":1}']
    assert streams("submit", "test.plain", "--stream", code=0).out.splitlines()[1:] == ['{"no":"parts"}']
    process = streams.start("submit", "test.raw", "--stream")
    assert process.stdout is not None
    assert process.stdout.buffer.read().partition(b"\n")[2] == b"\xff\xfe\n"


def test_json_is_a_line_for_each_part_and_one_for_the_end(streams: Program):
    said = streams("submit", "test.numbers", '{"count": 2}', "--stream", "--json", code=0)
    *parts, end = map(json.loads, said.out.splitlines())
    assert parts == [{"part": {"n": n}, "number": n, "fence": 1, "restart": False} for n in range(2)]
    assert (end["outcome"], end["result"]) == ("succeeded", [{"n": 0}, {"n": 1}])


def test_a_run_that_begins_again_is_said(streams: Program, tmp_path: Path):
    gate = tmp_path / "gate"
    process = streams.start("submit", "test.words", words(gate=str(gate), fail=True), "--stream")
    assert process.stdout is not None
    process.stdout.readline()
    fd, begun = process.stdout.fileno(), ""
    while not begun.endswith("to be "):
        begun += os.read(fd, 100).decode()
    gate.touch()
    rest = streams.finished(process)
    assert rest.out == "\nto be or not \n"
    assert "run again from the start; what was printed before is void" in rest.err


def test_a_failure_ends_the_stream_with_its_sentence(streams: Program):
    said = streams("submit", "test.words", '{"text": 1}', "--stream", code=1)
    assert "failed: AttributeError" in said.err


def test_ctrl_c_leaves_the_job(streams: Program, tmp_path: Path):
    gate = tmp_path / "gate"
    process = streams.start("submit", "test.words", words(gate=str(gate)), "--stream")
    assert process.stdout is not None
    job = process.stdout.readline().split()[-1]
    os.read(process.stdout.fileno(), 100)
    process.send_signal(signal.SIGINT)
    streams.finished(process, 130)
    assert streams.show(job)["state"] == "running"
    gate.touch()
    until(lambda: streams.show(job)["outcome"] == "succeeded", "the job's end")


def test_a_stream_says_what_its_job_waits_for(hocket: Program):
    process = hocket.start("submit", "test.words", words(), "--stream")
    assert process.stderr is not None
    assert "waiting" in process.stderr.readline()


def test_a_stream_has_no_time_limit_of_its_own(hocket: Program):
    assert "leave out --wait-for" in hocket("submit", "a.b", "--stream", "--wait-for", "1s", code=2).sentence
    hocket("submit", "--batch", "-", "--stream", code=2)
