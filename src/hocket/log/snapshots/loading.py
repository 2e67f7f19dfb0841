"""Puts a snapshot into a home, in one transaction: what is settled at its horizon is then what the snapshot has, and
everything later stays as it was. Entries that are here already stay where they are; those that are missing come to the
end of the log; settled ones that the snapshot does not have are deleted. A kill leaves all of it, or none.

The node's own ops that are late at that horizon are set aside before, and are written again behind it.
"""

from collections import deque
from typing import NamedTuple

from hocket.errors import Conflict, Failed
from hocket.families.retention.rules import Horizon, forgotten_ms
from hocket.kernel.arbitration import Reason
from hocket.kernel.bundles import read_facts
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ids import node_text
from hocket.kernel.ops import Op, decode, encode_sequence, read_sequence
from hocket.kernel.postcard import Malformed
from hocket.kernel.snapshots.chunks import SnapshotManifest
from hocket.kernel.snapshots.horizon import horizon_end
from hocket.kernel.snapshots.leaf_contents import PartialBundle, SnapshotBase, SnapshotHead
from hocket.kernel.vocabulary import JOB, Bundle, Payload, Subject, discriminant, subject_of
from hocket.log import Log
from hocket.log.limits import SHARED
from hocket.log.lost_past import SET_ASIDE, link_at, rewrite
from hocket.log.rebuild import rebuild_at_once
from hocket.log.retention.proof import note_taken
from hocket.log.snapshots.checking import SnapshotAudit, SnapshotEntry, SnapshotHorizon, check_snapshot, parts
from hocket.log.snapshots.folder import SnapshotFolder
from hocket.log.snapshots.own_late import first_late
from hocket.store import NewOp, OpRow, Session
from hocket.store.horizon_rows import BaseRow, GapRow, HeadRow, HorizonRow

# So many entries are read from the log at a time.
STEP = 500
_SETTLED = 1


class Loaded(NamedTuple):
    """What came in: ops that were not here before, and how many settled ones went. `rewritten` counts this node's
    own ops that were late and have been written again, and `dropped` those that would not count any more.
    """

    audit: SnapshotAudit
    added: int
    deleted: int
    rewritten: int
    dropped: int


def load_snapshot(log: Log, folder: SnapshotFolder) -> Loaded:
    """Raises Failed for a snapshot that does not hold good, and Conflict for one that this log does not need."""
    audit = check_snapshot(folder, log.user, log.rules, log.physical(), log.helpers)
    try:
        added, deleted = _put(log, folder, folder.manifest(), audit)
    except Malformed as error:
        raise Failed(f"the snapshot in {folder.path} does not hold good: {error}") from None
    rewritten = rewrite(log)
    return Loaded(audit, added, deleted, rewritten.ops, rewritten.dropped)


def _put(log: Log, folder: SnapshotFolder, manifest: SnapshotManifest, audit: SnapshotAudit) -> tuple[int, int]:
    with log.store.write() as session:
        session.lock_author(log.author)
        session.lock_permissions(exclusive=True)
        session.lock_all()
        check_need(log, session, audit.horizon)
        _set_own_aside(log, session, audit)
        loading = _Loading(log, session, audit)
        for part in parts(folder, manifest):
            loading.take_heads(part.heads)
            loading.take_bases(part.bases)
            loading.take_entries(part.entries)
            loading.take_partials(part.partials)
        loading.finish()
        note_taken(session, manifest.horizon)
        rebuild_at_once(session, log.permissions_reader, log.wall(session.head().wall))
        return loading.added, loading.deleted


def check_need(log: Log, session: Session, found: SnapshotHorizon) -> None:
    """Raises Conflict for a snapshot that this log does not need: none takes a log back."""
    if others := log.sharers(session):
        names = ", ".join(map(node_text, sorted(others)))
        raise Conflict(
            f"node {names} shares this store, which therefore takes no snapshot; give this node a home with a store of"
            " its own"
        )
    known, horizon = session.horizon(), found.payload
    if known is not None and known.at_ms >= horizon.at_ms:
        raise Conflict("this log is settled up to that horizon already; exchange with the node instead")
    frontier = session.frontier()
    if all(frontier.get(each.at.node.to_bytes(8, "big"), b"") >= pack(each.at) for each in horizon.heads):
        raise Conflict("this log has everything that the snapshot settles; exchange with the node instead")


def _set_own_aside(log: Log, session: Session, audit: SnapshotAudit) -> None:
    """Takes this node's first late op and everything after it off the log, as `lost_past.rewind` does: what others have
    comes back from them.
    """
    first = first_late(session, log.node, horizon_end(audit.horizon.payload.at_ms), _head_of(audit, log.node))
    if first is None or first.hlc <= (session.node_meta(log.author, SHARED) or b""):
        return
    head = session.head()
    aside = [raw for raw, _ in read_sequence(session.own_meta(SET_ASIDE) or b"\0")]
    aside += [row.body for row in session.entries_after(first.seq - 1, head.seq)]
    session.set_own_meta(SET_ASIDE, encode_sequence(aside))
    session.drop_ops(first.seq)
    end = first.seq - 1
    _, chain, seal = log.end_at(end, link_at(session, end))
    _, last = session.latest_of(log.author)
    session.put_head(
        head._replace(seq=end, chain=chain, seal=seal, settled=min(head.settled, end), unsettled=0, last=last)
    )


def _head_of(audit: SnapshotAudit, node: int) -> Hlc:
    return next((each.at for each in audit.horizon.payload.heads if each.node == node), Hlc(0, 0, node))


class _Loading:
    """Goes through the entries of the snapshot and the settled ones of the log, both in the order of their times."""

    def __init__(self, log: Log, session: Session, audit: SnapshotAudit) -> None:
        self._log, self._session, self._audit = log, session, audit
        self._heads = {each.node.to_bytes(8, "big"): pack(each.at) for each in audit.horizon.payload.heads}
        # How far the entries of each author have been compared.
        self._at: dict[bytes, bytes] = {}
        self._here: deque[OpRow] = deque()
        self._has_more = True
        self.added = self.deleted = 0
        session.drop_settled()
        session.drop_trees(log.author)

    def take_heads(self, heads: list[SnapshotHead]) -> None:
        rows = [HeadRow(each.author, each.hlc, each.entry, each.size, each.peaks) for each in heads]
        self._session.put_heads(rows)

    def take_bases(self, bases: list[SnapshotBase]) -> None:
        for each in bases:
            self._session.put_base(BaseRow(Subject(each.family, each.key), each.last, each.state))

    def take_entries(self, entries: list[SnapshotEntry]) -> None:
        new: list[NewOp] = []
        for each in entries:
            place = pack(each.op.timestamp), each.op.id
            self._delete_before(place)
            if self._here and (self._here[0].hlc, self._here[0].id) == place:
                self._here.popleft()
                continue
            author = place[0][12:]
            self._at[author] = max(self._at.get(author, b""), place[0])
            rows = rows_of(each)
            new += rows
            self.added += sum(row.is_op for row in rows)
        self._append(new)

    def take_partials(self, partials: list[PartialBundle]) -> None:
        """Facts of a kept entry that have gone are as if they were not there."""
        for each in partials:
            row = self._session.op(each.entry)
            assert row is not None
            facts = facts_of(SnapshotEntry(decode(row.body), row.body))
            if each.gone[-1] >= len(facts):
                raise Malformed("it names facts that an entry does not have")
            self._session.set_reasons([(int(Reason.PRUNED), facts[place].id) for place in each.gone])

    def finish(self) -> None:
        """Deletes the settled entries after the last one of the snapshot, and notes the horizon."""
        self._delete_before(None)
        session, horizon = self._session, self._audit.horizon
        forgotten = forgotten_ms(Horizon(horizon.op.id, horizon.payload.at_ms, horizon.op.timestamp, horizon.rules))
        row = HorizonRow(horizon.op.id, horizon.payload.at_ms, forgotten, is_denied=True, is_deleted=True)
        session.set_horizon(row)
        head = session.head()
        _, last = session.latest_of(self._log.author)
        session.put_head(head._replace(last=last))

    def _delete_before(self, place: tuple[bytes, bytes] | None) -> None:
        """Deletes the settled entries of the log before this one, which the snapshot does not have."""
        while self._here or self._read_more():
            row = self._here[0]
            if place is not None and (row.hlc, row.id) >= place:
                return
            self._here.popleft()
            self._delete(row)

    def _read_more(self) -> bool:
        """Reads the next settled entries; false if there are none."""
        while self._has_more and not self._here:
            ends = self._session.frontier()
            rows = self._session.entries_since({author: self._known(author, end) for author, end in ends.items()}, STEP)
            self._has_more = len(rows) == STEP
            for row in rows:
                self._at[row.hlc[12:]] = row.hlc
            self._here.extend(row for row in rows if row.hlc <= self._heads[row.hlc[12:]])
        return bool(self._here)

    def _known(self, author: bytes, end: bytes) -> bytes:
        """From where on entries of an author are to be compared; `end` if none are left."""
        at = self._at.get(author, bytes(20))
        return at if at < self._heads.get(author, b"") else end

    def _delete(self, row: OpRow) -> None:
        session = self._session
        facts = len(session.facts_of(row.seq))
        session.delete_ops(row.seq, row.seq + facts)
        session.put_gap(GapRow(row.seq, row.seq + facts, row.chain))
        self.deleted += facts or 1

    def _append(self, ops: list[NewOp]) -> None:
        if not ops:
            return
        head = self._session.head()
        seq, chain, seal = self._log.append_received(self._session, head, ops)
        self._session.put_head(head._replace(seq=seq, chain=chain, seal=seal, settled=seq, unsettled=0))


def facts_of(entry: SnapshotEntry) -> list[Op]:
    """What is in a bundle, or an op by itself."""
    return [each.op for each in read_facts(entry.raw)] if isinstance(entry.op.payload, Bundle) else [entry.op]


def rows_of(entry: SnapshotEntry) -> list[NewOp]:
    """An entry as the log stores it: a bundle is followed by its facts."""
    op, raw = entry
    if not isinstance(op.payload, Bundle):
        return [_row(op, raw, None)]
    bundle = NewOp(op.id, pack(op.timestamp), discriminant(op.payload), JOB, None, 0, _SETTLED, raw)
    return [bundle, *(_row(fact, b"", place) for place, (fact, _) in enumerate(read_facts(raw)))]


def _row(op: Op, stored: bytes, place: int | None) -> NewOp:
    family, key = _subject(op.payload)
    return NewOp(op.id, pack(op.timestamp), discriminant(op.payload), family, key, 0, _SETTLED, stored, place)


def _subject(payload: Payload) -> tuple[str, bytes | None]:
    return subject_of(payload) or (JOB, None)
