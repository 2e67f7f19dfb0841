"""Successions and takeovers on the log: whatever the order in which they arrive, the same nodes decide at the same
times, and the same decisions count.
"""

import random
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.families.locks.facts import LOCK, AcquireLocks, LockMode
from hocket.families.locks.rules import LOCKS
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op, pin_to
from hocket.kernel.succession.chain import vote_text
from hocket.kernel.vocabulary import (
    AcceptWork,
    ClaimWork,
    DesignateCoordinator,
    ScheduleJob,
    SetSuccession,
    Subject,
    TakeOver,
)
from hocket.log import Log
from hocket.log.audit import verify
from hocket.log.rebuild import rebuild
from tests.log.roster.test_cascades import everywhere_the_same, reason, shown
from tests.log.roster.world import INTRODUCTIONS, KEYS, NODES, NOW, START, Script, job_id, new_log, sent

A, B, C = 0, 1, 2
J = job_id(1)
AFTER = 5_000


class World(Script):
    """Three nodes of the owner. The first is the coordinator, and the others may follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.designation = self.say(A, 1, DesignateCoordinator(NODES[A]))
        self.succession = self.say(A, 2, SetSuccession(self.designation.id, NODES, 2, AFTER))

    def take_over(
        self, node: int, wall: int, term: int, follows: Op, last: Op, voters: Sequence[int], under: Op | None = None
    ) -> Op:
        """`last` is the op of the coordinator before that it knew last."""
        under = under or self.succession
        text = vote_text(under.id, follows.id, term, NODES[node])
        votes = tuple((NODES[each], KEYS[each].sign(text)) for each in voters)
        payload = TakeOver(term, under.id, follows.id, votes)
        return self.say(node, wall, payload, (pin_to(last.timestamp, last.id),))

    def job(self, number: int, wall: int) -> Op:
        return self.say(C, wall, ScheduleJob(job_id(number), "k", b"", b""))


def coordinators(log: Log) -> list[tuple[int, int]]:
    return [(at.wall - START, NODES.index(node)) for at, node in log.permissions().coordinators]


def holder(log: Log, number: int = 1) -> int | None:
    with log.store.read() as session:
        entry = session.job(job_id(number))
    assert entry is not None
    return None if entry.job.claimer is None else NODES.index(entry.job.claimer)


def fold_of(world: World) -> Log:
    log = new_log()
    log.admit(sent((*INTRODUCTIONS, *world.ops)))
    return log


def test_what_the_old_coordinator_decided_after_the_hand_over_does_not_count() -> None:
    world = World()
    known = world.job(1, 10)
    del world.ops[:]
    before = [*INTRODUCTIONS, world.designation, world.succession, known]
    offer = world.say(C, 20, ClaimWork(J, NODES[C], 60_000))
    last = world.say(A, 11, ScheduleJob(job_id(2), "k", b"", b""))
    takeover = world.take_over(B, 30, 1, world.designation, last, (B, C))
    unseen = world.say(A, 25, AcceptWork(J, offer.id), (offer.id,))
    seen = world.say(B, 40, AcceptWork(J, offer.id), (offer.id,))
    log = everywhere_the_same(world.ops, before)
    assert coordinators(log) == [(1, A), (30, B)]
    assert reason(log, unseen) == Reason.NOT_ARBITER and reason(log, seen) == 0 and reason(log, takeover) == 0
    assert holder(log) == C


def test_what_it_decided_before_the_hand_over_counts() -> None:
    world = World()
    before = [*INTRODUCTIONS, world.designation, world.job(1, 10)]
    del world.ops[:1], world.ops[1:]
    offer = world.say(C, 20, ClaimWork(J, NODES[C], 60_000))
    accepted = world.say(A, 25, AcceptWork(J, offer.id), (offer.id,))
    takeover = world.take_over(B, 30, 1, world.designation, accepted, (B, C))
    late = world.say(A, 50, ClaimWork(J, NODES[A], 60_000))
    log = everywhere_the_same(world.ops, before)
    assert reason(log, accepted) == reason(log, takeover) == 0 and holder(log) == C
    assert reason(log, late) == Reason.OFFERED


def test_a_takeover_without_a_quorum_changes_nothing() -> None:
    world = World()
    before = [*INTRODUCTIONS, world.job(1, 10)]
    del world.ops[2:]
    claim = world.say(A, 40, ClaimWork(J, NODES[A], 60_000))
    alone = world.take_over(B, 30, 1, world.designation, world.succession, (B,))
    log = everywhere_the_same(world.ops, before)
    assert coordinators(log) == [(1, A)] and holder(log) == A
    assert reason(log, alone) == Reason.NO_QUORUM and reason(log, claim) == 0


def test_a_forged_vote_and_a_succession_of_a_node_that_is_not_the_owners_do_not_count() -> None:
    world = World()
    good = world.take_over(B, 30, 1, world.designation, world.succession, (B, C))
    world.ops.remove(good)
    assert isinstance(good.payload, TakeOver)
    (one, vote), (other, _) = good.payload.votes
    forged = TakeOver(1, good.payload.succession, good.payload.follows, ((one, vote), (other, vote)))
    op = world.say(B, 30, forged, good.causal_deps)
    log = fold_of(world)
    assert reason(log, op) == Reason.NO_QUORUM and coordinators(log) == [(1, A)]


def test_a_higher_term_takes_the_lower_one_back() -> None:
    world = World()
    before = [*INTRODUCTIONS, *world.ops, world.job(1, 10)]
    del world.ops[:]
    low = world.take_over(B, 30, 1, world.designation, before[-3], (A, B))
    claim = world.say(B, 35, ClaimWork(J, NODES[B], 60_000))
    high = world.take_over(C, 32, 2, world.designation, before[-3], (A, C))
    other = world.say(C, 40, ClaimWork(J, NODES[C], 60_000))
    log = everywhere_the_same(world.ops, before)
    assert coordinators(log) == [(1, A), (32, C)] and holder(log) == C
    assert (reason(log, low), reason(log, high), reason(log, other)) == (Reason.OUTVOTED, 0, 0)
    assert reason(log, claim) == Reason.OFFERED


def test_two_takeovers_of_one_term_are_void_and_the_double_voter_is_named() -> None:
    world = World()
    world.take_over(B, 30, 1, world.designation, world.succession, (A, B))
    world.take_over(C, 31, 1, world.designation, world.succession, (A, C))
    log = everywhere_the_same(world.ops)
    assert coordinators(log) == [(1, A)]
    assert log.permissions().chain.double_voters == {NODES[A]}


def test_each_hand_over_raises_the_fences_of_locks() -> None:
    world = World()
    fences, follows, node = [], world.designation, A
    log = new_log()
    log.admit(sent((*INTRODUCTIONS, *world.ops)))
    for term in range(1, 6):
        del world.ops[:]
        lock = world.say(node, term * 100, AcquireLocks("", ("file:a",), "ann", LockMode.EXCLUSIVE, 50, 0))
        following = (node + 1) % 3
        follows = world.take_over(following, term * 100 + 10, term, follows, lock, (following, (node + 2) % 3))
        node = following
        log.admit(sent(world.ops))
        fences.append(fence_of(log))
    assert fences[0] < 1 << 32 and [each >> 32 for each in fences] == [0, 1, 2, 3, 4]
    rebuild(log.store, log.permissions_reader, NOW)
    assert fence_of(log) == fences[-1]


def fence_of(log: Log) -> int:
    with log.store.read() as session:
        state = session.subject_state(Subject(LOCK, b""))
    assert state is not None
    return LOCKS.decode(state).fence


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("claim", "takeover", "succession", "end", "accept")), st.integers(0, 2), st.integers(0, 5)
        ),
        min_size=2,
        max_size=9,
    ),
    st.randoms(use_true_random=False),
)
def test_any_history_folds_alike_in_any_order(history: list[tuple[str, int, int]], rng: random.Random) -> None:
    world = World()
    world.job(1, 5)
    starts, successions, offers = [world.designation], [world.succession], []
    for index, (what, node, choice) in enumerate(history):
        wall = 10 * (index + 1)
        if what == "claim":
            offers.append(world.say(node, wall, ClaimWork(J, NODES[node], 20)))
        elif what == "accept" and offers:
            offer = offers[choice % len(offers)]
            world.say(node, wall, AcceptWork(J, offer.id), (offer.id,))
        elif what == "succession":
            nodes = (*NODES[choice % 3 :], *NODES[: choice % 3])
            successions.append(world.say(A, wall, SetSuccession(starts[choice % len(starts)].id, nodes, 2, AFTER)))
        elif what == "end":
            successions.append(world.say(A, wall, SetSuccession(starts[choice % len(starts)].id)))
        elif what == "takeover":
            follows = starts[choice % len(starts)]
            author = follows.node_id if isinstance(follows.payload, TakeOver) else NODES[A]
            mine = [op for op in world.ops if op.node_id == author and op.timestamp.wall < START + wall]
            last = rng.choice([op for op in mine if op.timestamp >= follows.timestamp] or mine)
            under = successions[choice % len(successions)]
            voters = (node, (node + 1) % 3)
            starts.append(world.take_over(node, wall, 1 + choice % 4 + index // 3, follows, last, voters, under))
    straight = fold_of(world)
    for _ in range(2):
        ops = rng.sample(world.ops, len(world.ops))
        log = new_log()
        log.admit(sent(INTRODUCTIONS))
        cut = rng.randrange(len(ops) + 1)
        for batch in (ops[:cut], *([op] for op in ops[cut:])):
            log.admit(sent(batch))
        assert shown(log) == shown(straight)
        assert log.permissions().chain == straight.permissions().chain
        rebuild(log.store, log.permissions_reader, NOW)
        assert shown(log) == shown(straight)
        assert not verify(log.store, user=log.user).findings
