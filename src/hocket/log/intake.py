"""Taking in ops from elsewhere inside one transaction: each is appended, known already, turned away, or held until its
time has come; and every one of them, but for those from clocks too far ahead, moves this node's clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from hocket.kernel.clock import Hlc
from hocket.kernel.ops import Op, read_stamp
from hocket.kernel.postcard import Malformed, UnknownVariant
from hocket.kernel.reasons import Reason
from hocket.log.door import CURABLE
from hocket.log.transaction import Transaction

HELD_MAX = 100_000


class Admission(NamedTuple):
    """What became of ops from elsewhere. Those turned away at the door are counted by reason; an op that is on
    the log but does not count there was appended. `collided` of those share their timestamp with another op of
    their author: an integrity failure, which must be loud. `unread` ones lie behind bytes that cannot be read,
    and nobody can tell where they begin. `held` ones come from a clock that is too far ahead, and are taken in when
    their time has come. `curable` says from when on ops of an author must be sent again, because what they lacked
    may come.
    """

    appended: int
    duplicated: int
    refused: dict[Reason, int]
    collided: int = 0
    unread: int = 0
    held: int = 0
    curable: dict[int, Hlc] = {}  # noqa: RUF012

    @property
    def rejected(self) -> int:
        return sum(self.refused.values())


class Intake:
    """`limit` is the latest wall that is taken in now, `expected` are the ops that may be: what is known about them is
    read from the store once for all.
    """

    def __init__(self, tx: Transaction, limit: int, expected: Sequence[Op]) -> None:
        self._tx = tx
        self._limit = limit
        self._known = tx.session.known_ops([op.id for op in expected])
        tx.projection.prepare(expected)
        self._room = HELD_MAX - tx.session.held()[0]
        self.taken: list[Op] = []
        self._ids: set[bytes] = set()
        self._duplicated = 0
        self._held = 0
        self._refused: dict[Reason, int] = {}
        self._curable: dict[int, Hlc] = {}

    def unreadable(self, raw: bytes, error: Malformed) -> None:
        stamp = read_stamp(raw)
        if stamp is not None and stamp.wall <= self._limit:
            self._tx.hear(stamp)
        reason = Reason.UNKNOWN_VARIANT if isinstance(error, UnknownVariant) else Reason.MALFORMED
        self._refuse(raw[:16].ljust(16, b"\0"), 0, reason)

    def take(self, raw: bytes, op: Op, reason: Reason | None) -> None:
        tx = self._tx
        early = op.timestamp.wall > self._limit
        if not early:
            tx.hear(op.timestamp)
        if op.id in self._ids or op.id in self._known:
            self._duplicated += 1
        elif reason is not None:
            self._refuse(op.id, op.node_id, reason, op.timestamp)
        elif early:
            self._hold(raw, op)
        else:
            if op.node_id == tx.node:
                # It is taken in, since the key is good; but this node never wrote it, or has lost it.
                tx.refuse(op.id, op.node_id, Reason.TWIN)
            tx.admit(op, raw)
            self._ids.add(op.id)
            self.taken.append(op)

    def _hold(self, raw: bytes, op: Op) -> None:
        if self._room <= 0:
            self._refuse(op.id, op.node_id, Reason.HELD_FULL, op.timestamp)
            return
        self._room -= 1
        self._held += 1
        self._tx.session.hold(op.id, op.timestamp.wall, raw)

    def _refuse(self, op_id: bytes, author: int, reason: Reason, at: Hlc | None = None) -> None:
        self._tx.refuse(op_id, author, reason)
        self._refused[reason] = self._refused.get(reason, 0) + 1
        if at is not None and reason in CURABLE:
            self._curable[author] = min(self._curable.get(author, at), at)

    def admission(self) -> Admission:
        collided = sum(self._tx.projection.reason(op_id) == Reason.INTEGRITY for op_id in self._ids)
        return Admission(
            len(self.taken), self._duplicated, self._refused, collided, held=self._held, curable=self._curable
        )


def add(left: Admission, right: Admission) -> Admission:
    reasons = left.refused.keys() | right.refused.keys()
    refused = {reason: left.refused.get(reason, 0) + right.refused.get(reason, 0) for reason in reasons}
    curable = {author: min(left.curable.get(author, at), at) for author, at in right.curable.items()}
    return Admission(
        left.appended + right.appended,
        left.duplicated + right.duplicated,
        refused,
        left.collided + right.collided,
        held=left.held + right.held,
        curable=left.curable | curable,
    )
