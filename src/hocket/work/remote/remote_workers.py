"""Claims for workers that ask over HTTP. However many of them wait for jobs, one task serves them: it listens once for
changes, and claims for all of them in one transaction. The requests of workers that serve the same kinds wait in one
queue, so a turn without a job costs as much for five hundred of them as for one.

A worker is known by its token's agent and the name that it has given itself. While it is heard it has a row in the
store like any worker, by which it is ranked and shown. Its jobs are its own until their leases end, however long it is
silent, and whether or not this process lives on.

A claim has an id. What it got is kept in the store, in the same transaction, so a claim that is repeated after its
answer was lost gets the same holds, also from another process of the node.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from hocket.bus.hints import Changes, Subscription, about
from hocket.errors import HocketError, StoreError, Unreachable
from hocket.families.access import NodeAccess
from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.jobs import claiming, cron
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.claiming import OfferedClaim
from hocket.families.jobs.progress import LOGGED_S
from hocket.families.jobs.requests import Claim, Decision, Held, Offer
from hocket.families.jobs.rules import UNSTARTED, Job, State
from hocket.families.liveness import BEAT_S, OVER_HTTP
from hocket.kernel.arbitration import Reason
from hocket.kernel.decoding import decode_json
from hocket.kernel.ids import content_hash, parse_ulid, ulid_text
from hocket.kernel.ops import schedule_payload
from hocket.kernel.policy import covers, lacking, names_of
from hocket.log import SETTLE_STEP, Transaction
from hocket.store import AnswerRow, WorkerRow
from hocket.work.claim_order import ClaimOrder, ContestedClaims, HeardClaims
from hocket.work.context import last_checkpoint
from hocket.work.environment import Environment
from hocket.work.members import Members
from hocket.work.presence import Serving, read_serving, serving_text
from hocket.work.remote.remote_holds import (
    GOODBYE,
    CheckKind,
    End,
    EndOutcome,
    HeldJob,
    HoldEnded,
    RemoteName,
    Renewal,
    RenewalDone,
    end,
    find_hold,
    is_repeated,
    refused,
    renew,
)

# The most jobs of one claim, and of one transaction.
CLAIMED_MAX = 1_000
CLAIMED_AT_ONCE = 2_000
# A claim gets no more jobs once their payloads have so many bytes; so many jobs are claimed at a time.
PAYLOADS_BYTES_MAX = 4 * 1024 * 1024
STEP = 32
# The workers that this process knows, of all agents and of one.
WORKERS_MAX = 10_000
WORKERS_OF_AGENT_MAX = 2_000
# A worker that was not heard for so long is forgotten here, unless it waits.
HEARD_S = 30.0
# Waiting claims are looked at after this long without a hint.
LOOK_S = 2.0
# After a failure of the store or of the arbiter the next try follows after this long. Holds that cannot be given back
# within so many tries end with their leases.
RETRY_S = 0.5
RETRIES = 20
# How long the end of the server waits for what is given back.
CLOSE_S = 5.0
# The jobs whose last logged progress note is remembered.
LOGGED_MAX = 10_000
# The family of the hint that a worker over HTTP is to drain.
REMOTE = "remote"


class TooManyWorkers(HocketError):
    """An agent has given itself too many workers."""


class ClaimAsked(NamedTuple):
    """A claim. A kind that ends with a dot stands for every kind below it."""

    worker: RemoteName
    claim_id: str
    kinds: tuple[str, ...]
    limit: int
    lease_ms: int
    labels: tuple[str, ...] = ()

    @property
    def queue(self) -> "Queue":
        """Claims with the same kinds and labels wait together."""
        return self.kinds, self.labels


class GivenJob(NamedTuple):
    """A claimed job. `payload` and `checkpoint` are JSON."""

    job: Job
    payload: bytes
    checkpoint: bytes | None
    lease_ms: int


class Given(NamedTuple):
    jobs: Sequence[GivenJob] = ()
    is_draining: bool = False


Queue = tuple[tuple[str, ...], tuple[str, ...]]


class _RemoteWorker:
    """What this process knows of a worker."""

    def __init__(self, name: RemoteName, order: ClaimOrder) -> None:
        self.name, self.order = name, order
        self.asked: ClaimAsked | None = None
        self.newest: _Ask | None = None
        self.waiting = 0
        self.heard_at = 0.0
        self.leases_end_at = -math.inf

    def is_alive(self, now: float) -> bool:
        return bool(self.waiting) or now < max(self.heard_at + HEARD_S, self.leases_end_at)


class _Ask:
    """A claim, until its answer is there or its client is gone."""

    def __init__(self, asked: ClaimAsked, worker: _RemoteWorker, until: float) -> None:
        self.asked, self.worker, self.until = asked, worker, until
        self.answer: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self.was_looked_at = False

    def end(self, given: Given) -> bool:
        """False if its client has gone, or has its answer."""
        if self.answer.done():
            return False
        self.answer.set_result(given)
        return True


class _Claimed(NamedTuple):
    """What a transaction did for one claim. `wanted` are offers on which the arbiter has yet to decide."""

    given: Sequence[GivenJob] = ()
    wanted: Sequence[OfferedClaim] = ()
    again_at: int | None = None
    is_draining: bool = False
    is_ranked: bool = False
    is_repeat: bool = False

    @property
    def is_empty(self) -> bool:
        return not (self.given or self.wanted or self.is_draining or self.is_repeat)


class _Turn(NamedTuple):
    """A transaction for many claims. `unfinished` are queues that may get more. `now_ms` is the clock of the log."""

    claimed: dict[_Ask, _Claimed]
    unfinished: list[Queue]
    now_ms: int
    again_at: int | None


class RemoteWorkers:
    """Use it from the event loop of the node."""

    def __init__(self, access: NodeAccess, environment: Environment) -> None:
        self._access, self._environment, self._monotonic = access, environment, environment.monotonic
        self._members = Members(environment.liveness, access.log)
        self._heard_claims = HeardClaims(access.log.physical)
        self._contested = ContestedClaims(self._members)
        self._workers: dict[RemoteName, _RemoteWorker] = {}
        self._of_agent: Counter[str] = Counter()
        # The waiting claims by what they serve, the queues with a kind, and those with a reason to look.
        self._queues: dict[Queue, dict[_Ask, None]] = {}
        self._by_kind: dict[str, dict[Queue, None]] = {}
        self._hungry: dict[Queue, None] = {}
        self._wake = asyncio.Event()
        self._next_look = self._next_beats = 0.0
        self._is_away = False
        self._serving: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        self._hints: Subscription | None = None
        self._logged: dict[bytes, float] = {}

    async def close(self) -> None:
        """Waiting claims end, and what was given back gets on the log."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        for asks in list(self._queues.values()):
            for ask in asks:
                ask.answer.cancel()
        if self._beside:
            await asyncio.wait(self._beside, timeout=CLOSE_S)
        for task in self._beside:
            task.cancel()
        if self._hints is not None:
            self._hints.close()

    # Claiming.

    async def claim(self, asked: ClaimAsked, wait_s: float) -> Given:
        """Claims jobs; waits for the first one. A claim with the id of this worker's last one gets the holds of that
        one which still stand. If this is cancelled, what it has claimed goes back.
        """
        now, loop = self._monotonic(), asyncio.get_running_loop()
        worker = self._known(asked.worker)
        ask = _Ask(asked, worker, now + wait_s)
        if (before := worker.newest) is not None and before.asked.claim_id == asked.claim_id:
            before.end(Given())  # its client no longer reads that answer
        worker.asked, worker.newest = asked, ask
        worker.waiting += 1
        self._enqueue(ask)
        timer = loop.call_later(wait_s, self._expire, ask)
        try:
            return await ask.answer
        except asyncio.CancelledError:
            if not ask.answer.cancelled() and ask.answer.exception() is None:
                self.undelivered(asked, ask.answer.result())
            raise
        finally:
            timer.cancel()
            worker.waiting -= 1
            worker.heard_at = self._monotonic()
            self._dequeue(ask)

    def undelivered(self, asked: ClaimAsked, given: Given) -> None:
        """The answer to a claim could not be written: what it got goes back, unless its worker has asked again."""
        worker = self._workers.get(asked.worker)
        newest = None if worker is None else worker.newest
        if newest is None or newest.asked is asked or newest.asked.claim_id != asked.claim_id:
            self._give_back(given.jobs)

    def _known(self, name: RemoteName) -> _RemoteWorker:
        if (worker := self._workers.get(name)) is None:
            if self._of_agent[name.agent] >= WORKERS_OF_AGENT_MAX or len(self._workers) >= WORKERS_MAX:
                raise TooManyWorkers(
                    f"{len(self._workers)} workers claim jobs over HTTP, and no more fit; come back later"
                )
            order = ClaimOrder(
                worker_id(self._access.log.node, name.row(self._access.log.node)), self._members, self._heard_claims
            )
            worker = self._workers[name] = _RemoteWorker(name, order)
            self._of_agent[name.agent] += 1
        worker.heard_at = self._monotonic()
        return worker

    def _enqueue(self, ask: _Ask) -> None:
        queue = ask.asked.queue
        if queue not in self._queues:
            self._queues[queue] = {}
            for kind in queue[0]:
                self._by_kind.setdefault(kind, {})[queue] = None
        self._queues[queue][ask] = None
        self._hungry[queue] = None
        if self._serving is None:
            topics = Changes(frozenset(("",))) | about(AVAILABILITY, self._access.log.node.to_bytes(8, "big"))
            self._hints = self._environment.bus.subscribe(topics | about(REMOTE))
            self._hints.attach(asyncio.get_running_loop(), self._hinted)
            self._serving = asyncio.create_task(self._serve())
        self._wake.set()

    def _dequeue(self, ask: _Ask) -> None:
        queue = ask.asked.queue
        asks = self._queues.get(queue, {})
        asks.pop(ask, None)
        if asks or queue not in self._queues:
            return
        del self._queues[queue]
        self._hungry.pop(queue, None)
        for kind in queue[0]:
            if (queues := self._by_kind.get(kind)) is not None:
                queues.pop(queue, None)
                if not queues:
                    del self._by_kind[kind]

    def _expire(self, ask: _Ask) -> None:
        """The claim's time is over. A new one is looked at once first."""
        if ask.was_looked_at:
            ask.end(Given())

    def _hinted(self, changes: Changes) -> None:
        if changes.subjects or any(not kind or kind.endswith(".") for kind in changes.kinds):
            found: Iterable[Queue] = self._queues
        else:
            found = [
                queue for kind in changes.kinds for name in names_of(kind) for queue in self._by_kind.get(name, ())
            ]
        before = len(self._hungry)
        self._hungry |= dict.fromkeys(found)
        if len(self._hungry) > before:
            self._wake.set()

    async def _serve(self) -> None:
        while True:
            self._wake.clear()
            now = self._monotonic()
            if now >= self._next_beats:
                await self._beat(now)
            if now >= self._next_look:
                self._hungry |= dict.fromkeys(self._queues)
            if self._hungry:
                hungry, self._hungry = list(self._hungry), {}
                self._next_look = now + LOOK_S
                await self._look([list(self._queues.get(queue, ())) for queue in hungry])
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(self._next_look, self._next_beats) - now)):
                    await self._wake.wait()

    async def _look(self, queues: Sequence[Sequence[_Ask]]) -> None:
        open_asks = [[ask for ask in asks if not ask.answer.done()] for asks in queues]
        before = self._monotonic()
        try:
            turn = await self._access.run(lambda tx: self._claim_all(tx, open_asks), beside=True)
        except Exception as error:
            await self._failed(open_asks, error)
            return
        for ask, claimed in turn.claimed.items():
            self._take(ask, claimed, before)
        for ask in (ask for asks in open_asks for ask in asks):
            ask.was_looked_at = True
            if ask.asked.queue not in turn.unfinished and before >= ask.until:
                ask.end(Given())
        self._hungry |= dict.fromkeys(each for each in turn.unfinished if each in self._queues)
        if turn.again_at is not None:
            self._next_look = min(self._next_look, before + max(0, turn.again_at - turn.now_ms) / 1000 + 0.001)

    async def _failed(self, queues: Sequence[Sequence[_Ask]], error: Exception) -> None:
        """Each claim is tried alone, so that only a bad one fails. If the store is away, those that wait go on
        waiting.
        """
        asks = [ask for asks in queues for ask in asks]
        if not isinstance(error, StoreError) and len(asks) > 1:
            for ask in asks:
                await self._look([[ask]])
            return
        now = self._monotonic()
        for ask in asks:
            is_over = now >= ask.until or not isinstance(error, StoreError)
            if is_over and not ask.answer.done():
                ask.answer.set_exception(error)
        await asyncio.sleep(RETRY_S)
        self._wake.set()

    def _take(self, ask: _Ask, claimed: _Claimed, before: float) -> None:
        if claimed.wanted:
            self._dequeue(ask)
            self._run_beside(self._decide(ask, claimed, before))
        elif not claimed.is_empty:
            self._answer(ask, claimed.given, claimed.is_draining, before)

    def _answer(self, ask: _Ask, given: Sequence[GivenJob], is_draining: bool, before: float) -> None:
        longest_s = max((each.lease_ms for each in given), default=0) / 1000
        ask.worker.leases_end_at = max(ask.worker.leases_end_at, before + longest_s)
        if not ask.end(Given(given, is_draining)):
            self.undelivered(ask.asked, Given(given))

    async def _decide(self, ask: _Ask, claimed: _Claimed, before: float) -> None:
        """Asks the arbiter, another node, about the claims. What comes after the client is gone goes back."""
        offers = [each.offer for each in claimed.wanted]
        while True:
            try:
                decisions = await self._access.consult(offers)
                self._is_away = False
                break
            except (Unreachable, StoreError):
                self._is_away = True
                await asyncio.sleep(RETRY_S)
        if any(isinstance(each, Reason) for each in decisions):
            self._contested.lost()
        pairs = [(each, job) for each, job in zip(claimed.wanted, decisions, strict=True) if isinstance(job, Job)]

        def note(tx: Transaction) -> list[GivenJob]:
            for each in offers:
                tx.session.drop_offer(each.op_id)
            given = [*claimed.given, *(_given(tx, job, wanted.schedule) for wanted, job in pairs)]
            _keep(tx, ask.asked, given)
            return given

        given = await self._access.run(note)
        if given or self._monotonic() >= ask.until:
            self._answer(ask, given, False, before)
        elif not ask.answer.done():
            self._enqueue(ask)

    # In the transaction. It may be run again, so it changes nothing here.

    def _claim_all(self, tx: Transaction, queues: Sequence[Sequence[_Ask]]) -> _Turn:
        tx.settle(SETTLE_STEP)
        tx.projection.flush()
        tx.session.promote(tx.now)
        is_draining = tx.projection.availability(tx.node) is not Availability.ACTIVE
        ready = tx.session.ready_kinds()
        claimed: dict[_Ask, _Claimed] = {}
        unfinished: list[Queue] = []
        again = [tx.session.next_ready_at()]
        left = CLAIMED_AT_ONCE
        for asks in queues:
            has_more = any(covers(each, kind) for each in asks[0].asked.kinds for kind in ready) if asks else False
            for ask in asks:
                if left <= 0:
                    unfinished.append(ask.asked.queue)
                    break
                if not (has_more or is_draining or not ask.was_looked_at):
                    break
                found = self._claim_one(tx, ask, has_more, left, is_draining)
                claimed[ask] = found
                left -= len(found.given) + len(found.wanted)
                again.append(found.again_at)
                # Another worker may rank before this one.
                has_more = has_more and (not found.is_empty or found.is_ranked)
        return _Turn(claimed, unfinished, tx.now, min((each for each in again if each is not None), default=None))

    def _claim_one(self, tx: Transaction, ask: _Ask, has_more: bool, left: int, is_draining: bool) -> _Claimed:
        asked = ask.asked
        row = _row_of(tx, asked, beats=False)
        kept = None if ask.was_looked_at else tx.session.answer("", asked.worker.row(tx.node))
        if kept is not None and kept.request == content_hash(asked.claim_id.encode()):
            return _Claimed(_still_held(tx, asked, kept), is_repeat=True)
        if is_draining or _drains(row):
            return _Claimed(is_draining=True)
        if not has_more:
            return _Claimed()
        claimed = self._claim(tx, ask, row.number, min(asked.limit, left))
        if claimed.given and not claimed.wanted:
            _keep(tx, asked, claimed.given)
        return claimed

    def _claim(self, tx: Transaction, ask: _Ask, number: int, limit: int) -> _Claimed:
        asked, order = ask.asked, ask.worker.order
        is_ranked, size = False, 0

        def may_claim_at(job: Job, schedule: bytes) -> int:
            nonlocal is_ranked
            if job.policy.is_ranked:
                is_ranked = True
                return order.may_claim_at(tx, job, schedule)
            return self._contested.may_claim_at(tx, job)

        def wants(job: Job, schedule: bytes) -> bool:
            if job.policy.schedule_op is not None and cron.is_tick(tx.session, job) is False:
                return False
            return not job.policy.needs or not lacking(job.policy.needs, asked.labels)

        taken: list[Claim] = []
        wanted: list[OfferedClaim] = []
        again_at: int | None = None
        lease_of = lambda kind: asked.lease_ms if any(covers(each, kind) for each in asked.kinds) else None  # noqa: E731
        is_plain = not tx.is_strict and self._contested.is_over(tx.now)
        while len(taken) + len(wanted) < limit and size < PAYLOADS_BYTES_MAX:
            step = min(STEP, limit - len(taken) - len(wanted))
            found = claiming.claim(
                *(tx, number, step, lease_of, not self._is_away, wants, may_claim_at),
                left_until=order.look(tx),
                is_free=limit == 1,
                isolates=lambda kind: False,
                takes_plain=lambda kind: is_plain,
            )
            taken += found.taken
            wanted += found.wanted
            again_at = found.again_at
            size += sum(len(each.schedule) for each in found.taken) + sum(len(each.schedule) for each in found.wanted)
            if len(found.taken) + len(found.wanted) < step:
                break
        given = [_given(tx, each.job, each.schedule) for each in taken]
        return _Claimed(given, wanted, again_at, is_ranked=is_ranked)

    # The worker's row.

    async def _beat(self, now: float) -> None:
        """Renews the rows of the workers that are heard, and forgets the others."""
        self._next_beats = now + BEAT_S
        for name, worker in list(self._workers.items()):
            if not worker.is_alive(now):
                del self._workers[name]
                self._of_agent[name.agent] -= 1
        alive = [worker.asked for worker in self._workers.values() if worker.asked is not None]
        self._of_agent = +self._of_agent
        if alive:
            with suppress(StoreError):
                await self._access.run(lambda tx: [_row_of(tx, each, beats=True) for each in alive])

    # Holds.

    async def renew(
        self, name: RemoteName, renewals: Sequence[Renewal], lease_ms: int | None, check_kind: CheckKind
    ) -> tuple[list[RenewalDone], bool]:
        """What became of each hold, and whether the worker drains."""
        worker, now = self._known(name), self._monotonic()
        length_ms = lease_ms or (None if worker.asked is None else worker.asked.lease_ms)

        def write(tx: Transaction) -> tuple[list[RenewalDone], bool]:
            found = renew(tx, renewals, name.agent, length_ms, check_kind, lambda job_id: self._is_logged(job_id, now))
            row = tx.session.worker_named(name.row(tx.node))
            is_away = tx.projection.availability(tx.node) is not Availability.ACTIVE
            return found, is_away or (row is not None and _drains(row))

        found, is_draining = await self._access.run(write, beside=True)
        offers = [each.offer for each in found if each.offer is not None]
        if offers:
            decisions = iter(await self._access.consult(offers))
            found = [each if each.offer is None else _decided(each, next(decisions)) for each in found]
        for each, renewed in zip(renewals, found, strict=True):
            if renewed.state == "held" and each.progress is not None and self._is_logged(each.job_id, now):
                self._logged.pop(each.job_id, None)
                while len(self._logged) >= LOGGED_MAX:
                    del self._logged[next(iter(self._logged))]
                self._logged[each.job_id] = now
        longest_s = max((each.lease_ms for each in found), default=0) / 1000
        worker.leases_end_at = max(worker.leases_end_at, now + longest_s)
        return found, is_draining

    def _is_logged(self, job_id: bytes, now: float) -> bool:
        return now >= self._logged.get(job_id, -math.inf) + LOGGED_S

    async def end(self, agent: str, ends: Sequence[End], check_kind: CheckKind) -> list[HoldEnded | HocketError]:
        """Ends holds, each on its own."""
        found = await self._access.run(lambda tx: end(tx, ends, agent, check_kind), beside=True)
        offers = {number: each for number, each in enumerate(found) if isinstance(each, Offer)}
        if not offers:
            return [each for each in found if not isinstance(each, Offer)]
        decisions = dict(zip(offers, await self._access.consult(list(offers.values())), strict=True))
        return await self._access.run(
            lambda tx: [_final(tx, ends[n], decisions.get(n), each) for n, each in enumerate(found)]
        )

    async def goodbye(self, name: RemoteName) -> int:
        """Returns the worker's jobs. Returns how many there were."""

        def write(tx: Transaction) -> int:
            row = tx.session.worker_named(name.row(tx.node))
            if row is None:
                return 0
            tx.session.drop_answer("", row.name)
            held = tx.projection.jobs.sound([e for e in tx.session.take_claimed(row.node) if e.worker == row.number])
            known = [each.job for each in map(tx.projection.jobs.know, held) if each is not None]
            for job in known:
                if job.state is State.CLAIMED and job.claim_op is not None:
                    jobs.hand_back(tx, Held(job.id, job.claim_op), GOODBYE)
            tx.session.drop_worker(row.number)
            return len(known)

        if (worker := self._workers.pop(name, None)) is not None:
            self._of_agent[name.agent] -= 1
            if worker.newest is not None:
                worker.newest.end(Given())
        return await self._access.run(write)

    def _give_back(self, given: Sequence[GivenJob]) -> None:
        held = [Held(each.job.id, each.job.claim_op) for each in given if each.job.claim_op is not None]
        if held:
            self._run_beside(self._hand_back(held))

    async def _hand_back(self, held: Sequence[Held]) -> None:
        """If the store stays away, the leases end by themselves."""
        for _ in range(RETRIES):
            with suppress(StoreError):
                await self._access.run(lambda tx: [jobs.hand_back(tx, each, UNSTARTED) for each in held], beside=True)
                return
            await asyncio.sleep(RETRY_S)

    def _run_beside(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)


def _row_of(tx: Transaction, asked: ClaimAsked, beats: bool) -> WorkerRow:
    """The row of a worker, with what it serves now. A row that a drain has marked stays marked."""
    name = asked.worker.row(tx.node)
    row = tx.session.worker_named(name)
    before = None if row is None else next(iter(read_serving(row.serves)), None)
    if row is not None and before is not None and not beats and (before.kinds, before.labels) == asked.queue:
        return row
    since_ms = tx.now if before is None else before.since_ms
    serves = Serving(asked.kinds, labels=asked.labels, drains=before is not None and before.drains)
    serves = serves.ranked(worker_id(tx.node, name), 1.0, since_ms)
    node = tx.node.to_bytes(8, "big")
    new = WorkerRow(0, name, 0, since_ms, node, tx.now, OVER_HTTP, serving_text([serves]))
    return new._replace(number=tx.session.put_worker(new))


def _drains(row: WorkerRow) -> bool:
    return any(each.drains for each in read_serving(row.serves))


def _given(tx: Transaction, job: Job, schedule: bytes) -> GivenJob:
    state = last_checkpoint(tx.session, job.id) if job.fence > 1 else None
    return GivenJob(job, schedule_payload(schedule), state, max(0, (job.deadline or 0) - tx.now))


def _keep(tx: Transaction, asked: ClaimAsked, given: Sequence[GivenJob]) -> None:
    """Notes what a claim got, for when it is repeated."""
    holds = msgspec.json.encode([(ulid_text(each.job.id), each.job.fence) for each in given])
    claim = content_hash(asked.claim_id.encode())
    tx.session.put_answer(AnswerRow("", asked.worker.row(tx.node), claim, 200, holds, tx.physical))


def _still_held(tx: Transaction, asked: ClaimAsked, kept: AnswerRow) -> list[GivenJob]:
    holds = decode_json(kept.body or b"[]", list[tuple[str, int]])
    found = [find_hold(tx, parse_ulid(job), fence, asked.worker.agent, lambda kind: None) for job, fence in holds]
    return [_given(tx, each.job, tx.body(each.job.schedule_op) or b"") for each in found if isinstance(each, HeldJob)]


def _decided(renewed: RenewalDone, decision: Decision) -> RenewalDone:
    return renewed._replace(offer=None) if isinstance(decision, Job) else RenewalDone("lost")


def _final(tx: Transaction, end: End, decision: Decision | None, found: EndOutcome) -> HoldEnded | HocketError:
    """An end that the arbiter refused may be the repetition of one that it had accepted."""
    if decision is None:
        assert not isinstance(found, Offer)
        return found
    if isinstance(decision, Job):
        return HoldEnded(decision)
    entry = tx.projection.jobs.entry(end.job_id)
    if entry is not None and is_repeated(tx, entry.job, end):
        return HoldEnded(entry.job, True)
    return refused(end, decision)
