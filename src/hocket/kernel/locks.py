"""Locks with fences. One scope, such as a repository, is one subject: its state has the counter of fences, the holds
and the queue of waiting agents. The rules of this family decide who gets which keys and when. The scope has one counter
of fences, and every grant takes the next, so fences neither repeat nor fall, and nothing is kept of a released lock.

A hold ends when it is released, broken, or taken over after its deadline. Time is that of the op. An overdue hold stays
in the state until another agent gets its keys: so the arbiter, whose log may run ahead of its own clock, can refuse to
end a hold too early (`ends_early`), and its holder can still renew.

The queue is fair: a later request passes an earlier one only if the two do not conflict, so writers do not starve.
A lock from the queue is held for a few seconds, until its holder renews: an agent that died waiting costs little.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from hocket.kernel.arbitration import Citing, FoldContext
from hocket.kernel.clock import Hlc
from hocket.kernel.coordination_payloads import (
    AcquireLocks,
    BreakLock,
    LeaveQueue,
    LockMode,
    ReleaseLocks,
    RenewLocks,
)
from hocket.kernel.decoding import msgpack_decoder
from hocket.kernel.key_patterns import overlap
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason

KEYS_MAX = 64
KEY_CHARS_MAX = 512
NAME_CHARS_MAX = 255
TTL_MS_MAX = 24 * 3600 * 1000
WAIT_MS_MAX = 24 * 3600 * 1000
HOLDS_MAX = 4096
WAITS_MAX = 1024
# How long a grant from the queue lasts at most until its holder renews it.
GRANT_MS = 5_000
# An overdue hold that nobody takes over is forgotten after this long: every clock has passed its deadline by then.
OVERDUE_MS = 24 * 3600 * 1000
# A coordinator that was designated without knowing its predecessor's last grants begins above them.
TENURE_BITS = 32


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """`op` is the AcquireLocks op, or the arbiter's acceptance of it."""

    keys: tuple[str, ...]
    mode: LockMode
    node: int
    agent: str
    fence: int
    since: int
    deadline: int
    op: bytes


class Wait(msgspec.Struct, frozen=True, array_like=True):
    """`until` is when its author no longer waits."""

    keys: tuple[str, ...]
    mode: LockMode
    node: int
    agent: str
    ttl_ms: int
    until: int
    op: bytes


class Scope(msgspec.Struct, frozen=True, array_like=True):
    """`fence` is the last one that was given; `last` is the time of the latest op about the scope."""

    fence: int
    holds: tuple[Hold, ...]
    waits: tuple[Wait, ...]
    last: Hlc


class LockContext(FoldContext, Protocol):
    def designations(self, at: Hlc) -> int:
        """How many coordinators were designated after the first one, up to that time."""


Verdict = Scope | Reason
Agent = tuple[int, str]
_EMPTY = Scope(0, (), (), Hlc(0, 0, 0))


class LockRequest(Protocol):
    """What conflicts with other requests: a hold, a wait or an AcquireLocks."""

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def mode(self) -> LockMode: ...


def conflict(left: LockRequest, right: LockRequest) -> bool:
    if left.mode == right.mode == LockMode.SHARED:
        return False
    return any(overlap(one, other) for one in left.keys for other in right.keys)


class LockScopes:
    """The family of locks."""

    decided: frozenset[type] = frozenset((AcquireLocks, RenewLocks, ReleaseLocks, LeaveQueue, BreakLock))

    def refusal(self, state: Scope | None, op: Op, context: FoldContext, citing: Citing) -> Reason | None:
        return context.refusal(op, "") or citing()

    def word(self, state: Scope | None) -> str:
        return ""

    def is_certain(self, state: Scope | None, op: Op) -> bool:
        return True

    def is_open(self, state: Scope | None) -> bool:
        return False

    def apply(self, state: Scope | None, op: Op, context: LockContext) -> Verdict:
        fault = _overdue_renewal(state or _EMPTY, op, op.timestamp.wall)
        return fault or self.apply_decided(state, op, context, op.node_id)

    def apply_decided(self, state: Scope | None, op: Op, context: LockContext, author: int) -> Verdict:
        made = _applied(state or _EMPTY, op, context)
        return made if isinstance(made, Reason) else made.scope

    def accept_open(self, state: Scope, op: Op, offered: Op) -> Verdict:
        return Reason.NOT_ARBITER

    def seen(self, state: Scope, op: Op) -> Scope:
        return replace(state, last=op.timestamp)

    def last(self, state: Scope) -> Hlc:
        return state.last

    def encode(self, state: Scope) -> bytes:
        return _encode(state)

    def decode(self, data: bytes) -> Scope:
        return _decode(data)


LOCKS = LockScopes()
_encode = msgspec.msgpack.Encoder().encode
_decode = msgpack_decoder(Scope).decode


def ends_early(state: Scope | None, op: Op, context: LockContext, physical: int) -> Reason | None:
    """Why the arbiter does not write or accept this op, although the fold would let it count: its machine's own clock
    has not passed the deadline of a hold that the op would end, or has passed that of one that the op would renew.
    """
    if state is None:
        return None
    if fault := _overdue_renewal(state, op, physical):
        return fault
    if all(hold.deadline >= op.timestamp.wall or hold.deadline < physical for hold in state.holds):
        return None
    made = _applied(state, op, context)
    early = not isinstance(made, Reason) and any(hold.deadline >= physical for hold in made.taken_over)
    return Reason.LEASE_RUNNING if early else None


def is_deadlock(state: Scope | None, op: Op, context: LockContext, others: Sequence[Scope]) -> bool:
    """Whether this op would wait for an agent that waits, in these other scopes, for its author. The fold of a scope
    sees only that scope, so the arbiter asks this before it writes or accepts the op.
    """
    if type(op.payload) is not AcquireLocks or not op.payload.wait_ms or not any(scope.waits for scope in others):
        return False
    made = _applied(state or _EMPTY, op, context)
    waits = () if isinstance(made, Reason) else made.scope.waits
    asking = next((wait for wait in waits if wait.op == op.id or wait.op in op.cited), None)
    return asking is not None and bool(deadlock(made.scope, asking, op.timestamp.wall, others))  # type: ignore[union-attr]


def _overdue_renewal(state: Scope, op: Op, now: int) -> Reason | None:
    if type(op.payload) is not RenewLocks:
        return None
    hold = _held_by(state.holds, op.node_id, op.payload)
    return Reason.LEASE_PASSED if hold is not None and now > hold.deadline else None


class _Applied(NamedTuple):
    """`taken_over` are the overdue holds whose keys other agents got."""

    scope: Scope
    taken_over: tuple[Hold, ...] = ()


class _Changed(NamedTuple):
    """A scope before its queue is served. `asking` waits in this very op, so it is alive and gets its whole time."""

    holds: tuple[Hold, ...]
    waits: tuple[Wait, ...]
    asking: Wait | None = None


def _applied(state: Scope, op: Op, context: LockContext) -> _Applied | Reason:
    wall = op.timestamp.wall
    holds = tuple(hold for hold in state.holds if hold.deadline + OVERDUE_MS >= wall)
    changed = _RULES[type(op.payload)](holds, state.waits, op, op.payload)
    if isinstance(changed, Reason):
        return changed
    floor = max(state.fence, context.designations(op.timestamp) << TENURE_BITS)
    made = _served(changed, op.timestamp, floor)
    asking = changed.asking
    if asking is not None and asking in made.scope.waits:
        if asking.until == wall:
            return Reason.LOCK_HELD
        if len(made.scope.waits) > WAITS_MAX:
            return Reason.TOO_MANY_LOCKS
        if deadlock(made.scope, asking, wall):
            return Reason.DEADLOCK
    return made


def _served(changed: _Changed, at: Hlc, fence: int) -> _Applied:
    """Grants what can be granted, in the order of the queue."""
    holds, wall = list(changed.holds), at.wall
    waiting: list[Wait] = []
    taken_over: list[Hold] = []
    for wait in changed.waits:
        if wait.until < wall:
            continue
        rivals = [hold for hold in holds if conflict(hold, wait)]
        is_held = any(hold.deadline >= wall for hold in rivals)
        if is_held or len(holds) >= HOLDS_MAX or any(conflict(earlier, wait) for earlier in waiting):
            waiting.append(wait)
            continue
        if rivals:
            taken_over += rivals
            holds = [hold for hold in holds if hold not in rivals]
        fence += 1
        ttl_ms = wait.ttl_ms if wait is changed.asking else min(wait.ttl_ms, GRANT_MS)
        holds.append(Hold(wait.keys, wait.mode, wait.node, wait.agent, fence, wall, wall + ttl_ms, wait.op))
    return _Applied(Scope(fence, tuple(holds), tuple(waiting), at), tuple(taken_over))


# One rule for each payload.

Rule = Callable[[tuple[Hold, ...], tuple[Wait, ...], Op, Any], _Changed | Reason]


def _acquire(holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: AcquireLocks) -> _Changed | Reason:
    """An op that cites an earlier one, by which its author waits, keeps the place in the queue."""
    if not is_legal(payload):
        return Reason.BAD_LOCK
    asking = Wait(
        payload.keys,
        payload.mode,
        op.node_id,
        payload.agent,
        payload.ttl_ms,
        op.timestamp.wall + payload.wait_ms,
        op.id,
    )
    cited = op.cited
    if cited:
        if any(hold.op in cited for hold in holds):
            return Reason.STALE_CLAIM
        for place, wait in enumerate(waits):
            if wait.op in cited and _asks_the_same(wait, asking):
                asking = replace(asking, op=wait.op)
                return _Changed(holds, (*waits[:place], asking, *waits[place + 1 :]), asking)
    return _Changed(holds, (*waits, asking), asking)


def _asks_the_same(wait: Wait, other: Wait) -> bool:
    return (wait.keys, wait.mode, wait.node, wait.agent) == (other.keys, other.mode, other.node, other.agent)


def is_legal(payload: AcquireLocks) -> bool:
    keys = payload.keys
    return (
        0 < len(keys) <= KEYS_MAX
        and all(0 < len(key) <= KEY_CHARS_MAX and _is_plain(key) for key in keys)
        and 0 < len(payload.agent) <= NAME_CHARS_MAX
        and _is_plain(payload.agent)
        and len(payload.scope) <= NAME_CHARS_MAX
        and _is_plain(payload.scope)
        and 0 < payload.ttl_ms <= TTL_MS_MAX
        and payload.wait_ms <= WAIT_MS_MAX
    )


def _is_plain(text: str) -> bool:
    """Whether it has no control characters. Others could look different to programs of other ages."""
    return text.isprintable() or all(char >= " " and char != "\x7f" for char in text)


def _held_by(holds: Iterable[Hold], node: int, payload: RenewLocks | ReleaseLocks) -> Hold | None:
    holder = node, payload.agent, payload.fence
    return next((hold for hold in holds if (hold.node, hold.agent, hold.fence) == holder), None)


def _renew(holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: RenewLocks) -> _Changed | Reason:
    held = _held_by(holds, op.node_id, payload)
    if held is None:
        return Reason.STALE_FENCE
    if not 0 < payload.ttl_ms <= TTL_MS_MAX:
        return Reason.BAD_LOCK
    renewed = replace(held, deadline=op.timestamp.wall + payload.ttl_ms)
    return _Changed(tuple(renewed if hold is held else hold for hold in holds), waits)


def _release(holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: ReleaseLocks) -> _Changed | Reason:
    held = _held_by(holds, op.node_id, payload)
    return Reason.STALE_FENCE if held is None else _Changed(tuple(hold for hold in holds if hold is not held), waits)


def _leave(holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: LeaveQueue) -> _Changed | Reason:
    """If it has just got the lock, it gives the lock back."""
    leaver = op.node_id, payload.agent, payload.waiting
    staying = tuple(wait for wait in waits if (wait.node, wait.agent, wait.op) != leaver)
    kept = tuple(hold for hold in holds if (hold.node, hold.agent, hold.op) != leaver)
    return Reason.NOT_WAITING if (kept, staying) == (holds, waits) else _Changed(kept, staying)


def _break(holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: BreakLock) -> _Changed | Reason:
    kept = tuple(hold for hold in holds if not any(overlap(key, payload.key) for key in hold.keys))
    return Reason.NOT_LOCKED if len(kept) == len(holds) else _Changed(kept, waits)


_RULES: dict[type, Rule] = {
    AcquireLocks: _acquire,
    RenewLocks: _renew,
    ReleaseLocks: _release,
    LeaveQueue: _leave,
    BreakLock: _break,
}


# What a scope shows.


def live(scope: Scope, now: int) -> list[Hold]:
    """The holds that have not passed their deadline."""
    return [hold for hold in scope.holds if hold.deadline >= now]


def in_the_way(scope: Scope, request: Wait, now: int) -> list[Hold | Wait]:
    """The holds and the earlier waits for which a request waits. A request that is not in the queue comes last."""
    earlier: list[Wait] = []
    for wait in scope.waits:
        if wait.op == request.op:
            break
        if wait.until >= now:
            earlier.append(wait)
    candidates: list[Hold | Wait] = [*live(scope, now), *earlier]
    return [each for each in candidates if conflict(each, request)]


def deadlock(scope: Scope, request: Wait, now: int, others: Sequence[Scope] = ()) -> list[Agent]:
    """The agents that wait for each other if this request waits, each for the next and the last for the first; none if
    they do not. Agents may also wait in other scopes. Two requests of one agent do not count as a deadlock: several
    processes may use its name.
    """
    first = request.node, request.agent
    waits: dict[Agent, list[tuple[Scope, Wait]]] = {first: [(scope, request)]}
    for place in (scope, *others):
        for wait in place.waits:
            if wait.op != request.op and wait.until >= now:
                waits.setdefault((wait.node, wait.agent), []).append((place, wait))
    paths: list[list[Agent]] = [[first]]
    seen = {first}
    while paths:
        path = paths.pop()
        for place, wait in waits.get(path[-1], ()):
            for each in in_the_way(place, wait, now):
                agent = each.node, each.agent
                if agent == first and len(path) > 1:
                    return path
                if agent not in seen:
                    seen.add(agent)
                    paths.append([*path, agent])
    return []
