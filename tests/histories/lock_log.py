"""What the log of the node that decides says about locks: which op asked for each grant, and which op ended it."""

from typing import NamedTuple

from hocket.families.locks.facts import LOCK
from hocket.families.locks.rules import LOCKS, Hold, Scope
from hocket.kernel.arbitration import FoldContext
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import AcceptOffer, Subject
from hocket.store import Session


class Grant(NamedTuple):
    """`asked` is the AcquireLocks op, `granted` the op by which it got the locks: the same, or the end of another."""

    hold: Hold
    asked: Op
    granted: Op
    end: Op | None


class Context(FoldContext):
    def designations(self, at: Hlc) -> int:
        return 0


def lock_grants(session: Session) -> dict[int, Grant]:
    """The grants of the scope without a name, by their fences."""
    scope: Scope | None = None
    asked: dict[bytes, Op] = {}
    found: dict[int, Grant] = {}
    for row in session.ops_about(Subject(LOCK, b"")):
        if row.reason:
            continue
        op = decode(row.body)
        if isinstance(op.payload, AcceptOffer):
            offered = session.op(op.payload.offer)
            assert offered is not None
            inner = decode(offered.body)
            op = Op(op.id, op.timestamp, inner.node_id, inner.causal_deps, inner.payload)
        asked[op.id] = op
        before = {} if scope is None else {hold.fence: hold for hold in scope.holds}
        verdict = LOCKS.apply_decided(scope, op, Context(), op.node_id)  # type: ignore[abstract]
        assert isinstance(verdict, Scope), verdict
        scope = verdict
        after = {hold.fence: hold for hold in scope.holds}
        found |= {fence: found[fence]._replace(end=op) for fence in before.keys() - after.keys()}
        found |= {fence: Grant(hold, asked[hold.op], op, None) for fence, hold in after.items() if fence not in before}
    return found
