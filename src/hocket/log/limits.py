"""How much of each author a log takes in. When an author sends its own ops, another check compares its rate and its
total with its quota, before verification; this module caps what other nodes pass on. The cap is a multiple of the
author's quota, because this node should admit what others have admitted: otherwise nodes would differ. An author's ops
form one chain, so the cap cuts that chain at the same place on every node.
"""

from collections.abc import Sequence

from hocket.kernel.authority import ceiling
from hocket.kernel.bundles import Fact
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.rules import Bounds
from hocket.kernel.vocabulary import ACCEPTANCES, Subject, number_of, subject_of
from hocket.log.transaction import Transaction
from hocket.store import WrittenTotals

# When others pass on an author's ops, up to this multiple of its quota is admitted.
HANDED_ON_FACTOR = 4
_ACCEPTANCES = tuple(number_of(each) for each in ACCEPTANCES)
_UNBOUNDED = 2**63
_NOTHING = WrittenTotals()


class Limits:
    """The limits of one batch. `sender` is the node that sends it, None for the operator, who has no limit. The limit
    on ops of an author that do not count on a job applies only to what the author itself sends.
    """

    def __init__(self, tx: Transaction, sender: int | None, is_vouched: bool, expected: Sequence[Op]) -> None:
        """`expected` are all ops that may be admitted."""
        self._tx, self._expected = tx, expected
        self._permissions = tx.projection.permissions
        self._bounds = self._permissions.rules.bounds or Bounds()
        self._is_operator = sender is None
        # The author whose ops are checked one by one.
        self._watched = None if is_vouched else sender
        self._free = {tx.node}
        self._room: dict[int, WrittenTotals] = {}
        self._taken: dict[int, WrittenTotals] = {}
        self._idle: dict[Subject, bool] = {}
        self._busy: set[bytes] | None = None
        self._cut: dict[int, Reason] = {}
        # How many ops were refused, by author.
        self.refused: dict[int, int] = {}

    def refusal(self, ops: Sequence[Fact]) -> Reason | None:
        """Why no more of an author is admitted now; None if there is room, which its ops then take. They are the facts
        of a bundle, or one op.
        """
        author = ops[0].op.node_id
        if self._is_operator or author in self._free:
            return None
        if author not in self._cut:
            taken = self._taken.get(author, _NOTHING)
            taken = WrittenTotals(taken.ops + len(ops), taken.bytes + sum(len(body) for _, body in ops))
            room = self._room_of(author)
            if room.ops < taken.ops or room.bytes < taken.bytes:
                self._cut[author] = Reason.QUOTA
            elif author == self._watched and any(self._is_idle(each) for each, _ in ops):
                self._cut[author] = Reason.IDLE
            else:
                self._taken[author] = taken
                return None
        # Ops after a missing one could not be linked, so they are refused with it.
        self.refused[author] = self.refused.get(author, 0) + len(ops)
        return self._cut[author]

    def _room_of(self, author: int) -> WrittenTotals:
        """How much room an author had before this batch, by the permissions in force."""
        if self._permissions is not self._tx.projection.permissions:
            # An author's first op is the delegation that says what it may store.
            self._permissions = self._tx.projection.permissions
            self._room.clear()
        if author not in self._room:
            self._room[author] = self._find_room(author)
        return self._room[author]

    def _find_room(self, author: int) -> WrittenTotals:
        quota = ceiling(self._permissions.authority, author, self._bounds)
        if quota.ops is None and quota.bytes is None and author != self._watched:
            self._free.add(author)
        node = author.to_bytes(8, "big")
        has = self._tx.session.written((node,)).get(node, _NOTHING)
        ops = _UNBOUNDED if quota.ops is None else quota.ops * HANDED_ON_FACTOR
        size = _UNBOUNDED if quota.bytes is None else quota.bytes * HANDED_ON_FACTOR
        return WrittenTotals(ops - has.ops, size - has.bytes)

    def _is_idle(self, op: Op) -> bool:
        subject = subject_of(op.payload)
        if subject is None:
            return False
        if subject.key not in self._busy_keys():
            return False
        if subject not in self._idle:
            count = self._tx.session.idle_ops(subject, op.node_id.to_bytes(8, "big"), _ACCEPTANCES)
            self._idle[subject] = count >= self._bounds.idle_ops
        return self._idle[subject]

    def _busy_keys(self) -> set[bytes]:
        """Keys about which so many ops are stored that an author may have used up its share. One query asks for all
        expected ones, because hardly any is.
        """
        if self._busy is None:
            subjects = (subject_of(op.payload) for op in self._expected if op.node_id == self._watched)
            keys = {subject.key for subject in subjects if subject is not None}
            self._busy = self._tx.session.keys_of_many_ops(list(keys), self._bounds.idle_ops)
        return self._busy
