"""A worker's part in the ranking: what it and the others tell each other about claims, and which of two claims on an
open job gives way. Without a bus a worker goes by its rank alone, and by the log.

Over the bus go `claims.<kind>` when a worker has claimed a job or offered a claim, and `passes.<kind>` when one that
ranks first has no free slot. What a turn of a worker has to say goes in one message, because every other worker checks
its signature. Nothing depends on it: a message that is lost costs refused claims or a claim timeout. The node that
signed a message must be the worker's own.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Annotated

import msgspec

from hocket.bus.envelope import LIFE_MS
from hocket.bus.messages import BusMessage, MessageBus, subject_name, subject_pattern
from hocket.families.jobs.candidates import WORKER_NAME_CHARS_MAX, node_of, worker_id
from hocket.families.jobs.rendezvous import AnnouncedClaim, winning_claim
from hocket.families.jobs.rules import Job
from hocket.kernel.clock import Hlc, hlc_text, parse_hlc
from hocket.kernel.decoding import json_decoder
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.postcard import Malformed
from hocket.work.batch import BatchResult
from hocket.work.claim_order import ClaimOrder, HeardClaims
from hocket.work.held_jobs import HeldJobs

# A worker without a free slot says at most this often which jobs it leaves to others.
PASSES_S = 0.25
# Jobs that this worker has left to an earlier claim, and does not leave again.
YIELDED_MAX = 4_096
CLAIMS, PASSES = "claims", "passes"
# Messages that wait to be sent; more are lost.
UNSENT_MAX = 256
# What one message says at most: more than a worker holds by default, and less than a message may have with long names.
SAID_AT_ONCE_MAX = 64
# Jobs whose passes are remembered, so that each is published once.
PASSED_MAX = 4_096
WAIT_S = 60.0
TIMESTAMP_CHARS_MAX = 64
WORKER_ID_CHARS_MAX = len(worker_id(0, "")) + WORKER_NAME_CHARS_MAX


class ClaimSaid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`fence` is that of the job while it is ready: what was said about an earlier hold does not count. `timestamp` is
    the HLC of the claim on the log, for an open job; for any other the time of the signed envelope will do. The
    envelope also says which node has said it.
    """

    job_id: str
    worker_id: Annotated[str, msgspec.Meta(max_length=WORKER_ID_CHARS_MAX)]
    fence: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    timestamp: Annotated[str, msgspec.Meta(max_length=TIMESTAMP_CHARS_MAX)] = ""


_claims = json_decoder(Annotated[list[ClaimSaid], msgspec.Meta(min_length=1, max_length=SAID_AT_ONCE_MAX)])


def read_claims_said(data: bytes, author: int) -> list[tuple[bytes, ClaimSaid]]:
    """What a node has said about jobs and workers of its own. Raises ValueError or msgspec.MsgspecError."""
    claims = _claims.decode(data)
    if any(node_of(said.worker_id) != author for said in claims):
        raise ValueError("a node speaks for its own workers only")
    return [(parse_ulid(said.job_id), said) for said in claims]


def claimed_at(said: ClaimSaid, sealed: Hlc) -> Hlc:
    """When the claim was made. Raises ValueError if that is much older than its message."""
    at = parse_hlc(said.timestamp, sealed.node) if said.timestamp else sealed
    if abs(at.wall - sealed.wall) > LIFE_MS:
        raise ValueError("the message is much later than the claim")
    return at


class ClaimMessages:
    """The messages of one worker. `kinds` are those that it serves; `heard` takes what others say, `claimed` is called
    with each claim on a job, its fence and the claim, and `wake` when this worker may have a turn earlier than it
    believed.
    """

    def __init__(
        self,
        messages: MessageBus,
        cluster: str,
        worker: str,
        kinds: Iterable[str],
        heard: HeardClaims,
        wake: Callable[[], None],
        claimed: Callable[[bytes, int, AnnouncedClaim], None] = lambda job_id, fence, claim: None,
    ) -> None:
        self._messages, self._cluster, self._worker = messages, cluster, worker
        self._kinds, self._heard, self._wake, self._claimed = sorted(kinds), heard, wake, claimed
        self._unsent: asyncio.Queue[tuple[str, ClaimSaid]] = asyncio.Queue(UNSENT_MAX)
        self._passed: dict[tuple[bytes, int], None] = {}
        self.lost = self.refused = 0
        """How many messages could not be sent, and how many were not believed."""

    def tell_claim(self, job: Job, fence: int, at: Hlc | None = None) -> None:
        """`at` is the time of the claim on the log, if that decides who holds the job."""
        self._tell(CLAIMS, job, fence, "" if at is None else hlc_text(at))

    def tell_pass(self, job: Job) -> None:
        """Once for each time that a job is ready. From then on this worker comes after all that have not passed."""
        if (job.id, job.fence) not in self._passed:
            if len(self._passed) >= PASSED_MAX:
                del self._passed[next(iter(self._passed))]
            self._passed[job.id, job.fence] = None
            self._heard.hear_pass(job.id, job.fence, self._worker)
            self._tell(PASSES, job, job.fence)

    def _tell(self, topic: str, job: Job, fence: int, timestamp: str = "") -> None:
        said = ClaimSaid(ulid_text(job.id), self._worker, fence, timestamp)
        try:
            self._unsent.put_nowait((subject_name(self._cluster, topic, job.kind), said))
        except (asyncio.QueueFull, Malformed):
            self.lost += 1

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._send())
            for kind in self._kinds:
                tasks.create_task(self._listen(CLAIMS, kind, self._hear_claim))
                tasks.create_task(self._listen(PASSES, kind, self._hear_pass))

    async def _send(self) -> None:
        while True:
            subject, said = await self._unsent.get()
            together = {subject: [said]}
            while not self._unsent.empty():
                subject, said = self._unsent.get_nowait()
                together.setdefault(subject, []).append(said)
            for subject, claims in together.items():
                for first in range(0, len(claims), SAID_AT_ONCE_MAX):
                    await self._messages.publish(subject, msgspec.json.encode(claims[first : first + SAID_AT_ONCE_MAX]))

    async def _listen(self, topic: str, kind: str, hear: Callable[[bytes, ClaimSaid, Hlc], None]) -> None:
        try:
            pattern = subject_pattern(self._cluster, topic, kind)
        except Malformed:
            return
        queue = await self._messages.subscribe(pattern)
        try:
            while True:
                message = await queue.get(WAIT_S)
                if message is not None:
                    self._take(message, hear)
        finally:
            queue.close()

    def _take(self, message: BusMessage, hear: Callable[[bytes, ClaimSaid, Hlc], None]) -> None:
        if message.at is None:
            return
        try:
            claims = [
                (job_id, said, claimed_at(said, message.at))
                for job_id, said in read_claims_said(message.data, message.at.node)
            ]
        except (msgspec.MsgspecError, ValueError, RecursionError):
            self.refused += 1
            return
        for job_id, said, at in claims:
            if said.worker_id != self._worker:
                hear(job_id, said, at)

    def _hear_claim(self, job_id: bytes, said: ClaimSaid, at: Hlc) -> None:
        claim = AnnouncedClaim(said.job_id, said.worker_id, at)
        self._heard.hear_claim(job_id, said.fence, claim)
        self._claimed(job_id, said.fence, claim)

    def _hear_pass(self, job_id: bytes, said: ClaimSaid, at: Hlc) -> None:
        self._heard.hear_pass(job_id, said.fence, said.worker_id)
        self._wake()


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
        stopped, and the job handed back. A message may be a lie, so that happens once a job: from then on the log alone
        decides.
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
