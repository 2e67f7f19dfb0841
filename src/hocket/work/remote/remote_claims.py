"""Claims for remote workers as a step in a transaction of the log: for all that wait, in one. A claim that is repeated
gets what it has got before, because that is kept in the same transaction. The transaction may run again, so nothing
here changes what is outside.
"""

import asyncio
import math
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hocket.families.availability.facts import Availability
from hocket.families.jobs import claiming, cron
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.claiming import OfferedClaim
from hocket.families.jobs.requests import Claim
from hocket.families.jobs.rescue import DEATHS_ALONE
from hocket.families.jobs.rules import Job, State
from hocket.families.liveness import OVER_HTTP
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, parse_ulid, ulid_text
from hocket.kernel.ops import schedule_payload
from hocket.kernel.policy import covers, lacking
from hocket.log import SETTLE_STEP, Transaction
from hocket.store import AnswerRow, Place, WorkerRow
from hocket.work.claim_order import ClaimOrder, ContestedClaims
from hocket.work.context import last_checkpoint
from hocket.work.presence import Serving, read_serving, serving_text
from hocket.work.remote.remote_holds import (
    HeldJob,
    RemoteName,
    find_hold,
)

# The most jobs of one claim, and of one transaction.
CLAIMED_MAX = 1_000
CLAIMED_AT_ONCE = 2_000
# A claim gets no more jobs once their payloads have so many bytes; so many jobs are claimed at a time.
PAYLOADS_BYTES_MAX = 4 * 1024 * 1024
STEP = 32
# A worker that was not heard for so long is forgotten here, unless it waits.
HEARD_S = 30.0


class ClaimAsked(NamedTuple):
    """A claim. A kind that ends with a dot stands for every kind below it. `place` is where the worker runs."""

    worker: RemoteName
    claim_id: str
    kinds: tuple[str, ...]
    limit: int
    lease_ms: int
    labels: tuple[str, ...] = ()
    place: Place = OVER_HTTP

    @property
    def queue(self) -> "Queue":
        """Claims with the same kinds and labels wait together."""
        return self.kinds, self.labels


class GivenJob(NamedTuple):
    """A claimed job. `payload` and `checkpoint` are JSON. A job with which workers died `is_alone`: its worker gets no
    other while it holds it.
    """

    job: Job
    payload: bytes
    checkpoint: bytes | None
    lease_ms: int
    is_alone: bool = False


class Given(NamedTuple):
    jobs: Sequence[GivenJob] = ()
    is_draining: bool = False


Queue = tuple[tuple[str, ...], tuple[str, ...]]


class RemoteWorker:
    """What this process knows of a worker."""

    def __init__(self, name: RemoteName, order: ClaimOrder) -> None:
        self.name, self.order = name, order
        self.asked: ClaimAsked | None = None
        self.newest: WaitingClaim | None = None
        self.waiting = 0
        self.heard_at = 0.0
        self.leases_end_at = -math.inf
        self.alone: Job | None = None
        # The id of its last claim that got jobs, and how many hints to drain had come before its last look.
        self.fed_by: str | None = None
        self.drain_hints = 0

    def got_nothing(self, asked: ClaimAsked, drain_hints: int) -> bool:
        """Whether its last claim was the same but for the id, and a look found nothing for it that has not changed."""
        newest = self.newest
        if newest is None or not newest.is_empty or self.drain_hints != drain_hints:
            return False
        return asked.claim_id != self.fed_by and newest.asked._replace(claim_id=asked.claim_id) == asked

    def is_alive(self, now: float) -> bool:
        return bool(self.waiting) or now < max(self.heard_at + HEARD_S, self.leases_end_at)


class WaitingClaim:
    """A claim, until its answer is there or its client is gone."""

    def __init__(self, asked: ClaimAsked, worker: RemoteWorker, until: float) -> None:
        self.asked, self.worker, self.until = asked, worker, until
        self.answer: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self.was_looked_at = False
        self.is_undecided = False
        """Whether the arbiter, another node, decides on what it wants."""

    @property
    def is_empty(self) -> bool:
        """Whether it has ended without a job."""
        is_done = self.answer.done() and not self.answer.cancelled() and self.answer.exception() is None
        return is_done and self.answer.result() == Given()

    def end(self, given: Given) -> bool:
        """False if its client has gone, or has its answer."""
        if self.answer.done():
            return False
        self.answer.set_result(given)
        return True


class ClaimedNow(NamedTuple):
    """What a transaction did for one claim. `wanted` are offers on which the arbiter has yet to decide."""

    given: Sequence[GivenJob] = ()
    wanted: Sequence[OfferedClaim] = ()
    again_at: int | None = None
    is_draining: bool = False
    may_suit_others: bool = False
    is_repeat: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.given or self.wanted or self.is_draining or self.is_repeat)


class ClaimsTurn(NamedTuple):
    """A transaction for many claims. `unfinished` are queues that may get more. `now_ms` is the clock of the log."""

    claimed: dict[WaitingClaim, ClaimedNow]
    unfinished: list[Queue]
    now_ms: int
    again_at: int | None


class RemoteClaims:
    """`contested` is what this process knows of claims that other nodes' workers want, too. While the arbiter, another
    node, `is_away`, no claims are offered to it.
    """

    def __init__(self, contested: ContestedClaims) -> None:
        self._contested = contested
        self.is_away = False

    def __call__(
        self, tx: Transaction, new: Sequence[WaitingClaim], queues: Mapping[Queue, Sequence[WaitingClaim]]
    ) -> ClaimsTurn:
        tx.settle(SETTLE_STEP)
        tx.projection.flush()
        tx.session.promote(tx.now)
        is_draining = tx.projection.availability(tx.node) is not Availability.ACTIVE
        ready = () if is_draining else tx.session.ready_kinds()
        claimed = {ask: first for ask in new if (first := _first_look(tx, ask.asked)) is not None}
        unfinished: list[Queue] = []
        again, left = [tx.session.next_ready_at()], CLAIMED_AT_ONCE
        for queue, asks in queues.items():
            waiting = [ask for ask in asks if ask not in claimed and not ask.answer.done()]
            if is_draining:
                claimed |= dict.fromkeys(waiting, ClaimedNow(is_draining=True))
                continue
            has_more = any(covers(each, kind) for each in queue[0] for kind in ready)
            for ask in waiting if has_more else ():
                if left <= 0:
                    unfinished.append(queue)
                    break
                found = claimed[ask] = self._claim(tx, ask, min(ask.asked.limit, left))
                left -= len(found.given) + len(found.wanted)
                again.append(found.again_at)
                if found.is_empty and not found.may_suit_others:
                    break
        return ClaimsTurn(claimed, unfinished, tx.now, min((each for each in again if each is not None), default=None))

    def _claim(self, tx: Transaction, ask: WaitingClaim, limit: int) -> ClaimedNow:
        asked, order = ask.asked, ask.worker.order
        number = row_of(tx, asked).number
        # Another worker may rank before this one, or be free for a job that runs alone.
        may_suit_others, size = False, 0
        if _holds_alone(tx, ask.worker):
            return ClaimedNow(may_suit_others=True)

        def may_claim_at(job: Job, schedule: bytes) -> int:
            nonlocal may_suit_others
            if job.policy.is_ranked:
                may_suit_others = True
                return order.may_claim_at(tx, job, schedule)
            return self._contested.may_claim_at(tx, job)

        def wants(job: Job, schedule: bytes) -> bool:
            if job.policy.schedule_op is not None and cron.is_tick(tx.session, job) is False:
                return False
            return not job.policy.needs or not lacking(job.policy.needs, asked.labels)

        def is_free() -> bool:
            nonlocal may_suit_others
            may_suit_others = True
            return not (taken or wanted or tx.session.holds(number))

        taken: list[Claim] = []
        wanted: list[OfferedClaim] = []
        again_at: int | None = None
        lease_of = lambda kind: asked.lease_ms if any(covers(each, kind) for each in asked.kinds) else None  # noqa: E731
        is_plain = not tx.is_strict and self._contested.is_over(tx.now)
        while len(taken) + len(wanted) < limit and size < PAYLOADS_BYTES_MAX:
            step = min(STEP, limit - len(taken) - len(wanted))
            found = claiming.claim(
                *(tx, number, step, lease_of, not self.is_away, wants, may_claim_at),
                left_until=order.look(tx),
                is_free=is_free,
                isolates=lambda kind: False,
                takes_plain=lambda kind: is_plain,
            )
            taken += found.taken
            wanted += found.wanted
            again_at = found.again_at
            size += sum(len(each.schedule) for each in found.taken) + sum(len(each.schedule) for each in found.wanted)
            if len(found.taken) + len(found.wanted) < step:
                break
        given = [given_job(tx, each.job, each.schedule, each.deaths) for each in taken]
        if given and not wanted:
            keep_claim(tx, asked, given)
        return ClaimedNow(given, wanted, again_at, may_suit_others=may_suit_others)


def row_of(tx: Transaction, asked: ClaimAsked) -> WorkerRow:
    """The row of a worker, with what it serves now. A row that a drain has marked stays marked."""
    name = asked.worker.row(tx.node)
    row = tx.session.worker_named(name)
    before = None if row is None else next(iter(read_serving(row.serves)), None)
    if row is not None and before is not None and (before.kinds, before.labels) == asked.queue:
        return row
    since_ms = tx.now if before is None else before.since_ms
    serves = Serving(asked.kinds, labels=asked.labels, drains=before is not None and before.drains)
    serves = serves.ranked(worker_id(tx.node, name), 1.0, since_ms)
    node = tx.node.to_bytes(8, "big")
    process = os.getpid() if asked.worker.is_process else 0
    new = WorkerRow(0, name, process, since_ms, node, tx.now, asked.place, serving_text([serves]))
    return new._replace(number=tx.session.put_worker(new))


def _first_look(tx: Transaction, asked: ClaimAsked) -> ClaimedNow | None:
    """What a new claim gets whatever is in the queue: the holds of the claim that it repeats, or that it drains."""
    row = row_of(tx, asked)
    kept = tx.session.answer("", row.name)
    if kept is not None and kept.request == content_hash(asked.claim_id.encode()):
        return ClaimedNow(_still_held(tx, asked, kept), is_draining=drains(row), is_repeat=True)
    return ClaimedNow(is_draining=True) if drains(row) else None


def drains(row: WorkerRow) -> bool:
    return any(each.drains for each in read_serving(row.serves))


def _holds_alone(tx: Transaction, worker: RemoteWorker) -> bool:
    if worker.alone is None:
        return False
    entry = tx.projection.jobs.entry(worker.alone.id)
    return entry is not None and entry.job.state is State.CLAIMED and entry.job.fence == worker.alone.fence


def given_job(tx: Transaction, job: Job, schedule: bytes, died: int = 0) -> GivenJob:
    state = last_checkpoint(tx.session, job.id) if job.fence > 1 else None
    lease_ms = max(0, (job.deadline or 0) - tx.now)
    return GivenJob(job, schedule_payload(schedule), state, lease_ms, died >= DEATHS_ALONE)


def keep_claim(tx: Transaction, asked: ClaimAsked, given: Sequence[GivenJob]) -> None:
    """Notes what a claim got, for when it is repeated."""
    holds = msgspec.json.encode([(ulid_text(each.job.id), each.job.fence) for each in given])
    claim = content_hash(asked.claim_id.encode())
    tx.session.put_answer(AnswerRow("", asked.worker.row(tx.node), claim, 200, holds, tx.physical))


def _still_held(tx: Transaction, asked: ClaimAsked, kept: AnswerRow) -> list[GivenJob]:
    holds = decode_json(kept.body or b"[]", list[tuple[str, int]])
    found = [find_hold(tx, parse_ulid(job), fence, asked.worker.agent, lambda kind: None) for job, fence in holds]
    return [
        given_job(tx, each.job, tx.body(each.job.schedule_op) or b"") for each in found if isinstance(each, HeldJob)
    ]
