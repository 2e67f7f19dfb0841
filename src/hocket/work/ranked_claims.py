"""A worker's part in the ranking: when it may claim which job, what it and the others tell each other about that, and
which of two claims on an open job gives way. Without a bus a worker goes by its rank alone, and by the log.
"""

from collections.abc import Callable, Iterable

from hocket.bus.messages import MessageBus
from hocket.families.jobs.rendezvous import AnnouncedClaim, winning_claim
from hocket.work.batch import BatchResult
from hocket.work.claim_messages import ClaimMessages
from hocket.work.claim_order import ClaimOrder
from hocket.work.held_jobs import HeldJobs

# A worker without a free slot says at most this often which jobs it leaves to others.
PASSES_S = 0.25
# Jobs that this worker has left to an earlier claim, and does not leave again.
YIELDED_MAX = 4_096


class RankedClaims:
    """`order` decides when this worker may claim a job, and `held` has those that it holds."""

    def __init__(self, order: ClaimOrder, held: HeldJobs) -> None:
        self._order, self._held = order, held
        self._messages: ClaimMessages | None = None
        self.is_news = False
        """Whether there may be ready jobs of which this worker has not said yet that it leaves them to others."""
        self._passes_at = 0.0
        self._yielded: dict[bytes, None] = {}

    async def talk(self, bus: MessageBus, cluster: str, kinds: Iterable[str], wake: Callable[[], None]) -> None:
        """Tells and hears claims on jobs of these kinds, until it is cancelled. `wake` is called when a turn may have
        come.
        """
        heard = self._order.heard
        if self._messages is None:
            self._messages = ClaimMessages(bus, cluster, self._order.worker, kinds, heard, wake, self._claimed)
        await self._messages.run()

    def may_pass(self, now: float) -> bool:
        """Whether to say now which jobs this worker has no slot for."""
        if self._messages is None or not self.is_news or now < self._passes_at:
            return False
        self.is_news, self._passes_at = False, now + PASSES_S
        return True

    def tell(self, turned: BatchResult) -> None:
        """Tells the others what this worker has claimed in a turn, and what it leaves to them."""
        if self._messages is None:
            return
        for claim in turned.claims.taken:
            job, fence = claim.job, claim.job.fence - 1
            if job.policy.is_ranked:
                self._messages.tell_claim(job, fence, job.last if job.policy.open else None)
                if (other := self._order.heard.first(job.id, fence)) is not None:
                    self._claimed(job.id, fence, other)  # it came during the turn
        for wanted in turned.claims.wanted:
            if wanted.job.policy.is_ranked:
                self._messages.tell_claim(wanted.job, wanted.job.fence)
        for job in turned.passes:
            self._messages.tell_pass(job)

    def _claimed(self, job_id: bytes, fence: int, claim: AnnouncedClaim) -> None:
        """Another worker has claimed a job. If this one runs it, it is open and the other claim is earlier, the run is
        stopped, and the job handed back. A message may be a lie, so that happens once a job: from then on the log
        alone decides.
        """
        run = self._held.runs.get(job_id)
        if run is None or run.ended_at is not None or not run.job.policy.open or run.job.fence != fence + 1:
            return
        own = AnnouncedClaim(claim.job, self._order.worker, run.job.last)
        if job_id in self._yielded or winning_claim((own, claim)) is own:
            return
        if len(self._yielded) >= YIELDED_MAX:
            del self._yielded[next(iter(self._yielded))]
        self._yielded[job_id] = None
        # The job is ready here until the log has the other claim.
        self._order.heard.hear_claim(job_id, run.job.fence, claim)
        self._held.lose(run, f"worker {claim.worker} claimed it earlier")
