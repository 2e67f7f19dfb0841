"""A short transaction does what a whole one does, with less work."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket import store
from hocket.bus.changes import Changes
from hocket.bus.memory import MemoryBus
from hocket.kernel.coordination_payloads import AcquireLocks, BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import did_key
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.subjects import LOCK, Subject
from hocket.kernel.ucan import ROOT, issue
from hocket.kernel.vocabulary import DelegateUcan, DesignateCoordinator, Payload
from hocket.log import LockTransaction, Log, Transaction
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from hocket.store import Store
from tests.log.roster.world import NODES, READER, USER, Clock, new_log, randomness
from tests.stores import new_store

AGENTS = ("ann", "bob")
KEYS = (("file:a",), ("file:b",), ("file:a", "file:b"), ("file:**",), ("bad\n",), ())
BEHIND_MS = 2_000
ACQUIRE = AcquireLocks("", ("file:a",), "ann", LockMode.EXCLUSIVE, 30_000, 0)

Run = Callable[[Log, Callable[[LockTransaction], Any]], Any]
WHOLE: Run = lambda log, request: log.run(request)  # noqa: E731
SHORT: Run = lambda log, request: log.run_short(request)  # noqa: E731


class HeardBus(MemoryBus):
    def __init__(self) -> None:
        super().__init__()
        self.published: list[Changes] = []

    def is_heard(self) -> bool:
        return True

    def publish(self, changes: Changes) -> None:
        self.published.append(changes)


class Arbiter:
    """A log whose node decides itself, and whose clock others have put ahead of the machine's."""

    def __init__(self, run: Run, coordinator: int | None = None, kept: Store | None = None) -> None:
        self.clock, self.bus, self._run = Clock(), HeardBus(), run
        key, user, chance = READER, did_key(USER.public), randomness(b"")
        self.log = Log(
            *(kept or new_store(), key, user),
            wall=self.clock,
            physical=lambda: self.clock.now - BEHIND_MS,
            randomness=chance,
            bus=self.bus,
        )
        token = issue(USER, key.public, ROOT, 0, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))
        self.log.run(lambda tx: tx.author(DesignateCoordinator(coordinator or self.log.node)))

    def ask(self, payload: Payload) -> Any:
        """The op or the reason, and the scope after it."""

        def request(tx: LockTransaction) -> tuple[Op | Reason, Any, list[bytes]]:
            return tx.author(payload), tx.state(Subject(LOCK, b"")), tx.written

        return self._run(self.log, request)

    def stored(self) -> tuple[Any, ...]:
        with self.log.store.read() as session:
            return session.head(), session.ops_after(0, 1_000), session.each_subject()


Step = tuple[int, Callable[[Sequence[bytes]], Payload]]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """How long it waits, and what it then asks, given the ids of the ops before."""
    later_ms, agent, number = (
        draw(st.sampled_from((0, 1, 1_500, 40_000))),
        draw(st.sampled_from(AGENTS)),
        draw(st.integers(0, 6)),
    )
    keys, mode = draw(st.sampled_from(KEYS)), draw(st.sampled_from(LockMode))
    ttl_ms, wait_ms = draw(st.sampled_from((0, 1_000, 30_000))), draw(st.sampled_from((0, 60_000)))
    asked: tuple[Callable[[Sequence[bytes]], Payload], ...] = (
        lambda ids: AcquireLocks("", keys, agent, mode, ttl_ms, wait_ms),
        lambda ids: AcquireLocks("", keys, agent, mode, ttl_ms, wait_ms),
        lambda ids: RenewLocks("", agent, number, ttl_ms),
        lambda ids: ReleaseLocks("", agent, number),
        lambda ids: LeaveQueue("", agent, ids[number % len(ids)]),
        lambda ids: BreakLock("", "file:a", "because"),
    )
    return later_ms, draw(st.sampled_from(asked))


@pytest.mark.req("VX-04")
@given(st.lists(steps(), max_size=12))
def test_a_short_transaction_writes_what_a_whole_one_writes(wanted: list[Step]) -> None:
    whole, short = Arbiter(WHOLE), Arbiter(SHORT)
    ids = [bytes(16)]
    for later_ms, payload_of in wanted:
        for each in (whole, short):
            each.clock.now += later_ms
        payload = payload_of(ids)
        op, *after = whole.ask(payload)
        assert short.ask(payload) == (op, *after)
        if isinstance(op, Op):
            ids.append(op.id)
    for each in (whole, short):
        each.log.seal()
    assert short.stored() == whole.stored() and short.bus.published == whole.bus.published
    assert verify(short.log.store, user=short.log.user, is_bound=True).findings == []
    assert rebuild(short.log.store, short.log.permissions_reader, short.clock.now).unchanged


def test_plain_submits_stay_unsettled_beside_it() -> None:
    short = Arbiter(SHORT)
    job_id = short.log.append_plain("k", b"{}")
    short.ask(ACQUIRE)
    with short.log.store.read() as session:
        assert session.head().unsettled == 1
    short.log.settle()
    with short.log.store.read() as session:
        assert session.head().unsettled == 0 and job_id is not None and session.job(job_id) is not None


def test_a_request_that_fails_leaves_nothing() -> None:
    short = Arbiter(SHORT)
    before = short.stored()

    def request(tx: LockTransaction) -> None:
        assert isinstance(tx.author(ACQUIRE), Op)
        raise ValueError

    with pytest.raises(ValueError):
        short.log.run_short(request)
    assert short.stored() == before
    assert isinstance(short.ask(ACQUIRE)[0], Op)


@pytest.mark.parametrize("is_bound", (True, False))
def test_it_is_whole_where_this_node_does_not_decide_alone(is_bound: bool) -> None:
    log = Arbiter(SHORT, coordinator=NODES[0]).log if is_bound else new_log()
    assert isinstance(log.run_short(lambda tx: tx), Transaction)
    assert log.run_short(lambda tx: tx.author(ACQUIRE)) is not None


def test_a_state_that_another_process_has_changed_is_read_again(store_url: str) -> None:
    with closing(store.open(store_url, create=True)) as here, closing(store.open(store_url)) as elsewhere:
        one, other = Arbiter(SHORT, kept=here), Arbiter(SHORT, kept=elsewhere)
        granted, scope, _ = one.ask(ACQUIRE)
        assert isinstance(granted, Op)
        assert other.ask(ReleaseLocks("", "ann", scope.fence))[1].holds == ()
        assert one.ask(ACQUIRE)[1].fence == scope.fence + 1


def test_a_state_that_was_not_kept_is_read_again(store_url: str) -> None:
    with closing(store.open(store_url, create=True)) as here:
        short = Arbiter(SHORT, kept=here)
        with pytest.raises(ZeroDivisionError):
            short.log.run_short(lambda tx: (tx.author(ACQUIRE), 1 // 0))
        assert short.ask(ReleaseLocks("", "ann", 1))[0] is Reason.STALE_FENCE
        assert short.ask(ACQUIRE)[1].fence == 1


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
    short = Arbiter(SHORT)

    def once() -> tuple[int, int]:
        short.clock.now += 1
        submit = calls(lambda: short.log.append_plain("acme.render", b"{}"))
        acquire = calls(lambda: short.log.run_short(lambda tx: tx.author(ACQUIRE)))
        short.log.run_short(lambda tx: tx.author(BreakLock("", "file:a", "again")))
        return submit, acquire

    once()
    submit, acquire = once()
    assert acquire < 3 * submit
