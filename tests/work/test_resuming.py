"""Checkpoints: what a try leaves for the next one, after a failure, a lost worker, and on another node."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import hocket
import hocket.testing
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Held
from hocket.kernel.arbitration import Reason
from hocket.work.context import last_checkpoint
from hocket.work.held_jobs import interval_s
from tests.suspending import suspend
from tests.work.test_offers import virtually
from tests.work.test_results_elsewhere import Pair

PATIENCE_S = 60.0
seen: list[object] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


@hocket.job("resume.count", retries=3, backoff="1s")
def count(ctx: hocket.Context, until: int) -> int:
    start = ctx.last_checkpoint or 0
    seen.append(start)
    for n in range(start + 1, until + 1):
        ctx.checkpoint(n)
        if n % 4 == 0 and n < until:
            raise ConnectionError("gone")
    return until


@hocket.job("resume.acount", retries=3)
async def acount(ctx: hocket.Context) -> object:
    seen.append(ctx.last_checkpoint)
    if ctx.attempt == 1:
        ctx.checkpoint({"done": [1, 2]})
        raise ConnectionError("gone")
    return ctx.last_checkpoint


def test_a_failed_try_leaves_its_last_checkpoint() -> None:
    with hocket.testing.node() as node:
        handle = node.submit(count, until=10)
        node.drain([count])
        assert handle.result() == 10
        assert seen == [0, 4, 8]
        ops = [line["type"] for line in handle.status()["ops"]]
        assert ops.count("SaveCheckpoint") == 2  # one for each failed try; what succeeds needs none


def test_a_coroutine_resumes_too() -> None:
    async def main() -> None:
        async with hocket.testing.node() as node:
            handle = await node.submit(acount)
            assert await handle.result() == {"done": [1, 2]}

    asyncio.run(main())
    assert seen == [None, {"done": [1, 2]}]


def test_a_retried_job_resumes() -> None:
    with hocket.testing.node() as node:
        handle = node.submit(count.using(retries=0), until=6)
        with pytest.raises(hocket.JobFailed):
            handle.result()
        handle.retry()
        assert handle.result() == 6
        assert seen == [0, 4]


def test_another_job_does_not_see_it() -> None:
    with hocket.testing.node() as node:
        node.submit(count.using(retries=0), until=6)
        node.drain([count])
        assert node.submit(count, until=3).result() == 3
        assert seen == [0, 0]


def test_a_checkpoint_is_json_of_a_bounded_size() -> None:
    @hocket.job("resume.large")
    def large(ctx: hocket.Context) -> None:
        ctx.checkpoint("x" * 70_000)

    with hocket.testing.node() as node:
        handle = node.submit(large)
        with pytest.raises(hocket.JobFailed, match="the checkpoint has 70002 bytes, at most 65536"):
            handle.result()


def test_long_runs_leave_few_checkpoints() -> None:
    """A day of work that makes a checkpoint every second."""
    written, last = 0, -1.0
    for now in range(86_400):
        if now - last >= interval_s(now):
            written, last = written + 1, now
    assert written < 1_000


WORKER = """
import sys, threading, hocket

@hocket.job("resume.slow", lease="1s")
def slow(ctx: hocket.Context) -> object:
    if ctx.last_checkpoint is None:
        ctx.checkpoint({"page": 7})
        print("begun", flush=True)
        threading.Event().wait(300)
    return ctx.last_checkpoint

with hocket.open(sys.argv[1]) as node:
    node.work([slow], until_idle=True)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_hangs_leaves_its_checkpoint_to_another(tmp_path: Path, how: signal.Signals) -> None:
    hocket.init(tmp_path / "home")
    words = [sys.executable, "-c", WORKER, str(tmp_path / "home")]
    with hocket.open(tmp_path / "home") as node:
        handle = node.submit("resume.slow")
        first = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            assert first.stdout is not None and first.stdout.readline() == b"begun\n"
            # The checkpoint is on the log before the worker ends.
            saved = (line for line in handle.events() if line["type"] == "SaveCheckpoint")
            assert next(saved)["detail"] == "10 bytes"
            if how is signal.SIGSTOP:
                suspend(first.pid, tmp_path / "home")
            else:
                first.kill()
            second = subprocess.Popen(words)
            assert handle.result(PATIENCE_S) == {"page": 7}
            assert second.wait(PATIENCE_S) == 0
        finally:
            first.kill()
            first.wait()
            assert first.stdout is not None
            first.stdout.close()


@virtually
async def test_a_checkpoint_reaches_the_next_node_and_one_of_an_old_claim_does_not_count() -> None:
    pair = Pair()
    job_id = pair.arbiter.submit("a")
    pair.exchange()
    pair.other.log.run(lambda tx: claiming.claim(tx, 1, 1, {"a": 60_000}.get, offering=True))
    pair.exchange()
    held = Held(job_id, pair.other.job(job_id).claim_op or b"")
    pair.other.log.run(lambda tx: jobs.checkpoint(tx, held, b"7"))
    pair.other.log.run(lambda tx: jobs.hand_back(tx, held, "enough"))
    pair.exchange()
    with pair.arbiter.store.read() as session:
        assert last_checkpoint(session, job_id) == b"7"
    (claim,) = pair.arbiter.log.run(lambda tx: claiming.claim(tx, 1, 1, {"a": 60_000}.get)).taken
    assert claim.job.fence == 2
    pair.exchange()
    assert isinstance(pair.other.log.run(lambda tx: jobs.checkpoint(tx, held, b"8")), Reason)
    with pair.arbiter.store.read() as session:
        assert last_checkpoint(session, job_id) == b"7"
