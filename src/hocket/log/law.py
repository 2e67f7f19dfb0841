"""The law of a log: who may write what, and who is the coordinator, at every moment. It is read from the delegations,
revocations and designations on the log and kept until one of them changes, since every op is judged by it.
"""

from bisect import bisect
from collections.abc import Iterable

from hocket.kernel.authority import Authority, Revocation, Standing, counting_revocations
from hocket.kernel.clock import Hlc, unpack
from hocket.kernel.ids import content_hash
from hocket.kernel.ops import Op
from hocket.kernel.reasons import Reason
from hocket.kernel.rules import Rules
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import ClaimWork, CompleteJob, Payload, RevokeUcan
from hocket.store import Session

# How many laws are remembered: the one in force, and those of transactions that were undone.
REMEMBERED = 4


class Law:
    """`revocations` are those that count: each was judged by what was in force when it was written."""

    def __init__(
        self,
        rules: Rules,
        authority: Authority,
        delegations: Iterable[Delegation],
        revocations: Iterable[Revocation],
        coordinators: list[tuple[Hlc, int]],
    ) -> None:
        extensions = rules.extensions
        self.authority = authority
        self.delegations = tuple(delegations)
        self._revocations = frozenset(revocations)
        self.coordinators = coordinators
        self._since = [at for at, _ in coordinators]
        self._arbiter = extensions is not None and extensions.arbiter
        self.derivation_ops = frozenset(extensions.derivation_ops if extensions else ())
        self._derivation_kinds = tuple(extensions.derivation_kinds if extensions else ())
        self._derives = bool(self.derivation_ops or self._derivation_kinds)

    def coordinator(self, at: Hlc) -> int | None:
        """The coordinator in force at that time, if one was designated."""
        index = bisect(self._since, at)
        return self.coordinators[index - 1][1] if index else None

    def arbiter(self, at: Hlc) -> int | None:
        return self.coordinator(at) if self._arbiter else None

    def refusal(self, op: Op, kind: str | None = None) -> Reason | None:
        """Why the author may not write this op; `kind` is that of the job that it is about. A log without a single
        delegation has no law yet: its node is about to introduce itself.
        """
        if not self.delegations:
            return None
        payload = op.payload
        refused = self.authority.refusal(op.node_id, payload, op.timestamp.wall, kind)
        if refused is None:
            if self._derives and self._is_derivation(payload, kind) and op.node_id != self.coordinator(op.timestamp):
                return Reason.NOT_COORDINATOR
        elif type(payload) is RevokeUcan and (op.timestamp, op.node_id, payload.ucan_cid) in self._revocations:
            return None
        return refused

    def tick_refusal(self, op: Op, author: int) -> Reason | None:
        """The same for the job of a schedule's tick: the schedule's `author` must be allowed to schedule it when the
        tick is written. The op's own author need only be a member then.
        """
        if not self.delegations:
            return None
        refused = self.authority.refusal(author, op.payload, op.timestamp.wall, None)
        if refused is None and self._derives and self._is_derivation(op.payload, None):
            refused = None if op.node_id == self.coordinator(op.timestamp) else Reason.NOT_COORDINATOR
        standing = self.authority.standing(op.node_id, op.timestamp.wall)
        if refused is None and standing is not Standing.ACTIVE:
            refused = Reason.REVOKED if standing is Standing.REVOKED else Reason.UNAUTHORISED
        return refused

    def may_schedule(self, node: int, kind: str, wall_ms: int) -> bool:
        return not self.delegations or self.authority.may(node, "Job", "Schedule", kind, wall_ms) is not None

    def _is_derivation(self, payload: Payload, kind: str | None) -> bool:
        if self._derivation_kinds and kind is not None and isinstance(payload, ClaimWork | CompleteJob):
            return kind.startswith(self._derivation_kinds)
        return type(payload).__name__ in self.derivation_ops

    def compared_with(self, before: "Law") -> tuple[set[int], set[int]]:
        """The nodes that have lost delegations since, and those that have got some: their ops are to be judged anew."""
        then, now = before._standing(), self._standing()
        return {node for node, _ in then - now}, {node for node, _ in now - then}

    def _standing(self) -> set[tuple[int, bytes]]:
        return {(each.node, each.cid) for each in self.delegations if self.authority.fault(each) is None}


class Laws:
    """Reads the law of a session, once for each state that it is in. `latest` is what was read last, for those who may
    not touch the store.
    """

    def __init__(self, user: str, rules: Rules) -> None:
        self._user = user
        self.rules = rules
        self._known: dict[int, Law] = {}
        self.latest: Law | None = None
        self._tokens: dict[bytes, Delegation] = {}

    def read(self, session: Session, state: int) -> Law:
        law = self._known.get(state)
        if law is None:
            law = self._read(session)
            while len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[state] = law
        self.latest = law
        return law

    def _read(self, session: Session) -> Law:
        delegations = {each.cid: self._delegation(each.cid, each.token) for each in session.delegations()}
        revocations = [(unpack(each.hlc), unpack(each.hlc).node, each.cid) for each in session.revocations()]
        counting = counting_revocations(self._user, delegations.values(), revocations)
        authority = Authority(self._user, delegations.values(), {cid for _, _, cid in counting})
        coordinators = [(unpack(each.hlc), int.from_bytes(each.node, "big")) for each in session.coordinators()]
        return Law(self.rules, authority, delegations.values(), counting, coordinators)

    def _delegation(self, cid: bytes, token: bytes) -> Delegation:
        if cid not in self._tokens:
            self._tokens[cid] = read_ucan(token)
        return self._tokens[cid]


def trace(op_id: bytes) -> int:
    """An op's share in the number of the law: whatever order laws are made in, the same law has the same number."""
    return int.from_bytes(content_hash(op_id)[:8], "big", signed=True)
