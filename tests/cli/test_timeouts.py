"""Timeouts and handler processes from the shell. Jobs that hang fail while the others complete; a worker whose slots
are all stuck replaces itself.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATIENCE_S, Program, until

HUNG = """
import asyncio
import os
import threading
import time

import hocket


@hocket.job("hung.c")
def in_c(ctx):
    with threading.Lock():
        time.sleep(3600)


@hocket.job("hung.python")
def in_python(ctx):
    while True:
        pass


@hocket.job("hung.wait")
async def waits(ctx):
    await asyncio.Event().wait()


@hocket.job("good.quick")
def quick(ctx):
    return os.getpid()


@hocket.job("good.aquick")
async def aquick(ctx):
    return os.getpid()


@hocket.job("hung.cancelled")
def cancelled(ctx):
    with hocket.open() as node:
        node.job(ctx.job_id).cancel()
    while not ctx.cancelled:
        time.sleep(0.005)


if __name__ == "__main__":
    import cProfile
    import sys

    with hocket.open() as node:
        for kind in ("hung.cancelled", "hung.python", "hung.c", "hung.wait"):
            node.submit(hocket.kind(kind, timeout="300ms"))
        handles = [node.submit(each.using(priority=-1)) for each in (quick, aquick) for _ in range(50)]
        served = [cancelled, in_python, in_c, waits, quick, aquick]
        cProfile.run("worker = node.work(served, until_idle=True)", sys.argv[1])
        print(worker.failed, sum(handle.result(timeout=5) == os.getpid() for handle in handles))
"""


@pytest.fixture
def hung(hocket: Program, tmp_path: Path) -> Program:
    (tmp_path / "hung.py").write_text(HUNG)
    return hocket


def ending(hocket: Program, job_id: str) -> tuple[str, str]:
    shown = hocket.show(job_id)
    return shown["outcome"], shown["error"]


@pytest.mark.parametrize("options", [["--concurrency", "4"], ["--processes", "2"]], ids=["threads", "processes"])
def test_jobs_that_hang_fail_and_the_others_complete(hung: Program, options: list[str]):
    bad = [hung.submit(kind, "--timeout", "1s") for kind in ("hung.c", "hung.python", "hung.wait")]
    good = [hung.submit("good.quick") for _ in range(5)]
    worker = hung.start("work", "hung.py", "--until-idle", *options)
    result = hung.finished(worker)
    assert result.out.startswith("done: 5 succeeded, 3 failed")
    assert "the worker told its handler (hung.c) to stop, but it goes on; the worker has given it up" in result.err
    assert ending(hung, bad[0]) == ("failed", "timed out after 1 second, and its handler did not stop")
    # On a busy machine these may not have stopped either when the worker gave up.
    assert all(ending(hung, each)[1].startswith("timed out after 1 second") for each in bad[1:])
    pids = {hung.show(each)["result"] for each in good}
    assert (pids == {worker.pid}) == (options[0] == "--concurrency")


def test_a_worker_whose_slots_are_all_stuck_replaces_itself(hung: Program):
    bad = [hung.submit("hung.c", "--timeout", "500ms") for _ in range(3)]
    worker = hung.start("work", "hung.py", "--concurrency", "2", "--grace", "1s")
    until(lambda: all(hung.show(each)["outcome"] == "failed" for each in bad), "the timeouts")
    good = hung.submit("good.quick")
    assert until(lambda: hung.show(good)["result"], "the next job") == worker.pid
    worker.send_signal(signal.SIGTERM)
    said = hung.finished(worker).err
    assert said.count("all 2 handlers of this worker are stuck; a new process replaces it") == 1
    assert said.count(f"worker {worker.pid} serves") == 2


def test_the_timeout_of_a_job_is_set_wherever_jobs_are(hung: Program):
    submitted = hung.submit("good.quick", "--timeout", "90s")
    line = json.dumps({"kind": "good.quick", "timeout": "2m"})
    (batch,) = hung("submit", "--batch", "-", "--json", input=line, code=0).json
    hung("cron", "add", "nightly", "0 3 * * *", "good.quick", "--timeout", "1h", code=0)
    assert hung.show(submitted)["options"]["timeout_ms"] == 90_000
    assert hung.show(batch["job_id"])["options"]["timeout_ms"] == 120_000
    assert hung("cron", "list", "--json", code=0).json[0]["options"]["timeout_ms"] == 3_600_000
    assert "bad timeout 'soon'" in hung("submit", "good.quick", "--timeout", "soon", code=2).err
    assert "bad timeout '31d'" in hung("submit", "good.quick", "--timeout", "31d", code=2).err


def test_ctrl_c_reaches_the_worker_and_not_its_handlers(hung: Program):
    """A terminal sends the signal to the whole group; the handler processes are in another one."""
    job_id = hung.submit("hung.c")
    worker = subprocess.Popen(
        [sys.executable, "-m", "hocket.cli", "work", "hung.py", "--processes", "1", "--grace", "0s"],
        env=hung.environment(),
        cwd=hung.home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    hung.started.append(worker)
    until(lambda: hung.show(job_id)["state"] == "running", "the claim")
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
    os.killpg(worker.pid, signal.SIGINT)
    assert "1 handed back" in hung.finished(worker, 130).out
    assert children and not any(Path(f"/proc/{pid}").exists() for pid in children)


def test_a_worker_can_be_profiled(hung: Program, tmp_path: Path):
    """With jobs that are stopped, too: Python 3.11 spins while an exception is on its way to another thread."""
    done = subprocess.run(
        [sys.executable, "hung.py", str(tmp_path / "profile")],
        env=hung.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.stdout, done.returncode) == ("3 100\n", 0), done.stderr
    assert (tmp_path / "profile").stat().st_size > 1_000
