"""What one node may use of a scope of locks, whatever other nodes use; and that no limit changes what the arbiter has
already put in force.
"""

from typing import Any

import pytest

from hocket.families.locks import rules as lock_limits
from hocket.families.locks.facts import AcquireLocks, BreakLock, RenewLocks
from hocket.families.locks.rules import (
    KEY_CHARS_MAX,
    LOCKS,
    NODE_CHARS_MAX,
    NODE_PATTERNS_MAX,
    PATTERNS_MAX,
    STARS_MAX,
    Hold,
    Scope,
    Wait,
    excess,
)
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op
from tests.families.locks.test_rules import A, B, Context, World, X


def op(node: int, *keys: str, wait: int = 0, cited: tuple[bytes, ...] = ()) -> Op:
    return Op(b"op", Hlc(1_000, 0, node), node, cited, AcquireLocks("", keys, "agent", X, 10, wait))


def scope(node: int, holds: int = 0, waits: int = 0, keys: tuple[str, ...] = ("k",)) -> Scope:
    held = tuple(Hold(keys, X, node, "agent", number, 0, 5_000, b"hold %d" % number) for number in range(holds))
    waiting = tuple(Wait(keys, X, node, "agent", 10, 5_000, b"wait %d" % number) for number in range(waits))
    return Scope(holds, held, waiting, Hlc(1, 0, node))


@pytest.mark.req("LW-49")
@pytest.mark.parametrize(
    "full",
    [
        scope(A, holds=lock_limits.HOLDS_MAX),
        scope(A, waits=lock_limits.WAITS_MAX),
        scope(A, holds=NODE_PATTERNS_MAX // 4, waits=NODE_PATTERNS_MAX // 4, keys=("a*", "b*")),
        scope(A, holds=NODE_CHARS_MAX // 512, keys=("x" * 512,)),
    ],
    ids=["holds", "waits", "patterns", "characters"],
)
def test_a_limit_stops_the_node_that_reached_it_and_no_other(full: Scope) -> None:
    wanted = ("new*",) if "*" in (*full.holds, *full.waits)[0].keys[0] else ("new",)
    assert excess(full, op(A, *wanted, wait=10)) is Reason.TOO_MANY_LOCKS
    assert excess(full, op(B, *wanted, wait=10)) is None
    less = Scope(full.fence, full.holds[1:], full.waits[1:], full.last)
    assert excess(less, op(A, *wanted, wait=10)) is None


def test_a_node_that_asks_again_keeps_its_place_at_the_limit() -> None:
    full = scope(A, waits=lock_limits.WAITS_MAX)
    assert excess(full, op(A, "k", wait=10, cited=(full.waits[7].op,))) is None
    assert excess(full, op(A, "free")) is None, "nor does a request that does not wait need a place"


@pytest.mark.req("LW-49")
def test_a_request_has_few_stars() -> None:
    assert excess(None, op(A, "*/" * STARS_MAX)) is None
    assert excess(None, op(A, "plain", "*/" * (STARS_MAX + 1))) is Reason.BAD_PATTERN
    assert excess(None, op(A, *(f"{number}*" for number in range(PATTERNS_MAX)), "plain")) is None
    assert excess(None, op(A, *(f"{number}*" for number in range(PATTERNS_MAX + 1)))) is Reason.BAD_PATTERN
    for payload, expected in (
        (BreakLock("", "*/" * STARS_MAX, ""), None),
        (BreakLock("", "*/" * (STARS_MAX + 1), ""), Reason.BAD_PATTERN),
        (RenewLocks("", "agent", 1, 10), None),
    ):
        assert excess(None, Op(b"", Hlc(1, 0, A), A, (), payload)) is expected


def test_what_the_arbiter_has_put_in_force_counts_with_any_number_of_stars() -> None:
    """Otherwise a newer program would give the fences of an old log again."""
    request = op(A, "*/" * (STARS_MAX + 1))
    decided = LOCKS.apply_decided(None, request, Context(), A)
    assert isinstance(decided, Scope) and decided.fence == 1
    assert LOCKS.apply(None, request, Context()) is Reason.BAD_PATTERN, "without an arbiter the fold decides"


# Breaking.


class Granted(Context):
    """A log on which node B may break only locks below `mine/`."""

    def refusal(self, op: Op, word: str) -> Reason | None:
        payload: Any = op.payload
        if op.node_id != B or not isinstance(payload, BreakLock) or payload.key.startswith("mine/"):
            return None
        return Reason.UNAUTHORISED


@pytest.mark.req("LW-49")
def test_a_break_ends_nothing_outside_of_its_grant() -> None:
    world = World()
    world.context = Granted()
    for keys, mode in ((("**",), 1), (("mine/a", "other"), 1), (("mine/*",), 1), (("mine/a",), 1)):
        world.acquire(*keys, agent=",".join(keys), mode=type(X)(mode))
    assert isinstance(world.say(BreakLock("", "mine/a", "stuck"), B), Op)
    assert world.scope is not None
    assert [hold.agent for hold in world.scope.holds] == ["**", "mine/a,other"]
    assert world.say(BreakLock("", "mine/a", "stuck"), B) is Reason.OTHERS_LOCK
    assert world.say(BreakLock("", "mine/a/b" + "x" * KEY_CHARS_MAX, "stuck"), B) is Reason.BAD_LOCK
    assert isinstance(world.say(BreakLock("", "mine/a", "stuck"), A), Op)
    assert world.scope.holds == ()
    assert world.say(BreakLock("", "mine/a", "stuck"), B) is Reason.NOT_LOCKED
