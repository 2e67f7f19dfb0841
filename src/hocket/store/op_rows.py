"""The log: the head, the ops, and which op cites which. Node ids are eight bytes here and HLCs are packed, so that
bytes compare as clocks do.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import FACTS_MAX, read_facts, with_bundle_signature
from hocket.kernel.postcard import Malformed
from hocket.kernel.vocabulary import JOB, Bundle, Subject, number_of
from hocket.store.statements import Dialect, Row, Statements, insert_new

# The link of an op that a program before version 12 of the store has left without one.
NO_LINK = bytes(32)
BUNDLE = number_of(Bundle)
# The columns of an `OpRow`.
OP_COLUMNS = "seq, id, hlc, variant, family, key, reason, settled, body, chain, place"
# The id of an op; of a fact, that of its bundle.
ENTRY_ID = "CASE WHEN place IS NULL THEN id ELSE (SELECT b.id FROM ops AS b WHERE b.seq = ops.seq - ops.place - 1) END"

# Which rows are ops, and which are entries.
OPS = f"variant <> {BUNDLE}"
ENTRIES = "place IS NULL"
_SELECT = f"SELECT {OP_COLUMNS} FROM ops"
_KNOWN = f"SELECT id, body FROM ops WHERE settled = 1 AND {ENTRIES} AND id {{}}"
# The time of an author's last op, and the id of its last entry.
LATEST = f"SELECT hlc, {ENTRY_ID} AS id FROM ops WHERE substr(hlc, 13) = ? ORDER BY hlc DESC LIMIT 1"
_FACTS_OF = f"WHERE seq > ?1 AND seq <= ?1 + {FACTS_MAX} AND seq - place - 1 = ?1 ORDER BY seq"
_ENTRY_AT = "SELECT seq - coalesce(place + 1, 0) FROM ops WHERE"
_WRITTEN_AFTER = f"FROM ops WHERE substr(hlc, 13) = ?1 AND hlc > ?2 AND {OPS}"
_WRITTEN_BY = f"SELECT id, family, key FROM ops WHERE substr(hlc, 13) = ? AND {OPS} ORDER BY hlc"
_JOBS_WRITTEN_OF = "SELECT DISTINCT key FROM ops WHERE settled = 1 AND family = 'job' AND key IS NOT NULL AND key {}"
_ABOUT_JOBS = f"{_SELECT} WHERE settled = 1 AND family = 'job' AND key {{}} AND variant = ?"
# The reason of an op that retention lets go: it is as if it were not there.
PRUNED = int(Reason.PRUNED)
# An entry of which every fact has gone: a bundle is followed by its facts.
_DEAD = (
    f"{ENTRIES} AND (reason = {PRUNED} OR variant = {BUNDLE}) AND NOT EXISTS ("
    f"SELECT 1 FROM ops AS fact WHERE fact.seq > ops.seq AND fact.seq <= ops.seq + {FACTS_MAX}"
    f" AND fact.seq - fact.place - 1 = ops.seq AND fact.reason <> {PRUNED})"
)
_CITE = insert_new("cites", "dep, op")


@cache
def _about(without: tuple[int, ...]) -> str:
    refused = ", ".join(str(int(reason)) for reason in (PRUNED, *without))
    return f"WHERE key = ? AND settled = 1 AND family = ? AND hlc > ? AND reason NOT IN ({refused}) ORDER BY hlc"


@cache
def _containing(dialect: Dialect) -> str:
    return f"WHERE substr(hlc, 13) = ? AND {dialect.position.format('body')} > 0 ORDER BY hlc"


class EndSeal(NamedTuple):
    """What a node that has its log for itself says of the log's end: its `mark` on the last op, and its `signature` on
    the op with the number `signed`.
    """

    mark: bytes
    signed: int
    signature: bytes


NO_SEAL = EndSeal(b"", 0, b"")


class Head(NamedTuple):
    """The end of the log: the node's clock, the number of ops, and the last link, `chain`; and how far the projections
    follow. Every op up to `settled` is folded, and can be found by its id and its subject; `unsettled` of the later ops
    are not folded yet. `permissions_state` is the number of the current delegations, revocations and coordinators.
    `last` is the id of the author's own last op, sixteen zeros before the first. In a store that nodes share, the
    author is the node that the transaction has locked, and the end has no `seal`.
    """

    wall: int
    logical: int
    seq: int
    chain: bytes
    settled: int
    unsettled: int
    rebuilding: bytes | None
    permissions_state: int = 0
    last: bytes = bytes(16)
    seal: EndSeal = NO_SEAL


class SealedOp(NamedTuple):
    """An op of the log with other bytes, and its link."""

    seq: int
    body: bytes
    chain: bytes


class NewOp(NamedTuple):
    """An op for the log. `id` is the op's id; in a strict mesh the author may follow it, if another author's op came
    first with the same id. `hlc` is packed; `family` and `key` are its subject, without a key if it has none; `reason`
    is 0 for an op that counts; `settled` is 1 if it is folded. A bundle is followed by its facts, each with its `place`
    in the bundle and without a body.
    """

    id: bytes
    hlc: bytes
    variant: int
    family: str
    key: bytes | None
    reason: int
    settled: int
    body: bytes
    place: int | None = None

    @property
    def is_op(self) -> bool:
        """Whether it is a fact or an op by itself, and no bundle."""
        return self.variant != BUNDLE


class OpRow(NamedTuple):
    """A stored op: a `NewOp`, with its number and its link of the chain. A fact has no link; `bundle` is the op that it
    came in.
    """

    seq: int
    id: bytes
    hlc: bytes
    variant: int
    family: str
    key: bytes | None
    reason: int
    settled: int
    body: bytes
    chain: bytes
    place: int | None = None
    bundle: bytes | None = None

    @property
    def subject(self) -> Subject | None:
        return None if self.key is None else Subject(self.family, self.key)

    @property
    def signed_body(self) -> bytes:
        """The bytes of the op; those of a fact with the signature of its bundle."""
        return self.body if self.bundle is None else with_bundle_signature(self.body, self.bundle)

    @property
    def job(self) -> bytes | None:
        """The job that the op is about, if any."""
        return self.key if self.family == JOB else None


Bundles = Callable[[Sequence[int]], Mapping[int, bytes]]
"""Reads the bundles with these numbers."""


def with_bodies(rows: list[OpRow], bundles: Bundles) -> list[OpRow]:
    """The ops of rows, in which facts have no bytes."""
    wanted = {row.seq - row.place - 1 for row in rows if row.place is not None}
    if not wanted:
        return rows
    found = bundles(sorted(wanted))
    return [row if row.place is None else _with_body(row, row.place, found) for row in rows]


def _with_body(row: OpRow, place: int, bundles: Mapping[int, bytes]) -> OpRow:
    bundle = bundles.get(row.seq - place - 1, b"")
    return row._replace(body=fact_body(bundle, place), bundle=bundle)


def fact_body(bundle: bytes, place: int) -> bytes:
    """The bytes of a fact. They are empty if its bundle has none there, so that every check of the op fails."""
    try:
        return read_facts(bundle)[place].body
    except (Malformed, IndexError):
        return b""


def _op_row(row: Row) -> OpRow:
    """An op's row. In a damaged file any value can stand in place of bytes. The row then has empty bytes, and the check
    of the op fails.
    """
    op = OpRow(*row)
    if type(op.id) is type(op.hlc) is type(op.body) is type(op.chain) is bytes:
        return op
    return op._replace(id=_bytes(op.id), hlc=_bytes(op.hlc), body=_bytes(op.body), chain=_bytes(op.chain))


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else b""


class ChecksOps(Protocol):
    """What a store that nodes share asks about ops: see `RowCheck`."""

    def ops(self, rows: list[OpRow]) -> list[OpRow]:
        """The rows with ops that their authors signed."""

    def bodies(self, bodies: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Ops by their keys. One that its author did not sign gets empty bytes: its key is taken."""


class OpSession(Statements):
    """An entry of the log is an op by itself, or a bundle. Reads of ops give those by themselves and those in bundles;
    reads of entries give bundles instead of what is in them. In a store that nodes share, the ops that a read returns
    are those that their authors signed: see `RowCheck`.
    """

    row_check: ChecksOps | None

    @abstractmethod
    def head(self) -> Head: ...

    @abstractmethod
    def lock_end(self) -> Head:
        """The head as it is now. From here on no other transaction changes it. Nothing is locked after this, so that a
        transaction beside others holds them up only while it commits.
        """

    @abstractmethod
    def put_head(self, head: Head) -> None: ...

    @abstractmethod
    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        """Appends ops to the log, each with its link, and returns the number of the last. The caller puts it into the
        head.
        """

    @abstractmethod
    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        """Replaces the bytes and the links of ops on the log. The caller puts the new end of the chain into the
        head.
        """

    def drop_ops(self, first: int) -> None:
        """Removes the ops with these numbers and above. The caller puts the new end of the log into the head."""
        self._put("DELETE FROM ops WHERE seq >= ?", (first,))

    @abstractmethod
    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        """Unchecked: the caller folds, or leaves out, each of them once. A transaction beside others leaves them those
        that they are folding.
        """

    @abstractmethod
    def mark_settled(self, seqs: Sequence[int]) -> None:
        """Takes the numbers of ops that `unsettled_ops` has given, and that are folded now."""

    def order_ops(self) -> None:
        """Creates, for good, an index by author and time. A node with only its own ops never needs it, and saves the
        cost. Where many nodes write, the tables have it from the start.
        """

    def op(self, op_id: bytes) -> OpRow | None:
        """The settled op with that id."""
        return self._op("WHERE id = ? AND settled = 1", op_id)

    def known_ops(self, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """The ops on the log that have these keys, each with its bytes: empty if a check has refused them."""
        bodies = {op_id: body for op_id, body in self._among(_KNOWN, op_ids)}
        return bodies if self.row_check is None else self.row_check.bodies(bodies)

    def ops_by_id(self, op_ids: Sequence[bytes]) -> list[OpRow]:
        """The settled ops with these ids, in any order."""
        return self._checked(self._read(self._among(f"{_SELECT} WHERE settled = 1 AND id {{}}", op_ids)))

    def ops_named(self, op_id: bytes) -> list[OpRow]:
        """The ops with this id: the key of each is the id alone, or the id and its author."""
        return self._ops("WHERE id BETWEEN ? AND ? AND settled = 1", op_id, op_id + b"\xff" * 8)

    def latest_of(self, node: bytes) -> tuple[bytes, bytes]:
        """The HLC of the author's latest op and the id of its latest entry, or zeros if there is none."""
        rows = self._rows(LATEST, node)
        return (rows[0][0], rows[0][1]) if rows else (bytes(20), bytes(16))

    def first_stored(self, node: bytes) -> bytes | None:
        """The author's first op, unchecked."""
        rows = self._stored("WHERE substr(hlc, 13) = ? ORDER BY hlc LIMIT 1", node)
        return rows[0].body if rows else None

    def ops_with_link(self, node: bytes, link: bytes) -> list[OpRow]:
        """The author's entries that contain these bytes. This reads every entry of the author."""
        return self._ops(_containing(self.dialect), node, link)

    def entry(self, seq: int) -> OpRow | None:
        """The entry with this number, or with a fact that has it."""
        return self._op(f"WHERE seq = ({_ENTRY_AT} seq = ?)", seq)

    def _op(self, tail: str, value: bytes | int) -> OpRow | None:
        rows = self._stored(tail, value)
        return next(iter(self._checked(rows)), None) if rows else None

    def ops_after(self, seq: int, limit: int) -> list[OpRow]:
        return self._after(OPS, seq, limit)

    def entries_after(self, seq: int, limit: int) -> list[OpRow]:
        return self._after(ENTRIES, seq, limit)

    def _after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        good: list[OpRow] = []
        while rows := self._stored_after(which, seq, limit - len(good)):
            good += self._checked(rows)
            if self.row_check is None or len(good) == limit:
                break
            seq = rows[-1].seq
        return good

    def stored_entries(self, seq: int, limit: int) -> list[OpRow]:
        """As `entries_after`, but unchecked, for an audit."""
        return self._stored_after(ENTRIES, seq, limit)

    def _stored_after(self, which: str, seq: int, limit: int) -> list[OpRow]:
        return self._stored(f"WHERE seq > ? AND {which} ORDER BY seq LIMIT ?", seq, limit)

    def dead_entries(self, after: int, before: int, limit: int) -> list[OpRow]:
        """Entries between these numbers of which nothing counts any more."""
        return self._stored(f"WHERE seq > ? AND seq < ? AND {_DEAD} ORDER BY seq LIMIT ?", after, before, limit)

    def first_seq(self) -> int | None:
        """The smallest number of an op that is here."""
        found = self._one("SELECT min(seq) FROM ops")
        return None if found is None else int(found)

    def entry_count(self) -> int:
        return int(self._one(f"SELECT count(*) FROM ops WHERE {ENTRIES}"))

    def op_count(self) -> int:
        """Without those that were deleted."""
        gone = "(SELECT coalesce(sum(last - first + 1), 0) FROM gaps)"
        return self.head().seq - int(self._one(f"SELECT count(*) + {gone} FROM ops WHERE variant = {BUNDLE}"))

    def stored_rows(self, seq: int, limit: int) -> list[OpRow]:
        """The next entries and facts; facts come without bytes, and entries that their authors did not sign are left
        out.
        """
        rows = [_op_row(row) for row in self._rows(f"{_SELECT} WHERE seq > ? ORDER BY seq LIMIT ?", seq, limit)]
        if self.row_check is None:
            return rows
        good = {row.seq for row in self.row_check.ops([row for row in rows if row.place is None])}
        return [row for row in rows if row.place is not None or row.seq in good]

    def facts_of(self, seq: int) -> list[OpRow]:
        """The facts of the bundle with this number, unchecked."""
        return self._stored(_FACTS_OF, seq)

    def last_ops(self, count: int) -> list[OpRow]:
        return self._ops(f"WHERE {OPS} ORDER BY seq DESC LIMIT ?", count)[::-1]

    def ops_at(self, hlc: bytes) -> list[OpRow]:
        return self._ops(f"WHERE substr(hlc, 13) = ? AND hlc = ? AND {OPS}", hlc[12:], hlc)

    def entries_at(self, hlc: bytes) -> list[OpRow]:
        """Those of this time, and those with a fact of this time."""
        return self._ops(f"WHERE seq IN ({_ENTRY_AT} substr(hlc, 13) = ? AND hlc = ?)", hlc[12:], hlc)

    def ops_about(self, subject: Subject, without: Sequence[int] = (), after: bytes = b"") -> list[OpRow]:
        """In HLC order, except those that were let go, and those refused for one of these reasons; only those later
        than `after`.
        """
        return self._ops(_about(tuple(without)), subject.key, subject.family, after)

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        """All ops about a subject in HLC order, also those that a node which may change no op has marked as not
        settled. SQLite has no rights by column: a program that may change one column of an op may change all.
        """
        return self.ops_about(subject, (), after)

    def jobs_written_of(self, job_ids: Sequence[bytes]) -> set[bytes]:
        """The jobs among these that any op on the log is about."""
        return {key for (key,) in self._among(_JOBS_WRITTEN_OF, job_ids)}

    def ops_about_jobs(self, job_ids: Sequence[bytes], variant: int) -> list[OpRow]:
        """The ops of this variant about any of these jobs, in no order."""
        return self._checked(self._read(self._among(_ABOUT_JOBS, job_ids, variant)))

    def ops_in_order(self, after: bytes, limit: int) -> list[OpRow]:
        """The next ops of all authors in HLC order."""
        return self._merged(OPS, {node: after for node in self.frontier()}, limit)

    def entries_since(self, frontier: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        """The first entries in HLC order that are unknown to a node which knows each author up to the frontier."""
        after = {node: (frontier.get(node, bytes(20)), last) for node, last in self.frontier().items()}
        beyond = {node: known for node, (known, last) in after.items() if last > known}
        return self._merged(ENTRIES, beyond, limit)

    def _merged(self, which: str, after: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        good: list[OpRow] = []
        beyond = dict(after)
        while wanted := limit - len(good):
            rows = self._read(self._next_of(which, beyond, wanted))
            good += self._checked(rows)
            if len(rows) < wanted:
                break
            beyond.update((row.hlc[12:], row.hlc) for row in rows)
        return good

    @abstractmethod
    def _next_of(self, which: str, after: Mapping[bytes, bytes], limit: int) -> Iterable[Row]:
        """Merges the authors' own sequences, which are indexed, each from its time on."""

    def ops_written_after(self, node: bytes, hlc: bytes) -> tuple[int, bytes | None]:
        """How many ops an author has written after that time, and the time of the first."""
        first = f"SELECT hlc {_WRITTEN_AFTER} ORDER BY hlc LIMIT 1"
        ((count, hlc_of_first),) = self._rows(f"SELECT count(*), ({first}) {_WRITTEN_AFTER}", node, hlc)
        return count, hlc_of_first

    def last_entry_before(self, node: bytes, hlc: bytes) -> OpRow | None:
        """The author's last entry that begins before this time."""
        where = f"WHERE substr(hlc, 13) = ? AND hlc < ? AND {ENTRIES} ORDER BY hlc DESC LIMIT 1"
        return next(iter(self._ops(where, node, hlc)), None)

    def ops_between(self, node: bytes, after: bytes, until: bytes) -> list[OpRow]:
        """The ops of an author after a time, up to another."""
        where = f"WHERE substr(hlc, 13) = ? AND hlc > ? AND hlc <= ? AND {OPS} ORDER BY hlc"
        return self._ops(where, node, after, until)

    def ops_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(OPS, {node: after}, limit)

    def entries_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]:
        return self._merged(ENTRIES, {node: after}, limit)

    def written_by(self, node: bytes) -> list[tuple[bytes, Subject | None]]:
        """The ids of an author's ops and their subjects."""
        rows = self._rows(_WRITTEN_BY, node)
        return [(op_id, None if key is None else Subject(family, key)) for op_id, family, key in rows]

    def ops_of_variants(self, variants: Sequence[int]) -> list[OpRow]:
        return self._checked(self._read(self._among(f"{_SELECT} WHERE variant {{}} ORDER BY hlc", variants)))

    def has_variants(self, variants: Sequence[int]) -> bool:
        rows = self._among("SELECT EXISTS (SELECT 1 FROM ops WHERE variant {})", variants)
        return bool(rows and rows[0][0])

    @abstractmethod
    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None: ...

    @abstractmethod
    def frontier(self) -> dict[bytes, bytes]: ...

    def refused_ops(self, limit: int) -> list[OpRow]:
        """The newest ops on the log that do not count, without those that were let go."""
        return self._ops(f"WHERE reason <> 0 AND reason <> {PRUNED} ORDER BY seq DESC LIMIT ?", limit)

    def ops_refused_for(self, reasons: Sequence[int]) -> list[OpRow]:
        chosen = [int(reason) for reason in reasons]
        rows = self._among(f"{_SELECT} WHERE reason <> 0 AND reason {{}} ORDER BY seq", chosen)
        return self._checked(self._read(rows))

    def cite(self, dep: bytes, op_id: bytes) -> None:
        self._put(_CITE, (dep, op_id))

    def citing(self, dep: bytes) -> list[bytes]:
        return self._column("SELECT op FROM cites WHERE dep = ?", dep)

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        """The ones among these that an op cites."""
        return {dep for (dep,) in self._among("SELECT DISTINCT dep FROM cites WHERE dep {}", deps)}

    def _ops(self, tail: str, *values: Any) -> list[OpRow]:
        return self._checked(self._stored(tail, *values))

    def _checked(self, rows: list[OpRow]) -> list[OpRow]:
        return rows if self.row_check is None or not rows else self.row_check.ops(rows)

    def _stored(self, tail: str, *values: Any) -> list[OpRow]:
        return self._read(self._rows(f"{_SELECT} {tail}", *values))

    def _read(self, rows: Iterable[Row]) -> list[OpRow]:
        ops = [_op_row(row) for row in rows]
        return with_bodies(ops, self._bundles) if ops else ops

    def _bundles(self, seqs: Sequence[int]) -> dict[int, bytes]:
        """The entries with these numbers, unchecked. In a damaged file any value can stand in the place of bytes."""
        rows = self._among("SELECT seq, body FROM ops WHERE seq {}", seqs)
        return {seq: body for seq, body in rows if type(body) is bytes}
