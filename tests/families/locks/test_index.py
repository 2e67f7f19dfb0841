"""The index of lock requests finds what a scan of all of them finds, and compares few keys. The queue of locks gives
the same locks, in the same order and under the same fences, as one that compares every request with every other.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hocket.families.locks import rules as locks
from hocket.families.locks.facts import BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.families.locks.index import LockIndex, overlap
from hocket.families.locks.rules import GRANT_MS, Hold, Scope, Wait, conflict, deadlock, in_the_way, live
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op
from tests.families.locks.test_rules import S, World, X, acts

key_parts = st.sampled_from(["a", "b", "/", "*", "**", "dir/"])
key_sets = st.lists(st.lists(key_parts, min_size=1, max_size=4).map("".join), min_size=1, max_size=3, unique=True)
requests = st.builds(
    lambda keys, mode, number: Wait(tuple(keys), mode, 1, f"agent {number}", 10, 10, b""),
    key_sets,
    st.sampled_from((X, S)),
    st.integers(0, 9),
)


@given(st.lists(requests, max_size=12), requests)
def test_the_index_finds_what_a_scan_finds(queue: list[Wait], request: Wait) -> None:
    queue = [replace(wait, op=bytes([number])) for number, wait in enumerate(queue)]
    index: LockIndex[Wait] = LockIndex(queue[:3])
    index.conflicts(request)
    for wait in queue[3:]:
        index.add(wait)
    expected = [wait for wait in queue if conflict(wait, request)]
    assert index.conflicts(request) == expected
    found = index.any_conflict(request)
    assert found in expected if expected else found is None
    assert {each.op for each in index.in_front(request, len(queue))} <= {each.op for each in expected}


# A queue that compares everything with everything.


def naive_served(changed: Any, at: Any, fence: int) -> Any:
    holds, wall = list(changed.holds), at.wall
    waiting: list[Wait] = []
    taken_over: list[Hold] = []
    for wait in changed.waits:
        if wait.until < wall:
            continue
        rivals = [hold for hold in holds if conflict(hold, wait)]
        if any(hold.deadline >= wall for hold in rivals) or any(conflict(earlier, wait) for earlier in waiting):
            waiting.append(wait)
            continue
        taken_over += rivals
        holds = [hold for hold in holds if hold not in rivals]
        fence += 1
        ttl_ms = wait.ttl_ms if wait is changed.asking else min(wait.ttl_ms, GRANT_MS)
        holds.append(Hold(wait.keys, wait.mode, wait.node, wait.agent, fence, wall, wall + ttl_ms, wait.op))
    return locks._Applied(Scope(fence, tuple(holds), tuple(waiting), at), tuple(taken_over))


def naive_deadlock(scope: Scope, request: Wait, now: int, others: tuple[Scope, ...] = ()) -> list[locks.Agent]:
    first = request.node, request.agent
    waits: dict[locks.Agent, list[tuple[Scope, Wait]]] = {first: [(scope, request)]}
    for place in (scope, *others):
        for wait in place.waits:
            if wait.op != request.op and wait.until >= now:
                waits.setdefault((wait.node, wait.agent), []).append((place, wait))
    paths, seen = [[first]], {first}
    while paths:
        path = paths.pop()
        for place, wait in waits.get(path[-1], ()):
            earlier = [each for each in place.waits[: _place(place, wait)] if each.until >= now]
            for each in [each for each in (*live(place, now), *earlier) if conflict(each, wait)]:
                agent = each.node, each.agent
                if agent == first and len(path) > 1:
                    return path
                if agent not in seen:
                    seen.add(agent)
                    paths.append([*path, agent])
    return []


def _place(scope: Scope, request: Wait) -> int:
    return next((place for place, wait in enumerate(scope.waits) if wait.op == request.op), len(scope.waits))


class NaiveWorld(World):
    """A scope whose queue compares everything with everything."""

    def say(self, payload: Any, node: int = 1, cited: tuple[bytes, ...] = ()) -> Op | Reason:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(locks, "_served", naive_served)
            patch.setattr(locks, "deadlock", naive_deadlock)
            return super().say(payload, node, cited)


def played(world: World, act: Any) -> Op | Reason | None:
    if act[0] == "sleep":
        world.now += act[1]
        return None
    node, agent = act[1]
    holds, waits = (world.scope.holds, world.scope.waits) if world.scope else ((), ())
    fence = next((hold.fence for hold in holds if (hold.node, hold.agent) == (node, agent)), 0)
    wait = next((wait for wait in waits if (wait.node, wait.agent) == (node, agent)), None)
    if act[0] == "acquire":
        _, _, keys, mode, ttl, wait_ms = act
        return world.acquire(*keys, agent=agent, node=node, mode=mode, ttl=ttl, wait=wait_ms)
    if act[0] == "break":
        return world.say(BreakLock("", act[2], "why"), node)
    if act[0] == "renew":
        return world.say(RenewLocks("", agent, fence, 20), node)
    if act[0] == "release":
        return world.say(ReleaseLocks("", agent, fence), node)
    if act[0] == "leave":
        return world.say(LeaveQueue("", agent, wait.op if wait else b""), node)
    assert act[0] == "again"
    if wait is None:
        return None
    return world.acquire(*wait.keys, agent=agent, node=node, mode=wait.mode, ttl=20, wait=40, cited=(wait.op,))


@pytest.mark.req("LW-49", "VX-06")
@given(st.lists(acts, max_size=40))
def test_the_queue_gives_what_a_scan_of_everything_gives(history: list[Any]) -> None:
    world, naive = World(), NaiveWorld()
    for act in history:
        assert played(world, act) == played(naive, act)
        if world.scope is not None and naive.scope is not None:
            assert (world.scope.fence, world.scope.holds) == (naive.scope.fence, naive.scope.holds)
            assert [replace(wait, behind=b"") for wait in world.scope.waits] == list(naive.scope.waits)
            for place, wait in enumerate(world.scope.waits):
                asked = replace(wait, agent="x", op=b"asked") if place % 2 else wait
                mine = deadlock(world.scope, asked, world.now)
                assert bool(mine) == bool(naive_deadlock(world.scope, asked, world.now))


# What it costs.


class Comparisons:
    """Counts the keys that are compared with each other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0

        def counted(left: str, right: str) -> bool:
            self.count += 1
            return overlap(left, right)

        for module in {conflict.__module__, locks.__name__}:
            monkeypatch.setattr(f"{module}.overlap", counted)

    def of(self, act: Callable[[], object]) -> int:
        before = self.count
        act()
        return self.count - before


def queue_of(count: int, keys: Callable[[int], tuple[str, ...]]) -> World:
    world = World()
    world.acquire("held", "*", "**", agent="holder", ttl=10_000_000)
    for number in range(count):
        assert isinstance(world.acquire(*keys(number), agent=f"agent {number}", wait=1_000_000), Op)
    return world


KEYS: dict[str, Callable[[int], tuple[str, ...]]] = {
    "one key": lambda number: ("held",),
    "own keys": lambda number: (f"file:{number}", f"file:{number}/x"),
    "a pattern below a folder": lambda number: (f"file:src/{number}/**",),
    "a pattern that begins with a star": lambda number: (f"*/{number}/*", f"**.{number}"),
}


@pytest.mark.req("LW-49")
@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_an_op_compares_in_proportion_to_the_queue(
    monkeypatch: pytest.MonkeyPatch, keys: Callable[[int], tuple[str, ...]]
) -> None:
    comparisons = Comparisons(monkeypatch)
    for count in (20, 80):
        world = queue_of(count, keys)
        late = keys(count)
        again = comparisons.of(lambda world=world, late=late: world.acquire(*late, agent="late", wait=1_000_000))
        other = comparisons.of(lambda world=world: world.acquire("held", agent="hasty"))
        assert again <= 8 * (count + 1) and other <= 8 * (count + 1)
        assert world.scope is not None and len(world.scope.waits) == count + 1


@pytest.mark.req("LW-49")
def test_literal_keys_are_never_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = Comparisons(monkeypatch)
    world = World()
    world.acquire("k", agent="holder")
    for number in range(50):
        world.acquire("k", f"own {number}", agent=f"agent {number}", mode=LockMode(number % 2), wait=1_000_000)
    world.release("holder")
    assert comparisons.count == 0


def test_a_search_for_a_deadlock_gives_up_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = Comparisons(monkeypatch)
    world = World()
    world.acquire("mine", agent="one", ttl=10_000_000)
    world.acquire("held", "**x", agent="holder", ttl=10_000_000)
    for number in range(200):
        world.acquire(f"*{number:03}" + "a" * 400 + "*x", agent=f"agent {number}", wait=1_000_000)
    asked = comparisons.of(lambda: world.acquire("*x", agent="one", wait=1_000_000))
    assert asked < 2_000, "of about 20,000 pairs"
    assert in_the_way(world.scope, world.scope.waits[-1], world.now)  # type: ignore[union-attr, arg-type]
