"""The rules of locks, op by op, without a store: who gets a key, in which order, under which fence, and for how long.
The holes of the design that this one replaces are shown beside the rule that closes each.
"""

import re
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.families.locks.facts import AcquireLocks, BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.families.locks.index import overlap
from hocket.families.locks.rules import (
    GRANT_MS,
    KEY_CHARS_MAX,
    LOCKS,
    OVERDUE_MS,
    TENURE_BITS,
    TENURES_MAX,
    TTL_MS_MAX,
    Scope,
    conflict,
    deadlock,
    ends_early,
    in_the_way,
    live,
)
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import EXACT_MAX
from hocket.kernel.ops import Op

A, B = 1, 2
X, S = LockMode.EXCLUSIVE, LockMode.SHARED


class Context:
    """The rest of a log on which everybody may do everything."""

    tenures = 0

    def refusal(self, op: Op, word: str) -> Reason | None:
        return None

    def arbiter(self, at: Hlc) -> int | None:
        return None

    def is_overtaken(self, at: Hlc) -> bool:
        return False

    def offered(self, op_id: bytes, subject: object) -> Op | None:
        return None

    def designations(self, at: Hlc) -> int:
        return self.tenures


class World:
    """One scope, whose ops the arbiter decides, at times of one's choosing."""

    def __init__(self) -> None:
        self.scope: Scope | None = None
        self.context = Context()
        self.now = 1_000
        self._number = 0

    def op(self, payload: Any, node: int = A, cited: tuple[bytes, ...] = ()) -> Op:
        self._number += 1
        return Op(self._number.to_bytes(16, "big"), Hlc(self.now, self._number, node), node, cited, payload)

    def say(self, payload: Any, node: int = A, cited: tuple[bytes, ...] = ()) -> Op | Reason:
        op = self.op(payload, node, cited)
        verdict = LOCKS.apply_decided(self.scope, op, self.context, node)
        if isinstance(verdict, Reason):
            return verdict
        self.scope = LOCKS.decode(LOCKS.encode(verdict))
        assert self.scope == verdict
        return op

    def acquire(
        self,
        *keys: str,
        agent: str = "one",
        node: int = A,
        mode: LockMode = X,
        ttl: int = 30_000,
        wait: int = 0,
        cited: tuple[bytes, ...] = (),
    ) -> Op | Reason:
        return self.say(AcquireLocks("", keys, agent, mode, ttl, wait), node, cited)

    def fence(self, agent: str = "one", node: int = A) -> int | None:
        """The newest fence of an agent that holds something."""
        assert self.scope is not None
        mine = [hold.fence for hold in live(self.scope, self.now) if (hold.node, hold.agent) == (node, agent)]
        return max(mine, default=None)

    def release(self, agent: str = "one", node: int = A, fence: int | None = None) -> Op | Reason:
        return self.say(ReleaseLocks("", agent, self.fence(agent, node) or 0 if fence is None else fence), node)

    def waiting(self) -> list[str]:
        assert self.scope is not None
        return [wait.agent for wait in self.scope.waits]


class NaiveRow:
    """The published design: a row for each key, deleted at release and by a sweep; the winner is found by its node."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, str, int, int]] = {}

    def acquire(self, key: str, node: int, agent: str, now: int, ttl: int) -> int | None:
        self.rows.setdefault(key, (node, agent, 1, now + ttl))
        holder, _, fence, expires = self.rows[key]
        return fence if holder == node and expires > now else None

    def release(self, key: str) -> None:
        del self.rows[key]


# The holes.


@pytest.mark.req("VX-04")
def test_a_fence_does_not_begin_again_after_a_release() -> None:
    naive, world = NaiveRow(), World()
    fences: list[int | None] = []
    for _ in range(3):
        assert naive.acquire("k", A, "one", 0, 10) == 1, "the hole: every holder has the same fence"
        naive.release("k")
        world.acquire("k")
        fences.append(world.fence())
        world.release()
    assert fences == [1, 2, 3]
    assert world.scope == Scope(3, (), (), world.scope.last), "all that is left of released locks is a number"  # type: ignore[union-attr]


@pytest.mark.req("VX-04")
def test_an_expired_lock_is_taken_over_at_acquire() -> None:
    naive, world = NaiveRow(), World()
    assert naive.acquire("k", A, "one", 0, 10) == 1
    assert naive.acquire("k", B, "two", 11, 10) is None, "the hole: it stays dead until a sweep"
    world.acquire("k", ttl=10)
    world.now += 10
    assert world.acquire("k", agent="two", node=B) is Reason.LOCK_HELD
    world.now += 1
    assert isinstance(world.acquire("k", agent="two", node=B), Op)
    assert world.fence("two", B) == 2


@pytest.mark.req("VX-04")
def test_two_agents_of_one_node_exclude_each_other() -> None:
    naive, world = NaiveRow(), World()
    assert naive.acquire("k", A, "one", 0, 10) == naive.acquire("k", A, "two", 0, 10) == 1, "the hole: both win"
    assert isinstance(world.acquire("k", agent="one"), Op)
    assert world.acquire("k", agent="two") is Reason.LOCK_HELD
    assert world.acquire("k", agent="one") is Reason.LOCK_HELD, "nor does an agent get it twice"


# Holding.


@pytest.mark.req("VX-04")
def test_renewal_and_release_need_the_fence_of_their_author() -> None:
    world = World()
    world.acquire("k")
    for fence, agent, node in ((0, "one", A), (2, "one", A), (1, "two", A), (1, "one", B), (2**63, "one", A)):
        assert world.say(RenewLocks("", agent, fence, 10), node) is Reason.STALE_FENCE
        assert world.say(ReleaseLocks("", agent, fence), node) is Reason.STALE_FENCE
    assert isinstance(world.say(RenewLocks("", "one", 1, 60_000)), Op)
    assert world.scope is not None and world.scope.holds[0].deadline == world.now + 60_000
    assert isinstance(world.release(), Op)
    assert world.release(fence=1) is Reason.STALE_FENCE


@pytest.mark.req("VX-03")
def test_several_keys_are_taken_together_or_not_at_all() -> None:
    world = World()
    world.acquire("b", agent="two")
    assert world.acquire("a", "b", "c") is Reason.LOCK_HELD
    assert isinstance(world.acquire("a", "c"), Op)
    assert world.fence() == 2 and world.scope is not None and world.scope.holds[1].keys == ("a", "c")
    world.release()
    assert isinstance(world.acquire("a", agent="three"), Op)


def test_a_break_ends_everything_under_the_same_fence() -> None:
    world = World()
    world.acquire("a", "b")
    world.acquire("c")
    assert world.say(BreakLock("", "x", "stuck")) is Reason.NOT_LOCKED
    assert isinstance(world.say(BreakLock("", "b", "stuck")), Op)
    assert world.say(RenewLocks("", "one", 1, 10)) is Reason.STALE_FENCE
    assert isinstance(world.say(RenewLocks("", "one", 2, 10)), Op)


def test_an_overdue_hold_is_renewed_only_on_the_word_of_the_arbiter() -> None:
    world = World()
    world.acquire("k", ttl=10)
    world.now += 11
    renewal = world.op(RenewLocks("", "one", 1, 10))
    assert LOCKS.apply(world.scope, renewal, world.context) is Reason.LEASE_PASSED
    assert isinstance(LOCKS.apply_decided(world.scope, renewal, world.context, A), Scope)


@pytest.mark.req("VX-04")
def test_the_arbiters_own_clock_ends_a_hold() -> None:
    world = World()
    world.acquire("k", ttl=10)
    deadline = world.now + 10
    world.now += 1_000  # another node's op has moved the log's clock
    acquire = world.op(AcquireLocks("", ("k",), "two", X, 10, 0))
    assert isinstance(LOCKS.apply_decided(world.scope, acquire, world.context, A), Scope)
    assert ends_early(world.scope, acquire, world.context, deadline) is Reason.LEASE_RUNNING
    assert ends_early(world.scope, acquire, world.context, deadline + 1) is None
    elsewhere = world.op(AcquireLocks("", ("other",), "two", X, 10, 0))
    assert ends_early(world.scope, elsewhere, world.context, deadline) is None
    renewal = world.op(RenewLocks("", "one", 1, 10))
    assert ends_early(world.scope, renewal, world.context, deadline) is None
    assert ends_early(world.scope, renewal, world.context, deadline + 1) is Reason.LEASE_PASSED


def test_a_hold_of_a_vanished_node_is_forgotten_at_last() -> None:
    world = World()
    world.acquire("k", ttl=10)
    world.now += OVERDUE_MS
    world.acquire("other")
    assert world.scope is not None and len(world.scope.holds) == 2
    world.now += 11
    world.acquire("third")
    assert [hold.keys for hold in world.scope.holds] == [("other",), ("third",)]


@pytest.mark.req("VX-04")
def test_a_new_coordinator_begins_above_whatever_its_predecessor_gave() -> None:
    world = World()
    world.acquire("k")
    world.release()
    world.context.tenures = 1
    world.acquire("k")
    assert world.fence() == (1 << TENURE_BITS) + 1
    world.release()
    world.acquire("k")
    assert world.fence() == (1 << TENURE_BITS) + 2


@pytest.mark.parametrize("tenures", [0, 1, TENURES_MAX - 1, TENURES_MAX, 1 << 21, 1 << 31, 1 << 60])
def test_every_reader_of_json_keeps_a_fence(tenures: int) -> None:
    world = World()
    world.context.tenures = tenures
    last = 0
    for _ in range(3):
        world.acquire("k")
        fence = world.fence()
        assert fence is not None and last < fence <= EXACT_MAX - (1 << 51) and int(float(fence)) == fence
        last = fence
        world.release()


# Waiting.


@pytest.mark.req("VX-06")
def test_the_queue_is_served_in_order_at_release_and_at_expiry() -> None:
    world = World()
    world.acquire("k", ttl=100)
    world.acquire("k", agent="two", wait=60_000)
    world.acquire("k", agent="three", wait=60_000)
    assert world.waiting() == ["two", "three"]
    world.release()
    assert (world.fence("two"), world.waiting()) == (2, ["three"])
    world.now += GRANT_MS + 1
    assert isinstance(world.acquire("elsewhere", agent="four"), Op), "any op serves the queue"
    assert world.fence("three") == 3 and world.waiting() == []


def test_a_grant_from_the_queue_is_short_until_its_holder_renews() -> None:
    world = World()
    world.acquire("k")
    world.acquire("k", agent="two", ttl=600_000, wait=60_000)
    world.release()
    assert world.scope is not None and world.scope.holds[0].deadline == world.now + GRANT_MS
    world.say(RenewLocks("", "two", 2, 600_000))
    assert world.scope.holds[0].deadline == world.now + 600_000


def test_a_waiting_agent_that_asks_again_keeps_its_place_and_serves_the_queue() -> None:
    world = World()
    world.acquire("k", ttl=100)
    first = world.acquire("k", agent="two", wait=1_000)
    assert isinstance(first, Op)
    world.acquire("k", agent="three", wait=60_000)
    world.now += 50
    again = world.acquire("k", agent="two", wait=30_000, cited=(first.id,))
    assert isinstance(again, Op) and world.waiting() == ["two", "three"]
    assert world.scope is not None and world.scope.waits[0].op == first.id
    assert world.scope.waits[0].until == world.now + 30_000
    world.now += 100
    assert isinstance(world.acquire("k", agent="two", wait=30_000, cited=(first.id,)), Op)
    (held,) = live(world.scope, world.now)
    assert (held.agent, held.op, held.deadline) == ("two", first.id, world.now + 30_000)
    assert world.acquire("k", agent="two", wait=1_000, cited=(first.id,)) is Reason.STALE_CLAIM


def test_a_wait_that_is_over_is_not_served() -> None:
    world = World()
    world.acquire("k")
    world.acquire("k", agent="two", wait=10)
    world.now += 11
    world.release()
    assert world.scope is not None and not world.scope.holds and not world.scope.waits


def test_leaving_the_queue_also_gives_back_what_came_from_it_meanwhile() -> None:
    world = World()
    world.acquire("k")
    waiting = world.acquire("k", agent="two", wait=60_000)
    assert isinstance(waiting, Op)
    assert world.say(LeaveQueue("", "one", waiting.id)) is Reason.NOT_WAITING
    assert isinstance(world.say(LeaveQueue("", "two", waiting.id)), Op)
    assert world.waiting() == []
    waiting = world.acquire("k", agent="two", wait=60_000)
    assert isinstance(waiting, Op)
    world.release()
    assert world.fence("two") == 2
    world.say(LeaveQueue("", "two", waiting.id))
    assert world.fence("two") is None


@pytest.mark.req("VX-06")
def test_readers_share_and_a_waiting_writer_stops_later_readers() -> None:
    world = World()
    for reader in ("r1", "r2"):
        assert isinstance(world.acquire("k", agent=reader, mode=S), Op)
    world.acquire("k", agent="writer", wait=60_000)
    assert world.acquire("k", agent="r3", mode=S) is Reason.LOCK_HELD
    world.acquire("k", agent="r4", mode=S, wait=60_000)
    assert isinstance(world.acquire("other", agent="r5", mode=S), Op), "what does not conflict passes"
    world.release("r1")
    assert world.fence("writer") is None
    world.release("r2")
    assert world.fence("writer") == 4 and world.fence("r4") is None
    world.release("writer")
    assert world.fence("r4") == 5


def test_a_deadlock_is_found_when_it_would_begin() -> None:
    world = World()
    world.acquire("a", agent="one")
    world.acquire("b", agent="two", node=B)
    world.acquire("c", agent="three")
    world.acquire("b", agent="one", wait=60_000)
    world.acquire("c", agent="two", node=B, wait=60_000)
    assert world.acquire("a", agent="three", wait=60_000) is Reason.DEADLOCK
    assert world.acquire("a", agent="three") is Reason.LOCK_HELD, "without waiting there is none"
    assert world.scope is not None
    asked = replace(world.scope.waits[0], keys=("a",), agent="three", op=b"asked")
    assert deadlock(world.scope, asked, world.now) == [(A, "three"), (A, "one"), (B, "two")]
    world.release("two", B)
    assert isinstance(world.acquire("a", agent="three", wait=60_000), Op)


def test_an_expired_hold_makes_no_deadlock() -> None:
    world = World()
    world.acquire("a", agent="one", ttl=10)
    world.acquire("b", agent="two")
    world.acquire("b", agent="one", wait=60_000)
    world.now += 11
    assert isinstance(world.acquire("a", agent="two", wait=60_000), Op)


# Bad input.


@pytest.mark.parametrize(
    "keys, agent, ttl, wait",
    [
        ((), "one", 10, 0),
        (("",), "one", 10, 0),
        (("x" * (KEY_CHARS_MAX + 1),), "one", 10, 0),
        (("a\nb",), "one", 10, 0),
        (("a\x7f",), "one", 10, 0),
        (tuple(map(str, range(65))), "one", 10, 0),
        (("a",), "", 10, 0),
        (("a",), "o\0e", 10, 0),
        (("a",), "one", 0, 0),
        (("a",), "one", TTL_MS_MAX + 1, 0),
        (("a",), "one", 10, 2**63),
    ],
)
def test_an_illegal_request_does_not_count(keys: tuple[str, ...], agent: str, ttl: int, wait: int) -> None:
    assert World().acquire(*keys, agent=agent, ttl=ttl, wait=wait) is Reason.BAD_LOCK


def test_a_bad_time_does_not_renew() -> None:
    world = World()
    world.acquire("k")
    for ttl in (0, TTL_MS_MAX + 1):
        assert world.say(RenewLocks("", "one", 1, ttl)) is Reason.BAD_LOCK


# Patterns.


def _matches(pattern: str, name: str) -> bool:
    text = re.escape(pattern).replace(r"\*\*/", "(?:.*/|)").replace(r"\*\*", ".*").replace(r"\*", "[^/]*")
    return re.fullmatch(text, name, re.DOTALL) is not None


NAMES = ["".join(name) for length in range(7) for name in product("ab/", repeat=length)]
patterns = st.lists(st.sampled_from(["a", "b", "/", "*", "**", "/**/"]), min_size=1, max_size=4).map("".join)


@given(patterns, patterns)
def test_two_patterns_overlap_if_a_name_fits_both(left: str, right: str) -> None:
    if "***" not in left + " " + right:
        assert overlap(left, right) == overlap(right, left)
        fits = any(_matches(left, name) and _matches(right, name) for name in NAMES)
        assert overlap(left, right) >= fits
        if "**/" not in left + right:
            assert overlap(left, right) == fits


@pytest.mark.parametrize(
    "left, right, expected",
    [
        ("file:src/**", "file:src/lib.rs", True),
        ("file:src/**", "file:src/a/b/c.rs", True),
        ("file:src/**", "file:test/lib.rs", False),
        ("file:src/*", "file:src/a/b.rs", False),
        ("file:*/lib.rs", "file:src/**", True),
        ("file:src/**/x.py", "file:src/x.py", True),
        ("file:a*", "file:*b", True),
        ("file:a*c", "file:b*", False),
        ("**", "anything at all/ü", True),
        ("file:[id].tsx", "file:i.tsx", False),
    ],
)
def test_what_overlaps(left: str, right: str, expected: bool) -> None:
    assert overlap(left, right) is expected


def test_a_pattern_excludes_the_files_below_it() -> None:
    world = World()
    world.acquire("file:src/**")
    assert world.acquire("file:src/lib.rs", agent="two") is Reason.LOCK_HELD
    assert world.acquire("**", agent="two") is Reason.LOCK_HELD
    assert isinstance(world.acquire("file:docs/index.md", agent="two"), Op)


# Any history.

agents = st.tuples(st.sampled_from((A, B)), st.sampled_from(("x", "y", "z")))
keys = st.lists(st.sampled_from(("a", "b", "d/1", "d/2", "d/*", "**")), min_size=1, max_size=2, unique=True).map(tuple)
acts = st.one_of(
    st.tuples(
        st.just("acquire"), agents, keys, st.sampled_from((X, S)), st.sampled_from((5, 50)), st.sampled_from((0, 40))
    ),
    st.tuples(st.sampled_from(("renew", "release", "leave", "again")), agents),
    st.tuples(st.just("break"), agents, st.sampled_from(("a", "d/1"))),
    st.tuples(st.just("sleep"), st.integers(1, 30)),
)


@given(st.lists(acts, max_size=40))
def test_in_any_history_holds_do_not_conflict_fences_rise_and_nobody_is_passed(history: list[Any]) -> None:
    world = World()
    granted: list[int] = []
    for act in history:
        if act[0] == "sleep":
            world.now += act[1]
            continue
        node, agent = act[1]
        before = world.scope
        mine = [hold for hold in (before.holds if before else ()) if (hold.node, hold.agent) == (node, agent)]
        waits = [wait for wait in (before.waits if before else ()) if (wait.node, wait.agent) == (node, agent)]
        said: Op | Reason | None = None
        if act[0] == "acquire":
            _, _, wanted, mode, ttl, wait = act
            said = world.acquire(*wanted, agent=agent, node=node, mode=mode, ttl=ttl, wait=wait)
        elif act[0] == "break":
            said = world.say(BreakLock("", act[2], "why"), node)
        elif act[0] in ("renew", "release") and mine:
            payload = RenewLocks("", agent, mine[0].fence, 20) if act[0] == "renew" else None
            said = world.say(payload or ReleaseLocks("", agent, mine[0].fence), node)
        elif act[0] == "leave" and waits:
            said = world.say(LeaveQueue("", agent, waits[0].op), node)
        elif act[0] == "again" and waits:
            wait_op = waits[0]
            said = world.acquire(
                *wait_op.keys, agent=agent, node=node, mode=wait_op.mode, ttl=20, wait=40, cited=(wait_op.op,)
            )
        if not isinstance(said, Op):
            assert world.scope is before
            continue
        scope = world.scope
        assert scope is not None
        held = live(scope, world.now)
        assert not any(conflict(one, other) for at, one in enumerate(held) for other in held[at + 1 :])
        new = sorted(hold.fence for hold in scope.holds if hold.fence not in granted)
        assert all(fence > max(granted, default=0) for fence in new)
        granted += new
        assert scope.fence == max(granted, default=0)
        for wait_left in scope.waits:
            assert in_the_way(scope, wait_left, world.now), "nobody waits for nothing"
        _nobody_was_passed(before, scope, world.now)


def _nobody_was_passed(before: Scope | None, after: Scope, now: int) -> None:
    """Whoever still waits conflicts with nobody who came later and has got something."""
    order = [wait.op for wait in (before.waits if before else ())]
    for wait in after.waits:
        place = order.index(wait.op) if wait.op in order else len(order)
        known = {hold.fence for hold in (before.holds if before else ())}
        for hold in after.holds:
            if hold.fence not in known and (hold.op not in order[:place]):
                assert not conflict(hold, wait)
