"""How the projections follow a horizon: what is late ceases to count when it comes into force, and what it lets go of a
subject leaves the states and the registers, one subject at a time.
"""

from collections.abc import Sequence

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import pack, unpack
from hocket.kernel.vocabulary import CreateArtifact, EraseContent, EvictArtifact, names_of
from hocket.log.citations import keyed
from hocket.log.projection import Projection
from hocket.store import OpRow
from hocket.store.horizon_rows import BaseRow, HorizonRow, PruningRow


def enter_horizon(projection: Projection, row: HorizonRow) -> None:
    """A horizon comes into force, whose heads are stored: what is late no longer counts. Its subjects follow it one by
    one.
    """
    session = projection.session
    # Read before they change.
    assert projection.permissions is not None
    session.set_horizon(row)
    projection.change_permissions(row.op)
    cut = projection.cut
    assert cut is not None
    for author in session.frontier():
        since = cut.heads.get(int.from_bytes(author, "big"))
        for late in session.ops_between(author, bytes(20) if since is None else pack(since), cut.end):
            projection.ask_again_about(late.id, late.subject, permissions=True)
    for waiting in session.ops_refused_for((Reason.WAITING,)):
        projection.ask_again_about(waiting.id, waiting.subject)
    projection.settle()


def follow_horizon(projection: Projection, row: PruningRow) -> None:
    """Lets go what this horizon lets go of a subject. What later ops make of it is folded again."""
    session, cut = projection.session, projection.cut
    assert cut is not None
    if not row.subject.family:
        _let_go(projection, [found] if (found := session.op(row.subject.key)) is not None else [])
        return
    settled = [each for each in session.ops_about(row.subject) if cut.is_settled(unpack(each.hlc))]
    if row.state is not None and row.last is not None:
        session.put_base(BaseRow(row.subject, row.last, row.state))
    _let_go(projection, [each for each in settled if each.id not in row.kept])
    projection.refold(row.subject, True)


def _let_go(projection: Projection, rows: Sequence[OpRow]) -> None:
    session, ops = projection.session, [keyed(row) for row in rows]
    session.set_reasons([(Reason.PRUNED, op.id) for op in ops])
    projection.citations.expect([name for op in ops for name in (op.id, *names_of(op.payload))])
    for op in ops:
        projection.citations.changed(op.id)
        if isinstance(op.payload, CreateArtifact):
            session.drop_artifact(op.payload.artifact_id)
        elif isinstance(op.payload, EvictArtifact):
            session.drop_eviction(op.id)
        elif isinstance(op.payload, EraseContent):
            session.drop_erasure(op.id)
        projection.mark_leaners(op)
