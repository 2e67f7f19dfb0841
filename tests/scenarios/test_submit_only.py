"""A machine that only submits: it was invited, and runs neither a server nor a worker. What it submits gets to the
coordinator, the results come back, and while the coordinator is out of reach the machine says where its jobs are.
"""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import hocket
from hocket.errors import Unreachable
from tests.ports import free_port
from tests.scenarios.machines import Machine, machines, until

GRANTS = ("job:schedule:acme.", "job:schedule:hold.", "job:schedule:tell.", "job:schedule:hocket.run")
KEPT = "waits here, and the next `hocket mesh sync`, `hocket work` or `hocket mesh serve` here sends it"


@pytest.fixture
def mesh(tmp_path: Path) -> Iterator[list[Machine]]:
    with machines(tmp_path, "hub", "leaf") as (hub, leaf):
        hub("init")
        hub.serve("--port", str(free_port()))
        leaf("join", hub.invite("leaf", *GRANTS))
        yield [hub, leaf]


@pytest.mark.slow
def test_its_jobs_are_delivered_and_their_results_come_back(mesh: list[Machine]) -> None:
    hub, leaf = mesh
    first = leaf.submit("acme.one", '{"n": 1}')
    assert hub.state(first) == "pending"
    (second,) = leaf.submit_all([{"kind": "acme.one", "payload": {"n": 2}}])
    assert hub.state(second) == "pending"
    leaf("cancel", second)
    assert hub.state(second) == "completed"
    leaf("retry", second)
    assert hub.state(second) == "pending"

    # Nobody serves the kind: the wait says so, once, and then a worker comes.
    waiting = leaf.start("submit", "acme.one", '{"n": 3}', "--wait")
    waiting.says("waiting: no worker that this node knows of serves acme.one")
    hub.work()
    done = waiting.ended()
    assert done.code == 0 and done.out.splitlines()[-1] == '{"n":3}'
    assert len([line for line in waiting.notices if "no worker" in line]) == 1
    assert leaf("submit", "acme.one", '{"n": 4}', "--wait", "--json").json["result"] == {"n": 4}

    # The same from Python, in both ways.
    with hocket.open(leaf.home) as node:
        assert node.submit("acme.one", n=5).result(60) == {"n": 5}
        sent = node.submit("acme.one", n=6).job_id
    assert hub.has(sent)

    async def async_way() -> str:
        async with hocket.open(leaf.home) as node:
            assert await (await node.submit("acme.one", n=7)).result(60) == {"n": 7}
            held = await node.submit("hold.one", gate="never")
            await held.cancel()
            return held.job_id

    assert hub.show(asyncio.run(async_way()))["outcome"] == "cancelled"


def test_its_commands_run_on_a_worker_that_allows_them_and_wait_for_no_other(mesh: list[Machine]) -> None:
    hub, leaf = mesh
    worker = hub.work()
    refused = leaf("run", "--", "echo", "hello", code=4)
    assert "does not allow this command; start it there with --allow; job " in refused.err.splitlines()[-1]
    assert refused.err.splitlines()[-1].endswith(" was cancelled")
    detached = leaf("run", "--detach", "--", "echo", "hello").job_id
    assert hub.state(detached) == "pending"
    worker.stop()
    hub.work("--allow", "echo *")
    assert leaf("run", "--", "echo", "hello").out == "hello\n"
    until(lambda: hub.is_done(detached), "the command that was submitted and left")


@pytest.mark.slow
def test_while_the_coordinator_is_out_of_reach_it_says_where_the_job_is(
    mesh: list[Machine], caplog: pytest.LogCaptureFixture
) -> None:
    hub, leaf = mesh
    old = leaf.submit("acme.one")
    address = leaf("peers", "list", "--json").json["peers"][0]["address"]
    hub.cut_power()
    kept = leaf("submit", "acme.one", '{"n": 1}')
    assert KEPT in kept.err and "Connection refused" in kept.err
    cancelled = leaf("cancel", old, code=5)
    assert "Connection refused; the request waits here, and the next `hocket mesh sync`" in cancelled.sentence
    late = leaf("submit", "acme.one", '{"n": 2}', "--wait-for", "2s", code=5)
    assert "waiting: the coordinator" in late.err and KEPT in late.err.splitlines()[-1]
    with caplog.at_level(logging.WARNING, "hocket"), hocket.open(leaf.home) as node:
        job = node.submit("acme.one", n=3)
        with pytest.raises(TimeoutError, match=r"is out of reach: .* waits here"):
            job.result(0.5)
        with pytest.raises(Unreachable, match="the request waits here"):
            job.cancel()
    assert KEPT in caplog.text
    assert "is out of reach" in leaf.show(job.job_id)["waits_for"]

    # A program that waits sends it by itself as soon as the coordinator is back.
    waiting = leaf.start("submit", "acme.one", '{"n": 4}', "--wait", PYTHONPATH=leaf.open_briefly())
    waiting.says("is out of reach")
    hub.serve("--port", address.rpartition(":")[2])
    until(lambda: hub.state(old) == "completed", "the cancellation that was kept")
    hub.work()
    assert waiting.ended().code == 0
    until(lambda: hub.is_done(kept.job_id), "the job that was kept")


def test_what_it_shows_is_what_the_coordinator_has_or_says_of_when_it_is(mesh: list[Machine]) -> None:
    hub, leaf = mesh
    first = leaf.submit("acme.one", '{"n": 1}')
    hub.work()
    until(lambda: hub.is_done(first), "the first job")
    assert leaf("jobs", "--json").json[0]["outcome"] == "succeeded"
    second = leaf.submit("acme.one", '{"n": 2}')
    until(lambda: hub.is_done(second), "the second job")
    shown = leaf("show", second)
    assert "state\tsucceeded" in shown.out and "as of" not in shown.err
    third = leaf.submit("acme.one", '{"n": 3}')
    until(lambda: hub.is_done(third), "the third job")
    assert leaf("status", "--json").json["jobs"]["succeeded"] == 3
    fourth = leaf.submit("acme.one", '{"n": 4}')
    until(lambda: hub.is_done(fourth), "the fourth job")
    assert sum(leaf("top", "--once", "--json").json["queue"].values()) == 0

    port = leaf("peers", "list", "--json").json["peers"][0]["address"].rpartition(":")[2]
    hub.cut_power()
    kept = leaf("submit", "acme.one", '{"n": 5}').job_id
    for command in (("jobs",), ("show", kept), ("status",), ("top", "--once")):
        stale = leaf(*command).err
        assert "hocket: as of " in stale and "Connection refused" in stale, (command, stale)
    leaf.environment["PYTHONPATH"] = leaf.open_briefly()
    hub.serve("--port", port)

    def delivered() -> bool:
        leaf("jobs")
        return hub.has(kept)

    until(delivered, "the job that was kept, sent by a command that only looks")


def test_it_sees_how_far_a_job_on_another_machine_has_come(mesh: list[Machine], tmp_path: Path) -> None:
    """Every command that shows running jobs does, and so does a stream, without an op for it."""
    hub, leaf = mesh
    told, began = tmp_path / "told", time.monotonic()
    told.write_text("one")
    hub.work(module=str(Path(__file__).with_name("telling.py")))
    following = leaf.start("submit", "tell.it", "{}", "--stream")
    following.says('progress: {"told":"one"}')
    job_id = hub("jobs", "--json").json[0]["job_id"]
    for text in ("two", "three"):
        told.write_text(text)
        expected = {"told": text}
        following.says(f'progress: {{"told":"{text}"}}')
        until(lambda expected=expected: leaf.show(job_id)["progress"] == expected, "the progress in show")
        assert leaf("jobs", "--json").json[0]["progress"] == expected
        assert [each["progress"] for each in leaf("top", "--once", "--json").json["holds"]] == [expected]
    assert text in leaf("jobs").out and text in leaf("top", "--once").out
    assert hub.ops_of(job_id).count("ReportProgress") <= (time.monotonic() - began) // 60
    told.write_text("over")
    assert following.ended().code == 0
