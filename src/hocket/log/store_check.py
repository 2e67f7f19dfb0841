"""Checks what a store that nodes share gives, before this node acts on it: each of these nodes can change any row with
SQL. An op must be the one that its author signed, and its columns must fit it. The authors' keys come from delegations
that lead back to the user. A derived row that gives a privilege must say what the op says that it comes from. A row
that does not is left out and reported; the rest goes on. An op is verified once in a process, and not at all if the
process has written it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import Authority
from hocket.kernel.clock import pack
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import Op, decode, is_signed_by
from hocket.kernel.postcard import Malformed
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    DelegateUcan,
    RouteKind,
    Sanitised,
    Subject,
    discriminant,
    subject_of,
)
from hocket.log.author_check import binding_fault, op_fault
from hocket.log.citations import ID_BYTES, long_key
from hocket.log.job_check import JobCheck
from hocket.log.job_check import digest as _digest
from hocket.log.job_check import remember as _remember
from hocket.log.job_check import shown as _shown
from hocket.log.parallel import Helpers, in_parallel
from hocket.log.permissions import Permissions, PermissionsReader
from hocket.log.state_check import CheckedStates, SessionStates, StateCheck
from hocket.log.written.journal import WrittenEntries, WrittenEntry, own_entries
from hocket.store import JobEntry, NewOp, OpRow, Session
from hocket.store.job_rows import BundledOp, ReadyJob
from hocket.store.op_rows import BUNDLE
from hocket.store.registers import NodeKeys

FINDINGS_MAX = 1_000
UNREADABLE = "its bytes cannot be read"


class RowFinding(NamedTuple):
    """A row that is not as its op says, or whose op is not its author's."""

    table: str
    row: str
    what: str


class _GoodOp(NamedTuple):
    """An op that was verified: a hash of its bytes, and what its columns must say."""

    digest: bytes
    hlc: bytes
    variant: int
    subject: Subject | None


class _NewOp(NamedTuple):
    """An op that is to be verified, with its number among those that were read."""

    number: int
    key: bytes
    body: bytes
    op: Op


class StoreCheck:
    """The checks of one process. `key` is this node's own. The home keeps checked states in `kept`, and in `written`
    what the node has written. It calls `report` once for each bad row, inside the transaction that has read the row.
    """

    def __init__(
        self,
        user: str,
        node: int,
        key: SigningKey,
        permissions_reader: Callable[[], PermissionsReader],
        helpers: Helpers | None,
        kept: CheckedStates | None = None,
        written: WrittenEntries | None = None,
    ) -> None:
        self._user, self._node, self._key, self._helpers = user, node, key, helpers
        self._author, self._written = node.to_bytes(8, "big"), written
        self._reader = permissions_reader
        self._keys: dict[int, bytes] = {node: key.public}
        self._ops: dict[bytes, _GoodOp] = {}
        self.jobs = JobCheck(self)
        self._entries: dict[tuple[str, bytes, bytes | None], None] = {}
        self.findings: dict[tuple[str, str], RowFinding] = {}
        self.report: Callable[[RowFinding], None] = lambda finding: None
        self.states = StateCheck(permissions_reader, self.refuse, kept)

    def within(self, session: Session) -> "SessionCheck":
        return SessionCheck(self, session)

    def wrote(self, ops: Sequence[NewOp]) -> None:
        """This process has signed these ops. It remembers those that are yet to be folded: it may read them soon."""
        for op in ops:
            if not op.settled and op.key is not None:
                good = _GoodOp(_digest(op.body), op.hlc, op.variant, Subject(op.family, op.key))
                _remember(self._ops, op.id, good)

    def own_entries(self, ops: Sequence[NewOp]) -> list[WrittenEntry]:
        """What the home is to remember of these ops."""
        return [] if self._written is None else own_entries(self._author, ops)

    def remember_written(self, entries: Sequence[WrittenEntry]) -> None:
        if self._written is not None and entries:
            self._written.add(entries)

    def refuse(self, table: str, row: str, what: str) -> None:
        if (table, row) not in self.findings:
            finding = RowFinding(table, row, what)
            _remember(self.findings, (table, row), finding, FINDINGS_MAX)
            self.report(finding)

    # Ops.

    def ops(self, session: Session, rows: list[OpRow]) -> list[OpRow]:
        signed = {_signed(row): None for row in rows}
        verdicts = dict(zip(signed, self._judged(session, list(signed)), strict=True))
        return [row for row in rows if self._is_good(row, verdicts[_signed(row)])]

    def _is_good(self, row: OpRow, verdict: _GoodOp | str) -> bool:
        if row.bundle is not None and not isinstance(verdict, str):
            # The bundle is good, so its facts are.
            verdict = _fact(row, verdict)
        if not isinstance(verdict, str) and verdict[1:] != (row.hlc, row.variant, row.subject):
            verdict = "its index columns differ from its bytes"
        if isinstance(verdict, str):
            self.refuse("ops", _shown(row.id), verdict)
            return False
        return True

    def bodies(self, session: Session, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        found = dict(bodies)
        for key, verdict in zip(bodies, self._judged(session, list(bodies.items())), strict=True):
            if isinstance(verdict, str):
                self.refuse("ops", _shown(key), verdict)
                found[key] = b""
        return found

    def _judged(self, session: Session, bodies: Sequence[tuple[bytes, bytes]]) -> list[_GoodOp | str]:
        """Verifies the ops that are not known yet, on all cores if there are many. Returns what is wrong with bad
        ones.
        """
        verdicts: list[_GoodOp | str] = []
        new: list[_NewOp] = []
        for number, (key, body) in enumerate(bodies):
            digest = _digest(body)
            known = self._ops.get(key)
            if known is not None and known.digest == digest:
                verdicts.append(known)
                continue
            try:
                op = decode(body)
            except Malformed:
                verdicts.append(UNREADABLE)
                continue
            verdicts.append(_GoodOp(digest, pack(op.timestamp), discriminant(op.payload), subject_of(op.payload)))
            new.append(_NewOp(number, key, body, op))
        for each, fault in zip(new, self._faults(session, new), strict=True):
            verdict = verdicts[each.number]
            if fault is not None:
                verdicts[each.number] = fault
            elif not isinstance(verdict, str):
                _remember(self._ops, each.key, verdict)
        return verdicts

    def _faults(self, session: Session, new: Sequence[_NewOp]) -> list[str | None]:
        if not new:
            return []
        self._introduce(session, [each.op for each in new])
        reads_everything = self._reads_everything(session, [each.op for each in new])

        def check(part: Sequence[_NewOp]) -> list[str | None]:
            return [self._fault(each, reads_everything) for each in part]

        return in_parallel(self._helpers, check, new)

    @property
    def is_bound(self) -> bool:
        return self._reader().rules.bounds is not None

    @property
    def is_strict(self) -> bool:
        return self._reader().rules.is_strict

    def _reads_everything(self, session: Session, ops: Iterable[Op]) -> bool:
        """Whether this node receives all ops whole, as all nodes that share a store do. Asked for sanitised ops."""
        if not any(isinstance(op.payload, Sanitised) for op in ops):
            return True
        reader = self._reader()
        if reader.latest is None and reader.is_reading:
            return True  # no sanitised op changes the permissions
        latest = reader.latest or self.permissions(session)
        return latest.authority.reads_everything(self._node, max(op.timestamp.wall for op in ops))

    def _fault(self, new: _NewOp, reads_everything: bool) -> str | None:
        op, body = new.op, new.body
        if new.key not in (op.id, long_key(op)):
            return "its index columns differ from its bytes"
        public = self._keys.get(op.node_id)
        if isinstance(op.payload, Sanitised):
            return "it has no signature" if public is None or reads_everything else None
        if op.node_id == self._node and is_signed_by(body, op, self._key):
            return self._binding_fault(new) if self.is_bound else None
        refused = op_fault(self._user, body, op, public, self.is_bound)
        return None if refused is None else refused.sentence

    def _binding_fault(self, new: _NewOp) -> str | None:
        if new.key != new.op.id:
            return "its index columns differ from its bytes"
        refused = binding_fault(self._user, new.body, new.op)
        return None if refused is None else refused.sentence

    # The authors' keys.

    def _introduce(self, session: Session, ops: Iterable[Op]) -> None:
        """Learns the keys of authors that are not known yet. The first op of every node states its key."""
        unknown = {op.node_id for op in ops} - self._keys.keys()
        if not unknown:
            return
        own = [op.payload.ucan_bytes for op in ops if isinstance(op.payload, DelegateUcan)]
        self._learn([each.token for each in session.delegations()] + own)
        for node in unknown - self._keys.keys():
            first = session.first_stored(node.to_bytes(8, "big"))
            with suppress(Malformed):
                payload = None if first is None else decode(first).payload
                if isinstance(payload, DelegateUcan):
                    self._learn([payload.ucan_bytes])

    def _learn(self, tokens: Iterable[bytes]) -> None:
        delegations: dict[bytes, Delegation] = {}
        for token in tokens:
            with suppress(Malformed):
                delegations[content_hash(token)] = read_ucan(token)
        authority = Authority(self._user, delegations.values(), ())
        for is_sure in (True, False):
            for each in delegations.values():
                if authority.fault(each) is (None if is_sure else Reason.UNRESOLVED):
                    self._keys.setdefault(each.node, each.public)

    def nodes(self, session: Session, keys: NodeKeys) -> NodeKeys:
        numbers = {int.from_bytes(node, "big") for node in keys}
        if numbers - self._keys.keys():
            self._learn([each.token for each in session.delegations()])
        good: NodeKeys = {}
        for node, (public, issuer) in keys.items():
            if self._keys.get(int.from_bytes(node, "big")) == public:
                good[node] = public, issuer
            else:
                self.refuse("nodes", node.hex(), "no delegation of the user's names this key")
        return good

    def fault(self, session: Session, key: bytes, body: bytes) -> str | None:
        (verdict,) = self._judged(session, [(key, body)])
        return verdict if isinstance(verdict, str) else None

    # Other derived rows.

    def route(self, session: Session, kind: str, hlc: bytes, node: bytes | None) -> bool:
        entry = kind, hlc, node
        if entry in self._entries:
            return True
        permissions = self.permissions(session)
        for op in _ops_at(session, hlc):
            payload = op.payload
            if isinstance(payload, RouteKind) and payload.kind == kind and permissions.refusal(op) is None:
                routed = None if payload.route is None else payload.route.to_bytes(8, "big")
                if routed == node:
                    self.enter_route(kind, hlc, node)
                    return True
        self.refuse("routes", kind, "no op of an owner's node routes this kind so")
        return False

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        _remember(self._entries, (kind, hlc, node), None)

    def permissions(self, session: Session) -> Permissions:
        return self._reader().read(session, session.head().permissions_state)


class SessionCheck(SessionStates):
    """The checks within one session: see `RowCheck`."""

    def __init__(self, check: StoreCheck, session: Session) -> None:
        super().__init__(check.states, session)
        self._check, self._session = check, session
        self._written_jobs: list[JobEntry] = []
        self._unread: list[JobEntry] = []
        self._entries: list[WrittenEntry] = []

    def ops(self, rows: list[OpRow]) -> list[OpRow]:
        return self._check.ops(self._session, rows)

    def bodies(self, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return self._check.bodies(self._session, bodies)

    def ready(self, jobs: list[ReadyJob], bundled: Mapping[bytes, BundledOp]) -> list[ReadyJob]:
        return self._check.jobs.ready(self._session, jobs, bundled)

    def jobs(self, entries: Sequence[JobEntry]) -> list[JobEntry]:
        return self._check.jobs.sound(self._session, entries)

    def knows_job(self, entry: JobEntry) -> bool:
        return self._check.jobs.knows(entry)

    def held_jobs(self, job_ids: Iterable[bytes]) -> list[JobEntry]:
        held = self._check.jobs.held(job_ids)
        self._unread += held
        return held

    def outdated(self) -> None:
        self._check.jobs.forget(self._unread)

    def enter_job(self, entry: JobEntry) -> None:
        self._check.jobs.enter(entry)

    def wrote_jobs(self, entries: Sequence[JobEntry]) -> None:
        self._written_jobs += entries

    def wrote_ops(self, ops: Sequence[NewOp]) -> None:
        self._check.wrote(ops)
        self._entries += self._check.own_entries(ops)

    def committed(self) -> None:
        super().committed()
        self._check.jobs.wrote(self._written_jobs)
        self._written_jobs.clear()
        self._check.remember_written(self._entries)
        self._entries.clear()

    def nodes(self, keys: NodeKeys) -> NodeKeys:
        return self._check.nodes(self._session, keys)

    def route(self, kind: str, hlc: bytes, node: bytes | None) -> bool:
        return self._check.route(self._session, kind, hlc, node)

    def enter_route(self, kind: str, hlc: bytes, node: bytes | None) -> None:
        self._check.enter_route(kind, hlc, node)

    def refuse(self, table: str, row: str, what: str) -> None:
        self._check.refuse(table, row, what)


def _signed(row: OpRow) -> tuple[bytes, bytes]:
    """The key and the bytes of the op that its author signed: the op itself, or the bundle that it came in."""
    return (row.id, row.body) if row.bundle is None else (row.bundle[:ID_BYTES], row.bundle)


def _fact(row: OpRow, bundle: _GoodOp) -> _GoodOp | str:
    try:
        op = decode(row.body)
    except Malformed:
        return UNREADABLE
    if op.id != row.id or bundle.variant != BUNDLE:
        return "its index columns differ from its bytes"
    return _GoodOp(b"", pack(op.timestamp), discriminant(op.payload), subject_of(op.payload))


def _ops_at(session: Session, hlc: bytes) -> list[Op]:
    return [decode(row.body) for row in session.ops_at(hlc)]
