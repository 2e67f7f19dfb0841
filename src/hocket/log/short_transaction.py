"""A short write transaction, for requests about locks that this node decides itself. It makes the same checks and
stores the same rows as `Transaction`. It leaves out what such ops never need: citations, offers, registers, and other
families. So it takes less time.
"""

from typing import Any

from hocket.bus.changes import LOCK_WAIT, LOG, NOTHING, Changes, gathered
from hocket.kernel import arbitration
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import Op, bound, link_to
from hocket.kernel.reasons import Reason
from hocket.kernel.signing import OpSigner
from hocket.kernel.subjects import LOCK, Subject, subject_of
from hocket.kernel.vocabulary import Payload, discriminant
from hocket.log.lock_projector import LockProjector
from hocket.log.permissions import Permissions
from hocket.log.transaction import Append, BeatOf, Transaction, next_stamp
from hocket.store import Head, NewOp, Session

_COUNTS, _SETTLED = 0, 1


class _Engine:
    """What the lock projector asks, where no op is an offer."""

    __slots__ = ("arbiter", "is_overtaken", "now", "permissions", "physical", "refusal")

    def __init__(self, permissions: Permissions, now: int, physical: int) -> None:
        self.permissions, self.now, self.physical = permissions, now, physical
        self.refusal, self.arbiter = permissions.refusal, permissions.arbiter
        self.is_overtaken = permissions.is_overtaken

    def offered(self, op_id: bytes, subject: Subject) -> Op | None:
        return None


def _cites_nothing() -> None:
    return None


class ShortTransaction:
    """`now` and `physical` are as in `Transaction`. This node is the arbiter, and ids are bound to content."""

    __slots__ = (
        "_clock",
        "_head",
        "_last",
        "_ops",
        "_projector",
        "_signer",
        "beat",
        "node",
        "now",
        "physical",
        "session",
    )

    is_uninformed = is_out_of_touch = False

    def __init__(
        self,
        session: Session,
        head: Head,
        signer: OpSigner,
        permissions: Permissions,
        now: int,
        physical: int,
        beat: BeatOf | None = None,
    ) -> None:
        self.beat = beat
        self.session, self._head, self._signer = session, head, signer
        self.node, self.now, self.physical = signer.node, now, physical
        self._projector = LockProjector(session, _Engine(permissions, now, physical))
        self._clock, self._last = Hlc(head.wall, head.logical, self.node), head.last
        self._ops: list[NewOp] = []

    def author(self, payload: Payload, *, is_awaited: bool = False) -> Op | Reason:
        """Writes an op of this node that cites no other. An op that would not count is not written: the reason is
        returned instead. Nobody waits for the decision, since this node makes it: `is_awaited` changes nothing.
        """
        subject = subject_of(payload)
        assert subject is not None and subject.family == LOCK
        stamp = next_stamp(self._clock, self.now)
        marks = () if self.beat is None else (self.beat(stamp.wall),)
        op, body = bound(stamp, (*marks, link_to(self._last)), payload)
        projector = self._projector
        state = projector.state(subject.key)
        verdict: Any = projector.own_fault(state, op) or arbitration.apply(
            projector.family, state, subject, op, projector, _cites_nothing
        )
        if isinstance(verdict, Reason):
            return verdict
        projector.keep(subject.key, verdict)
        self._clock, self._last = stamp, op.id
        number, body = discriminant(payload), self._signer.for_log(body)
        self._ops.append(NewOp(op.id, pack(stamp), number, *subject, _COUNTS, _SETTLED, body))
        return op

    def is_offer(self, op: Op) -> bool:
        return False

    def state(self, subject: Subject) -> Any:
        return self._projector.state(subject.key)

    @property
    def written(self) -> list[bytes]:
        """The ids of the ops of this transaction so far."""
        return [op.id for op in self._ops]

    @property
    def changes(self) -> Changes:
        """What this transaction has changed, once it is closed."""
        if not self._ops:
            return NOTHING
        return gathered((), {LOCK: self._projector.touched, LOCK_WAIT: self._projector.no_longer_waiting, LOG: (b"",)})

    def close(self, append: Append) -> None:
        """As `Transaction.close`."""
        head, ops = self._head, self._ops
        if not ops:
            return
        last, chain, seal = append(self.session, head, ops)
        self._projector.flush()
        wall, logical, _ = self._clock
        settled = head.settled if head.unsettled else last
        state = head.permissions_state
        self.session.put_head(Head(wall, logical, last, chain, settled, head.unsettled, None, state, self._last, seal))

    def forget(self) -> None:
        """Nothing here refers to the transaction."""


# What a request about locks runs in.
LockTransaction = Transaction | ShortTransaction
