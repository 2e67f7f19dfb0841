"""A node's own ops that are late: a horizon was moved before they reached the node that moved it, so they would never
count. As long as no other node can have them, the node takes them off its log and writes them again behind, as ops
after a lost past (`lost_past`).
"""

from hocket.families.retention.facts import RETENTION, RETENTION_KEY, SETTLED_MS, MoveHorizon
from hocket.families.retention.rules import RETENTIONS
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.ops import decode
from hocket.kernel.snapshots.horizon import NEVER_LATE, horizon_end
from hocket.kernel.vocabulary import Subject, number_of
from hocket.log import Log
from hocket.log.limits import SHARED
from hocket.log.lost_past import Rewritten, note_shared, rewind, rewrite
from hocket.store import OpRow, Session

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
    if first is None:
        return None
    rewind(log, first.id)
    return rewrite(log)


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
