"""The offers of a worker that wait for the arbiter's decision. They are sent to the arbiter together, in one task
beside the worker's loop, so the loop never waits for the network. If the arbiter cannot be reached, the claims among
them are dropped, and the next try waits longer after each failure; all other offers stay pending until they are
decided.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hocket.errors import Unreachable
from hocket.events import Emit
from hocket.events.nodes import CoordinatorFailed, CoordinatorReachable, CoordinatorUnreachable
from hocket.events.troubles import described
from hocket.families.jobs.requests import Decision, Offer, Result
from hocket.families.jobs.rules import Job
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import decode
from hocket.kernel.retrying import ARBITER_RETRIES
from hocket.kernel.vocabulary import AcceptWork, ClaimWork, number_of
from hocket.store import OpRow, Session
from hocket.work.environment import Environment

Consult = Callable[[Sequence[Offer], bool], Awaitable[list[Decision]]]

_ACCEPT, _CLAIM = number_of(AcceptWork), number_of(ClaimWork)
_OPEN = (Reason.OFFERED, Reason.WAITING)


@dataclass(eq=False)
class PendingDecision:
    """One offer. `decided` is called with the arbiter's decision, and whether the claim was `dropped` before: then the
    worker has not kept a slot for it, and begins it or returns it.
    """

    offer: Offer
    decided: Callable[[Decision, bool], None]
    is_claim: bool = False
    dropped: bool = False


def decisions(session: Session, offers: Sequence[Offer]) -> list[Decision]:
    """The arbiter's decisions on these offers, according to its ops on the log. A claim that was accepted but has ended
    counts as refused.
    """
    job_ids = list({offer.job_id for offer in offers})
    jobs = {entry.job.id: entry.job for entry in session.jobs_by_id(job_ids)}
    offered = {row.id: row for row in session.ops_by_id([offer.op_id for offer in offers])}
    acceptances: dict[bytes, list[OpRow]] = {}
    for row in session.ops_about_jobs(job_ids, _ACCEPT):
        if row.key is not None and not row.reason:
            acceptances.setdefault(row.key, []).append(row)
    return [
        _decision(offer, jobs.get(offer.job_id), offered.get(offer.op_id), acceptances.get(offer.job_id, ()))
        for offer in offers
    ]


def _decision(offer: Offer, job: Job | None, offered: OpRow | None, acceptances: Sequence[OpRow]) -> Decision:
    if offered is None or job is None:
        return Reason.UNKNOWN_JOB
    # Few of the job's acceptances are of this offer, and those have its id in their bytes.
    of_it = (row for row in acceptances if offer.op_id in row.body and _accepts(row, offer))
    accepted = next(of_it, None)
    if accepted is None:
        return Reason.NOT_ACCEPTED
    if offered.variant != _CLAIM:
        return job
    is_held = job.deadline is not None and job.claim_op in (accepted.id, *decode(offered.body).cited)
    return job if is_held else Reason.STALE_CLAIM


def _accepts(row: OpRow, offer: Offer) -> bool:
    payload = decode(row.body).payload
    return isinstance(payload, AcceptWork) and payload.offer == offer.op_id


class PendingDecisions:
    """`wake` is called when there are decisions; `settle` then delivers them."""

    def __init__(self, consult: Consult, environment: Environment, wake: Callable[[], None], emit: Emit) -> None:
        self._consult = consult
        self._environment = environment
        self._wake = wake
        self._emit = emit
        self._cases: list[PendingDecision] = []
        self._decisions: list[tuple[PendingDecision, Decision]] = []
        self._asking: asyncio.Task[None] | None = None
        self._rests = 0
        self.rests_until = 0.0

    def add(self, offer: Offer, decided: Callable[[Decision, bool], None], is_claim: bool = False) -> None:
        self._cases.append(PendingDecision(offer, decided, is_claim))

    def follow(self, result: Result | None, decided: Callable[[Decision], None]) -> None:
        """Calls `decided` with what a request led to: at once, unless it is an offer. None is for no request."""
        if isinstance(result, Offer):
            self.add(result, lambda decision, dropped: decided(decision))
        elif result is not None:
            decided(result)

    @property
    def is_empty(self) -> bool:
        return not self._cases and not self._decisions

    @property
    def claims(self) -> int:
        """How many jobs may still be assigned to this worker."""
        decided = [case for case, _ in self._decisions]
        return sum(case.is_claim and not case.dropped for case in (*self._cases, *decided))

    def is_resting(self, now: float) -> bool:
        """Whether to offer nothing new, because the arbiter was unreachable when last asked."""
        return now < self.rests_until

    def settle(self) -> None:
        """Delivers the decisions that have arrived."""
        decisions, self._decisions = self._decisions, []
        for case, decision in decisions:
            case.decided(decision, case.dropped)

    def ask(self, now: float) -> None:
        """Sends the open offers to the arbiter, unless that is in progress or resting, or has just brought decisions
        that are not delivered yet.
        """
        if self._cases and self._asking is None and not self._decisions and not self.is_resting(now):
            self._asking = asyncio.get_running_loop().create_task(self._ask(list(self._cases)))

    async def last_ask(self, patience: float) -> None:
        """One last try, when the worker ends."""
        if self._asking is None:
            self.rests_until = 0.0
            self.ask(self._environment.monotonic())
        if self._asking is not None:
            await asyncio.wait([self._asking], timeout=patience)
        self.settle()

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, cases: list[PendingDecision]) -> None:
        try:
            # The end of a run is lost work if it comes after the lease; a claim can wait.
            is_urgent = any(not case.is_claim for case in cases)
            decisions = await self._consult([case.offer for case in cases], is_urgent)
        except Unreachable as error:
            if not self._rests:
                self._emit(CoordinatorUnreachable(str(error)))
            self._rest(cases)
        except Exception as error:
            if not self._rests:
                self._emit(CoordinatorFailed(described(error)))
            self._rest(cases)
        else:
            decided = [(c, d) for c, d in zip(cases, decisions, strict=True) if d not in _OPEN]
            undecided = [case for case, decision in zip(cases, decisions, strict=True) if decision in _OPEN]
            # Offers that arrived after the request stand behind those in it.
            self._cases = undecided + self._cases[len(cases) :]
            self._decisions += decided
            if undecided:
                # The arbiter was reached but has not decided yet: asking again at once would not help.
                self._rest(undecided)
            elif self._rests:
                self._rests = 0
                self._emit(CoordinatorReachable())
        finally:
            self._asking = None
            self._wake()

    def _rest(self, cases: list[PendingDecision]) -> None:
        for case in cases:
            case.dropped = case.dropped or case.is_claim
        self._rests += 1
        rest = ARBITER_RETRIES.delay_s(self._rests, self._environment.chance.random())
        self.rests_until = self._environment.monotonic() + rest
