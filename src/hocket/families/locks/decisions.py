"""How a request about locks is decided: in this node's own transaction, or by the arbiter, with which this node then
exchanges ops. A request that its author waits for is written only if the arbiter can be asked, and has a deadline.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hocket.bus.changes import LOG, about
from hocket.errors import Unreachable
from hocket.families.deciding import acceptance
from hocket.families.locks.facts import LOCK
from hocket.families.locks.rules import LOCKS, Scope
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.subjects import Subject
from hocket.log import Transaction
from hocket.log.request_deadlines import DECIDED_MS
from hocket.store import Session
from hocket.work.node_access import NodeAccess

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

    def request(tx: Transaction) -> _Answer | None:
        if tx.is_uninformed or (not is_reached and tx.is_out_of_touch):
            return None
        op = ask(tx)
        return op, isinstance(op, Op) and tx.is_offer(op), scope_in(tx, scope)

    async def informed() -> tuple[bool, _Answer | None]:
        answer = await access.run(request)
        return answer is not None, answer

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
            raise Unreachable("this node does not know its coordinator yet; run `hocket sync`") from None
    assert answer is not None
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
