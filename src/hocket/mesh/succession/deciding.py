"""The offers that are open when a node begins to decide: those that the coordinator before it has not decided, and
those whose acceptance nobody was told of.
"""

from hocket.families.jobs.claiming import accept
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import JOB
from hocket.log import Log, Transaction
from hocket.store import Session, Stage

STEP_OPS = 500


def decide_open(log: Log) -> int:
    """Decides on every open offer about something that has not ended. Returns how many were accepted."""
    log.settle()
    with log.store.read() as session:
        ids = [op.id for op in _open_offers(session)]
    accepted = 0
    for first in range(0, len(ids), STEP_OPS):
        step = ids[first : first + STEP_OPS]

        def decide(tx: Transaction, step: list[bytes] = step) -> int:
            rows = tx.session.ops_by_id(step)
            return accept(tx, [decode(row.body) for row in rows if row.reason == Reason.OFFERED])

        accepted += log.run_unconfirmed(decide)
    return accepted


def _open_offers(session: Session) -> list[Op]:
    rows = session.ops_refused_for((Reason.OFFERED,))
    ids = {row.key for row in rows if row.family == JOB and row.key is not None}
    ended = {entry.job.id for entry in session.jobs_by_id(sorted(ids)) if entry.stage is Stage.DONE}
    return sorted((decode(row.body) for row in rows if row.key not in ended), key=lambda op: op.timestamp)
