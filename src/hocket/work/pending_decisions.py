"""The offers of a worker that wait for the arbiter's word. They are put to the arbiter all together, in one task
beside the worker's loop, which therefore never waits for the network. When the arbiter cannot be reached, the claims
among them are dropped, and asking rests for a while that grows with each failure; everything else stays pending
until it is decided.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hocket.errors import Unreachable
from hocket.events import ArbiterFailed, ArbiterReachable, ArbiterUnreachable, Emit
from hocket.kernel.backoff import backoff_s
from hocket.kernel.ops import decode
from hocket.kernel.reasons import Reason
from hocket.kernel.roster import Job
from hocket.kernel.subjects import JOB, Subject
from hocket.kernel.vocabulary import AcceptWork, ClaimWork, number_of
from hocket.store import Session
from hocket.work.environment import Environment
from hocket.work.jobs import Offer
from hocket.work.troubles import described

# How long asking rests after the arbiter could not be reached, the first time and at most.
REST_MIN_S = 0.4
REST_MAX_S = 5.0

Decision = Job | Reason
Consult = Callable[[Sequence[Offer]], Awaitable[list[Decision]]]

_ACCEPT = number_of(AcceptWork)
_OPEN = (Reason.OFFERED, Reason.WAITING)


@dataclass(eq=False)
class PendingDecision:
    """One offer. `decided` is called with what the arbiter said, and whether the claim was `dropped` before: then
    nobody here wants it any more, but it stays until it is known whether it has to be handed back.
    """

    offer: Offer
    decided: Callable[[Decision, bool], None]
    is_claim: bool = False
    dropped: bool = False


def decisions(session: Session, offers: Sequence[Offer]) -> list[Decision]:
    """What the arbiter's ops on the log say of offers that it has seen. A claim that was accepted but holds no more is
    as good as one that was not.
    """
    return [_decision(session, offer) for offer in offers]


def _decision(session: Session, offer: Offer) -> Decision:
    offered, entry = session.op(offer.op_id), session.job(offer.job_id)
    if offered is None or entry is None:
        return Reason.UNKNOWN_JOB
    for row in session.ops_about(Subject(JOB, offer.job_id)):
        if row.variant != _ACCEPT or row.reason:
            continue
        payload = decode(row.body).payload
        if isinstance(payload, AcceptWork) and payload.offer == offer.op_id:
            op = decode(offered.body)
            is_held = entry.job.deadline is not None and entry.job.claim_op in (row.id, *op.cited)
            return entry.job if is_held or not isinstance(op.payload, ClaimWork) else Reason.STALE_CLAIM
    return Reason.NOT_ACCEPTED


class PendingDecisions:
    """`wake` is called when there are decisions, which `settle` then hands out."""

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

    @property
    def is_empty(self) -> bool:
        return not self._cases and not self._decisions

    @property
    def claims(self) -> int:
        """How many jobs may yet be handed to this worker."""
        decided = [case for case, _ in self._decisions]
        return sum(case.is_claim and not case.dropped for case in (*self._cases, *decided))

    def is_resting(self, now: float) -> bool:
        """Whether nothing new should be offered: the arbiter was away when last asked."""
        return now < self.rests_until

    def settle(self) -> None:
        """Hands out the decisions that have come."""
        decisions, self._decisions = self._decisions, []
        for case, decision in decisions:
            case.decided(decision, case.dropped)

    def ask(self, now: float) -> None:
        """Puts the open cases to the arbiter, unless that is under way or resting, or has just brought decisions that
        are still to be handed out.
        """
        if self._cases and self._asking is None and not self._decisions and not self.is_resting(now):
            self._asking = asyncio.get_running_loop().create_task(self._ask(list(self._cases)))

    async def last_ask(self, patience: float) -> None:
        """One more try, at the end of the worker."""
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
            decisions = await self._consult([case.offer for case in cases])
        except Unreachable as error:
            if not self._rests:
                self._emit(ArbiterUnreachable(str(error)))
            self._rest(cases)
        except Exception as error:
            if not self._rests:
                self._emit(ArbiterFailed(described(error)))
            self._rest(cases)
        else:
            decided = [(c, d) for c, d in zip(cases, decisions, strict=True) if d not in _OPEN]
            undecided = [case for case, decision in zip(cases, decisions, strict=True) if decision in _OPEN]
            # What has come since the question was asked is behind those that were asked about.
            self._cases = undecided + self._cases[len(cases) :]
            self._decisions += decided
            if undecided:
                # It was reached but has not said anything yet: asking again at once would not help.
                self._rest(undecided)
            elif self._rests:
                self._rests = 0
                self._emit(ArbiterReachable())
        finally:
            self._asking = None
            self._wake()

    def _rest(self, cases: list[PendingDecision]) -> None:
        for case in cases:
            case.dropped = case.dropped or case.is_claim
        self._rests += 1
        rest = backoff_s(self._rests, REST_MIN_S, REST_MAX_S, self._environment.chance.random())
        self.rests_until = self._environment.monotonic() + rest
