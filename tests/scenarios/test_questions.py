"""A job that asks the owner of another node, and whose worker dies while it waits: real nodes and real processes."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Program, until
from tests.cli.fork_server import PROGRAM
from tests.mesh.test_commands import program as program
from tests.mesh.test_commands import serving

ASKS = """
import hocket


@hocket.job("test.asks", lease="2s")
def asks(ctx):
    return [ctx.attempt, ctx.ask("a or b?", wait="1h"), ctx.ask("sure?", wait="1h", fallback="no")]
"""


def question(program: Program, job_id: str) -> str | None:
    found = program.show(job_id)["question"]
    return None if found is None else str(found["text"])


@pytest.mark.touches("LW-41")
@pytest.mark.parametrize("is_elsewhere", [False, True], ids=["one home", "two nodes"])
def test_the_answer_to_a_killed_worker_reaches_the_one_that_follows(
    program: Callable[[str], Program], is_elsewhere: bool
) -> None:
    first = worker = program("first")
    (Path(first.home).parent / "asks.py").write_text(ASKS)
    if is_elsewhere:
        address, _ = serving(first)
        worker = program("second")
        worker("peers", "add", address, code=0)
        worker("sync", code=0)
    job_id = first.submit("test.asks")
    killed = worker.start("work", "asks.py")
    until(lambda: question(first, job_id) == "a or b?", "the question")
    assert first.show(job_id)["waits_for"].startswith("waits for an answer by owner on this node, until ")
    assert "asks\ta or b?" in first("show", job_id, code=0).out
    # Killed before the answer, and once more after it.
    for answer, asked in (("b", "a or b?"), ("yes", "sure?")):
        killed.kill()
        killed.wait()
        killed = worker.start("work", "asks.py")
        until(lambda asked=asked: question(first, job_id) == asked, "the same question of the next worker")
        if asked == "sure?":
            assert "waits for an answer by owner" in first("answer", job_id, "no", "--agent", "bob", code=4).sentence
        first("answer", job_id, answer, code=0)
    until(lambda: first.show(job_id)["state"] == "succeeded", "the result")
    assert first.show(job_id)["result"] == [1, "b", "yes"]
    assert "waits for no answer" in first("answer", job_id, "again", code=3).sentence
    sent = first("log", "--json", "--limit", "1000", code=0).out
    assert sent.count('"SendMessage"') == 4, "two questions and two answers, whoever died"


def test_a_command_asks_and_prints_the_answer(program: Callable[[str], Program]) -> None:
    one = program("first")
    asks = shlex.join([*PROGRAM, "--home", str(one.home), "question", "Publish 7?"])
    one.start("work", "--allow", "sh **")
    job_id = one("run", "--detach", "--", "sh", "-c", f"echo $({asks}) $({asks} --wait 50ms --number 2 || echo $?)").out
    job_id = job_id.split()[-1]
    until(lambda: question(one, job_id) == "Publish 7?", "the question")
    one("answer", job_id, "yes", code=0)
    until(lambda: one.show(job_id)["state"] == "succeeded", "the end of the command")
    assert one("logs", job_id, code=0).out.splitlines() == ["yes 5"]
    assert "only a command that runs as a job can ask" in one("question", "who?", code=2).sentence
