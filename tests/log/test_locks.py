"""What the log and the queue decide on, they have locked before: shown by a store that watches each transaction."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from hocket.families.jobs import claiming, rescue
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Claim, Draft, Held
from hocket.kernel.policy import Policy, Rate
from hocket.kernel.vocabulary import JOB, CancelJob, ClaimWork, RouteKind, ScheduleJob, Subject
from hocket.log import Log, Transaction
from hocket.store import JobEntry, Session, Store, WorkerRow
from hocket.store import Place as WorkerPlace
from tests.log.roster.world import INTRODUCTIONS, NODES, READER, Clock, Script, introduction, job_id, new_log, sent
from tests.stores import new_store


class WatchedSession:
    """Notes what is locked, and fails when a job is written that stood in the store and was not locked."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.locked: set[Subject] = set()
        self.is_exclusive = False
        self.decides = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def lock_permissions(self, *, exclusive: bool) -> None:
        self.decides = True
        self.is_exclusive |= exclusive
        self._session.lock_permissions(exclusive=exclusive)

    def lock_subjects(self, subjects: Iterable[Subject]) -> None:
        named = list(subjects)
        self.locked |= set(named)
        self._session.lock_subjects(named)

    def try_lock(self, subject: Subject) -> bool:
        self.lock_subjects((subject,))
        return self._session.try_lock(subject)

    def take_ready(self, *asked: Any) -> list[tuple[JobEntry, bytes | None]]:
        found = self._session.take_ready(*asked)
        self.locked |= {(JOB, entry.job.id) for entry, _ in found}
        return found

    def take_overdue(self, *asked: Any) -> list[JobEntry]:
        return self._taken(self._session.take_overdue(*asked))

    def take_claimed(self, *asked: Any) -> list[JobEntry]:
        return self._taken(self._session.take_claimed(*asked))

    def _taken(self, found: list[JobEntry]) -> list[JobEntry]:
        self.locked |= {(JOB, entry.job.id) for entry in found}
        return found

    def put_jobs(self, entries: Sequence[JobEntry]) -> None:
        written = [entry.job.id for entry in entries]
        known = {entry.job.id for entry in self._session.jobs_by_id(written)}
        assert all((JOB, each) in self.locked for each in written if each in known)
        self._session.put_jobs(entries)


class WatchedStore:
    """`transactions` are those that were committed, without those that only seal."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read, self.mac_rows, self.check_rows = store.read, store.mac_rows, store.check_rows
        self.server_clock = store.server_clock
        self.close, self.trim = store.close, store.trim
        self.transactions: list[WatchedSession] = []

    @contextmanager
    def write(self, author: bytes | None = None, *, at_end: bool = False) -> Iterator[Session]:
        with self._store.write(author, at_end=at_end) as session:
            watched = WatchedSession(session)
            yield cast(Session, watched)
        if watched.decides:
            self.transactions.append(watched)


class Scene:
    def __init__(self) -> None:
        self.clock = Clock()
        self.store = WatchedStore(new_store())
        self.log: Log = new_log(self.store, wall=self.clock)
        self.log.run(lambda tx: tx.author(introduction(READER).payload))
        self.log.admit(sent(INTRODUCTIONS))

    def run(self, request: Callable[[Transaction], Any]) -> Any:
        return self.log.run(request)

    def submit(self, policy: Policy, count: int = 1) -> list[bytes]:
        drafts = [Draft("k", b"{}", policy)] * count
        return [made.job_id for made in self.run(lambda tx: jobs.submit(tx, drafts))]

    def claim(self, limit: int = 10, worker: int = 1) -> list[Claim]:
        taken: list[Claim] = self.run(lambda tx: claiming.claim(tx, worker, limit, lambda kind: 1_000)).taken
        return taken

    @property
    def last(self) -> WatchedSession:
        return self.store.transactions[-1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def held(claim: Claim) -> Held:
    assert claim.job.claim_op is not None
    return Held(claim.job.id, claim.job.claim_op)


def test_every_step_of_a_job_is_decided_under_its_lock(scene: Scene) -> None:
    made = scene.submit(Policy(), 6)
    done, failed, yielded, renewed, lost, late = scene.claim(6)
    assert scene.last.locked >= {(JOB, each) for each in made}
    scene.run(lambda tx: jobs.complete(tx, held(done), b"1", 1))
    assert (JOB, done.job.id) in scene.last.locked
    scene.run(lambda tx: jobs.fail(tx, held(failed), "", "", retry=False))
    scene.run(lambda tx: jobs.retry(tx, failed.job.id, ""))
    scene.run(lambda tx: jobs.hand_back(tx, held(yielded), ""))
    scene.run(lambda tx: jobs.cancel(tx, yielded.job.id, ""))
    scene.run(lambda tx: jobs.renew(tx, held(renewed), 1_000_000))
    row = WorkerRow(0, "w", 1, 1, scene.log.node.to_bytes(8, "big"), 1, WorkerPlace())
    number = scene.run(lambda tx: tx.session.put_worker(row))
    assert scene.run(lambda tx: rescue.reclaim(tx, {number})) == 3
    assert scene.last.locked >= {(JOB, each.job.id) for each in (renewed, lost, late)}


def test_what_is_past_its_deadline_is_locked_before_it_is_expired(scene: Scene) -> None:
    scene.submit(Policy(), 2)
    taken = scene.claim(2)
    scene.clock.now += 5_000
    assert scene.run(lambda tx: rescue.expire(tx, 10)) == 2
    assert scene.last.locked >= {(JOB, each.job.id) for each in taken}


def test_rules_that_span_jobs_have_locks_of_their_own(scene: Scene) -> None:
    scene.submit(Policy(unique="one"))
    assert ("unique key", b"one") in scene.last.locked
    scene.submit(Policy(concurrency=1))
    scene.submit(Policy(rate=Rate(1, 1_000)))
    scene.claim()
    assert ("limit", b"k") in scene.last.locked


def test_ops_from_elsewhere_lock_the_jobs_that_they_are_about(scene: Scene) -> None:
    script = Script()
    script.say(0, 1, ScheduleJob(job_id(1), "k", b"{}", b""))
    later = [script.say(1, 5, ClaimWork(job_id(1), NODES[1], 10)), script.say(0, 3, CancelJob(job_id(1), ""))]
    for op in script.ops[:1] + later:
        scene.log.admit(sent([op]))
        assert (JOB, job_id(1)) in scene.last.locked and not scene.last.is_exclusive


def test_what_changes_the_permissions_excludes_everything_else(scene: Scene) -> None:
    scene.run(lambda tx: tx.author(RouteKind("k", tx.node)))
    assert scene.last.is_exclusive
    scene.log.admit(sent([Script().say(0, 1, RouteKind("k", NODES[0]))]))
    assert scene.last.is_exclusive
    scene.submit(Policy())
    assert not scene.last.is_exclusive
