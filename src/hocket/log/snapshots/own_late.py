"""A node's own ops that are late: a horizon was moved before they reached the node that moved it, so they would never
count. As long as no other node can have them, the node takes them off its log and writes them again behind, as ops
after a lost past (`lost_past`). A node that follows this horizon already cannot take them off, since ops behind them
may have been deleted: they stay, without effect, and it writes them once more.
"""

from collections.abc import Iterator

from hocket.families.retention.facts import RETENTION, RETENTION_KEY, SETTLED_MS, MoveHorizon
from hocket.families.retention.rules import RETENTIONS
from hocket.kernel.clock import Hlc, pack, unpack
from hocket.kernel.ops import decode
from hocket.kernel.snapshots.horizon import NEVER_LATE, horizon_end
from hocket.kernel.vocabulary import Subject, number_of
from hocket.log import Log, Transaction
from hocket.log.limits import SHARED
from hocket.log.lost_past import Rewritten, author_again, note_shared, rewind, rewrite
from hocket.store import OpRow, Session
from hocket.store.op_rows import BUNDLE

# An op that is so old may be late by now. When it leaves the node, that is noted first.
OLD_MS = SETTLED_MS // 2
_NEVER_LATE = tuple(number_of(each) for each in NEVER_LATE)
_STEP = 100
_SUBJECT = Subject(RETENTION, RETENTION_KEY)


def write_late_again(log: Log) -> Rewritten | None:
    """Writes this node's late ops again behind. None if there are none, or another node may have them: what others have
    is never taken off the log.
    """
    with log.store.read() as session:
        first = None if log.sharers(session) else first_unshared(session, log.node)
        is_followed = _is_followed(session)
        has_gaps = first is not None and any(gap.last >= first.seq for gap in session.gaps())
    if first is None:
        return None
    if is_followed:
        return log.run(_write_beside)
    if has_gaps:
        return None  # until this node follows the horizon
    rewind(log, first.id)
    return rewrite(log)


def _is_followed(session: Session) -> bool:
    """Whether the last horizon on this log is in force here."""
    row, horizon = session.horizon(), _last_horizon(session)
    return row is not None and horizon is not None and row.at_ms == horizon.at_ms


def _write_beside(tx: Transaction) -> Rewritten:
    """Writes the late entries again, and those after them that do not count, because they refer to late ones."""
    session, author = tx.session, tx.node.to_bytes(8, "big")
    tx.settle()
    first = first_unshared(session, tx.node)
    if first is None:
        return Rewritten(0, 0)  # another process was faster
    own = [first, *_entries_after(session, author, first.hlc)]
    idle = [row for row in own if not _counts(session, row)]
    note_shared(session, unpack(own[-1].hlc))
    return author_again(tx, [row.body for row in idle])


def _entries_after(session: Session, author: bytes, after: bytes) -> Iterator[OpRow]:
    while rows := session.entries_of_author(author, after, _STEP):
        yield from rows
        after = rows[-1].hlc


def _counts(session: Session, row: OpRow) -> bool:
    """Whether an op counts, or any of the facts of a bundle."""
    facts = session.facts_of(row.seq) if row.variant == BUNDLE else [row]
    return any(each.reason == 0 for each in facts)


def first_unshared(session: Session, node: int) -> OpRow | None:
    """The node's first late entry at the last horizon on its log, if no other node has it."""
    moved = _last_horizon(session)
    if moved is None:
        return None
    head = next((each.at for each in moved.heads if each.node == node), Hlc(0, 0, node))
    first = first_late(session, node, horizon_end(moved.at_ms), head)
    shared = session.node_meta(node.to_bytes(8, "big"), SHARED) or b""
    return None if first is None or first.hlc <= shared else first


def first_late(session: Session, node: int, end: Hlc, head: Hlc) -> OpRow | None:
    """The first entry of an author at or before the end of a horizon and beyond the author's head at it, unless it
    counts all the same. So does the one by which the node is known.
    """
    after = pack(head)
    while rows := session.entries_of_author(node.to_bytes(8, "big"), after, _STEP):
        for row in rows:
            if row.hlc > pack(end):
                return None
            if row.variant not in _NEVER_LATE:
                return row
        after = rows[-1].hlc
    return None


def _last_horizon(session: Session) -> MoveHorizon | None:
    """What the last horizon on this log says, whether or not its root has been computed here."""
    data = session.subject_state(_SUBJECT)
    horizon = None if data is None else RETENTIONS.decode(data).horizon
    row = None if horizon is None else session.op(horizon.op)
    moved = None if row is None else decode(row.body).payload
    return moved if isinstance(moved, MoveHorizon) else None


def note_old_given(log: Log, at: Hlc) -> None:
    """Notes that another node gets this node's op of that time, if it may be late by now."""
    if log.rules.bounds is None or log.physical() - at.wall < OLD_MS:
        return
    with log.store.read() as session:
        is_known = pack(at) <= (session.node_meta(log.author, SHARED) or b"")
    if not is_known:
        with log.store.write() as session:
            note_shared(session, at)
