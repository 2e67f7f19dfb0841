"""What a transaction says that it has changed: the kinds that a worker should look at, the jobs that were touched, and
the claims that a worker of this node has lost.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import hocket
import hocket.testing
from hocket.bus.hints import ANYTHING, CLAIM, KEYS_MAX, LOG, NOTHING, Changes
from hocket.bus.memory import MemoryBus
from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Claim, Draft, Held
from hocket.families.locks.facts import LOCK, LOCK_WAIT, AcquireLocks, LeaveQueue, LockMode, ReleaseLocks
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy
from hocket.kernel.vocabulary import JOB
from hocket.log import Transaction
from hocket.store import Place, WorkerRow
from hocket.testing import MemorySyncNode

pytestmark = pytest.mark.touches("LW-18")

WORKER = 7


class Teller:
    """Says what each request to a node's log has changed."""

    def __init__(self, node: MemorySyncNode) -> None:
        self._log, self.clock = node.runtime.log, node.clock
        bus = MemoryBus()
        self._log._bus = bus
        self._heard = bus.subscribe(ANYTHING)

    def run(self, request: Callable[[Transaction], Any]) -> Any:
        self._heard.wait(0)
        return self._log.run(request)

    def changes(self, request: Callable[[Transaction], Any]) -> Changes:
        self.run(request)
        return self._heard.wait(0)

    def submit(self, kind: str, **policy: Any) -> bytes:
        draft = Draft(kind, b"{}", Policy(**policy))
        (made,) = self.run(lambda tx: jobs.submit(tx, [draft]))
        return made.job_id

    def claim(self, lease_ms: int = 60_000) -> Held:
        claims = self.run(lambda tx: claiming.claim(tx, WORKER, 1, lambda kind: lease_ms))
        claim: Claim = claims.taken[0]
        assert claim.job.claim_op is not None
        return Held(claim.job.id, claim.job.claim_op)

    def plain(self, kind: str) -> Changes:
        self._heard.wait(0)
        self._log.append_plain(kind, b"{}")
        return self._heard.wait(0)


@pytest.fixture
def log() -> Iterator[Teller]:
    with hocket.testing.node() as node:
        yield Teller(node)


def said(*kinds: str, job: bytes, lost: bytes | None = None) -> Changes:
    subjects = {(LOG, b""), (JOB, job)} | ({(CLAIM, lost)} if lost else set())
    return Changes(frozenset(kinds), frozenset(subjects))


def test_a_submit_names_the_kind_and_the_job(log: Teller) -> None:
    changes = log.changes(lambda tx: jobs.submit(tx, [Draft("a.b", b"{}", Policy())]))
    ((_, job_id),) = [subject for subject in changes.subjects if subject[0] == JOB]
    assert changes == said("a.b", job=job_id)
    assert log.plain("a.b").kinds == {"a.b"}


def test_what_cannot_start_yet_is_no_work(log: Teller) -> None:
    assert log.changes(lambda tx: jobs.submit(tx, [Draft("k", b"{}", Policy(not_before=2**41))])).kinds == set()


def test_what_is_claimed_at_once_is_no_work_for_others(log: Teller) -> None:
    def request(tx: Transaction) -> None:
        jobs.submit(tx, [Draft("k", b"{}", Policy())])
        assert len(claiming.claim(tx, WORKER, 1, lambda kind: 60_000).taken) == 1

    assert log.changes(request).kinds == set()


def test_what_a_worker_does_by_itself_wakes_no_worker(log: Teller) -> None:
    job = log.submit("k")
    assert log.changes(lambda tx: claiming.claim(tx, WORKER, 1, lambda kind: 60_000)) == said(job=job)
    with log._log.store.read() as session:
        entry = session.job(job)
    assert entry is not None and entry.job.claim_op is not None
    held = Held(job, entry.job.claim_op)
    assert log.changes(lambda tx: jobs.renew(tx, held, 60_000)) == said(job=job)
    assert log.changes(lambda tx: jobs.report(tx, held, b"1")) == said(job=job)
    assert log.changes(lambda tx: jobs.complete(tx, held, None, 1)) == said(job=job)


def test_a_job_that_is_called_off_names_the_claim(log: Teller) -> None:
    job = log.submit("k")
    assert log.changes(lambda tx: jobs.cancel(tx, job, "")) == said(job=job), "nobody held it"
    job = log.submit("k")
    log.claim()
    assert log.changes(lambda tx: jobs.cancel(tx, job, "")) == said(job=job, lost=job)


def test_a_lease_that_is_over_names_the_claim_and_the_kind(log: Teller) -> None:
    job = log.submit("k")
    log.claim(lease_ms=1_000)
    log.clock.advance(2)
    assert log.changes(lambda tx: rescue.expire(tx, 10)) == said("k", job=job, lost=job)


def test_a_place_under_a_limit_names_the_kind(log: Teller) -> None:
    first = log.submit("k", concurrency=1)
    log.submit("k", concurrency=1)
    held = log.claim()
    assert log.changes(lambda tx: jobs.complete(tx, held, None, 1)) == said("k", job=first)


def test_a_job_that_waited_for_another_names_its_kind(log: Teller) -> None:
    first = log.submit("k")
    held = log.claim()
    then = log.submit("then", after=(hocket.kernel.ids.ulid_text(first),))
    changes = log.changes(lambda tx: jobs.complete(tx, held, None, 1))
    assert changes == Changes(frozenset(("then",)), frozenset(((LOG, b""), (JOB, first), (JOB, then))))


def test_many_jobs_are_some_jobs_and_the_kinds_stay_exact(log: Teller) -> None:
    drafts = [Draft(f"k.{n % 2}", b"{}", Policy()) for n in range(KEYS_MAX + 1)]
    changes = log.changes(lambda tx: jobs.submit(tx, drafts))
    assert changes == Changes(frozenset(("k.0", "k.1")), frozenset(((LOG, b""), (JOB, b""))))


def test_what_is_not_on_the_log_is_no_change(log: Teller) -> None:
    worker = WorkerRow(0, "w", 1, 0, bytes(8), 0, Place())
    assert log.changes(lambda tx: tx.session.put_worker(worker)) == NOTHING


def test_a_release_names_the_request_that_no_longer_waits(log: Teller) -> None:
    def acquire(agent: str) -> bytes:
        op = log.run(lambda tx: tx.author(AcquireLocks("s", ("k",), agent, LockMode.EXCLUSIVE, 60_000, 60_000)))
        assert isinstance(op, Op)
        return op.id

    acquire("one")
    second, third = acquire("two"), acquire("three")
    subjects = log.changes(lambda tx: tx.author(ReleaseLocks("s", "one", 1))).subjects
    assert subjects == {(LOG, b""), (LOCK, b"s"), (LOCK_WAIT, second)}
    subjects = log.changes(lambda tx: tx.author(LeaveQueue("s", "three", third))).subjects
    assert subjects == {(LOG, b""), (LOCK, b"s"), (LOCK_WAIT, third)}
