"""Who follows a coordinator that has fallen silent, as far as it can be decided without a clock or a network.

The owner names nodes in order, a quorum of them and a silence. The coordinator tells nobody what it has decided before
a quorum of the named nodes has it; a successor needs the signed votes of a quorum; two quorums have a node in common.
So a successor finds everything that anybody was told at one of its voters.

A coordinator is in office for a tenure. An owner's designation begins one, with term 0, and is the root of those that
follow it: each takeover follows a tenure of a lower term. Of all takeovers of a root, the one with the highest term is
the head, and those from which it descends are in force. No other takeover was ever confirmed by a quorum, so nobody was
told of its decisions. This is a function of the set of these ops: the order in which they arrive does not matter.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ops import pinned_time

SUCCESSION_NODES_MAX = 15
# A shorter silence is found in the pauses of a busy machine.
AFTER_MS_MIN, AFTER_MS_MAX = 1_000, 86_400_000
_VOTE_CONTEXT = b"hocket succession vote\0"

Vote = tuple[int, bytes]
"""A node, and its signature over `vote_text`."""
IsSigned = Callable[[int, bytes, bytes], bool]
"""Whether the key of a node made this signature over this text."""


class Succession(NamedTuple):
    """The owner's word on who may follow in the tenure that the op `follows` began. Without nodes: nobody."""

    op_id: bytes
    at: Hlc
    follows: bytes
    nodes: tuple[int, ...] = ()
    quorum: int = 0
    after_ms: int = 0


class TenureStart(NamedTuple):
    """An op that begins a tenure: a designation, or a takeover, which follows another one. `pin` commits to the last op
    of the coordinator before that counts.
    """

    op_id: bytes
    at: Hlc
    node: int
    pin: bytes | None = None
    term: int = 0
    succession: bytes = b""
    follows: bytes = b""
    votes: tuple[Vote, ...] = ()

    @property
    def is_takeover(self) -> bool:
        return bool(self.follows)


class Candidacy(NamedTuple):
    """What a successor asks the named nodes to vote for, and what a vote promises: to confirm nothing of a lower term
    of this root, and nothing of another node in this term.
    """

    root: bytes
    succession: bytes
    follows: bytes
    term: int
    node: int

    @property
    def text(self) -> bytes:
        """What a vote signs."""
        return vote_text(self.succession, self.follows, self.term, self.node)


class Chain(NamedTuple):
    """`tenures` are those in force, in the order of their times. `successions` are those that count, in the order of
    theirs. `faults` says why others of these ops do not count. `double_voters` have voted for two nodes in one term.
    """

    tenures: tuple[TenureStart, ...]
    successions: tuple[Succession, ...]
    faults: Mapping[bytes, Reason]
    double_voters: frozenset[int]

    @property
    def head(self) -> TenureStart | None:
        return self.tenures[-1] if self.tenures else None

    @property
    def root(self) -> TenureStart | None:
        """The designation from which the head descends."""
        return next((each for each in reversed(self.tenures) if not each.is_takeover), None)

    @property
    def in_question(self) -> tuple[Succession, ...]:
        """The successions under the last root, those that were replaced and those that end one among them."""
        root = self.root
        since = self.tenures.index(root) if root is not None else 0
        here = {each.op_id for each in self.tenures[since:]}
        return tuple(each for each in self.successions if each.follows in here)

    @property
    def succession(self) -> Succession | None:
        """The succession in force."""
        latest = self.in_question[-1:]
        return latest[0] if latest and latest[0].nodes else None


def vote_text(succession: bytes, follows: bytes, term: int, node: int) -> bytes:
    """What a node signs that votes for a successor. An op's id commits to its mesh, so the text need not name that."""
    ids = b"".join(len(each).to_bytes(1, "big") + each for each in (succession, follows))
    return _VOTE_CONTEXT + ids + term.to_bytes(8, "big") + node.to_bytes(8, "big")


def shape_fault(nodes: Sequence[int], quorum: int, after_ms: int, coordinator: int) -> str | None:
    """Why no succession can have these nodes, this quorum and this silence, if so. Without nodes it ends one."""
    if not nodes:
        return None if not quorum and not after_ms else "a succession without nodes has no quorum and no silence"
    if len(set(nodes)) != len(nodes):
        return "a node is named twice"
    if len(nodes) > SUCCESSION_NODES_MAX:
        return f"{len(nodes)} nodes are named, and at most {SUCCESSION_NODES_MAX} may be"
    if coordinator not in nodes:
        return "the coordinator must be one of the named nodes"
    if quorum < 2:
        return f"a quorum of {quorum} is always met: every node could take over alone; it takes 2 at least"
    if quorum >= len(nodes):
        return (
            f"a quorum of {quorum} can never be met by {len(nodes)} nodes of which the silent coordinator is one;"
            " name more nodes, 3 at least"
        )
    if 2 * quorum <= len(nodes):
        return (
            f"a quorum of {quorum} could be met twice by {len(nodes)} nodes, on both sides of a broken network; "
            f"it takes {len(nodes) // 2 + 1} at least"
        )
    if not AFTER_MS_MIN <= after_ms <= AFTER_MS_MAX:
        return f"the silence must be {AFTER_MS_MIN // 1000} s to {AFTER_MS_MAX // 3_600_000} h"
    return None


def chain_of(starts: Iterable[TenureStart], successions: Iterable[Succession], is_signed: IsSigned) -> Chain:
    """What these ops make of each other. Each of them must be one that its author may write."""
    return _Judge(starts, successions, is_signed).chain()


class _Judge:
    def __init__(self, starts: Iterable[TenureStart], successions: Iterable[Succession], is_signed: IsSigned) -> None:
        ordered = sorted(starts, key=lambda each: each.at)
        self._starts = {each.op_id: each for each in ordered}
        self._roots = [each for each in ordered if not each.is_takeover]
        self._takeovers = sorted((each for each in ordered if each.is_takeover), key=lambda each: (each.term, each.at))
        self._successions = {each.op_id: each for each in successions}
        self._is_signed = is_signed
        self._faults: dict[bytes, Reason] = {}
        # From a tenure back to its root, for each that is good in itself.
        self._paths: dict[bytes, tuple[TenureStart, ...]] = {}
        self._ends = {root.op_id: following.at for root, following in zip(self._roots, self._roots[1:], strict=False)}

    def chain(self) -> Chain:
        for root in self._roots:
            self._paths[root.op_id] = (root,)
        # What a takeover follows has a lower term.
        for takeover in self._takeovers:
            fault = self._fault(takeover)
            if fault is None:
                self._paths[takeover.op_id] = (*self._paths[takeover.follows], takeover)
            else:
                self._faults[takeover.op_id] = fault
        double_voters: set[int] = set()
        tenures: list[TenureStart] = []
        for root in self._roots:
            tenures += self._paths[self._head(root, double_voters).op_id]
        in_force = {each.op_id for each in tenures}
        for takeover in self._takeovers:
            if takeover.op_id not in in_force:
                self._faults.setdefault(takeover.op_id, Reason.OUTVOTED)
        good = [each for each in self._successions.values() if self._note(each, tenures) is None]
        return Chain(
            tuple(tenures), tuple(sorted(good, key=lambda each: each.at)), self._faults, frozenset(double_voters)
        )

    def _fault(self, takeover: TenureStart) -> Reason | None:
        """Why a takeover cannot be in force, whatever other takeovers there are."""
        succession = self._successions.get(takeover.succession)
        before = self._starts.get(takeover.follows)
        if before is None or succession is None:
            return Reason.WAITING
        if takeover.term <= before.term or takeover.at <= before.at:
            return Reason.OLD_TERM
        path = self._paths.get(takeover.follows)
        if path is None:
            return Reason.OUTVOTED
        if self._is_past(path[0], takeover.at):
            return Reason.OLD_TERM
        if takeover.pin is None or not self._is_between(before, takeover.pin, takeover.at):
            return Reason.NO_PIN
        is_named = takeover.node in succession.nodes and takeover.at > succession.at
        if not is_named or self._succession_fault(succession, path) is not None:
            return Reason.NO_SUCCESSOR
        return None if self._has_quorum(takeover, succession) else Reason.NO_QUORUM

    def _is_past(self, root: TenureStart, at: Hlc) -> bool:
        """Whether the owner had designated another coordinator by then."""
        end = self._ends.get(root.op_id)
        return end is not None and at >= end

    def _is_between(self, before: TenureStart, pin: bytes, at: Hlc) -> bool:
        """Whether the pinned op of the coordinator before is one of its tenure, and earlier than the takeover."""
        pinned = pinned_time(pin, before.node)
        return pinned < at and (not before.is_takeover or pinned >= before.at)

    def _has_quorum(self, takeover: TenureStart, succession: Succession) -> bool:
        voters = {node for node, _ in takeover.votes}
        if len(voters) != len(takeover.votes) or not voters <= set(succession.nodes):
            return False
        text = vote_text(takeover.succession, takeover.follows, takeover.term, takeover.node)
        return len(voters) >= succession.quorum and all(
            self._is_signed(node, signature, text) for node, signature in takeover.votes
        )

    def _succession_fault(self, succession: Succession, path: Sequence[TenureStart]) -> Reason | None:
        """Why a succession does not count among these tenures."""
        if succession.follows not in self._starts:
            return Reason.WAITING
        index = next((i for i, each in enumerate(path) if each.op_id == succession.follows), None)
        if index is None:
            return Reason.OUTVOTED
        followed = path[index]
        if shape_fault(succession.nodes, succession.quorum, succession.after_ms, followed.node) is not None:
            return Reason.BAD_SUCCESSION
        root = self._paths[followed.op_id][0]
        if succession.at <= followed.at or self._is_past(root, succession.at):
            return Reason.OLD_TERM
        following = path[index + 1] if index + 1 < len(path) else None
        if following is not None and following.is_takeover:
            # The coordinator cannot have put it in force: too many nodes had voted under the one before.
            return Reason.OUTVOTED if self._successions[following.succession].at < succession.at else None
        return None

    def _head(self, root: TenureStart, double_voters: set[int]) -> TenureStart:
        """The takeover with the highest term, or the root itself. If two nodes took over in one term, then a voter has
        voted twice, and both are void unless another node has followed one of them.
        """
        terms: dict[int, list[TenureStart]] = {}
        for each in self._takeovers:
            path = self._paths.get(each.op_id)
            # What a successor writes about its term again counts for nothing.
            if path is not None and path[0] is root and all(each.node != one.node for one in terms.get(each.term, ())):
                terms.setdefault(each.term, []).append(each)
        for rivals in terms.values():
            voters = [node for each in rivals for node, _ in each.votes]
            double_voters |= {node for node in voters if voters.count(node) > 1}
        return next((terms[term][0] for term in sorted(terms, reverse=True) if len(terms[term]) == 1), root)

    def _note(self, succession: Succession, tenures: Sequence[TenureStart]) -> Reason | None:
        fault = self._succession_fault(succession, tenures)
        if fault is not None:
            self._faults[succession.op_id] = fault
        return fault
