"""Proves the log from its own bytes: every op is the one that its author signed, its id follows from its content where
the rules bind ids, every link of the chain fits, no op is missing, and the tail is not cut. Ops of the node that has
this log need no signature: the node's signature on the end of the chain covers them. It trusts no projection: the
authors' keys come from the delegations on the log itself.

Compares the derived rows of a store that nodes share with the ops that they come from, for an audit. The check of each
row is the one that it must stand before it is used.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from hocket.errors import StoreError
from hocket.kernel.authority import Authority
from hocket.kernel.bundles import facts_of
from hocket.kernel.clock import pack
from hocket.kernel.family import FAMILIES
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op, decode, is_bound, link_to, verify_op
from hocket.kernel.postcard import Malformed
from hocket.kernel.signing import OpSigner, is_end_of, is_mark, is_marked
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_ucan
from hocket.kernel.vocabulary import (
    Bundle,
    ClearSchedule,
    DelegateUcan,
    Sanitised,
    SetSchedule,
    Subject,
    discriminant,
    number_of,
    subject_of,
)
from hocket.log.citations import ID_BYTES, long_key
from hocket.log.parallel import Helpers, in_parallel
from hocket.log.permissions import CheckedRegisters
from hocket.log.registers import scheduled
from hocket.log.sealing import link
from hocket.log.store_check import SessionCheck, StoreCheck
from hocket.store import NO_SEAL, Head, JobEntry, OpRow, Session, Store
from hocket.store.horizon_rows import GapRow, HeadRow

BATCH = 1_000
FINDINGS_MAX = 100


class AuditFinding(NamedTuple):
    """One fault, and the op that has it."""

    seq: int | None
    op_id: str | None
    what: str


class Audit(NamedTuple):
    """`head` is the number of ops and the chain's end. A later audit can compare with it."""

    ops: int
    head: tuple[int, bytes]
    findings: list[AuditFinding]


def verify(
    store: Store,
    *,
    user: str,
    marks: OpSigner | None = None,
    is_bound: bool = False,
    expected: tuple[int, bytes] | None = None,
    helpers: Helpers | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Audit:
    """Reads the whole log. `marks` are those of the node that has this log, if its key is at hand. `is_bound` says that
    ids follow from content. `expected` is a head that was kept elsewhere: the log must still contain it.
    """
    with store.read() as session:
        head = session.head()
        auditor = Auditor(user, marks, is_bound, expected, helpers)
        auditor.findings += [AuditFinding(None, None, f"the database is damaged: {what}") for what in _damage(session)]
        try:
            auditor.walk(session, head, progress)
        except StoreError as error:
            auditor.report(None, f"reading stopped after op {auditor.seq}: {error}")
        auditor.check_tail(head)
        if session.horizon() is not None:
            from hocket.log.retention.proof import check_remains

            auditor.findings += [AuditFinding(None, None, what) for what in check_remains(session)]
    return Audit(auditor.count, (head.seq, head.chain), auditor.findings)


def _damage(session: Session) -> list[str]:
    try:
        return session.damage()
    except StoreError as error:
        return [str(error)]


class Auditor:
    """Checks the ops of a log in their order, from the first one, and collects what is wrong."""

    def __init__(
        self,
        user: str,
        marks: OpSigner | None,
        is_bound: bool,
        expected: tuple[int, bytes] | None = None,
        helpers: Helpers | None = None,
    ) -> None:
        self._user = user
        self._marks = marks
        self._is_bound = is_bound
        self._expected = expected
        self._helpers = helpers
        self._keys: dict[int, bytes] = {}
        self._chain = bytes(32)
        # The runs of ops that retention let go, by their first number.
        self._gaps: dict[int, GapRow] = {}
        # On a pruned log: the last settled entries of authors, and the last entry of each that was read since.
        self._heads: dict[bytes, HeadRow] | None = None
        self._last_ids: dict[bytes, bytes] = {}
        self._met_expected = expected is None or expected[0] == 0
        # The authors of marked ops, and the last of these ops.
        self._markers: set[int] = set()
        self._last_marked = 0
        # The op up to which the chain is signed, and its link.
        self._signed_seq = 0
        self._signed_chain = b""
        self.seq = 0
        self.count = 0
        self.findings: list[AuditFinding] = []

    def report(self, row: OpRow | None, what: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            op_id = None if row is None or len(row.id) < ID_BYTES else ulid_text(row.id[:ID_BYTES])
            self.findings.append(AuditFinding(None if row is None else row.seq, op_id, what))

    def walk(self, session: Session, head: Head, progress: Callable[[int, int], None]) -> None:
        self.meet(session)
        self._signed_seq = head.seal.signed
        if session.horizon() is not None:
            self.meet_horizon(session, is_whole=True)
        while rows := session.stored_entries(self.seq, BATCH):
            self.take(session, rows)
            progress(self.seq, head.seq)

    def meet_horizon(self, session: Session, *, is_whole: bool) -> None:
        """Collects the gaps that retention has left and, if the whole log is to be read, the heads of authors."""
        self._gaps = {gap.first: gap for gap in session.gaps()}
        forked = {fork.node for fork in session.forks()}
        heads = {author: row for author, row in session.heads().items() if author not in forked}
        self._heads = heads if is_whole else None
        self._last_ids = {author: row.entry for author, row in heads.items()}

    def resume(self, seq: int, chain: bytes) -> None:
        """Goes on after an op that was found good before, with its link."""
        self.seq, self._chain = seq, chain

    def take(self, session: Session, rows: Sequence[OpRow]) -> None:
        """Checks the next entries of the log, and the facts of those that are bundles."""
        ops = [self._decoded(row) for row in rows]
        signed = self._signatures(rows, ops)
        for row, op, is_signed in zip(rows, ops, signed, strict=True):
            self._check(row, op, is_signed)
            if op is not None and isinstance(op.payload, Bundle):
                self._check_facts(row, op, session.facts_of(row.seq))
            if self._signed_seq == self.seq:
                self._signed_chain = self._chain
            if self._expected == (self.seq, self._chain):
                self._met_expected = True

    def check_tail(self, head: Head) -> None:
        if self.seq < head.seq:
            self.report(
                None, f"the tail is cut: the head counts {head.seq} ops, the last one here is number {self.seq}"
            )
        elif self.seq > head.seq:
            self.report(None, f"ops follow the head: it counts {head.seq} ops, the last one here is number {self.seq}")
        elif self._chain != head.chain:
            self.report(None, f"the head's chain value does not fit the last op, number {head.seq}")
        if self.seq >= head.seq:
            self._check_end(head)
        if not self._met_expected and self._expected is not None:
            self.report(None, f"the expected head {self._expected[0]}:{self._expected[1].hex()} is not on this log")

    def _check_end(self, head: Head) -> None:
        """The node that has the log signs the end of the chain, and it alone marks ops."""
        seal = head.seal
        if self._marks is not None and seal != NO_SEAL and seal.mark != self._marks.end_mark(head.seq, head.chain):
            self.report(None, f"the end of the log, op {head.seq}, was not written with this node's key")
        if not self._markers:
            return
        end, nodes = (self._signed_seq, self._signed_chain), self._markers & self._keys.keys()
        if not any(is_end_of(self._keys[node], node, *end, seal.signature) for node in nodes):
            self.report(None, f"the signature on the end of the chain does not fit op {seal.signed}")
        elif self._marks is None and self._last_marked > seal.signed:
            self.report(None, f"the ops after number {seal.signed} can be checked only with the key of their node")

    def _check(self, row: OpRow, op: Op | None, signed: bool) -> None:
        self._pass_gap(row.seq)
        if row.seq != self.seq + 1:
            missing = f"op {self.seq + 1} is" if row.seq == self.seq + 2 else f"ops {self.seq + 1} to {row.seq - 1} are"
            self.report(row, f"{missing} missing before this op")
        self.seq = row.seq
        self.count += 1
        body_good = op is not None and signed and _columns_fit(row, op)
        if op is None:
            self.report(row, "its bytes cannot be read")
        elif not _columns_fit(row, op):
            self.report(row, "its index columns differ from its bytes")
        elif not signed:
            self.report(row, f"its {_proof_of(row)} does not fit its bytes and its author")
        elif self._is_bound and not isinstance(op.payload, Sanitised) and not is_bound(row.body, op):
            self.report(row, "its id, or that of what it makes, does not follow from its content")
        if op is not None and self._heads is not None:
            self._check_author(row, op, self._heads)
        computed = link(self._chain, row.body)
        if computed != row.chain:
            self.report(row, "its link does not fit the chain")
        # The chain continues from the value that can still be trusted, so that one damaged op is not reported as many.
        self._chain = computed if body_good else row.chain

    def _pass_gap(self, seq: int) -> None:
        """Goes on behind ops that were deleted, with the link of the last of them."""
        gap = self._gaps.get(self.seq + 1)
        if gap is None or gap.last >= seq:
            return
        self.seq, self._chain = gap.last, gap.chain
        if self._expected is not None and gap.first <= self._expected[0] <= gap.last:
            # The op at that head is gone, and its link with it, unless it was the last one.
            self._met_expected |= self._expected[0] < gap.last or self._expected[1] == gap.chain

    def _check_author(self, row: OpRow, op: Op, heads: Mapping[bytes, HeadRow]) -> None:
        """Behind an author's head no entry may be missing."""
        author, head = row.hlc[12:], heads.get(row.hlc[12:])
        if head is None or row.hlc <= head.hlc:
            return
        if op.link is not None and op.link != link_to(self._last_ids[author]):
            self.report(row, "an entry of its author before it is missing")
        self._last_ids[author] = row.id[:ID_BYTES]

    def _check_facts(self, row: OpRow, bundle: Op, stored: Sequence[OpRow]) -> None:
        """The rows of the facts must be those that follow from the bundle's bytes."""
        try:
            facts = [each.op for each in facts_of(bundle)]
        except Malformed:
            facts = []
        is_whole = bool(facts) and len(stored) == len(facts)
        places = enumerate(zip(stored, facts, strict=True)) if is_whole else ()
        if not is_whole or not all(each.place == place and _columns_fit(each, op) for place, (each, op) in places):
            self.report(row, "its facts are not those of its bytes")
        self.seq += len(stored)
        # The facts count, not the bundle.
        self.count += len(stored) - 1

    def _decoded(self, row: OpRow) -> Op | None:
        try:
            return decode(row.body)
        except Malformed:
            return None

    def meet(self, session: Session) -> None:
        """Collects the keys of the nodes whose delegations lead back to the user. A node writes its own delegation
        before those that it depends on, so this reads all of them before the first op is verified.
        """
        self._keys = author_keys(session, self._user) | self._keys

    def _signatures(self, rows: Sequence[OpRow], ops: Sequence[Op | None]) -> list[bool]:
        keys = self._keys

        def check(pairs: Sequence[tuple[OpRow, Op | None]]) -> list[bool]:
            return [op is not None and op.node_id in keys and self._is_good(row, op) for row, op in pairs]

        for row, op in zip(rows, ops, strict=True):
            if op is not None and op.signature is not None and is_mark(op.signature):
                self._markers.add(op.node_id)
                self._last_marked = row.seq
        return in_parallel(self._helpers, check, list(zip(rows, ops, strict=True)))

    def _is_good(self, row: OpRow, op: Op) -> bool:
        """An op that was sanitised for this node has lost its signature; every other op must have one, or a mark."""
        if isinstance(op.payload, Sanitised):
            return op.signature is None
        if op.signature is not None and is_mark(op.signature):
            return self._marks is None or self._marks.is_own(row.body)
        return verify_op(row.body, op, self._keys[op.node_id])


def author_keys(session: Session, user: str) -> dict[int, bytes]:
    """The keys of the nodes whose delegations on this log lead back to the user."""
    delegations: list[Delegation] = []
    for row in session.ops_of_variants((number_of(DelegateUcan),)):
        with suppress(Malformed):
            payload = decode(row.body).payload
            if isinstance(payload, DelegateUcan):
                delegations.append(read_ucan(payload.ucan_bytes))
    return trusted_keys(Authority(user, delegations, ()), delegations)


def trusted_keys(authority: Authority, delegations: Iterable[Delegation]) -> dict[int, bytes]:
    """The keys of the nodes whose delegations lead back to the user."""
    keys: dict[int, bytes] = {}
    for each in delegations:
        if authority.fault(each) is None:
            keys.setdefault(each.node, each.public)
    return keys


def _proof_of(row: OpRow) -> str:
    return "mark" if is_marked(row.body) else "signature"


def _columns_fit(row: OpRow, op: Op) -> bool:
    return row.id in (op.id, long_key(op)) and (row.hlc, row.variant, row.subject) == (
        pack(op.timestamp),
        discriminant(op.payload),
        subject_of(op.payload),
    )


def audit_rows(store: Store, check: StoreCheck) -> list[AuditFinding]:
    """`check` is a new one: it reports each row once."""
    with store.read() as session:
        session.row_check = within = check.within(session)
        CheckedRegisters().read(session, ())
        session.nodes()
        for kind, hlc, node in session.routes():
            within.route(kind, hlc, node)
        _states(session)
        _schedules(session, within)
        for entries in _batches(session.each_job()):
            within.jobs(entries)
    rows = [each for each in check.findings.values() if each.table != "ops"]
    return [AuditFinding(None, None, f"{each.table}, row {each.row}: {each.what}") for each in rows[:FINDINGS_MAX]]


def _states(session: Session) -> None:
    """Reading a state compares it with the ops, also one that should be there and is not."""
    for family in FAMILIES.values():
        for key in session.subjects_of(family.name):
            if family.table is None:
                session.subject_state(Subject(family.name, key))
            else:
                family.table.read(session, key)
    after = b""
    while found := session.artifacts(after, BATCH):
        after = found[-1].id


def _schedules(session: Session, check: SessionCheck) -> None:
    """Which tick was the last is on no log."""
    for row in session.schedules():
        op = session.op(row.op)
        payload = None if op is None else decode(op.body).payload
        is_known = op is not None and isinstance(payload, SetSchedule | ClearSchedule)
        if not is_known or op is None or scheduled(decode(op.body))._replace(last_tick=row.last_tick) != row:
            check.refuse("schedules", row.name, f"it differs from op {ulid_text(row.op[:16].ljust(16, bytes(1)))}")


def _batches(entries: Iterator[JobEntry]) -> Iterator[list[JobEntry]]:
    while batch := list(islice(entries, BATCH)):
        yield batch
