"""The permissions of a log: who may write what, and who is the coordinator, at every moment. The reader derives them
from the delegations, revocations, designations and proofs of forks on the log, and keeps them until one of these
changes, since they decide about every op.

A node that has shown two histories is no longer believed: none of its ops from the fork on counts, neither about jobs
nor about the permissions. Two things still stand: an op that the arbiter accepted before, on the arbiter's word; and of
a replaced coordinator, the history that its successor's designation pins.
"""

import time
from bisect import bisect
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from hocket.kernel.authority import Authority, Revocation, Standing, counting_revocations
from hocket.kernel.clock import U32_MAX, Hlc, pack, unpack
from hocket.kernel.ids import content_hash, node_text
from hocket.kernel.ops import NO_ID, Op, decode, link_to, pin_to, pinned_time
from hocket.kernel.reasons import Reason
from hocket.kernel.rules import Rules
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import VARIANTS, ClaimWork, CompleteJob, Payload, ReportFork, RevokeRoot, RevokeUcan
from hocket.log.checked_registers import CheckedRegisters, RegisterRows, RevocationFile
from hocket.store import Coordinator, Session

# The ops of a derivation job, if its kind marks it as one.
_DERIVING = (ClaimWork, CompleteJob)
# How many states of the permissions are remembered: the current one, and those of transactions that were undone.
REMEMBERED = 4
# In a store that nodes share, the number of the state is believed for this long.
BELIEVED_S = 5.0
# The most ops to read of a coordinator with two histories.
PINNED_MAX = 1_000_000


class Tenure(NamedTuple):
    """A coordinator from a time on. `last` is the time of its last op that counts as the coordinator's, as its
    successor's designation pins it; None for no bound.
    """

    since: Hlc
    node: int
    last: Hlc | None = None
    pin: bytes | None = None


class Permissions:
    """`revocations` are those that count: each was judged by the permissions at its own time. `forks` says since when a
    node has two histories, and `pinned` are later ops of such nodes that still count. Of the nodes in
    `lacking` some pinned ops are missing here, or the ops that show where their histories part.
    """

    def __init__(
        self,
        rules: Rules,
        authority: Authority,
        delegations: Iterable[Delegation],
        revocations: Iterable[Revocation],
        tenures: list[Tenure],
        forks: dict[int, Hlc],
        pinned: frozenset[bytes],
        lacking: Collection[int],
    ) -> None:
        extensions = rules.extensions
        self.rules = rules
        self.authority = authority
        self.delegations = tuple(delegations)
        self._revocations = frozenset(revocations)
        self.tenures = tenures
        self.forks = forks
        self.pinned = pinned
        self.lacking = frozenset(lacking)
        self._since = [tenure.since for tenure in tenures]
        self._has_pins = any(tenure.last is not None for tenure in tenures)
        self._arbiter = extensions is not None and extensions.arbiter
        self.derivation_ops = frozenset(extensions.derivation_ops if extensions else ())
        self._derivation_kinds = tuple(extensions.derivation_kinds if extensions else ())
        self._derivation_types = {codec.cls for codec in VARIANTS.values() if codec.cls.__name__ in self.derivation_ops}
        self._derives = bool(self.derivation_ops or self._derivation_kinds)

    @cached_property
    def fingerprint(self) -> bytes:
        """A hash that is equal for permissions that judge all ops alike, also in another process."""
        facts: tuple[Iterable[object], ...] = (
            (each.cid for each in self.delegations),
            self.authority.revoked,
            self._revocations,
            self.tenures,
            self.forks.items(),
            self.pinned,
        )
        return content_hash(repr([sorted(map(repr, each)) for each in facts]).encode())

    @property
    def coordinators(self) -> list[tuple[Hlc, int]]:
        """Which node is the coordinator, and since when."""
        return [(tenure.since, tenure.node) for tenure in self.tenures]

    def _tenure(self, at: Hlc) -> Tenure | None:
        if self._since and at >= self._since[-1]:
            return self.tenures[-1]
        index = bisect(self._since, at)
        return self.tenures[index - 1] if index else None

    def coordinator(self, at: Hlc) -> int | None:
        """The coordinator at that time, if one was designated."""
        tenure = self._tenure(at)
        return None if tenure is None else tenure.node

    def arbiter(self, at: Hlc) -> int | None:
        """The node that decides about an op of this time and author: the author, if it is the coordinator or shares the
        coordinator's store, and otherwise the coordinator. None if the rules of the mesh know no arbiter.
        """
        return self.leader(at) if self._arbiter else None

    def leader(self, at: Hlc) -> int | None:
        """The node that would decide about an op of this time and author if the rules knew an arbiter."""
        tenure = self._tenure(at)
        if tenure is None:
            return None
        node = tenure.node
        return at.node if node == at.node or self.authority.share_store(node, at.node, at.wall) else node

    def awaited(self, at: Hlc) -> int | None:
        """The node for which the ops of this author wait: the coordinator. None for any other node, if ranked jobs are
        open: those need no coordinator.
        """
        leader = self.leader(at)
        return None if self.rules.ranked_open and leader != at.node else leader

    def designations(self, at: Hlc) -> int:
        """How many arbiters were designated after the first one, up to that time."""
        return max(0, bisect(self._since, at) - 1) if self._arbiter else 0

    def is_divided(self, first: Hlc, last: Hlc) -> bool:
        """Whether an arbiter was designated between these times."""
        return bisect(self._since, first) != bisect(self._since, last)

    def is_overtaken(self, at: Hlc) -> bool:
        """Whether a decision of the coordinator at that time was unknown when its successor was designated."""
        if not self._has_pins:
            return False
        tenure = self._tenure(at)
        return tenure is not None and tenure.last is not None and at.node == tenure.node and at > tenure.last

    def is_trusted(self, node: int, now_ms: int) -> bool:
        """Whether a node is the owner's, or the coordinator or in its store: ops that it passes on were in time."""
        return self.authority.is_owner(node, now_ms) or self.leader(Hlc(now_ms, U32_MAX, node)) == node

    def could_be_pinned(self, op: Op) -> bool:
        """Whether a new op may belong to the pinned history of an author with two, or complete it."""
        since = self.forks.get(op.node_id) if self.forks else None
        return since is not None and any(
            tenure.node == op.node_id and tenure.last is not None and since <= op.timestamp <= tenure.last
            for tenure in self.tenures
        )

    def is_forked(self, op: Op) -> bool:
        """Whether its author had two histories at that time."""
        since = self.forks.get(op.node_id) if self.forks else None
        return since is not None and op.timestamp >= since

    def refusal(self, op: Op, kind: str | None = None) -> Reason | None:
        """Why the author may not write this op; `kind` is that of the job that it is about. A log without any
        delegation has no permissions yet: its node is about to introduce itself.
        """
        if not self.delegations:
            return None
        payload = op.payload
        if self.forks and self.is_forked(op) and op.id not in self.pinned:
            # A proof needs no trust in its author.
            return None if isinstance(payload, ReportFork | RevokeRoot) else Reason.FORKED
        refused = self.authority.refusal(op.node_id, payload, op.timestamp.wall, kind)
        if refused is None:
            if self._derives and self._is_derivation(payload, kind) and op.node_id != self.leader(op.timestamp):
                return Reason.NOT_COORDINATOR
        elif type(payload) is RevokeUcan and (op.timestamp, op.node_id, payload.ucan_cid) in self._revocations:
            return None
        return refused

    def tick_refusal(self, op: Op, author: int) -> Reason | None:
        """Why the job of a schedule's tick is refused, if so: the schedule's `author` must be allowed to schedule it at
        the time of the tick's op. That op's own author must only be a member then.
        """
        if not self.delegations:
            return None
        if self.is_forked(op) and op.id not in self.pinned:
            return Reason.FORKED
        refused = self.authority.refusal(author, op.payload, op.timestamp.wall, None)
        if refused is None and self._derives and self._is_derivation(op.payload, None):
            refused = None if op.node_id == self.leader(op.timestamp) else Reason.NOT_COORDINATOR
        standing = self.authority.standing(op.node_id, op.timestamp.wall)
        if refused is None and standing is not Standing.ACTIVE:
            refused = Reason.REVOKED if standing is Standing.REVOKED else Reason.UNAUTHORISED
        return refused

    def may_schedule(self, node: int, kind: str, wall_ms: int) -> bool:
        return not self.delegations or self.authority.may(node, "Job", "Schedule", kind, wall_ms) is not None

    def may_run(self, node: int, kind: str, wall_ms: int) -> bool:
        """Whether its delegations let a node claim jobs of a kind, and end them, and no derivation is only the
        coordinator's.
        """
        if not self.delegations:
            return True
        if kind.startswith(self._derivation_kinds) and self.leader(Hlc(wall_ms, U32_MAX, node)) != node:
            return False
        return all(
            self.authority.may(node, "Job", action, kind, wall_ms) is not None for action in ("Claim", "Complete")
        )

    def may_charge(self, node: int, wall_ms: int, account: str) -> bool:
        """Whether a node may charge an account. Its own id is an account that it may."""
        return (
            not self.delegations
            or account == node_text(node)
            or any(grant.admits("Account", "Charge", (account,)) for grant in self.authority.grants(node, wall_ms))
        )

    def _is_derivation(self, payload: Payload, kind: str | None) -> bool:
        if type(payload) in _DERIVING and kind is not None:
            return kind.startswith(self._derivation_kinds)
        return type(payload) in self._derivation_types

    def compared_with(self, before: "Permissions") -> tuple[set[int], set[int]]:
        """The nodes that have lost delegations since `before`, and those that have gained some: their ops must be
        judged again.
        """
        then, now = before._standing(), self._standing()
        forked = {node for node in self.forks.keys() | before.forks.keys() if self._fork(node) != before._fork(node)}
        changed = forked | self._changed_shares(before)
        return {node for node, _ in then - now} | changed, {node for node, _ in now - then} | changed

    def _changed_shares(self, before: "Permissions") -> set[int]:
        """If another node shares a store since, what it has offered may be decided, and the reverse. That depends on
        the coordinator's delegations, too, so it concerns all nodes that share stores.
        """
        then, now = before.authority.shares, self.authority.shares
        return set() if then == now else {*then, *now}

    def _fork(self, node: int) -> tuple[Hlc | None, frozenset[bytes]]:
        return self.forks.get(node), self.pinned

    def _standing(self) -> set[tuple[int, bytes]]:
        return {(each.node, each.cid) for each in self.delegations if self.authority.fault(each) is None}


class PermissionsReader:
    """Reads the permissions of a session, once for each of their states. `latest` is what it read last, for callers
    that may not touch the store. `revocations` are those that were seen before in a store that nodes share.
    """

    def __init__(self, user: str, rules: Rules, revocations: RevocationFile | None = None) -> None:
        self._user = user
        self.rules = rules
        # By the number of the state, and that of the revocations that were remembered then.
        self._known: dict[tuple[int, int], Permissions] = {}
        self.latest: Permissions | None = None
        self._tokens: dict[bytes, Delegation] = {}
        self._registers = CheckedRegisters(revocations)
        self._read_at, self.is_reading = 0.0, False
        # Made with ops of a transaction that had not stored them.
        self._unstored: Permissions | None = None

    def read(self, session: Session, state: int, fresh: Sequence[Op] = ()) -> Permissions:
        """`fresh` are ops of the transaction that are not stored yet."""
        if session.row_check is not None and time.monotonic() - self._read_at > BELIEVED_S:
            # Another program may have put back the number.
            self._known.clear()
        permissions = self._known.get((state, self._registers.revocations_seen))
        if permissions is None or (permissions is self._unstored and not fresh):
            permissions = self._read(session, fresh)
            # Revocations are remembered when they are read from the store, where their transaction was not undone.
            self._unstored = permissions if fresh and session.row_check is not None else None
            while len(self._known) >= REMEMBERED:
                del self._known[next(iter(self._known))]
            self._known[state, self._registers.revocations_seen] = permissions
        self.latest = permissions
        return permissions

    def _read(self, session: Session, fresh: Iterable[Op]) -> Permissions:
        """A designation counts only if its author may designate, by the permissions that all of them make."""
        self._read_at, self.is_reading = time.monotonic(), True
        try:
            rows = self._registers.read(session, fresh)
        finally:
            self.is_reading = False
        permissions = self._made(session, fresh, rows)
        unauthorised = [
            each
            for each in rows.coordinators
            if (op := rows.designations.get(each.op_id)) is not None and permissions.refusal(op) is not None
        ]
        if not unauthorised:
            return permissions
        for each in unauthorised:
            rows.coordinators.remove(each)
        return self._made(session, fresh, rows)

    def _made(self, session: Session, fresh: Iterable[Op], rows: RegisterRows) -> Permissions:
        is_bound = self.rules.bounds is not None
        tenures = _tenures(rows.coordinators)
        forks: dict[int, Hlc] = {}
        apart: set[int] = set()
        for fork in rows.forks:
            node = int.from_bytes(fork.node, "big")
            if node not in forks and not _shares_link(session, fresh, fork.op_id):
                apart.add(node)
            forks.setdefault(node, unpack(fork.since))
        histories = [_pinned(session, fresh, tenure, forks) for tenure in tenures]
        pinned = frozenset(op_id for history in histories for op_id in history.ops)
        unpinned = {tenure.node for tenure, history in zip(tenures, histories, strict=True) if not history.is_whole}

        def is_void(op_id: bytes, hlc: bytes) -> bool:
            """If an author has two histories, different nodes may hold different ones, so neither counts."""
            since = forks.get(int.from_bytes(hlc[12:], "big")) if forks else None
            return since is not None and hlc >= pack(since) and op_id not in pinned

        delegations = {
            each.cid: self._delegation(each.cid, each.token)
            for each in rows.delegations
            if not is_void(each.op_id, each.hlc)
        }
        revoked = [each for each in rows.revocations if each.root or not is_void(each.op_id, each.hlc)]
        revocations = [(unpack(each.hlc), unpack(each.hlc).node, each.cid) for each in revoked if not each.root]
        counting = counting_revocations(self._user, delegations.values(), revocations, is_bound)
        roots = {each.cid for each in revoked if each.root}
        authority = Authority(
            self._user, delegations.values(), {cid for _, _, cid in counting} | roots, is_bound=is_bound
        )
        return Permissions(
            self.rules, authority, delegations.values(), counting, tenures, forks, pinned, unpinned | apart
        )

    def _delegation(self, cid: bytes, token: bytes) -> Delegation:
        if cid not in self._tokens:
            self._tokens[cid] = read_ucan(token)
        return self._tokens[cid]


def _tenures(coordinators: list[Coordinator]) -> list[Tenure]:
    tenures: list[Tenure] = []
    for each in coordinators:
        if tenures and each.pin is not None:
            before = tenures[-1]
            tenures[-1] = before._replace(last=pinned_time(each.pin, before.node), pin=each.pin)
        tenures.append(Tenure(unpack(each.hlc), int.from_bytes(each.node, "big")))
    return tenures


def _shares_link(session: Session, fresh: Iterable[Op], report: bytes) -> bool:
    """Whether the two ops of a report follow the same op. If they only have the same time, then their histories have
    parted before.
    """
    row = session.op(report)
    found = next((op for op in fresh if op.id == report), None) if row is None else decode(row.body)
    assert found is not None and isinstance(found.payload, ReportFork)
    return decode(found.payload.left).link == decode(found.payload.right).link


class _Pinned(NamedTuple):
    ops: list[bytes]
    is_whole: bool


def _pinned(session: Session, fresh: Iterable[Op], tenure: Tenure, forks: dict[int, Hlc]) -> _Pinned:
    """The ops of a coordinator with two histories that its successor's designation commits to, from the pinned op back,
    link by link, to the fork; and whether all of them are here. Two such ops with the same time prove a fork
    themselves, and only the later one counts.
    """
    since = forks.get(tenure.node)
    if since is None or tenure.last is None or tenure.last < since:
        return _Pinned([], is_whole=True)
    rows = session.ops_of_author(tenure.node.to_bytes(8, "big"), bytes(20), PINNED_MAX)
    unstored = [op for op in fresh if op.node_id == tenure.node]
    earlier = [(row.hlc, row.id) for row in rows if row.hlc < pack(since)]
    earlier += [(pack(op.timestamp), op.id) for op in unstored if op.timestamp < since]
    ops = [decode(row.body) for row in rows if row.hlc >= pack(since)]
    ops += [op for op in unstored if op.timestamp >= since]
    by_link = {link_to(op.id): op for op in ops}
    found = next((op for op in ops if pin_to(op.timestamp, op.id) == tenure.pin), None)
    if found is None:
        return _Pinned([], is_whole=False)
    pinned = [found.id]
    while (before := by_link.get(found.link or b"")) is not None and before.timestamp < found.timestamp:
        pinned.append(before.id)
        found = before
    fork_point = link_to(max(earlier)[1] if earlier else NO_ID)
    return _Pinned(pinned, is_whole=before is not None or found.link == fork_point)


def trace(op_id: bytes) -> int:
    """An op's share in the number of the permissions: the same permissions have the same number, whatever the order of
    the ops.
    """
    return int.from_bytes(content_hash(op_id)[:8], "big", signed=True)
