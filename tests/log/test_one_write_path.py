"""Every request runs in the same kind of transaction, and all transactions of a log use one projection, which begins
again for each: it says what a fresh one says, whatever the transactions before it did or failed to do.
"""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import store
from hocket.bus.hints import Changes
from hocket.bus.memory import MemoryBus
from hocket.errors import HocketError
from hocket.families.availability.facts import Availability, SetAvailability
from hocket.families.inbox.facts import SendMessage
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.requests import Draft, Held
from hocket.families.kinds.facts import DefineKind
from hocket.families.locks.facts import LOCK, AcquireLocks, BreakLock, LockMode, ReleaseLocks
from hocket.families.locks.projector import LockProjector
from hocket.families.rows.facts import PutRow, Strategy
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.keys import did_key
from hocket.kernel.ops import NO_ID, Op, bind, link_to
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, RevokeUcan, RouteKind, ScheduleJob, Subject
from hocket.log import Log, Transaction
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from hocket.store import Store
from tests.log.roster.world import KEYS, NODES, READER, USER, Clock, randomness, signed
from tests.stores import new_store

BEHIND_MS = 2_000
ACQUIRE = AcquireLocks("", ("file:a",), "ann", LockMode.EXCLUSIVE, 30_000, 0)
KINDS = ("k", "k.sub")
Request = Callable[[Transaction], Any]


class HeardBus(MemoryBus):
    def __init__(self) -> None:
        super().__init__()
        self.published: list[Changes] = []

    def is_heard(self) -> bool:
        return True

    def publish(self, changes: Changes) -> None:
        self.published.append(changes)


class Arbiter:
    """A log whose node decides itself, and whose clock others have put ahead of the machine's. With `fresh`, each
    transaction has a projection of its own.
    """

    def __init__(self, *, fresh: bool = False, kept: Store | None = None, coordinator: int | None = None) -> None:
        self.clock, self.bus, self._fresh = Clock(), HeardBus(), fresh
        self.log = self._opened(kept or new_store())
        # Another process of the node, as it were.
        self.elsewhere = self._opened(self.log.store)
        token = issue(USER, READER.public, ROOT, 0, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
        self.log.run(lambda tx: tx.author(DesignateCoordinator(coordinator or self.log.node)))

    def _opened(self, kept: Store) -> Log:
        return Log(
            *(kept, READER, did_key(USER.public)),
            wall=self.clock,
            physical=lambda: self.clock.now - BEHIND_MS,
            randomness=randomness(b""),
            bus=self.bus,
        )

    def run(self, request: Request, *, elsewhere: bool = False) -> Any:
        """The result, or the error."""
        log = self.elsewhere if elsewhere else self.log
        if self._fresh:
            log._projection = None
        try:
            return log.run(request)
        except (HocketError, ZeroDivisionError) as error:
            return repr(error)

    def admit(self, ops: list[tuple[bytes, Op]]) -> Any:
        if self._fresh:
            self.log._projection = None
        return self.log.admit(ops)

    def remains(self) -> list[Any]:
        """What the projection still knows of the last transaction, if that was not undone."""
        projection = self.log._projection
        assert projection is not None
        return [] if projection._is_open else [known for passing in projection._passing for known in passing if known]

    def ask(self, payload: Any) -> Any:
        """The op or the reason, and the scope after it."""
        return self.log.run(lambda tx: (tx.author(payload), tx.state(Subject(LOCK, b""))))

    def stored(self) -> tuple[Any, ...]:
        with self.log.store.read() as session:
            subjects, entries = session.each_subject(), list(session.each_job())
            return session.head(), session.ops_after(0, 1_000), subjects, entries, session.routes()


class Step(NamedTuple):
    """Requests of one transaction, whether it fails after them, and whether another process runs it."""

    later_ms: int
    requests: tuple[Request, ...]
    fails: bool
    elsewhere: bool

    def __call__(self, tx: Transaction) -> list[Any]:
        answers = [request(tx) for request in self.requests]
        return answers if not self.fails else [1 // 0]


def locks(agent: str, number: int) -> tuple[Request, ...]:
    acquire = AcquireLocks("", ("file:a", f"file:{number}"), agent, LockMode.EXCLUSIVE, 1_000, 60_000 * (number % 2))
    return (
        lambda tx: (tx.author(acquire, is_awaited=True), tx.state(Subject(LOCK, b""))),
        lambda tx: (tx.author(ReleaseLocks("", agent, number)), tx.state(Subject(LOCK, b""))),
        lambda tx: tx.author(BreakLock("", "file:a", "because")),
    )


def work(kind: str, number: int) -> tuple[Request, ...]:
    def end(tx: Transaction) -> list[Any]:
        found = [entry.job for entry in tx.session.claimed()]
        held = [Held(job.id, job.claim_op) for job in found if job.claim_op is not None]
        return [jobs.complete(tx, each, b"1", 1) for each in held[:number]]

    def after(tx: Transaction) -> Any:
        first = jobs.submit_one(tx, Draft(kind, b"{}", Policy())).job_id
        return jobs.submit_one(tx, Draft(kind, b"{}", Policy(after=(ulid_text(first),))))

    return (
        lambda tx: jobs.submit(tx, [Draft(kind, b"{}", Policy())] * number),
        lambda tx: jobs.submit_one(tx, Draft(kind, b"{}", Policy(unique=f"key {number}", concurrency=1))),
        lambda tx: claiming.claim(tx, 0, number, lambda name: 1_000).taken,
        end,
        after,
    )


def rules(kind: str, number: int) -> tuple[Request, ...]:
    node = NODES[0] if number % 2 else None
    row = PutRow(f"t/{number % 2}", "ann", None, b"%d" % number, Strategy.DEFER_TO_AGENT)
    message = SendMessage(NO_ID, "bob", "ann", "note", None, None, 0, 60_000, 3, b"{}")
    token = issue(USER, KEYS[1].public, ROOT, 0, None)
    availability = Availability.DRAINING if number % 2 else Availability.ACTIVE
    return (
        lambda tx: tx.author(DefineKind(kind, encode_policy(Policy(priority=number, concurrency=number or None)))),
        lambda tx: tx.author(RouteKind(kind, node)),
        lambda tx: tx.author(SetAvailability(tx.node, availability, "")),
        lambda tx: tx.author(row),
        lambda tx: tx.author(message),
        lambda tx: tx.author(DelegateUcan(content_hash(token), token)),
        lambda tx: tx.author(RevokeUcan(content_hash(token))),
        lambda tx: tx.author(DesignateCoordinator(node or tx.node)),
        lambda tx: (tx.projection.defaults(kind), tx.admits(kind), tx.projection.availability(tx.node)),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    number, kind, agent = draw(st.integers(0, 4)), draw(st.sampled_from(KINDS)), draw(st.sampled_from(("ann", "bob")))
    return draw(st.sampled_from((*locks(agent, number), *work(kind, number), *rules(kind, number))))


@st.composite
def steps(draw: st.DrawFn) -> Step | str:
    """A plain submit takes the name of its kind."""
    if draw(st.integers(0, 4)) == 0:
        return draw(st.sampled_from(KINDS))
    wanted = tuple(draw(st.lists(requests(), min_size=1, max_size=3)))
    return Step(draw(st.sampled_from((0, 1, 1_500))), wanted, draw(st.booleans()), draw(st.integers(0, 5)) == 0)


@given(st.lists(steps(), max_size=14))
def test_a_projection_that_begins_again_says_what_a_fresh_one_says(wanted: list[Step | str]) -> None:
    reused, fresh = Arbiter(), Arbiter(fresh=True)
    for step in wanted:
        if isinstance(step, str):
            plain = lambda tx, kind=step: tx.append_plain(kind, b"{}")  # noqa: E731
            step = Step(0, (plain,), False, False)
        for each in (reused, fresh):
            each.clock.now += step.later_ms
        assert reused.run(step, elsewhere=step.elsewhere) == fresh.run(step, elsewhere=step.elsewhere)
        assert reused.remains() == []
    for each in (reused, fresh):
        each.log.settle()
        each.log.seal()
    assert reused.stored() == fresh.stored() and reused.bus.published == fresh.bus.published
    assert verify(reused.log.store, user=reused.log.user, is_bound=True).findings == []
    assert rebuild(reused.log.store, reused.log.permissions_reader, reused.clock.now).unchanged


def test_ops_that_came_in_leave_nothing_for_the_next_transaction() -> None:
    reused, fresh = Arbiter(), Arbiter(fresh=True)
    token = issue(USER, KEYS[0].public, ROOT, 0, None)
    payloads = (DelegateUcan(content_hash(token), token), *[ScheduleJob(NO_ID, "k", b"{}", b"")] * 3)
    for each in (reused, fresh):
        last, ops = NO_ID, []
        for logical, payload in enumerate(payloads):
            stamp = Hlc(each.clock.now, logical, NODES[0])
            op, _ = bind(Op(NO_ID, stamp, NODES[0], (link_to(last),), payload))
            last = op.id
            ops.append(signed(op, KEYS[0]))
        assert each.admit(ops).appended == 4
        taken = each.run(lambda tx: claiming.claim(tx, 0, 3, lambda kind: 1_000).taken)
        assert len(taken) == 3
    assert reused.stored() == fresh.stored() and reused.bus.published == fresh.bus.published
    assert not reused.log.run(lambda tx: tx.projection._is_changing)


def test_plain_submits_stay_unsettled_beside_a_lock() -> None:
    arbiter = Arbiter()
    job_id = arbiter.log.append_plain("k", b"{}")
    arbiter.ask(ACQUIRE)
    with arbiter.log.store.read() as session:
        assert session.head().unsettled == 1
    arbiter.log.settle()
    with arbiter.log.store.read() as session:
        assert session.head().unsettled == 0 and job_id is not None and session.job(job_id) is not None


def test_plain_submits_of_one_transaction_are_folded_later_together() -> None:
    arbiter = Arbiter()
    made = arbiter.log.run(lambda tx: [tx.append_plain("k", b"{}") for _ in range(3)])
    with arbiter.log.store.read() as session:
        assert session.head().unsettled == 3
        assert len({op.id for op in session.ops_after(0, 100)} & set(made)) == 3
    arbiter.log.settle()
    with arbiter.log.store.read() as session:
        assert [entry.job.id for entry in session.each_job()] == sorted(made)
    assert rebuild(arbiter.log.store, arbiter.log.permissions_reader, arbiter.clock.now).unchanged


def test_a_request_that_fails_leaves_nothing() -> None:
    arbiter = Arbiter()
    before = arbiter.stored()
    arbiter.run(Step(0, (lambda tx: tx.author(ACQUIRE), lambda tx: tx.author(RouteKind("k", NODES[0]))), True, False))
    assert arbiter.stored() == before
    assert arbiter.log.run(lambda tx: tx.admits("k"))
    assert isinstance(arbiter.ask(ACQUIRE)[0], Op)


@pytest.mark.req("VX-04")
def test_what_another_process_has_changed_is_read_again(store_url: str) -> None:
    with closing(store.open(store_url, create=True)) as here, closing(store.open(store_url)) as elsewhere:
        one, other = Arbiter(kept=here), Arbiter(kept=elsewhere)
        granted, scope = one.ask(ACQUIRE)
        assert isinstance(granted, Op) and one.log.append_plain("k", b"{}") is not None
        assert other.ask(ReleaseLocks("", "ann", scope.fence))[1].holds == ()
        other.log.run(lambda tx: tx.author(DefineKind("k", encode_policy(Policy(priority=7)))))
        assert one.ask(ACQUIRE)[1].fence == scope.fence + 1
        assert one.log.append_plain("k", b"{}") is None
        assert one.log.run(lambda tx: tx.projection.defaults("k").priority) == 7


def test_a_submit_reads_nothing_until_another_process_has_written(tmp_path: Path) -> None:
    path, sent = tmp_path / "log.db", list[str]()
    with closing(store.open(path, create=True)) as here, closing(store.open(path)) as elsewhere:
        one, other = Arbiter(kept=here), Arbiter(kept=elsewhere)
        one.log.append_plain("k", b"{}")
        vars(here)["_writer"].exec_trace = lambda _, sql, values: sent.append(sql.split()[0]) is None
        one.log.append_plain("k", b"{}")
        assert sent == ["BEGIN", "INSERT", "UPDATE", "COMMIT"]
        other.log.append_plain("k", b"{}")
        one.log.append_plain("k", b"{}")
        assert sent[4:6] == ["BEGIN", "SELECT"]
        assert one.stored()[0].unsettled == 4


def test_a_state_that_was_not_kept_is_read_again(store_url: str) -> None:
    with closing(store.open(store_url, create=True)) as here:
        arbiter = Arbiter(kept=here)
        with pytest.raises(ZeroDivisionError):
            arbiter.log.run(lambda tx: (tx.author(ACQUIRE), 1 // 0))
        assert arbiter.ask(ReleaseLocks("", "ann", 1))[0] is Reason.STALE_FENCE
        assert arbiter.ask(ACQUIRE)[1].fence == 1


def test_many_kinds_and_scopes_are_not_all_remembered() -> None:
    arbiter = Arbiter()
    for number in range(300):
        acquire = AcquireLocks(f"s{number}", ("file:a",), "ann", LockMode.EXCLUSIVE, 30_000, 0)
        arbiter.log.run(lambda tx, acquire=acquire: tx.author(acquire))  # type: ignore[misc]
        arbiter.log.append_plain(f"k{number}", b"{}")
    projection = arbiter.log._projection
    assert projection is not None
    locks = cast(LockProjector, projection.projectors[LOCK])
    assert len(projection._defaults) <= 256 and len(locks._states) <= 256
    assert locks._checked <= locks._states.keys()


def calls(work: Callable[[], object]) -> int:
    """How many functions of ours it calls: a measure of its work that no other process disturbs."""
    count = 0

    def note(frame: Any, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_an_acquire_costs_little_more_than_a_submit() -> None:
    arbiter = Arbiter()

    def once() -> tuple[int, int]:
        arbiter.clock.now += 1
        submit = calls(lambda: arbiter.log.append_plain("acme.render", b"{}"))
        acquire = calls(lambda: arbiter.log.run(lambda tx: tx.author(ACQUIRE)))
        arbiter.log.run(lambda tx: tx.author(BreakLock("", "file:a", "again")))
        return submit, acquire

    once()
    submit, acquire = once()
    assert acquire < 3 * submit
