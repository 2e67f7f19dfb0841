"""The log: the head, the ops, and which op cites which. Node ids are eight bytes here and HLCs are packed, so that
bytes compare as clocks do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from hocket.kernel.bundles import read_facts, with_bundle_signature
from hocket.kernel.postcard import Malformed
from hocket.kernel.subjects import JOB, Subject
from hocket.kernel.vocabulary import Bundle, number_of

# The link of an op that a program before version 12 of the store has left without one.
NO_LINK = bytes(32)
BUNDLE = number_of(Bundle)
# The columns of an `OpRow`.
OP_COLUMNS = "seq, id, hlc, variant, family, key, reason, settled, body, chain, place"
# The id of an op; of a fact, that of its bundle.
ENTRY_ID = "CASE WHEN place IS NULL THEN id ELSE (SELECT b.id FROM ops AS b WHERE b.seq = ops.seq - ops.place - 1) END"


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


class OpSession(Protocol):
    """An entry of the log is an op by itself, or a bundle. Reads of ops give those by themselves and those in bundles;
    reads of entries give bundles instead of what is in them. In a store that nodes share, the ops that a read returns
    are those that their authors signed: see `row_check`.
    """

    def head(self) -> Head: ...
    def lock_end(self) -> Head:
        """The head as it is now. From here on no other transaction changes it. Nothing is locked after this, so that a
        transaction beside others holds them up only while it commits.
        """

    def put_head(self, head: Head) -> None: ...

    def add_ops(self, ops: Sequence[NewOp], links: Sequence[bytes]) -> int:
        """Appends ops to the log, each with its link, and returns the number of the last. The caller puts it into the
        head.
        """

    def seal_ops(self, ops: Sequence[SealedOp]) -> None:
        """Replaces the bytes and the links of ops on the log. The caller puts the new end of the chain into the
        head.
        """

    def drop_ops(self, first: int) -> None:
        """Removes the ops with these numbers and above. The caller puts the new end of the log into the head."""

    def unsettled_ops(self, after: int, limit: int | None) -> list[OpRow]:
        """Unchecked: the caller folds, or leaves out, each of them once."""

    def mark_settled(self, seqs: Sequence[int]) -> None:
        """Takes the numbers of ops that `unsettled_ops` has given, and that are folded now."""

    def order_ops(self) -> None:
        """Creates, for good, an index by author and time. A node with only its own ops never needs it, and saves the
        cost.
        """

    def op(self, op_id: bytes) -> OpRow | None:
        """The settled op with that id."""

    def ops_by_id(self, op_ids: Sequence[bytes]) -> list[OpRow]:
        """The settled ops with these ids, in any order."""

    def ops_named(self, op_id: bytes) -> list[OpRow]:
        """The ops with this id: the key of each is the id alone, or the id and its author."""

    def known_ops(self, op_ids: Sequence[bytes]) -> dict[bytes, bytes]:
        """The ops on the log that have these keys, each with its bytes: empty if a check has refused them."""

    def latest_of(self, node: bytes) -> tuple[bytes, bytes]:
        """The HLC of the author's latest op and the id of its latest entry, or zeros if there is none."""

    def first_stored(self, node: bytes) -> bytes | None:
        """The author's first op, unchecked."""

    def ops_with_link(self, node: bytes, link: bytes) -> list[OpRow]:
        """The author's entries that contain these bytes. This reads every entry of the author."""

    def entry(self, seq: int) -> OpRow | None:
        """The entry with this number, or with a fact that has it."""

    def ops_after(self, seq: int, limit: int) -> list[OpRow]: ...
    def entries_after(self, seq: int, limit: int) -> list[OpRow]: ...
    def stored_entries(self, seq: int, limit: int) -> list[OpRow]:
        """As `entries_after`, but unchecked, for an audit."""

    def entry_count(self) -> int: ...
    def op_count(self) -> int: ...
    def facts_of(self, seq: int) -> list[OpRow]:
        """The facts of the bundle with this number, unchecked."""

    def last_ops(self, count: int) -> list[OpRow]: ...
    def ops_at(self, hlc: bytes) -> list[OpRow]: ...
    def entries_at(self, hlc: bytes) -> list[OpRow]:
        """Those of this time, and those with a fact of this time."""

    def ops_about(self, subject: Subject, without: Sequence[int] = (), after: bytes = b"") -> list[OpRow]:
        """In HLC order, except those refused for one of these reasons; only those later than `after`."""

    def every_op_about(self, subject: Subject, after: bytes = b"") -> list[OpRow]:
        """All ops about a subject in HLC order, also those that a node which may change no op has marked as not
        settled.
        """

    def jobs_written_of(self, job_ids: Sequence[bytes]) -> set[bytes]:
        """The jobs among these that any op on the log is about."""

    def ops_about_jobs(self, job_ids: Sequence[bytes], variant: int) -> list[OpRow]:
        """The ops of this variant about any of these jobs, in no order."""

    def ops_in_order(self, after: bytes, limit: int) -> list[OpRow]:
        """The next ops of all authors in HLC order."""

    def entries_since(self, frontier: Mapping[bytes, bytes], limit: int) -> list[OpRow]:
        """The first entries in HLC order that are unknown to a node which knows each author up to the frontier."""

    def ops_written_after(self, node: bytes, hlc: bytes) -> tuple[int, bytes | None]:
        """How many ops an author has written after that time, and the time of the first."""

    def ops_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]: ...
    def entries_of_author(self, node: bytes, after: bytes, limit: int) -> list[OpRow]: ...

    def written_by(self, node: bytes) -> list[tuple[bytes, Subject | None]]:
        """The ids of an author's ops and their subjects."""

    def ops_of_variants(self, variants: Sequence[int]) -> list[OpRow]: ...
    def has_variants(self, variants: Sequence[int]) -> bool: ...
    def set_reasons(self, reasons: Iterable[tuple[int, bytes]]) -> None: ...
    def frontier(self) -> dict[bytes, bytes]: ...

    def refused_ops(self, limit: int) -> list[OpRow]:
        """The newest ops on the log that do not count."""

    def ops_refused_for(self, reasons: Sequence[int]) -> list[OpRow]: ...
    def cite(self, dep: bytes, op_id: bytes) -> None: ...
    def citing(self, dep: bytes) -> list[bytes]: ...

    def cited_among(self, deps: Sequence[bytes]) -> set[bytes]:
        """The ones among these that an op cites."""
