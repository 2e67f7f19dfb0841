"""Jobs that end if no worker begins them in time."""

import asyncio
from pathlib import Path

import pytest

import hocket
from hocket.errors import Usage
from hocket.events.troubles import Troubles
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft
from hocket.families.jobs.rules import Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.vocabulary import DesignateCoordinator, ScheduleJob
from hocket.log import Log
from hocket.store import JobEntry
from hocket.work.maintenance import Sweep
from tests.log.roster.world import (
    INTRODUCTIONS,
    NODES,
    NOW,
    READER,
    START,
    Clock,
    Script,
    introduction,
    job_id,
    new_log,
    sent,
)

PATIENCE_S = 60.0
KIND = "acme.render"


def log_at(clock: Clock) -> Log:
    log = new_log(wall=clock)
    log.admit(sent([*INTRODUCTIONS, introduction(READER)]))
    return log


def submit(log: Log, **policy: object) -> bytes:
    draft = Draft(KIND, b"{}", Policy(**policy))  # type: ignore[arg-type]
    return log.run(lambda tx: jobs.submit(tx, [draft]))[0].job_id


def entry(log: Log, wanted: bytes) -> JobEntry:
    log.settle()
    with log.store.read() as session:
        found = session.job(wanted)
    assert found is not None
    return found


@pytest.mark.parametrize("is_open", [False, True])
def test_the_sweep_ends_what_no_worker_began(is_open: bool) -> None:
    clock = Clock()
    log = log_at(clock)
    made, other = submit(log, ttl_ms=1_000, open=is_open), submit(log)
    after = submit(log, after=(ulid_text(made),))
    sweep = Sweep(Troubles(lambda event: None, lambda: 0.0), lambda event: None)
    with log.store.read() as session:
        assert not sweep.is_due(session, clock.now + 1_000) and sweep.is_due(session, clock.now + 1_001)
    assert log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    clock.now += 2_000
    log.run(lambda tx: sweep(tx, set()))
    ended = entry(log, made).job
    assert (ended.outcome, ended.begin_by) == (Outcome.CANCELLED, None)
    assert entry(log, after).job.outcome is Outcome.CANCELLED
    assert entry(log, other).job.state is State.PENDING
    with log.store.read() as session:
        assert not sweep.is_due(session, clock.now)


def test_no_claim_is_written_after_the_ttl() -> None:
    clock = Clock()
    log = log_at(clock)
    submit(log, ttl_ms=1_000)
    clock.now += 1_500
    assert log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: 30_000)).taken == []


def test_the_sweep_reads_only_what_is_due() -> None:
    """By its index, however many jobs wait."""
    log = log_at(Clock())
    with log.store.read() as session:
        for query in (
            "SELECT id FROM jobs WHERE begin_by < 1 ORDER BY begin_by LIMIT 1",
            "SELECT min(begin_by) FROM jobs WHERE begin_by IS NOT NULL",
        ):
            (plan,) = session._sql(f"EXPLAIN QUERY PLAN {query}").fetchall()  # type: ignore[attr-defined]
            assert "USING" in plan[3] and "jobs_unbegun" in plan[3], plan


@pytest.mark.parametrize("ttl", ["0", "31d", "soon", -1])
def test_a_bad_ttl_is_an_error(ttl: object) -> None:
    with pytest.raises(Usage, match="bad ttl"):
        hocket.kind(KIND, ttl=ttl)  # type: ignore[arg-type]


def test_a_refusal_has_a_sentence() -> None:
    assert Reason.TTL_PASSED.sentence == "no worker claimed the job within the time that its submitter gave it"


def test_a_job_without_a_worker_ends_with_a_reason(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")

    async def body() -> None:
        async with asyncio.timeout(PATIENCE_S), hocket.open(tmp_path / "home") as node, node.working([]):
            handle = await node.submit(hocket.kind(KIND, ttl="1s"))
            with pytest.raises(hocket.JobCancelled, match="no worker began it within 1 second"):
                await handle.result()

    asyncio.run(body())


def test_a_kind_gives_its_ttl_to_jobs_that_are_submitted_by_name(tmp_path: Path) -> None:
    hocket.init(tmp_path / "home")
    job = hocket.JobType(KIND, function=lambda: None).using(ttl="30s")
    with hocket.open(tmp_path / "home") as node:
        with node.working([job]):
            node.submit(job).result(PATIENCE_S)
        assert node.submit(KIND).status()["options"]["ttl_ms"] == 30_000


def test_another_nodes_coordinator_ends_it_and_this_node_does_not() -> None:
    clock = Clock()
    log = log_at(clock)
    made = submit(log, ttl_ms=1_000)
    log.run(lambda tx: tx.author(DesignateCoordinator(NODES[0])))
    clock.now += 10_000
    assert log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    assert entry(log, made).job.state is State.PENDING


def test_an_open_job_of_another_node_is_left_to_that_node_for_a_while() -> None:
    clock, script = Clock(), Script()
    policy = encode_policy(Policy(ttl_ms=1_000, open=True))
    script.say(0, NOW - START, ScheduleJob(job_id(1), KIND, b"{}", policy))
    log = log_at(clock)
    log.admit(sent(script.ops))
    clock.now = NOW + 2_000
    assert log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 0
    clock.now = NOW + 2_000 + rescue.OTHERS_MS
    assert log.run(lambda tx: rescue.end_unbegun(tx, 10)) == 1
    assert entry(log, job_id(1)).job.outcome is Outcome.CANCELLED
