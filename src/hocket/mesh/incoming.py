"""Which ops of a batch are considered: not every node may push every op, nor any number of ops."""

from collections.abc import Collection, Iterator

from hocket.events import Emit
from hocket.events.nodes import HistoryRecovered
from hocket.kernel import postcard
from hocket.kernel.authority import Authority
from hocket.kernel.frontier import AUTHORS_MAX
from hocket.kernel.jws import LEEWAY_S
from hocket.kernel.ops import Op, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import DelegateUcan
from hocket.log import Admission, Log
from hocket.log.lost_past import own_history, rewrite
from hocket.mesh.outgoing import PeerReader
from hocket.mesh.quotas import QuotaMeter

Received = tuple[bytes, Op | Malformed]


def is_brought(op: Op, sender: PeerReader | None, authors: Collection[int] | None, own: int) -> bool:
    """Whether an op is accepted from this sender. A sender that may not read everything has gaps in its copies of other
    authors' ops; admitting those would hide the gaps for good. But every sender may give this node its `own` ops back.
    Once the number of authors reaches its limit, only their ops are accepted.
    """
    if authors is not None and op.node_id not in authors:
        return False
    return sender is None or sender.reads_everything or op.node_id in (sender.node, own)


def is_own(op: Op | Malformed, sender: int) -> bool:
    """Whether an item counts against the sender's quota: its own ops do, and unreadable ones."""
    return isinstance(op, Malformed) or op.node_id == sender


class Pushed:
    """A batch that a node has pushed. Ops are decoded while earlier ones are verified. `left` are ops that the node may
    not push, `cut` those beyond its quota, as far as they were read. `unread` counts ops whose beginnings cannot be
    found, because they follow one that cannot be read.
    """

    def __init__(
        self, body: bytes, sender: PeerReader, authors: Collection[int] | None, meter: QuotaMeter | None, own: int
    ) -> None:
        self._body, self._sender, self._authors, self._meter, self._own = body, sender, authors, meter, own
        self.left: list[tuple[bytes, Op]] = []
        self.cut: list[tuple[bytes, Op]] = []
        self.unread = 0

    def __iter__(self) -> Iterator[Received]:
        sender, meter = self._sender, self._meter
        count = size = 0
        for raw, op in read_sequence(self._body):
            count, size = count + 1, size + len(raw)
            if isinstance(op, Op) and not is_brought(op, sender, self._authors, self._own):
                self.left.append((raw, op))
            elif meter is None or not is_own(op, sender.node) or meter.admits(raw, op):
                yield raw, op
            else:
                self.cut += [(raw, op)] if isinstance(op, Op) else []
                if not sender.reads_everything:
                    # No op after this one would be admitted.
                    said = self._said() if isinstance(op, Op) else count
                    meter.leave(max(0, said - count), max(0, len(self._body) - size))
                    return
        self.unread = max(0, self._said() - count)

    def _said(self) -> int:
        """How many ops the batch says that it has; an op has more than a byte."""
        try:
            return min(postcard.Reader(self._body).varint(), len(self._body))
        except Malformed:
            return 0

    def stop(self, admission: Admission) -> None:
        """Counts what was not looked at, because the sender must wait for its share of the store's time, or for other
        nodes.
        """
        assert self._meter is not None
        done = admission.appended + admission.duplicated + admission.rejected + admission.held
        self._meter.stopped = max(1, self._said() - self.unread - done - len(self.left) - self._meter.cut)


# Introductions: an unknown node sends the delegation that admits it, in an op of its own and without a token. This is
# the only way to write to a log without being known there, so it is checked before anything is written: against the
# permissions in force, the time, and how many nodes its issuer has already introduced. This module also decides when
# a log has too many authors to accept new ones.

# The most delegations of one issuer; further introductions are refused. The user's own are not counted.
DELEGATIONS_PER_ISSUER_MAX = 256


def introduction_in(op: Op | Malformed) -> Delegation | None:
    """The delegation by which an op introduces its own author."""
    if isinstance(op, Malformed) or not isinstance(op.payload, DelegateUcan):
        return None
    try:
        delegation = read_ucan(op.payload.ucan_bytes)
    except Malformed:
        return None
    return delegation if delegation.node == op.node_id else None


def is_introduced(log: Log, delegation: Delegation) -> bool:
    """Whether the node needs no introduction, because it can identify itself with a token."""
    with log.store.read() as session:
        return delegation.node.to_bytes(8, "big") in session.nodes()


def introduction_fault(log: Log, delegation: Delegation, now_s: int) -> str | None:
    """Why an introduction is not accepted, in words for the operator; None if it is."""
    with log.store.read() as session:
        permissions = log.permissions(session)
        count = len(session.nodes())
        is_revoked = any(each.cid == delegation.cid for each in session.revocations())
    if count >= AUTHORS_MAX:
        return f"an introduction to a mesh that has {AUTHORS_MAX} nodes, the limit"
    if now_s + LEEWAY_S < delegation.not_before or not (delegation.expires is None or now_s < delegation.expires):
        return "an introduction by a delegation that is not in force"
    by_cid = {each.cid: each for each in permissions.delegations}
    above = _above(delegation, by_cid)
    if is_revoked or any(permissions.authority.fault(each) is not None for each in above):
        return "an introduction by a delegation that was revoked, or that relies on one that does not count"
    if Authority(log.user, [*above, delegation], ()).fault(delegation) is not None:
        return "an introduction by a delegation that does not lead back to the user"
    issued = sum(each.issuer == delegation.issuer for each in permissions.delegations)
    if delegation.issuer != log.user and issued >= DELEGATIONS_PER_ISSUER_MAX:
        return f"an introduction by an issuer that has {DELEGATIONS_PER_ISSUER_MAX} delegations, the limit"
    return None


def all_authors(log: Log) -> set[int] | None:
    """The authors on a log that has reached the limit of authors; None if there is room for more."""
    with log.store.read() as session:
        # Every author is a known node, so there cannot be more authors than nodes.
        if len(session.nodes()) < AUTHORS_MAX:
            return None
        authors = {int.from_bytes(node, "big") for node in session.frontier()}
    return authors if len(authors) >= AUTHORS_MAX else None


def _above(delegation: Delegation, by_cid: dict[bytes, Delegation]) -> list[Delegation]:
    """The delegations that a delegation relies on, as far as they are here."""
    found: dict[bytes, Delegation] = {}
    waiting = list(delegation.proofs)
    while waiting:
        each = by_cid.get(waiting.pop())
        if each is not None and each.cid not in found:
            found[each.cid] = each
            waiting += each.proofs
    return list(found.values())


# The end of a recovery: when a node has back what it had lost of its own history, it writes again what it wrote
# meanwhile. `log.lost_past` does the work; here the operator is told.

BEHIND_SENTENCE = (
    "this home is older than what other nodes have of it, and some ops of this node are still missing, so nothing that"
    " it writes leaves it. Exchange with a node that has them all (one that reads everything); if there is none, let"
    " this machine join as a new node with a new home"
)


def recover(log: Log, emit: Emit) -> str | None:
    """Finishes a recovery, if one is under way. Returns why it cannot be finished."""
    with log.store.read() as session:
        history = own_history(session, log.node)
    if history.is_behind:
        return BEHIND_SENTENCE
    if history.has_set_aside:
        done = rewrite(log)
        if done.ops or done.dropped:
            emit(HistoryRecovered(done.ops, done.dropped))
    return None
