"""How a request about locks is decided: in this node's own transaction, or by the arbiter, with which this node then
exchanges ops. A request that its author waits for is written only if the arbiter can be asked, and has a deadline.
`LockRefusals` makes the error that the author of a refused request gets, with a sentence that names the agents in the
way.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from hocket.bus.hints import LOG, about
from hocket.errors import Conflict, HocketError, NotAuthorised, Unconfirmed, Unreachable, Usage
from hocket.families.access import NodeAccess, acceptance
from hocket.families.locks import rules as locks
from hocket.families.locks.facts import LOCK, LockMode
from hocket.families.locks.index import overlap
from hocket.families.locks.rules import LOCKS, Hold, Scope, Wait
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.clock import Hlc, hlc_text
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import Subject
from hocket.log import Transaction
from hocket.log.limits import DECIDED_MS
from hocket.store import Session

# How long a node that has just joined waits for the log that says who decides.
INFORMED_S = 10.0
# How long an agent rests after it has asked in vain, the first time and at most.
ASK_AGAIN_S = 0.2
ASK_AGAIN_S_MAX = 5.0
# Refusals that may say nothing about the request itself. The arbiter puts no op in force that would end the hold of
# another agent before its own clock has passed that hold's deadline, whatever the op is about; to other nodes it does
# not say why it has not accepted an op.
FOR_NOW = (Reason.LEASE_RUNNING, Reason.NOT_ACCEPTED)

# The op, whether it is an offer, and the scope after it.
_Answer = tuple[Op | Reason, bool, Scope | None]


class LockDecision(NamedTuple):
    """How a request was decided: the op under which it counts and the scope after it, or the reason why it does not
    count. `written` is this node's own op, if there is one.
    """

    outcome: bytes | Reason
    scope: Scope | None
    written: Op | None = None


class UndecidedRequest(Unreachable):
    """The arbiter could not be asked about an op of this node."""

    def __init__(self, message: str, written: Op) -> None:
        super().__init__(message)
        self.written = written


def subject(scope: str) -> Subject:
    return Subject(LOCK, scope.encode())


def read_scope(session: Session, scope: str) -> Scope | None:
    state = session.subject_state(subject(scope))
    return None if state is None else LOCKS.decode(state)


def scope_in(tx: Transaction, scope: str) -> Scope | None:
    """The state of a scope inside a transaction."""
    state: Scope | None = tx.state(subject(scope))
    return state


async def decided(
    access: NodeAccess,
    scope: str,
    ask: Callable[[Transaction], Op | Reason],
    *,
    is_awaited: bool,
) -> LockDecision:
    """Has the request decided that `ask` writes. Raises UndecidedRequest if the arbiter cannot be asked about what was
    written. Raises Unreachable if nothing was written: the arbiter is not known, or this node waits for the decision
    and the arbiter is out of reach.
    """
    is_reached = not is_awaited
    last: Op | Reason | None = None

    def request(tx: Transaction) -> _Answer | None:
        nonlocal last
        last = None
        if tx.is_uninformed or (not is_reached and tx.is_out_of_touch):
            return None
        last = op = ask(tx)
        return op, isinstance(op, Op) and tx.is_offer(op), scope_in(tx, scope)

    async def informed() -> tuple[bool, _Answer | None]:
        answer = await access.run(request)
        return answer is not None, answer

    async def answered() -> _Answer:
        nonlocal is_reached
        answer = await access.run(request)
        if answer is None and not await access.run(lambda tx: tx.is_uninformed):
            await access.consult(())
            is_reached = True
            answer = await access.run(request)
        if answer is None:
            # This node has just joined: the log that says who decides is on its way.
            try:
                answer = await access.until(informed, INFORMED_S, about(LOG))
            except TimeoutError:
                raise Unreachable("this node does not know its coordinator yet; run `hocket mesh sync`") from None
        assert answer is not None
        return answer

    try:
        answer = await answered()
    except Unconfirmed as error:
        if not error.is_written or not isinstance(last, Op):
            raise
        raise UndecidedRequest(str(error), last) from error
    op, is_offer, state = answer
    if isinstance(op, Reason):
        return LockDecision(op, state)
    if not is_offer:
        return LockDecision(op.id, state, op)
    try:
        await access.consult(())
    except Unreachable as error:
        raise UndecidedRequest(str(error), op) from error

    def look(session: Session) -> tuple[bytes | None, Scope | None]:
        return acceptance(session, op), read_scope(session, scope)

    found, state = await access.peek(look)
    return LockDecision(found or Reason.NOT_ACCEPTED, state, op)


async def settled(
    decide: Callable[[], Awaitable[LockDecision]], stands: Callable[[Scope | None], bool]
) -> LockDecision:
    """Has a request about a hold or a wait decided, again if it is refused for now although what it is about `stands`.
    The last decision is still such a refusal if the time is over in which an author waits for a decision.
    """
    import asyncio

    loop, rest_s = asyncio.get_running_loop(), ASK_AGAIN_S
    ends_at = loop.time() + DECIDED_MS / 1000
    decision = await decide()
    while decision.outcome in FOR_NOW and stands(decision.scope) and loop.time() + rest_s < ends_at:
        await asyncio.sleep(rest_s)
        rest_s = min(2 * rest_s, ASK_AGAIN_S_MAX)
        decision = await decide()
    return decision


NameOf = Callable[[int], str]


class LockHeld(Conflict):
    """Others have the keys, or wait for them. `in_the_way` are their holds and waits."""

    def __init__(self, message: str, in_the_way: Sequence[Hold | Wait] = ()) -> None:
        super().__init__(message)
        self.in_the_way = tuple(in_the_way)


class LockLost(Conflict):
    """The agent no longer holds the lock."""


class SuspectedDeadlock(LockHeld):
    """The request would wait for agents that seem to wait for it."""


class RefusedForNow(LockHeld):
    """The arbiter did not put the request in force, for a reason that is not seen here."""


class LockRefusals:
    """The refusals of one node. `name_of` gives the name of a node, for people."""

    def __init__(self, access: NodeAccess, name_of: NameOf) -> None:
        self._access, self._name_of = access, name_of

    def refused(
        self, request: Wait, decision: LockDecision, others: Sequence[Scope], *, would_wait: bool
    ) -> HocketError:
        """Why an agent does not get a lock. `others` are the other scopes in which agents wait."""
        reason, keys = decision.outcome, text(request.keys)
        assert isinstance(reason, Reason)
        if reason is Reason.NOT_ACCEPTED and decision.written is not None:
            # The arbiter does not say why, so this node looks for itself.
            reason = locks.excess(decision.scope, decision.written) or reason
        if reason in UNAUTHORISED:
            return NotAuthorised(f"this node may not lock {keys}: {reason.sentence}")
        if reason is Reason.TOO_MANY_LOCKS:
            return LockHeld(f"{keys}: {reason.sentence}; release some of them, or try again later")
        if reason not in (Reason.LOCK_HELD, Reason.DEADLOCK, *FOR_NOW):
            return Usage(f"{keys} cannot be locked: {reason.sentence}")
        held, scope = self.held_by_others(request, decision.scope), decision.scope
        if reason is Reason.LOCK_HELD or (held.in_the_way and not would_wait):
            return held
        if scope is not None and locks.deadlock(scope, request, self._access.log.reading().wall, others):
            return SuspectedDeadlock(str(held), held.in_the_way)
        return RefusedForNow(str(held), held.in_the_way)

    def held_by_others(self, request: Wait, scope: Scope | None) -> LockHeld:
        # A hold stands until the machine's own clock has passed its deadline.
        now = self._access.log.physical()
        others = [] if scope is None else locks.in_the_way(scope, request, now)
        if not others:
            return LockHeld(f"{text(request.keys)} was not granted; try again")
        return LockHeld("; ".join(self.sentence(each) for each in others[:3]), others)

    def deadlock(self, agents: Sequence[locks.Agent], request: Wait, scope: Scope | None) -> LockHeld:
        """These agents wait for each other, each for the next."""
        names = [f"{agent} on {self._name_of(node)}" for node, agent in agents]
        chain = ", which waits for ".join([*names[1:], names[0]])
        return LockHeld(
            f"deadlock: {names[0]} would wait for {chain}; release something and ask again",
            self.held_by_others(request, scope).in_the_way,
        )

    def lost(self, decision: LockDecision, key: str | None, agent: str, fence: int) -> HocketError:
        """Why an agent could not renew or release a hold."""
        reason, scope = decision.outcome, decision.scope
        if reason in UNAUTHORISED:
            return NotAuthorised(f"this node may not do that: {reason.sentence}")
        hold = self.hold(scope, agent, fence)
        if hold is not None and reason in FOR_NOW and self.stands(scope, agent, fence):
            until = moment(hold.deadline)
            return Unreachable(f"the coordinator does not decide about the lock now; it stands until {until}")
        if hold is not None:
            return LockLost(f"the lock expired at {moment(hold.deadline)}; acquire it again")
        now = self._access.log.reading().wall
        holders = [] if scope is None or key is None else [each for each in holding(scope, key) if each.deadline >= now]
        rest = "; ".join(map(self.sentence, holders[:3])) or "it has expired, or was released or broken"
        return LockLost(f"{agent} does not hold {key or 'a lock'} under fence {fence}: {rest}")

    def hold(self, scope: Scope | None, agent: str, fence: int) -> Hold | None:
        """The hold of an agent of this node."""
        holder = self._access.log.node, agent, fence
        found = () if scope is None else scope.holds
        return next((hold for hold in found if (hold.node, hold.agent, hold.fence) == holder), None)

    def stands(self, scope: Scope | None, agent: str, fence: int) -> bool:
        """Whether an agent of this node has the hold, and its deadline has not passed."""
        hold = self.hold(scope, agent, fence)
        return hold is not None and hold.deadline >= self._access.log.physical()

    def check_key(self, scope: Scope | None, key: str | None, agent: str, fence: int) -> None:
        """Raises LockLost if the fence is for other keys."""
        hold = self.hold(scope, agent, fence)
        if hold is not None and key is not None and key not in hold.keys:
            raise LockLost(f"fence {fence} of {agent} is for {text(hold.keys)}, not for {key}")

    def sentence(self, each: Hold | Wait) -> str:
        who = f"{each.agent} on {self._name_of(each.node)}"
        if isinstance(each, Wait):
            return f"{text(each.keys)}: {who} waits for it first"
        shared = "shared " if each.mode is LockMode.SHARED else ""
        return (
            f"{text(each.keys)} is {shared}held by {who} since {moment(each.since)} until {moment(each.deadline)}"
            f" (fence {each.fence})"
        )


def holding(scope: Scope, key: str) -> list[Hold]:
    return [hold for hold in scope.holds if any(overlap(each, key) for each in hold.keys)]


def moment(ms: int) -> str:
    return hlc_text(Hlc(ms, 0, 0)).partition("+")[0]


def text(keys: Sequence[str]) -> str:
    return ", ".join(keys)
