"""Locks as requests: acquire, wait, renew, release and break. The kernel has the rules. Here an agent's request becomes
an op, is decided by the arbiter, and waits for its turn. A waiting agent is woken by a change of the scope; it also
looks whether the holder's process is dead, and whether a hold is past its deadline: then it asks again, which serves
the queue.
"""

import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from hocket.bus.hints import about
from hocket.errors import Conflict, HocketError, NotAuthorised, StoreError, Unreachable, Usage
from hocket.families.access import NodeAccess
from hocket.families.locks import rules as locks
from hocket.families.locks.decisions import (
    ASK_AGAIN_S,
    ASK_AGAIN_S_MAX,
    LockDecision,
    LockRefusals,
    NameOf,
    RefusedForNow,
    SuspectedDeadlock,
    UndecidedRequest,
    decided,
    holding,
    read_scope,
    scope_in,
    settled,
    text,
)
from hocket.families.locks.decisions import LockHeld as LockHeld
from hocket.families.locks.decisions import LockLost as LockLost
from hocket.families.locks.decisions import moment as moment
from hocket.families.locks.facts import (
    LOCK,
    LOCK_WAIT,
    AcquireLocks,
    BreakLock,
    LeaveQueue,
    LockMode,
    ReleaseLocks,
    RenewLocks,
)
from hocket.families.locks.index import LockIndex, is_pattern
from hocket.families.locks.processes import DeadlockWatch, LockProcesses, Suspicion
from hocket.families.locks.projector import waited_in
from hocket.families.locks.rules import Hold, Scope, Wait
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op
from hocket.kernel.texts import span
from hocket.log import Transaction
from hocket.store import Session

# How long a lock is held unless its agent says otherwise: keys that name files, and all others.
FILE_TTL_MS = 30_000
TTL_MS = 300_000
FILE = "file:"
# How often a waiting agent looks whether a holder's process is dead.
LOOK_S = 0.5
LOOK_S_MIN = 0.02
# A waiting agent says for how long it surely waits, and says so again when a third of that is left. If it dies, its
# request ends by then. The longer it has waited, the longer is the step.
WAIT_STEP_MS = 10_000
WAIT_STEP_MS_MAX = 60_000
REASON_CHARS_MAX = 500

Request = Callable[[Transaction], Op | Reason]


Length = int | Callable[[int], int]
"""How long a hold lasts, in milliseconds. The length of one that ends at a beat depends on when it is taken."""


class Wanted(NamedTuple):
    scope: str
    keys: tuple[str, ...]
    agent: str
    mode: LockMode
    lasts: Length
    wait_ms: int

    def payload(self, wait_ms: int, now_ms: int) -> AcquireLocks:
        return AcquireLocks(self.scope, self.keys, self.agent, self.mode, length_at(self.lasts, now_ms), wait_ms)


def length_at(lasts: Length, now_ms: int) -> int:
    return lasts if isinstance(lasts, int) else checked_ttl(lasts(now_ms))


def wanted(
    keys: Sequence[str],
    agent: str,
    lasts: Length | None = None,
    *,
    shared: bool = False,
    wait_ms: int = 0,
    scope: str = "",
) -> Wanted:
    """A request, checked. All keys are taken at once, so their order does not matter. Raises Usage."""
    named = tuple(sorted(set(map(checked_key, keys))))
    if not 0 < len(named) <= locks.KEYS_MAX:
        raise Usage(f"a lock has 1 to {locks.KEYS_MAX} keys, not {len(named)}")
    if (patterns := sum(map(is_pattern, named))) > locks.PATTERNS_MAX:
        raise Usage(f"{patterns} keys have stars; a lock has at most {locks.PATTERNS_MAX} such keys")
    if lasts is None:
        lasts = default_ttl_ms(named)
    if isinstance(lasts, int):
        checked_ttl(lasts)
    if not 0 <= wait_ms <= locks.WAIT_MS_MAX:
        raise Usage(f"bad wait: {wait_ms} ms; wait at most {span(locks.WAIT_MS_MAX)}")
    mode = LockMode.SHARED if shared else LockMode.EXCLUSIVE
    return Wanted(checked_scope(scope), named, checked_agent(agent), mode, lasts, wait_ms)


def default_ttl_ms(keys: Sequence[str]) -> int:
    return FILE_TTL_MS if all(key.startswith(FILE) for key in keys) else TTL_MS


def checked_ttl(ttl_ms: int) -> int:
    if not 0 < ttl_ms <= locks.TTL_MS_MAX:
        raise Usage(f"bad lease: {ttl_ms} ms; a lock lasts from 1ms to {span(locks.TTL_MS_MAX)}, and can be renewed")
    return ttl_ms


def checked(text: str, what: str, length: int) -> str:
    """One form for names that look the same. Raises Usage for one that cannot be shown."""
    named = unicodedata.normalize("NFC", text)
    if not 0 < len(named) <= length:
        raise Usage(f"bad {what}: it has {len(named)} characters; use 1 to {length}")
    if not named.isprintable() or not named.strip():
        raise Usage(f"bad {what} {named!a}: it has characters that cannot be printed, or nothing but spaces")
    return named


def checked_key(key: str) -> str:
    named = checked(key, "key", locks.KEY_CHARS_MAX)
    if (stars := named.count("*")) > locks.STARS_MAX:
        raise Usage(f"bad key {named!r}: it has {stars} stars; use at most {locks.STARS_MAX}")
    return named


def checked_agent(agent: str) -> str:
    return checked(agent, "agent", locks.NAME_CHARS_MAX)


def checked_scope(scope: str) -> str:
    return checked(scope, "scope", locks.NAME_CHARS_MAX) if scope else ""


def checked_fence(fence: int) -> int:
    if not 0 < fence < 2**63:
        raise Usage(f"bad fence: {fence}; a fence is a positive number, as `lock acquire` gave it")
    return fence


def hold_of(scope: Scope | None, op_id: bytes) -> Hold | None:
    return None if scope is None else next((hold for hold in scope.holds if hold.op == op_id), None)


def wait_of(scope: Scope | None, op_id: bytes) -> Wait | None:
    return None if scope is None else next((wait for wait in scope.waits if wait.op == op_id), None)


class Granted(NamedTuple):
    """`request` is this node's own op. `is_queued`: the lock was granted at some time since the request, for a few
    seconds until it is renewed. `is_elsewhere`: by another node, with another clock.
    """

    hold: Hold
    request: bytes
    is_queued: bool
    is_elsewhere: bool


class _Queued(msgspec.Struct):
    """A request that waits: the op under which it is in the queue, and the op of this node that put it there."""

    waiting: bytes
    written: Op


class LockClient:
    """The lock requests of one process. `name_of` gives the name of a node, for people."""

    def __init__(self, access: NodeAccess, processes: LockProcesses, name_of: NameOf = node_text) -> None:
        self._access, self._processes = access, processes
        self._refusals = LockRefusals(access, name_of)

    async def acquire(self, wanted: Wanted, *, is_bound: bool) -> Granted:
        """Waits until the lock is held, for as long as the request says. A hold that `is_bound` ends with this process.
        Raises LockHeld; and Unreachable if the arbiter cannot be asked: then no lock was taken, and none will be after
        the step for which the request waits.
        """
        import asyncio

        ends_at, rest_s = _now() + wanted.wait_ms / 1000, ASK_AGAIN_S
        watch = DeadlockWatch(self._processes)
        await self._processes.sweep_once(self._access)
        while True:
            try:
                return await self._acquire(wanted, is_bound, ends_at)
            except (_LostPlace, LockLost):
                # The agent was away for so long that its wait, or its grant from the queue, has ended.
                if ends_at <= _now():
                    raise
            except SuspectedDeadlock:
                await self._outlast(wanted, watch, ends_at)
            except RefusedForNow:
                if rest_s > ASK_AGAIN_S_MAX / 2:
                    raise
                await self._processes.sweep_dead(self._access)
                await asyncio.sleep(rest_s)
                rest_s *= 2
            except LockHeld:
                # The agents in the way may be processes of this node that are dead.
                if not await self._processes.sweep_dead(self._access):
                    raise

    async def _acquire(self, wanted: Wanted, is_bound: bool, ends_at: float) -> Granted:
        """Asks once. Raises _LostPlace if the request has left the queue without a grant."""
        import asyncio

        left_ms = max(0, round((ends_at - _now()) * 1000))
        asked: list[bytes] = []
        if any(map(is_pattern, wanted.keys)):
            await self._access.peek(lambda session: _compare_ahead(session, wanted))

        def ask(tx: Transaction) -> Op | Reason:
            op = tx.author(wanted.payload(min(left_ms, WAIT_STEP_MS), tx.now), is_awaited=True)
            if isinstance(op, Op):
                asked.append(op.id)
                if is_bound or tx.is_offer(op) or wait_of(scope_in(tx, wanted.scope), op.id):
                    self._processes.bind(tx, op.id, wanted.scope, left_ms + length_at(wanted.lasts, tx.now))
            return op

        try:
            decision = await self._decided(wanted.scope, ask, is_awaited=True)
        except asyncio.CancelledError:
            # The op may be written all the same.
            await asyncio.shield(self._access.run(lambda tx: self._withdraw(tx, wanted, asked)))
            raise
        except StoreError:
            raise
        except Unreachable as error:
            if isinstance(error, UndecidedRequest):
                await self.give_up(error.written.id)
            raise Unreachable(f"{error}; no lock was taken") from None
        if isinstance(decision.outcome, Reason):
            await self._free(decision.written)
            others = await self._access.peek(lambda session: waited_in(session, wanted.scope.encode()))
            raise self._refusals.refused(self._as_wait(wanted), decision, others, would_wait=left_ms > 0)
        assert decision.written is not None
        request, is_elsewhere = decision.written.id, decision.outcome != decision.written.id
        if (at_once := hold_of(decision.scope, decision.outcome)) is not None:
            if is_elsewhere and not is_bound:
                await self._free(decision.written)
            return Granted(at_once, request, False, is_elsewhere)
        queued = _Queued(decision.outcome, decision.written)
        try:
            hold = await self._turn(wanted, queued, ends_at)
        except BaseException:
            await asyncio.shield(self._leave(wanted, queued))
            raise
        if not is_bound:
            await self._free(queued.written)
            hold = await self.renew(wanted.scope, None, wanted.agent, hold.fence, wanted.lasts)
        return Granted(hold, queued.written.id, True, is_elsewhere)

    async def renew(self, scope: str, key: str | None, agent: str, fence: int, lasts: Length) -> Hold:
        """Raises LockLost."""

        def ask(tx: Transaction) -> Op | Reason:
            self._refusals.check_key(scope_in(tx, scope), key, agent, fence)
            return tx.author(RenewLocks(scope, agent, fence, length_at(lasts, tx.now)), is_awaited=True)

        try:
            decision = await settled(
                lambda: self._decided(scope, ask, is_awaited=True),
                lambda state: self._refusals.stands(state, agent, fence),
            )
        except StoreError:
            raise
        except Unreachable as error:
            raise Unreachable(f"{error}; the lock was not renewed") from None
        hold = self._refusals.hold(decision.scope, agent, fence)
        if isinstance(decision.outcome, Reason) or hold is None:
            raise self._refusals.lost(decision, key, agent, fence)
        return hold

    async def release(self, scope: str, key: str | None, agent: str, fence: int, bound: bytes | None = None) -> None:
        """Raises LockLost. `bound` is the request that ends with it."""

        def ask(tx: Transaction) -> Op | Reason:
            self._refusals.check_key(scope_in(tx, scope), key, agent, fence)
            if bound is not None:
                self._processes.free(tx, bound)
            return tx.author(ReleaseLocks(scope, agent, fence))

        try:
            decision = await settled(
                lambda: self._decided(scope, ask), lambda state: self._refusals.stands(state, agent, fence)
            )
        except UndecidedRequest as error:
            raise Unreachable(f"{error}; the release waits here, and is sent when the coordinator answers") from None
        if isinstance(decision.outcome, Reason):
            raise self._refusals.lost(decision, key, agent, fence)

    async def give_up(self, request: bytes) -> None:
        """Withdraws the request. The node releases what it has got, or may still get."""
        await self._access.run(lambda tx: self._processes.give_up(tx, request))

    async def break_(
        self, scope: str, key: str, reason: str, may_break: Callable[[str], bool] | None = None
    ) -> list[Hold]:
        """The holds that were ended. If `may_break` is false for a key of one of them, none is ended."""
        # Another node may have acquired it a moment ago.
        await self._access.consult(())
        found: list[Hold] = []

        def ask(tx: Transaction) -> Op | Reason:
            state = scope_in(tx, scope)
            found[:] = [] if state is None else holding(state, key)
            if may_break is not None and not all(may_break(each) for hold in found for each in hold.keys):
                return Reason.OTHERS_LOCK
            return tx.author(BreakLock(scope, key, reason), is_awaited=True) if found else Reason.NOT_LOCKED

        decision = await self._decided(scope, ask, is_awaited=True)
        left = set() if decision.scope is None else {hold.fence for hold in decision.scope.holds}
        standing = [hold for hold in found if hold.fence in left]
        refused = decision.outcome
        if refused is Reason.NOT_ACCEPTED and standing:
            refused = Reason.OTHERS_LOCK
        if refused in UNAUTHORISED or refused is Reason.OTHERS_LOCK:
            held = "".join(f"; {self._refusals.sentence(each)}" for each in standing[:3])
            who = "this node" if may_break is None else "this program"
            raise NotAuthorised(f"{who} may not break the lock {key}: {refused.sentence}{held}")
        if isinstance(refused, Reason):
            raise Conflict(f"no agent holds {key}; there is nothing to break")
        return [hold for hold in found if hold not in standing]

    async def _decided(self, scope: str, ask: Request, *, is_awaited: bool = False) -> LockDecision:
        access = self._access
        return await decided(access, scope, ask, is_awaited=is_awaited)

    # Waiting.

    def _as_wait(self, wanted: Wanted, waiting: bytes = b"") -> Wait:
        """The request as it is, or would be, in the queue."""
        now = self._access.log.reading().wall
        ttl_ms, until = length_at(wanted.lasts, now), now + wanted.wait_ms
        return Wait(wanted.keys, wanted.mode, self._access.log.node, wanted.agent, ttl_ms, until, waiting)

    async def _outlast(self, wanted: Wanted, watch: DeadlockWatch, ends_at: float) -> None:
        """Returns when the agents no longer seem to wait for each other. Raises LockHeld when it is certain that they
        do, and when the agent no longer waits.
        """

        async def look() -> tuple[bool, Suspicion]:
            at = self._access.log.reading()
            request = self._as_wait(wanted)
            found = await self._access.peek(lambda session: watch.look(session, wanted.scope, request, at))
            return not found.is_suspected or bool(found.agents), found

        while not await self._processes.sweep_dead(self._access):
            patience = max(min(LOOK_S, ends_at - _now()), LOOK_S_MIN)
            try:
                found = await self._access.until(look, patience, about(LOCK, wanted.scope.encode()))
            except TimeoutError:
                if ends_at > _now():
                    continue
                found = Suspicion(True, [])
            if not found.is_suspected:
                return
            state = await self._access.peek(lambda session: read_scope(session, wanted.scope))
            request = self._as_wait(wanted)
            if found.agents:
                raise self._refusals.deadlock(found.agents, request, state)
            raise self._refusals.held_by_others(request, state)

    async def _turn(self, wanted: Wanted, queued: _Queued, ends_at: float) -> Hold:
        """Waits in the queue until the lock is granted."""
        state: Scope | None = None

        async def look() -> tuple[bool, Hold | None]:
            nonlocal state
            state = await self._access.peek(lambda session: read_scope(session, wanted.scope))
            hold = hold_of(state, queued.waiting)
            return hold is not None or wait_of(state, queued.waiting) is None, hold

        begun, rests_until, rest_s = _now(), 0.0, ASK_AGAIN_S
        says_again_at = begun + WAIT_STEP_MS / 1500
        is_over, found = await look()
        while not is_over:
            if ends_at <= _now():
                raise self._refusals.held_by_others(self._as_wait(wanted, queued.waiting), state)
            await self._processes.sweep_dead(self._access)
            is_due = self._due_s(state) <= 0
            if (is_due or says_again_at <= _now() < ends_at) and rests_until <= _now():
                step_s = min(max(WAIT_STEP_MS / 1000, (_now() - begun) / 2), WAIT_STEP_MS_MAX / 1000)
                if await self._ask_again(wanted, queued, min(step_s, ends_at - _now()), is_due):
                    says_again_at = _now() + step_s * 2 / 3
                rests_until, rest_s = _now() + rest_s, min(2 * rest_s, ASK_AGAIN_S_MAX)
            patience = min(LOOK_S, ends_at - _now(), max(self._due_s(state), rests_until - _now()))
            with suppress(TimeoutError):
                found = await self._access.until(look, max(patience, LOOK_S_MIN), about(LOCK_WAIT, queued.waiting))
                is_over = True
        if found is None:
            raise _LostPlace(f"{text(wanted.keys)}: the request is no longer in the queue; ask again")
        return found

    def _due_s(self, scope: Scope | None) -> float:
        return LOOK_S if scope is None else _due_s(scope, self._access.log.reading().wall)

    async def _ask_again(self, wanted: Wanted, queued: _Queued, step_s: float, is_due: bool) -> bool:
        """An op of this node serves the queue after a hold has passed its deadline, and says that the agent still
        waits. False if that was not decided.
        """
        wait_ms = max(1, round(step_s * 1000))

        def ask(tx: Transaction) -> Op | Reason:
            state = scope_in(tx, wanted.scope)
            if state is None or wait_of(state, queued.waiting) is None or (is_due and _due_s(state, tx.now) > 0):
                return Reason.NOT_WAITING
            return tx.author(wanted.payload(wait_ms, tx.now), (queued.waiting,), is_awaited=True)

        try:
            decision = await decided(self._access, wanted.scope, ask, is_awaited=True)
        except StoreError:
            raise
        except Unreachable:
            return False
        outcome, written = decision.outcome, decision.written
        if isinstance(outcome, Reason) or written is None:
            return False
        if hold_of(decision.scope, outcome) or wait_of(decision.scope, outcome):
            # The arbiter had dropped the request before it got this op, which then is a new request.
            before, queued.waiting, queued.written = queued.written, outcome, written
            await self._access.run(lambda tx: self._processes.rebind(tx, before.id, written.id))
        return True

    def _withdraw(self, tx: Transaction, wanted: Wanted, asked: Sequence[bytes]) -> None:
        """Ends a request whose author was cancelled before it knew the decision."""
        state = scope_in(tx, wanted.scope)
        for op_id in asked:
            if hold_of(state, op_id) or wait_of(state, op_id):
                tx.author(LeaveQueue(wanted.scope, wanted.agent, op_id))
                self._processes.free(tx, op_id)
            else:
                self._processes.give_up(tx, op_id)

    async def _leave(self, wanted: Wanted, queued: _Queued) -> None:
        """Leaves the queue. If that cannot be decided now, the node does it when the arbiter can be reached."""

        def ask(tx: Transaction) -> Op | Reason:
            self._processes.free(tx, queued.written.id)
            return tx.author(LeaveQueue(wanted.scope, wanted.agent, queued.waiting))

        def stands(state: Scope | None) -> bool:
            return (wait_of(state, queued.waiting) or hold_of(state, queued.waiting)) is not None

        with suppress(HocketError):
            await settled(lambda: self._decided(wanted.scope, ask), stands)

    async def _free(self, written: Op | None) -> None:
        if written is not None:
            await self._access.run(lambda tx: self._processes.free(tx, written.id))


class _LostPlace(LockHeld):
    """The request is no longer in the queue, although its agent still waits."""


def _compare_ahead(session: Session, wanted: Wanted) -> None:
    """Compares the keys of a request with the others before the write transaction, which then remembers the results."""
    if (scope := read_scope(session, wanted.scope)) is not None:
        requests: list[Hold | Wait] = [*scope.holds, *scope.waits]
        LockIndex(requests).conflicts(wanted)


def _due_s(scope: Scope, now: int) -> float:
    """How long until a hold that others wait for passes its deadline."""
    behind = {wait.behind for wait in scope.waits}
    # A wait that an older program has stored does not say what it is behind.
    deadlines = [hold.deadline for hold in scope.holds if hold.op in behind or b"" in behind]
    return (min(deadlines) + 1 - now) / 1000 if deadlines else LOOK_S


def _now() -> float:
    import asyncio

    return asyncio.get_running_loop().time()
