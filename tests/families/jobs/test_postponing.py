"""Moving the start of pending jobs: what a worker makes of it, and which jobs refuse it."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import hocket
import hocket.testing
from hocket.errors import Conflict, Usage
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.bulk import Changed
from hocket.families.jobs.postponing import StartTime, postpone_pending, start_time
from hocket.families.jobs.rules import Job
from hocket.kernel.ids import parse_ulid
from hocket.kernel.policy import DEFAULT, Policy
from hocket.testing import MemorySyncNode
from hocket.work.claim_order import ready_since

pytestmark = pytest.mark.touches("LW-41")

HOUR_MS = 3_600_000


@pytest.fixture
def node() -> Iterator[MemorySyncNode]:
    with hocket.testing.node() as made:
        yield made


def claims(node: MemorySyncNode, options: Policy = DEFAULT) -> claiming.Claims:
    return node.runtime.log.run(lambda tx: claiming.claim(tx, 1, 10, lambda kind: 60_000, options_of=lambda _: options))


def job(node: MemorySyncNode, job_id: str) -> Job:
    with node.runtime.read() as session:
        entry = session.job(parse_ulid(job_id))
    assert entry is not None
    return entry.job


def now_ms(node: MemorySyncNode) -> int:
    return round(node.clock.now * 1000)


@pytest.mark.req("LW-41")
@pytest.mark.parametrize("options", [{}, {"priority": 3}, {"claim": "rendezvous"}, {"open": True}])
def test_no_worker_claims_the_job_before_its_new_start(node: MemorySyncNode, options: dict[str, object]) -> None:
    handle = node.submit(hocket.kind("a", **options))  # type: ignore[arg-type]
    handle.postpone(delay="1h", reason="no disk")
    first = claims(node)
    assert first.taken == [] and first.again_at == job(node, handle.job_id).ready_at
    assert 0 <= first.again_at - now_ms(node) - HOUR_MS <= 1_000
    status = handle.status()
    assert (status["stage"], status["wait_reason"]) == ("delayed", "time") and "not before" in status["waits_for"]
    node.clock.advance(3_601)
    assert [each.job.kind for each in claims(node).taken] == ["a"]


@pytest.mark.req("LW-41")
def test_a_job_is_moved_to_an_earlier_time_and_to_now(node: MemorySyncNode) -> None:
    at = datetime.fromtimestamp(node.clock.now + 7_200, UTC)
    handle = node.submit(hocket.kind("a", not_before=at))
    handle.postpone(datetime.fromtimestamp(node.clock.now + 10, UTC))
    assert claims(node).taken == []
    node.clock.advance(1)
    handle.postpone(delay=0)
    moved = job(node, handle.job_id)
    assert moved.ready_at == moved.last.wall, "its ranks count from now"
    assert ready_since(moved, lambda each: None) == moved.last.wall > moved.scheduled.wall
    assert len(claims(node).taken) == 1


@pytest.mark.req("LW-41")
def test_a_try_after_a_failure_is_moved_also_past_the_backoff_of_the_handler(node: MemorySyncNode) -> None:
    """The fold knows only the job's own backoff; the claimer adds what its handler says."""
    handle = node.submit(hocket.kind("a", retries=3))
    options = Policy(backoff_ms=HOUR_MS, backoff_max_ms=HOUR_MS)
    (taken,) = claims(node, options).taken
    assert taken.job.claim_op is not None
    held = jobs.Held(taken.job.id, taken.job.claim_op)
    node.runtime.log.run(lambda tx: jobs.fail(tx, held, "no disk", "", retry=True))
    node.clock.advance(60)
    assert claims(node, options).taken == [], "it rests for an hour"
    handle.postpone(delay=0, reason="there is one")
    (again,) = claims(node, options).taken
    assert (again.job.failures, again.job.fence) == (1, 2)


@pytest.mark.req("LW-41")
def test_a_blocked_job_keeps_its_new_start(node: MemorySyncNode) -> None:
    first = node.submit("a")
    after = node.submit(hocket.kind("b", after=first))
    after.postpone(delay="1h")
    (taken,) = claims(node).taken
    assert taken.job.claim_op is not None
    held = jobs.Held(taken.job.id, taken.job.claim_op)
    node.runtime.log.run(lambda tx: jobs.complete(tx, held, None, 1))
    assert claims(node).taken == []
    node.clock.advance(3_601)
    assert [each.job.kind for each in claims(node).taken] == ["b"]


@pytest.mark.req("LW-41")
def test_a_job_that_runs_or_has_ended_or_is_unknown_is_refused_in_a_sentence(node: MemorySyncNode) -> None:
    handle = node.submit("a")
    (taken,) = claims(node).taken
    with pytest.raises(Conflict, match="is running; only a pending job can be postponed"):
        handle.postpone(delay="1h")
    assert taken.job.claim_op is not None
    handle.cancel()
    with pytest.raises(Conflict, match="has ended: it is cancelled; only a pending job can be postponed"):
        handle.postpone(delay="1h")
    with pytest.raises(Usage, match="no job with this id"):
        node.runtime.log.run(lambda tx: postpone_pending(tx, bytes(16), StartTime(), ""))
    assert [event["type"] for event in handle.status()["ops"]] == ["ScheduleJob", "ClaimWork", "CancelJob"]


def test_many_jobs_are_moved_and_others_left_alone(node: MemorySyncNode) -> None:
    first = node.submit("acme.a")
    claims(node)
    for kind in ("acme.a", "acme.b", "other"):
        node.submit(kind)
    assert node.postpone_many(delay="1h", kind="acme.") == Changed(2)
    assert [each.job.kind for each in claims(node).taken] == ["other"]
    assert node.postpone_many(delay=0, state="delayed") == Changed(2)
    assert sorted(each.job.kind for each in claims(node).taken) == ["acme.a", "acme.b"]
    assert job(node, first.job_id).ready_at == 0
    with pytest.raises(Usage, match="only pending jobs can be postponed"):
        node.postpone_many(delay=0, state="running")


def test_a_start_is_at_a_time_or_after_a_delay() -> None:
    assert start_time(5) == StartTime(at_ms=5) and start_time(delay="1s") == StartTime(delay_ms=1_000)
    assert start_time(now=True) == start_time(delay=0) == StartTime()
    for bad in ({}, {"at": 5, "delay": 1}, {"at": -1}, {"at": 2**53 + 1}, {"delay": "31d"}, {"delay": "x"}):
        with pytest.raises(Usage):
            start_time(**bad)  # type: ignore[arg-type]
