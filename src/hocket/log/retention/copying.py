"""Takes what a pruned log has over into a copy of it, in one transaction of the copy: the ops that remain with their
numbers, the gaps between them, and what stands in the place of those that went. Everything is derived anew from these,
and must then have the root that the horizon's op names. The copy may have any earlier part of the log.
"""

from collections.abc import Iterator
from itertools import pairwise

from hocket.errors import StoreError
from hocket.kernel.vocabulary import Subject
from hocket.log import Log
from hocket.log.rebuild import rebuild_at_once
from hocket.log.retention.proof import check_remains
from hocket.store import NewOp, OpRow, Session
from hocket.store.horizon_rows import BaseRow, GapRow, HorizonRow
from hocket.store.op_rows import PRUNED

STEP = 2_000
_SETTLED = 1


def take_settled(source: Session, log: Log, row: HorizonRow) -> None:
    """`row` is the horizon of the source, which every subject there follows. Raises StoreError, and keeps nothing, if
    what remains does not have its root.
    """
    with log.store.write() as session:
        session.lock_author(log.author)
        session.lock_permissions(exclusive=True)
        session.lock_all()
        known = session.horizon()
        if known is not None and known.op == row.op:
            return  # another process was faster
        first = session.head().seq + 1
        _delete(source, session, first)
        _append(source, session, log, first)
        session.set_reasons([(PRUNED, each.id) for each in source.ops_refused_for((PRUNED,)) if each.seq < first])
        session.drop_settled()
        session.put_heads(list(source.heads().values()))
        for base in _bases(source):
            session.put_base(base)
        session.set_horizon(row)
        _, last = session.latest_of(log.author)
        session.put_head(session.head()._replace(last=last))
        rebuild_at_once(session, log.permissions_reader, log.wall(session.head().wall))
        if wrong := check_remains(session):
            raise StoreError(f"the pruned log was not copied: {wrong[0]}; `hocket log verify` shows all that is wrong")


def take_gaps(source: Session, log: Log, row: HorizonRow) -> None:
    """Deletes in the copy what the source has deleted since. Nothing that is derived depends on it."""
    with log.store.write() as session:
        session.lock_author(log.author)
        session.lock_all()
        _delete(source, session, session.head().seq + 1)
        session.set_horizon(row)


def _delete(source: Session, session: Session, end: int) -> None:
    """Deletes what the source has not, of the ops before this number. The gaps behind it come with the ops there."""
    known = {(gap.first, gap.last) for gap in session.gaps()}
    gaps = [gap if gap.last >= end else _own_chain(session, gap) for gap in source.gaps() if gap.first < end]
    for gap in gaps:
        if (gap.first, gap.last) not in known:
            session.delete_ops(gap.first, gap.last)
    session.replace_gaps(gaps)


def _own_chain(session: Session, gap: GapRow) -> GapRow:
    """The gap with the link that its last op has in the copy."""
    if (row := session.entry(gap.last)) is not None:
        return gap._replace(chain=row.chain)
    known = session.gap_at(gap.last)
    return gap if known is None else gap._replace(chain=known.chain)


def _append(source: Session, session: Session, log: Log, first: int) -> None:
    """Adds the ops from this number on."""
    gap = session.gap_at(first)
    if gap is not None:
        _skip(session, log, gap)
    for run in _runs(source, session.head().seq):
        if (missing := source.gap_after(session.head().seq)) is not None:
            session.put_gap(missing)
            _skip(session, log, missing)
        head = session.head()
        if run[0].seq != head.seq + 1:
            raise StoreError(
                f"op {head.seq + 1} was not copied: it is missing; `hocket log verify` shows what is wrong"
            )
        made = [_new(row, log) for row in run]
        seq, chain, seal = log.append_received(session, head, made)
        session.put_head(head._replace(seq=seq, chain=chain, seal=seal, settled=seq, unsettled=0))
    there, head = source.head(), session.head()
    wall, logical = max((there.wall, there.logical), (head.wall, head.logical))
    session.put_head(head._replace(wall=wall, logical=logical))


def _skip(session: Session, log: Log, gap: GapRow) -> None:
    """The next op comes behind these."""
    head = session.head()
    seq, chain, seal = log.end_at(gap.last, gap.chain)
    session.put_head(head._replace(seq=seq, chain=chain, seal=seal, settled=seq, unsettled=0))


def _runs(source: Session, after: int) -> Iterator[list[OpRow]]:
    """The rows behind this number, as far as one follows the other."""
    while rows := source.stored_rows(after, STEP):
        ends = [0, *(n for n, (one, other) in enumerate(pairwise(rows), 1) if other.seq != one.seq + 1), len(rows)]
        for begin, end in pairwise(ends):
            yield rows[begin:end]
        after = rows[-1].seq


def _new(row: OpRow, log: Log) -> NewOp:
    reason = row.reason if row.reason == PRUNED else 0
    body = row.body if row.place is not None else log.signed(row.body)
    return NewOp(row.id, row.hlc, row.variant, row.family, row.key, reason, _SETTLED, body, row.place)


def _bases(source: Session) -> Iterator[BaseRow]:
    after = Subject("", b"")
    while bases := source.bases(after, STEP):
        yield from bases
        after = bases[-1].subject
