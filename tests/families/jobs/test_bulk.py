"""Cancelling and retrying many jobs: by kind, state and age, in bounded transactions."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

import hocket
import hocket.testing
from hocket.errors import Usage
from hocket.families.jobs import bulk, claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.bulk import Changed
from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.testing import MemorySyncNode
from hocket.work.handlers import JobType

pytestmark = pytest.mark.touches("LW-41")


def broken(ctx: hocket.Context) -> None:
    raise ValueError("no such frame")


BROKEN = JobType("acme.broken", function=broken)


@pytest.fixture
def node() -> Iterator[MemorySyncNode]:
    with hocket.testing.node() as made:
        yield made


def outcomes(node: MemorySyncNode) -> dict[str, list[str]]:
    """The kinds of all jobs by their outcome, or their state if they have none."""
    found: dict[str, list[str]] = {}
    with node.runtime.read() as session:
        for entry in session.each_job():
            job = entry.job
            name = job.state.name if job.outcome is None else job.outcome.name
            found.setdefault(name.lower(), []).append(job.kind)
    return {name: sorted(kinds) for name, kinds in found.items()}


def claim(node: MemorySyncNode, count: int) -> None:
    node.runtime.log.run(lambda tx: claiming.claim(tx, 0, count, lambda kind: 60_000))


@pytest.mark.parametrize(
    ("which", "cancelled"),
    [
        ({"kind": "acme.a"}, ["acme.a", "acme.a"]),
        ({"kind": "acme."}, ["acme.a", "acme.a", "acme.a.b"]),
        ({"kind": "acme"}, ["acme"]),
        ({"kind": "acme.", "state": "waiting"}, ["acme.a", "acme.a.b"]),
        ({"state": "running"}, ["acme.a"]),
        ({"older_than": "1h"}, ["acme.a", "acme.a"]),
        ({"older_than": "1h", "state": "waiting", "kind": "acme."}, ["acme.a"]),
        ({"older_than": 0, "kind": "other."}, []),
    ],
)
def test_the_jobs_that_match_are_cancelled_and_no_other(
    node: MemorySyncNode, which: dict[str, str], cancelled: list[str]
) -> None:
    for _ in range(2):
        node.submit("acme.a")
    claim(node, 1)
    node.clock.advance(7200)
    for kind in ("acme.a.b", "acme", "acmes.a"):
        node.submit(kind)
    node.clock.advance(1)
    assert node.cancel_many(**which) == Changed(len(cancelled))  # type: ignore[arg-type]
    assert outcomes(node).get("cancelled", []) == cancelled


def test_failed_jobs_are_retried_and_cancelled_ones_only_by_name(node: MemorySyncNode) -> None:
    for _ in range(3):
        node.submit(BROKEN)
    node.drain([BROKEN])
    node.submit("acme.other")
    node.cancel_many(kind="acme.other")
    assert node.retry_many(kind="acme.").changed == 3
    assert outcomes(node) == {"pending": ["acme.broken"] * 3, "cancelled": ["acme.other"]}
    assert node.retry_many(state="cancelled").changed == 1
    assert set(outcomes(node)) == {"pending"}


def test_a_chain_is_cancelled_and_retried_whole(node: MemorySyncNode) -> None:
    first = node.submit("acme.a")
    second = node.submit(hocket.kind("acme.a", after=first))
    node.submit(hocket.kind("acme.b", after=second))
    assert node.cancel_many(kind="acme.a") == Changed(2), "one of them went with the other"
    assert outcomes(node) == {"cancelled": ["acme.a", "acme.a", "acme.b"]}
    stuck = node.retry_many(state="cancelled", kind="acme.b")
    assert (stuck.changed, stuck.refused) == (0, 1) and "comes after" in str(stuck.why)
    assert node.retry_many(state="cancelled") == Changed(3)


def test_many_jobs_take_many_transactions(node: MemorySyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "READ_MAX", 7)
    monkeypatch.setattr(bulk, "CHANGED_MAX", 3)
    node.submit_many([("acme.a", {})] * 40)
    written: list[int] = []
    run = node.runtime.log.run

    def counted(request: Callable[[Transaction], object], *, beside: bool = False) -> object:
        before = _ops(node)
        done = run(request, beside=beside)
        written.append(_ops(node) - before)
        return done

    monkeypatch.setattr(node.runtime.log, "run", counted)
    assert node.cancel_many(kind="acme.a") == Changed(40)
    assert max(written) == 3 and sum(written) == 40


def _ops(node: MemorySyncNode) -> int:
    with node.runtime.store.read() as session:
        return session.head().seq


def test_a_job_that_ends_meanwhile_is_left_alone(node: MemorySyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "CHANGED_MAX", 1)
    handles = [node.submit("acme.a") for _ in range(2)]
    claim(node, 2)
    request = bulk.CANCEL.request

    def slow(tx: Transaction, job_id: bytes, reason: str) -> jobs.Result:
        entry = tx.projection.jobs.entry(job_id)
        if ulid_text(job_id) == handles[1].job_id and entry is not None and entry.job.claim_op is not None:
            jobs.complete(tx, jobs.Held(job_id, entry.job.claim_op), None, 1)
        return request(tx, job_id, reason)

    monkeypatch.setattr(bulk, "CANCEL", bulk.CANCEL._replace(request=slow))
    monkeypatch.setattr("hocket.node.node.CANCEL", bulk.CANCEL)
    assert node.cancel_many(state="running") == Changed(1)
    assert outcomes(node) == {"cancelled": ["acme.a"], "succeeded": ["acme.a"]}


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ({}, "by kind, state or age"),
        ({"state": "failed"}, "only pending and running jobs can be cancelled"),
        ({"older_than": "soon"}, "bad age: not a duration"),
    ],
)
def test_a_bad_selection_is_refused(node: MemorySyncNode, which: dict[str, str], says: str) -> None:
    with pytest.raises(Usage, match=says):
        node.cancel_many(**which)  # type: ignore[arg-type]


def test_an_async_program_has_them_too() -> None:
    async def run() -> tuple[Changed, Changed]:
        async with hocket.testing.node() as node:
            await node.submit("acme.a")
            return await node.cancel_many(kind="acme.a"), await node.retry_many(state="cancelled")

    assert asyncio.run(run()) == (Changed(1), Changed(1))
