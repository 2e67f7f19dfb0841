"""The permissions of a log: who may write what, and who is the coordinator, at every moment. The reader derives them
from the delegations, revocations, designations and proofs of forks on the log, and keeps them until one of these
changes, since they decide about every op.

A node that has shown two histories is no longer believed: none of its ops from the fork on counts, neither about jobs
nor about the permissions. Two things still stand: an op that the arbiter accepted before, on the arbiter's word; and of
a replaced coordinator, the history that its successor's designation pins.
"""

import os
import time
from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hocket.errors import StoreError
from hocket.families.jobs import rules as schedules
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority, Revocation, Standing, counting_revocations
from hocket.kernel.clock import U32_MAX, Hlc, pack, unpack
from hocket.kernel.ids import content_hash, node_text, ulid_text
from hocket.kernel.mesh_rules import Rules
from hocket.kernel.ops import NO_ID, Op, decode, link_to, pin_to, pinned_time
from hocket.kernel.postcard import decode as decode_value
from hocket.kernel.postcard import encode
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    PAYLOAD,
    VARIANTS,
    ClaimWork,
    ClearSchedule,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    EraseContent,
    EvictArtifact,
    Payload,
    ReportFork,
    RevokeRoot,
    RevokeUcan,
    SetSchedule,
    SetSuccession,
    TakeOver,
)
from hocket.store import Artifact, Coordinator, Delegated, Fork, JobEntry, Revoked, RowCheck, Session, SuccessionRow

if TYPE_CHECKING:
    from hocket.kernel.snapshots.horizon import SettledCut
    from hocket.kernel.succession.chain import Chain
    from hocket.kernel.succession.on_log import Successions

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
    successor pins it; None for no bound.
    """

    since: Hlc
    node: int
    last: Hlc | None = None
    pin: bytes | None = None


class Permissions:
    """`revocations` are those that count: each was judged by the permissions at its own time. `forks` says since when a
    node has two histories, and `pinned` are later ops of such nodes that still count. Of the nodes in
    `lacking` some pinned ops are missing here, or the ops that show where their histories part. `cut` is the horizon in
    force.
    """

    def __init__(
        self,
        rules: Rules,
        authority: Authority,
        delegations: Iterable[Delegation],
        revocations: Iterable[Revocation],
        designations: Sequence[Coordinator],
        successions: "Successions | None",
        tenures: list[Tenure],
        forks: dict[int, Hlc],
        pinned: frozenset[bytes],
        lacking: Collection[int],
        cut: "SettledCut | None" = None,
    ) -> None:
        extensions = rules.extensions
        self.rules = rules
        self.authority = authority
        self.delegations = tuple(delegations)
        self._revocations = frozenset(revocations)
        self._designations, self._successions = designations, successions
        self.tenures = tenures
        self.forks = forks
        self.pinned = pinned
        self.lacking = frozenset(lacking)
        self.cut = cut
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
            self.succession_faults.items(),
            () if self._successions is None else self.chain.successions,
            self.forks.items(),
            self.pinned,
        )
        horizon = b"" if self.cut is None else self.cut.horizon
        return content_hash(repr([sorted(map(repr, each)) for each in facts]).encode() + horizon)

    @property
    def has_successions(self) -> bool:
        """Whether the owner has ever said who may follow the coordinator."""
        return self._successions is not None

    @cached_property
    def successions(self) -> "Successions":
        """The ops about who is the coordinator, and may be."""
        return self._successions or _successions(self._designations, (), self.delegations)

    @property
    def chain(self) -> "Chain":
        """Which of these ops are in force, and why the others are not."""
        return self.successions.chain

    @property
    def succession_faults(self) -> Mapping[bytes, Reason]:
        """Why ops about who may follow the coordinator do not count."""
        return {} if self._successions is None else self.chain.faults

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

    def owner_node(self, at: Hlc) -> int:
        """The node at which the owner of the mesh is reached: the author of this time if it is the owner's, else the
        coordinator, else the owner's node with the smallest id. The author, if none is known.
        """
        held = sorted({each.node for each in self.delegations})
        nodes = (at.node, self.leader(at), *held)
        return next((each for each in nodes if each is not None and self.authority.is_owner(each, at.wall)), at.node)

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

    def succession_fault(self, op: Op) -> Reason | None:
        """Why an op about who follows the coordinator does not count beside the others, on the log or not yet."""
        if not isinstance(op.payload, SetSuccession | TakeOver):
            return None
        return self.successions.chain_with([op]).faults.get(op.id)

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


HLC_BYTES = 20
_Row = Delegated | Revoked | Coordinator | SuccessionRow | Fork


class RegisterRows(NamedTuple):
    """`designations` are the ops of the coordinators; none in a store of one node, which entered only good ones."""

    delegations: list[Delegated]
    revocations: list[Revoked]
    coordinators: list[Coordinator]
    successions: list[SuccessionRow]
    forks: list[Fork]
    designations: dict[bytes, Op]


class RevocationFile:
    """The revocations that the processes of a home have seen in a store that nodes share, one on a line. Without a path
    nothing is kept.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path

    def read(self) -> list[Revoked]:
        try:
            lines = () if self._path is None else self._path.read_text().splitlines()
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise StoreError(f"{self._path} cannot be read: {error}") from error
        found = []
        for line in lines:
            with suppress(ValueError):  # a process was killed while it wrote the line
                op_id, cid, hlc, root = line.split()
                found.append(Revoked(bytes.fromhex(op_id), bytes.fromhex(cid), bytes.fromhex(hlc), int(root)))
        return [each for each in found if len(each.hlc) == HLC_BYTES]

    def add(self, revocations: Iterable[Revoked]) -> None:
        text = "".join(f"{each.op_id.hex()} {each.cid.hex()} {each.hlc.hex()} {each.root}\n" for each in revocations)
        if self._path is None or not text:
            return
        try:
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as file:
                file.write(text)
        except OSError as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error


class CheckedRegisters:
    """The rows from which permissions are made. In a store that nodes share, a row counts if the op that it names says
    the same and is the one that its author signed. Such a store may also lose a revocation; a home keeps those that its
    processes have seen.
    """

    def __init__(self, kept: RevocationFile | None = None) -> None:
        self._kept = kept or RevocationFile()
        self._revocations = {each.op_id: each for each in self._kept.read()}

    @property
    def revocations_seen(self) -> int:
        return len(self._revocations)

    def read(self, session: Session, fresh: Iterable[Op]) -> RegisterRows:
        """`fresh` are ops of the transaction that are not stored yet."""
        law = session.delegations(), session.revocations(), session.coordinators(), session.successions()
        rows = RegisterRows(*law, session.forks(), {})
        check = session.row_check
        return rows if check is None else self._checked(session, check, fresh, rows)

    def _checked(self, session: Session, check: RowCheck, fresh: Iterable[Op], rows: RegisterRows) -> RegisterRows:
        ops = {op.id: op for op in fresh}
        everything: list[_Row] = [row for kept in rows[:-1] for row in kept]
        missing = [each.op_id for each in everything if each.op_id not in ops]
        stored = {row.id: decode(row.body) for row in session.ops_by_id(missing)}
        ops |= stored

        made = {op_id: row_of(op) for op_id, op in ops.items()}

        def is_sound(table: str, row: _Row) -> bool:
            if made.get(row.op_id) == row:
                return True
            check.refuse(table, ulid_text(row.op_id[:16].ljust(16, b"\0")), "no op of its author says so")
            return False

        good = RegisterRows(
            [each for each in rows.delegations if is_sound("delegations", each)],
            [each for each in rows.revocations if is_sound("revocations", each)],
            [each for each in rows.coordinators if is_sound("coordinators", each)],
            [each for each in rows.successions if is_sound("successions", each)],
            [each for each in rows.forks if is_sound("forks", each)],
            {each.op_id: ops[each.op_id] for each in rows.coordinators if each.op_id in ops},
        )
        # An op that revokes does so, whatever its row says.
        others = [made.get(each.op_id) for each in rows.revocations if each not in good.revocations]
        good.revocations.extend(each for each in others if isinstance(each, Revoked))
        return good._replace(revocations=self._with_lost(session, check, good.revocations, stored))

    def _with_lost(
        self, session: Session, check: RowCheck, revocations: list[Revoked], stored: dict[bytes, Op]
    ) -> list[Revoked]:
        """Adds those that were stored before, unless another op of the same author and time has come: then none of the
        two counts.
        """
        here = {each.op_id for each in revocations}
        for lost in [each for each in self._revocations.values() if each.op_id not in here]:
            if len(session.ops_at(lost.hlc)) > 1:
                del self._revocations[lost.op_id]
            else:
                check.refuse("revocations", ulid_text(lost.op_id[:16]), "it was there and is gone; it still counts")
                revocations.append(lost)
        new = [each for each in revocations if each.op_id in stored and each.op_id not in self._revocations]
        self._kept.add(new)
        self._revocations.update((each.op_id, each) for each in new)
        return sorted(revocations, key=lambda each: each.hlc)


def row_of(op: Op) -> _Row | None:
    """The row that an op enters in one of these registers."""
    hlc, payload = pack(op.timestamp), op.payload
    if isinstance(payload, DelegateUcan):
        return Delegated(op.id, payload.ucan_cid, hlc, payload.ucan_bytes)
    if isinstance(payload, RevokeUcan | RevokeRoot):
        return Revoked(op.id, payload.ucan_cid, hlc, int(isinstance(payload, RevokeRoot)))
    if isinstance(payload, DesignateCoordinator):
        # A pin looks back, so no later arrival may change whether it counts.
        pin = None if op.cited else op.pin
        return Coordinator(hlc, op.id, payload.coordinator.to_bytes(8, "big"), pin)
    if isinstance(payload, SetSuccession | TakeOver):
        return SuccessionRow(op.id, hlc, None if op.cited else op.pin, encode(PAYLOAD, payload))
    if not isinstance(payload, ReportFork):
        return None
    from hocket.kernel.signing import read_fork  # loads OpenSSL's hashes, which reading jobs does not need

    forked = read_fork(payload)
    return None if forked is None else Fork(op.id, forked.node.to_bytes(8, "big"), pack(forked.since))


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
        return self._judged(session, fresh, rows)

    def of(self, empty: Session, ops: Sequence[Op]) -> Permissions:
        """The permissions that these ops make by themselves, on an empty log."""
        in_order = sorted(ops, key=lambda op: op.timestamp)
        rows = RegisterRows([], [], [], [], [], {op.id: op for op in in_order})
        types = Delegated, Revoked, Coordinator, SuccessionRow, Fork
        by_type: dict[type, list[Any]] = dict(zip(types, rows[:-1], strict=True))
        for op in in_order:
            if (row := row_of(op)) is not None:
                by_type[type(row)].append(row)
        rows.forks.sort(key=lambda fork: (fork.since, fork.op_id))
        return self._judged(empty, ops, rows)

    def _judged(self, session: Session, fresh: Iterable[Op], rows: RegisterRows) -> Permissions:
        permissions = self._made(session, fresh, rows)
        designations = rows.designations.values()
        refused = {
            op.id for op in (*designations, *map(_op_of, rows.successions)) if permissions.refusal(op) is not None
        }
        coordinators = [each for each in rows.coordinators if each.op_id not in refused]
        successions = [each for each in rows.successions if each.op_id not in refused]
        if len(coordinators) == len(rows.coordinators) and len(successions) == len(rows.successions):
            return permissions
        return self._made(session, fresh, rows._replace(coordinators=coordinators, successions=successions))

    def _made(self, session: Session, fresh: Iterable[Op], rows: RegisterRows) -> Permissions:
        is_bound = self.rules.bounds is not None
        successions = None
        if rows.successions:
            tokens = [self._delegation(each.cid, each.token) for each in rows.delegations]
            successions = _successions(rows.coordinators, rows.successions, tokens)
        tenures = _tenures(rows.coordinators, successions)
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
            self.rules,
            authority,
            delegations.values(),
            counting,
            rows.coordinators,
            successions,
            tenures,
            forks,
            pinned,
            unpinned | apart,
            cut_of(session),
        )

    def _delegation(self, cid: bytes, token: bytes) -> Delegation:
        if cid not in self._tokens:
            self._tokens[cid] = read_ucan(token)
        return self._tokens[cid]


def cut_of(session: Session) -> "SettledCut | None":
    """The horizon in force, if there is one."""
    row = session.horizon()
    if row is None:
        return None
    from hocket.kernel.snapshots.horizon import SettledCut  # most logs have no horizon

    heads = {int.from_bytes(author, "big"): unpack(head.hlc) for author, head in session.heads().items()}
    return SettledCut(row.op, row.at_ms, row.forgotten_ms, heads)


def _successions(
    designations: Iterable[Coordinator], rows: Iterable[SuccessionRow], delegations: Iterable[Delegation]
) -> "Successions":
    from hocket.kernel.succession.chain import TenureStart  # most logs have no successions
    from hocket.kernel.succession.on_log import Successions

    starts = [
        TenureStart(each.op_id, unpack(each.hlc), int.from_bytes(each.node, "big"), each.pin) for each in designations
    ]
    return Successions(starts, map(_op_of, rows), {each.node: each.public for each in delegations})


def _tenures(designations: Iterable[Coordinator], successions: "Successions | None") -> list[Tenure]:
    if successions is None:
        starts = [(unpack(each.hlc), int.from_bytes(each.node, "big"), each.pin) for each in designations]
    else:
        starts = [(each.at, each.node, each.pin) for each in successions.chain.tenures]
    tenures: list[Tenure] = []
    for since, node, pin in starts:
        if tenures and pin is not None:
            before = tenures[-1]
            tenures[-1] = before._replace(last=pinned_time(pin, before.node), pin=pin)
        tenures.append(Tenure(since, node))
    return tenures


def changed_since(before: Sequence[Tenure], after: Sequence[Tenure]) -> Hlc | None:
    """Since when another node decides, or decisions count that did not, or the reverse; None if nothing differs."""
    times: list[Hlc] = []
    for one, other in zip_longest(before, after):
        if one != other:
            both = [each for each in (one, other) if each is not None]
            if len(both) == 1 or one[:2] != other[:2]:
                times += [each.since for each in both]
            times += [each.last for each in both if each.last is not None]
    return min(times, default=None)


def _op_of(row: SuccessionRow) -> Op:
    """As much of its op as its author's permission, and its own effect, depend on."""
    at = unpack(row.hlc)
    return Op(row.op_id, at, at.node, () if row.pin is None else (row.pin,), decode_value(PAYLOAD, row.payload))


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


_SCHEDULES = (SetSchedule, ClearSchedule)
Cite = Callable[[bytes, bytes], None]


class Ownership:
    """Schedules and artifacts belong to a node, and not every other node may undo them. A capability lets a node write
    such ops at all; this decides whether it may write this one about that schedule or artifact. The answer depends on
    earlier ops alone. Those dependencies are stored, so that the op is judged again when one changes.

    `known` returns an op, `entry` a job, `artifact` an artifact; `cite` records that an op depends on another op, a job
    or an artifact.
    """

    def __init__(
        self,
        session: Session,
        known: Callable[[bytes], Op | None],
        entry: Callable[[bytes], JobEntry | None],
        artifact: Callable[[bytes], Artifact | None],
        cite: Cite,
    ) -> None:
        self._session, self._known, self._entry, self._artifact, self._cite = session, known, entry, artifact, cite

    def fault(self, op: Op, permissions: Permissions) -> Reason | None:
        if isinstance(op.payload, _SCHEDULES):
            return self._schedule_fault(op, op.payload.name, permissions)
        if isinstance(op.payload, EvictArtifact) and permissions.delegations:
            return self._eviction_fault(op, op.payload.artifact_id, permissions)
        if isinstance(op.payload, EraseContent) and permissions.delegations:
            return self._erasure_fault(op, op.payload, permissions)
        return None

    def _schedule_fault(self, op: Op, name: str, permissions: Permissions) -> Reason | None:
        before = self._session.schedule_before(name, pack(op.timestamp))
        return schedules.change_fault(
            op,
            None if before is None else self._known(before.op),
            lambda kind: permissions.may_schedule(op.node_id, kind, op.timestamp.wall),
        )

    def _eviction_fault(self, op: Op, artifact_id: bytes, permissions: Permissions) -> Reason | None:
        """An artifact's time to live is in its own op. After it, any node that may write artifacts may evict the
        artifact. Before that, only the node that wrote it, the node whose job made it, and the owner may.
        """
        self._cite(artifact_id, op.id)
        artifact = self._artifact(artifact_id)
        creation = None if artifact is None else self._known(artifact.op_id)
        if creation is None or creation.timestamp > op.timestamp:
            return Reason.WAITING
        assert artifact is not None
        wall = op.timestamp.wall
        if op.node_id == creation.node_id or (artifact.expires is not None and wall >= artifact.expires):
            return None
        assert isinstance(creation.payload, CreateArtifact)
        job_id = creation.payload.source_job
        if job_id is not None and self._submitter(op, job_id) == op.node_id:
            return None
        return None if permissions.authority.is_owner(op.node_id, wall) else Reason.OTHERS_ARTIFACT

    def _erasure_fault(self, op: Op, payload: EraseContent, permissions: Permissions) -> Reason | None:
        """The grant is for the kind that the op names, which must be the job's."""
        submitter = self._submitter(op, payload.source_job)
        entry = self._entry(payload.source_job)
        if submitter is None or entry is None:
            return Reason.WAITING
        may = submitter == op.node_id or permissions.authority.is_owner(op.node_id, op.timestamp.wall)
        return None if may and entry.job.kind == payload.kind else Reason.OTHERS_JOB

    def _submitter(self, op: Op, job_id: bytes) -> int | None:
        """The node that submitted the job; for a tick, the node that set the schedule."""
        self._cite(job_id, op.id)
        entry = self._entry(job_id)
        if entry is None or entry.job.scheduled > op.timestamp:
            return None
        asked = self._known(entry.job.policy.set_by() or entry.job.schedule_op)
        return None if asked is None else asked.node_id


def founder(session: Session) -> int | None:
    """The node with which the log begins, which may be one of another user's mesh; None if the log is empty."""
    first = session.stored_entries(0, 1)
    if not first or first[0].seq != 1:
        return None
    payload = decode(first[0].body).payload
    return read_ucan(payload.ucan_bytes).node if isinstance(payload, DelegateUcan) else 0


def writers(session: Session, permissions: Permissions) -> set[int]:
    """The founder, and every node that was ever told to share its store."""
    began = founder(session)
    if began is None:
        return set()
    shares = permissions.authority.shares.items()
    return {began} | {node for node, each in shares if node_text(began) in {share.store for share in each}}
