"""One turn of a worker: what it asks of the log, all in one transaction, and what came of that. When a turn is due and
what follows from it is the worker's affair.
"""

from collections.abc import Callable
from typing import NamedTuple

from hocket.kernel.reasons import Reason
from hocket.log import Transaction
from hocket.work import cron, jobs
from hocket.work.handlers import Handlers
from hocket.work.jobs import Claims, Held, Result
from hocket.work.products import NOTHING
from hocket.work.runner import Run

SWEEP_MAX = 500


class Turn(NamedTuple):
    """What is asked. `spare` are holds that nobody here wants any more, `closed` claims that were offered and are
    decided; `dead` are worker processes of this node that were found dead, None when nobody looked.
    """

    ended: list[Run]
    unstarted: list[Run]
    spare: list[Held]
    renewals: list[Run]
    notes: list[tuple[Run, bytes]]
    doubtful: list[Run]
    closed: list[bytes]
    wanted: int
    offering: bool
    dead: set[int] | None

    @property
    def is_worth_it(self) -> bool:
        return bool(
            self.ended
            or self.unstarted
            or self.spare
            or self.renewals
            or self.notes
            or self.doubtful
            or self.closed
            or self.wanted
            or self.dead is not None
        )


class Turned(NamedTuple):
    """What came of it. `spared` are the results of handing back what was spare."""

    outcomes: list[Result]
    spared: list[Result]
    renewed: list[Result]
    lost: list[Run]
    claims: Claims
    now_ms: int
    idle: bool


class Transact:
    """Takes turns for one worker. `until_idle` is whether it matters that nothing is left to do."""

    def __init__(self, handlers: Handlers, until_idle: bool, notice: Callable[[str], None]) -> None:
        self._handlers = handlers
        self._until_idle = until_idle
        self._notice = notice

    def __call__(self, tx: Transaction, worker: int, turn: Turn) -> Turned:
        tx.projection.load([run.job.id for run in turn.ended])
        outcomes = [settle(tx, run) for run in turn.ended]
        outcomes += [jobs.hand_back(tx, run.held, "the worker did not come to it") for run in turn.unstarted]
        spared = [jobs.hand_back(tx, held, "the worker no longer wanted it") for held in turn.spare]
        renewed = [jobs.renew(tx, run.held, run.lease_ms) for run in turn.renewals]
        for run, note in turn.notes:
            jobs.report(tx, run.held, note)
        lost = [run for run in turn.doubtful if not _holds(tx, run)]
        for op_id in turn.closed:
            tx.session.drop_offer(op_id)
        if turn.dead is not None:
            self._sweep(tx, turn.dead)
        claims = Claims([], None)
        if turn.wanted:
            served = self._handlers
            claims = jobs.claim(tx, worker, turn.wanted, served.lease_of, turn.offering, served.wants)
        idle = not claims.taken and not claims.wanted and self._until_idle and self._is_idle(tx)
        return Turned(outcomes, spared, renewed, lost, claims, tx.now, idle)

    def _sweep(self, tx: Transaction, dead: set[int]) -> None:
        lost = jobs.reclaim(tx, dead)
        if lost:
            self._notice(f"handed back {lost} jobs of a worker process that died")
        jobs.expire(tx, SWEEP_MAX)
        cron.make_due(tx)

    def _is_idle(self, tx: Transaction) -> bool:
        tx.projection.flush()
        if tx.unsettled or tx.is_uninformed:
            return False
        served = [kind for kind in tx.session.busy_kinds() if self._handlers.find(kind) is not None]
        return not any(self._handlers.takes_all(kind) or self._is_wanted(tx, kind) for kind in served)

    def _is_wanted(self, tx: Transaction, kind: str) -> bool:
        """Of a kind of which this worker does not take every job: whether there is one that it would take."""
        busy = tx.session.busy(kind, jobs.LOOKED_AT_MAX)
        return any(self._handlers.wants(kind, tx.body(entry.job.schedule_op)) for entry in busy)


def settle(tx: Transaction, run: Run) -> Result:
    """Puts the end of a run on the log."""
    assert run.started_at is not None and run.ended_at is not None
    is_stopped = run.stopped or jobs.stale_claim(tx, run.held) is not None
    made = run.products.write(tx, not is_stopped and run.error is None, is_stopped)
    if isinstance(made, Reason):
        run.error, made = f"what the handler made would not count: {made.sentence}", NOTHING
    if run.stopped:
        return jobs.hand_back(tx, run.held, "the worker stopped it")
    if run.error is None:
        return jobs.complete(tx, run.held, run.result, int((run.ended_at - run.started_at) * 1000), made)
    retry = run.job.policy.retries is not None or run.job.failures < run.job_type.retries
    return jobs.fail(tx, run.held, run.error, run.traceback, retry)


def _holds(tx: Transaction, run: Run) -> bool:
    entry = tx.projection.entry(run.job.id)
    return entry is not None and entry.job.claim_op == run.held.claim_op and entry.job.deadline is not None
