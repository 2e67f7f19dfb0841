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

from hocket.families.locks.facts import AcquireLocks, BreakLock, LeaveQueue, LockMode, ReleaseLocks, RenewLocks
from hocket.families.locks.index import LockIndex, is_pattern, overlap
from hocket.families.locks.index import conflict as conflict
from hocket.kernel.arbitration import FoldContext, Reason, SubjectRules
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op

KEYS_MAX = 64
KEY_CHARS_MAX = 512
NAME_CHARS_MAX = 255
TTL_MS_MAX = 24 * 3600 * 1000
WAIT_MS_MAX = 24 * 3600 * 1000
# Stars of one key.
STARS_MAX = 8
# Keys with stars of one request.
PATTERNS_MAX = 16
# Of one node in one scope: its holds, its waits, their keys with stars, and the characters of all their keys.
HOLDS_MAX = 4096
WAITS_MAX = 1024
NODE_PATTERNS_MAX = 64
NODE_CHARS_MAX = 256 * 1024
# How long a grant from the queue lasts at most until its holder renews it.
GRANT_MS = 5_000
# An overdue hold that nobody takes over is forgotten after this long: every clock has passed its deadline by then.
OVERDUE_MS = 24 * 3600 * 1000
# A coordinator that was designated without knowing its predecessor's last grants begins above them.
TENURE_BITS = 32
# More coordinators than this one after the other do not raise the fences of locks any further: they stay below
# EXACT_MAX, with room for as many grants again.
TENURES_MAX = 1 << 20
# A search for a deadlock gives up after it has compared this many characters of keys with stars. A deadlock that it
# has not found ends with the first wait whose time is over.
COMPARED_CHARS_MAX = 65_536


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
    """`until` is when its author no longer waits. `behind` is the op of a hold or of an earlier wait that conflicts
    with it: while that one is there, nothing else need be compared.
    """

    keys: tuple[str, ...]
    mode: LockMode
    node: int
    agent: str
    ttl_ms: int
    until: int
    op: bytes
    behind: bytes = b""


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


class LockScopes(SubjectRules[Scope]):
    """The family of locks."""

    decided: frozenset[type] = frozenset((AcquireLocks, RenewLocks, ReleaseLocks, LeaveQueue, BreakLock))

    def apply(self, state: Scope | None, op: Op, context: LockContext) -> Verdict:
        fault = excess(state, op) or _overdue_renewal(state or _EMPTY, op, op.timestamp.wall)
        return fault or self.apply_decided(state, op, context, op.node_id)

    def apply_decided(self, state: Scope | None, op: Op, context: LockContext, author: int) -> Verdict:
        made = _applied(state or _EMPTY, op, context)
        return made if isinstance(made, Reason) else made.scope


LOCKS = LockScopes(Scope)


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


def excess(scope: Scope | None, op: Op) -> Reason | None:
    """Why the arbiter does not put this op in force: it asks for more than one request, or one node, may have. The
    arbiter asks this before it writes or accepts an op, and the fold does not: an op that the arbiter has put in force
    stays in force when a newer program, which may know other limits, folds the log again. So no fence is given twice.
    """
    payload = op.payload
    if isinstance(payload, BreakLock):
        return Reason.BAD_PATTERN if payload.key.count("*") > STARS_MAX else None
    if not isinstance(payload, AcquireLocks):
        return None
    wanted = payload.keys
    patterns = sum(map(is_pattern, wanted))
    if patterns > PATTERNS_MAX or (patterns and any(key.count("*") > STARS_MAX for key in wanted)):
        return Reason.BAD_PATTERN
    if scope is None:
        return None
    holds = [hold for hold in scope.holds if hold.node == op.node_id]
    waits = [wait for wait in scope.waits if wait.node == op.node_id and wait.op not in op.cited]
    requests: list[Hold | Wait] = [*holds, *waits]
    keys = [key for each in requests for key in each.keys]
    is_too_much = (
        len(holds) >= HOLDS_MAX
        or (len(waits) >= WAITS_MAX and payload.wait_ms > 0)
        or (patterns and sum(map(is_pattern, keys)) + patterns > NODE_PATTERNS_MAX)
        or sum(map(len, keys)) + sum(map(len, wanted)) > NODE_CHARS_MAX
    )
    return Reason.TOO_MANY_LOCKS if is_too_much else None


def is_deadlock(state: Scope | None, op: Op, context: LockContext, others: Callable[[], Sequence[Scope]]) -> bool:
    """Whether this op would wait for an agent that waits, in these other scopes, for its author. The fold of a scope
    sees only that scope, so the arbiter asks this before it writes or accepts the op. The other scopes are read only if
    the op would wait.
    """
    if state is None or type(op.payload) is not AcquireLocks or not op.payload.wait_ms:
        return False
    made = _applied(state, op, context)
    waits = () if isinstance(made, Reason) else made.scope.waits
    asking = next((wait for wait in waits if wait.op == op.id or wait.op in op.cited), None)
    return asking is not None and bool(deadlock(made.scope, asking, op.timestamp.wall, others()))  # type: ignore[union-attr]


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
    if isinstance(op.payload, BreakLock):
        changed = _break(holds, state.waits, op, op.payload, context)
    else:
        changed = _RULES[type(op.payload)](holds, state.waits, op, op.payload)
    if isinstance(changed, Reason):
        return changed
    floor = max(state.fence, min(context.designations(op.timestamp), TENURES_MAX) << TENURE_BITS)
    made = _served(changed, op.timestamp, floor)
    asking = changed.asking
    if asking is not None and any(wait.op == asking.op for wait in made.scope.waits):
        if asking.until == wall:
            return Reason.LOCK_HELD
        if deadlock(made.scope, asking, wall):
            return Reason.DEADLOCK
    return made


def _served(changed: _Changed, at: Hlc, fence: int) -> _Applied:
    """Grants what can be granted, in the order of the queue. A wait is compared with the others only if the one that it
    was behind is gone.
    """
    if not changed.waits:
        return _Applied(Scope(fence, changed.holds, (), at))
    wall = at.wall
    held = LockIndex([hold for hold in changed.holds if hold.deadline >= wall])
    is_overdue = len(held.requests) < len(changed.holds)
    overdue = LockIndex([hold for hold in changed.holds if hold.deadline < wall]) if is_overdue else None
    waiting: LockIndex[Wait] = LockIndex()
    in_the_way = {hold.op for hold in held.requests}
    granted: list[Hold] = []
    taken_over: list[Hold] = []
    for wait in changed.waits:
        if wait.until < wall:
            continue
        if wait.behind not in in_the_way:
            rival = waiting.any_conflict(wait) or held.any_conflict(wait)
            if rival is None:
                if overdue is not None:
                    taken_over += (hold for hold in overdue.conflicts(wait) if hold not in taken_over)
                fence += 1
                is_asking = changed.asking is not None and wait.op == changed.asking.op
                ttl_ms = wait.ttl_ms if is_asking else min(wait.ttl_ms, GRANT_MS)
                hold = Hold(wait.keys, wait.mode, wait.node, wait.agent, fence, wall, wall + ttl_ms, wait.op)
                granted.append(hold)
                held.add(hold)
                in_the_way.add(hold.op)
                continue
            wait = replace(wait, behind=rival.op)
        waiting.add(wait)
        in_the_way.add(wait.op)
    kept = changed.holds
    if taken_over:
        gone = {hold.op for hold in taken_over}
        kept = tuple(hold for hold in kept if hold.op not in gone)
    return _Applied(Scope(fence, (*kept, *granted), tuple(waiting.requests), at), tuple(taken_over))


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
                asking = replace(asking, op=wait.op, behind=wait.behind)
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


def _break(
    holds: tuple[Hold, ...], waits: tuple[Wait, ...], op: Op, payload: BreakLock, context: FoldContext
) -> _Changed | Reason:
    """A hold ends only if the author may break every key of it: who may break `mine/` does not end a hold on `**`."""
    if len(payload.key) > KEY_CHARS_MAX:
        return Reason.BAD_LOCK

    def may_break(key: str) -> bool:
        # An accepted op stays in force when its author has lost its delegation.
        return context.refusal(replace(op, payload=replace(payload, key=key)), "") in (None, Reason.REVOKED)

    overlapping = [hold for hold in holds if any(overlap(key, payload.key) for key in hold.keys)]
    ended = {hold.fence for hold in overlapping if all(map(may_break, hold.keys))}
    if not ended:
        return Reason.OTHERS_LOCK if overlapping else Reason.NOT_LOCKED
    return _Changed(tuple(hold for hold in holds if hold.fence not in ended), waits)


_RULES: dict[type, Rule] = {
    AcquireLocks: _acquire,
    RenewLocks: _renew,
    ReleaseLocks: _release,
    LeaveQueue: _leave,
}


# What a scope shows.


def live(scope: Scope, now: int) -> list[Hold]:
    """The holds that have not passed their deadline."""
    return [hold for hold in scope.holds if hold.deadline >= now]


def in_the_way(scope: Scope, request: Wait, now: int) -> list[Hold | Wait]:
    """The holds and the earlier waits for which a request waits. A request that is not in the queue comes last."""
    candidates: list[Hold | Wait] = [*live(scope, now)]
    for wait in scope.waits:
        if wait.op == request.op:
            break
        if wait.until >= now:
            candidates.append(wait)
    return LockIndex(candidates).conflicts(request)


def deadlock(scope: Scope, request: Wait, now: int, others: Sequence[Scope] = ()) -> list[Agent]:
    """The agents that wait for each other if this request waits, each for the next and the last for the first; none if
    they do not. Agents may also wait in other scopes. Two requests of one agent do not count as a deadlock: several
    processes may use its name.
    """
    first = request.node, request.agent
    queues = [_Queue(scope, now, request), *(_Queue(other, now) for other in others if other.waits)]
    if not any(queue.is_before_others(first) for queue in queues):
        return []
    waits: dict[Agent, list[tuple[_Queue, Wait, int]]] = {}
    for queue in queues:
        for number, wait in queue.waits:
            waits.setdefault((wait.node, wait.agent), []).append((queue, wait, number))
    # Of each agent, the one that waits for it.
    came_from: dict[Agent, Agent] = {}
    reached, compared_chars = [first], 0
    while reached:
        waiting = reached.pop()
        for queue, wait, number in waits.get(waiting, ()):
            if compared_chars > COMPARED_CHARS_MAX:
                return []
            compared_chars -= queue.index.compared_chars
            for each in queue.index.in_front(wait, number):
                agent = each.node, each.agent
                if agent == first and waiting != first:
                    return _path(came_from, waiting)
                if agent != first and agent not in came_from:
                    came_from[agent] = waiting
                    reached.append(agent)
            compared_chars += queue.index.compared_chars
    return []


def _path(came_from: dict[Agent, Agent], last: Agent) -> list[Agent]:
    path = [last]
    while path[-1] in came_from:
        path.append(came_from[path[-1]])
    return path[::-1]


class _Queue:
    """The holds in force and the waits of one scope, and who is in front of whom. A request that is not in the queue
    comes last.
    """

    def __init__(self, scope: Scope, now: int, request: Wait | None = None) -> None:
        holds = live(scope, now)
        waiting = [wait for wait in scope.waits if wait.until >= now or (request and wait.op == request.op)]
        if request is not None and all(wait.op != request.op for wait in waiting):
            waiting.append(request)
        self.waits = list(enumerate(waiting, len(holds)))
        self.index: LockIndex[Hold | Wait] = LockIndex([*holds, *waiting])

    def is_before_others(self, agent: Agent) -> bool:
        """Whether others may wait for this agent here: it holds something, or waits in front of another request."""
        return any((each.node, each.agent) == agent for each in self.index.requests[:-1])
