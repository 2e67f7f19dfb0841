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
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from hocket.bus.hints import Changes, Subscription, about
from hocket.errors import HocketError, StoreError, Unreachable
from hocket.families.access import NodeAccess
from hocket.families.availability.facts import AVAILABILITY, Availability
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import worker_id
from hocket.families.jobs.progress import LOGGED_S
from hocket.families.jobs.requests import Decision, Held, Offer
from hocket.families.jobs.rules import UNSTARTED, Job, State
from hocket.families.liveness import BEAT_S
from hocket.kernel.arbitration import Reason
from hocket.kernel.policy import names_of
from hocket.log import Transaction
from hocket.work.claim_order import ClaimOrder, ContestedClaims, HeardClaims
from hocket.work.environment import Environment
from hocket.work.members import Members
from hocket.work.remote.remote_claims import (
    ClaimAsked,
    ClaimedNow,
    Given,
    GivenJob,
    Queue,
    RemoteClaims,
    RemoteWorker,
    WaitingClaim,
    drains,
    given_job,
    keep_claim,
    row_of,
)
from hocket.work.remote.remote_holds import (
    GOODBYE,
    REMOTE,
    CheckKind,
    End,
    EndOutcome,
    HoldEnded,
    RemoteName,
    Renewal,
    RenewalDone,
    end,
    find_hold,
    is_repeated,
    over,
    refused,
    renew,
)
from hocket.work.remote.remote_parts import PartsKey, RemoteLimit, RemoteParts
from hocket.work.run_outputs import RunServices

# The workers that this process knows, of all agents and of one.
WORKERS_MAX = 10_000
WORKERS_OF_AGENT_MAX = 2_000
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


class RemoteWorkers:
    """Use it from the event loop of the node."""

    def __init__(self, access: NodeAccess, environment: Environment, services: Callable[[str], RunServices]) -> None:
        self._access, self._environment, self._monotonic = access, environment, environment.monotonic
        self._members = Members(environment.liveness, access.log)
        self._heard_claims = HeardClaims(access.log.physical)
        self._contested = ContestedClaims(self._members)
        self._claims = RemoteClaims(self._contested)
        self._parts = RemoteParts(services)
        self._workers: dict[RemoteName, RemoteWorker] = {}
        self._of_agent: Counter[str] = Counter()
        # The waiting claims by what they serve, the queues with a kind, and those with a reason to look.
        self._queues: dict[Queue, dict[WaitingClaim, None]] = {}
        self._by_kind: dict[str, dict[Queue, None]] = {}
        self._hungry: dict[Queue, None] = {}
        self._new: list[WaitingClaim] = []
        self._wake = asyncio.Event()
        self._next_look = self._next_beats = 0.0
        self._serving: asyncio.Task[None] | None = None
        self._beside: set[asyncio.Task[None]] = set()
        # Claims whose time was over while a look was under way, which may have found jobs for them.
        self._overdue: list[WaitingClaim] = []
        self._is_looking = False
        # What tells that a worker, or all of them, may have to drain.
        self._drain_topics = about(AVAILABILITY, access.log.node.to_bytes(8, "big")) | about(REMOTE)
        self._drain_hints = 0
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
        ask = WaitingClaim(asked, worker, now + wait_s)
        if (before := worker.newest) is not None and before.asked.claim_id == asked.claim_id:
            before.end(Given())  # its client no longer reads that answer
        # Others wait in its queue, so a hint would have come; a claim that does not wait looks all the same.
        ask.was_looked_at = wait_s > 0 and asked.queue in self._queues and worker.got_nothing(asked, self._drain_hints)
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

    def _known(self, name: RemoteName) -> RemoteWorker:
        if (worker := self._workers.get(name)) is None:
            if self._of_agent[name.agent] >= WORKERS_OF_AGENT_MAX or len(self._workers) >= WORKERS_MAX:
                raise RemoteLimit(
                    f"{len(self._workers)} workers claim jobs over HTTP, and no more fit; come back later"
                )
            order = ClaimOrder(
                worker_id(self._access.log.node, name.row(self._access.log.node)), self._members, self._heard_claims
            )
            worker = self._workers[name] = RemoteWorker(name, order)
            self._of_agent[name.agent] += 1
        worker.heard_at = self._monotonic()
        return worker

    def _enqueue(self, ask: WaitingClaim) -> None:
        queue = ask.asked.queue
        if queue not in self._queues:
            self._queues[queue] = {}
            for kind in queue[0]:
                self._by_kind.setdefault(kind, {})[queue] = None
        self._queues[queue][ask] = None
        if not ask.was_looked_at:
            self._hungry[queue] = None
            self._new.append(ask)
            self._wake.set()
        if self._serving is None:
            self._hints = self._environment.bus.subscribe(Changes(frozenset(("",))) | self._drain_topics)
            self._hints.attach(asyncio.get_running_loop(), self._hinted)
            self._serving = asyncio.create_task(self._serve())

    def _dequeue(self, ask: WaitingClaim) -> None:
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

    def _expire(self, ask: WaitingClaim) -> None:
        """The claim's time is over. A new one is looked at once first."""
        if self._is_looking:
            self._overdue.append(ask)
        elif ask.was_looked_at:
            ask.end(Given())

    def _hinted(self, changes: Changes) -> None:
        may_drain = changes.matches(self._drain_topics)
        if may_drain:
            self._drain_hints += 1
            self._new = [ask for asks in self._queues.values() for ask in asks]
        if may_drain or any(not kind or kind.endswith(".") for kind in changes.kinds):
            found: Iterable[Queue] = self._queues
        else:
            found = [
                queue for kind in changes.kinds for name in names_of(kind) for queue in self._by_kind.get(name, ())
            ]
        before = len(self._hungry)
        self._hungry |= dict.fromkeys(found)
        if len(self._hungry) > before or self._new:
            self._wake.set()

    async def _serve(self) -> None:
        while True:
            self._wake.clear()
            now = self._monotonic()
            if now >= self._next_beats:
                await self._beat(now)
            if now >= self._next_look:
                self._hungry |= dict.fromkeys(self._queues)
                self._next_look = now + LOOK_S
            if self._hungry or self._new:
                hungry, self._hungry = list(self._hungry), {}
                new, self._new = self._new, []
                self._next_look = now + LOOK_S
                self._is_looking = True
                await self._look(new, {queue: list(self._queues[queue]) for queue in hungry if queue in self._queues})
                self._is_looking = False
                overdue, self._overdue = self._overdue, []
                for ask in overdue:
                    self._expire(ask)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, min(self._next_look, self._next_beats) - now)):
                    await self._wake.wait()

    async def _look(self, new: Sequence[WaitingClaim], queues: Mapping[Queue, Sequence[WaitingClaim]]) -> None:
        before, drain_hints = self._monotonic(), self._drain_hints
        # A hint may ask for another look at a claim that the look before it has answered.
        new = [ask for ask in new if not ask.answer.done()]
        try:
            turn = await self._access.run(lambda tx: self._claims(tx, new, queues), beside=True)
        except StoreError as error:
            self._new += new
            self._hungry |= dict.fromkeys(queues)
            for ask in new:
                if before >= ask.until and not ask.answer.done():
                    ask.answer.set_exception(error)
            await asyncio.sleep(RETRY_S)
            return
        except Exception as error:
            await self._look_one_by_one([*new, *(ask for asks in queues.values() for ask in asks)], error)
            return
        for ask, claimed in turn.claimed.items():
            self._take(ask, claimed, before)
        for ask in new:
            if ask.asked.queue in turn.unfinished:
                self._new.append(ask)
                continue
            ask.was_looked_at, ask.worker.drain_hints = True, drain_hints
            if before >= ask.until and not ask.is_undecided:
                ask.end(Given())
        self._hungry |= dict.fromkeys(each for each in turn.unfinished if each in self._queues)
        if turn.again_at is not None:
            self._next_look = min(self._next_look, before + max(0, turn.again_at - turn.now_ms) / 1000 + 0.001)

    async def _look_one_by_one(self, asks: Sequence[WaitingClaim], error: Exception) -> None:
        """A look has failed as a whole: each claim is tried alone, so that only a bad one fails."""
        if len(asks) == 1 and not asks[0].answer.done():
            asks[0].answer.set_exception(error)
        for ask in asks if len(asks) > 1 else ():
            if not ask.answer.done():
                await self._look([ask], {ask.asked.queue: [ask]})

    def _take(self, ask: WaitingClaim, claimed: ClaimedNow, before: float) -> None:
        if claimed.wanted:
            ask.is_undecided = True
            self._dequeue(ask)
            self._run_beside(self._decide(ask, claimed, before))
        elif not claimed.is_empty:
            self._answer(ask, claimed.given, claimed.is_draining, before)

    def _answer(self, ask: WaitingClaim, given: Sequence[GivenJob], is_draining: bool, before: float) -> None:
        longest_s = max((each.lease_ms for each in given), default=0) / 1000
        ask.worker.leases_end_at = max(ask.worker.leases_end_at, before + longest_s)
        ask.worker.fed_by = ask.asked.claim_id if given else ask.worker.fed_by
        ask.worker.alone = next((each.job for each in given if each.is_alone), ask.worker.alone)
        if not ask.end(Given(given, is_draining)):
            self.undelivered(ask.asked, Given(given))

    async def _decide(self, ask: WaitingClaim, claimed: ClaimedNow, before: float) -> None:
        """Asks the arbiter, another node, about the claims. What comes after the client is gone goes back."""
        offers = [each.offer for each in claimed.wanted]
        while True:
            try:
                decisions = await self._access.consult(offers)
                self._claims.is_away = False
                break
            except (Unreachable, StoreError):
                self._claims.is_away = True
                await asyncio.sleep(RETRY_S)
        if any(isinstance(each, Reason) for each in decisions):
            self._contested.lost()
        pairs = [(each, job) for each, job in zip(claimed.wanted, decisions, strict=True) if isinstance(job, Job)]

        def note(tx: Transaction) -> list[GivenJob]:
            for each in offers:
                tx.session.drop_offer(each.op_id)
            given = [*claimed.given, *(given_job(tx, job, wanted.schedule, wanted.deaths) for wanted, job in pairs)]
            keep_claim(tx, ask.asked, given)
            return given

        given = await self._access.run(note)
        if given or self._monotonic() >= ask.until:
            self._answer(ask, given, False, before)
        elif not ask.answer.done():
            ask.is_undecided = ask.was_looked_at = False
            self._enqueue(ask)

    # The worker's row.

    async def _beat(self, now: float) -> None:
        """Renews the rows of the workers that are heard, and forgets the others."""
        self._next_beats = now + BEAT_S
        for name, worker in list(self._workers.items()):
            if not worker.is_alive(now):
                del self._workers[name]
                self._of_agent[name.agent] -= 1
        node = self._access.log.node
        alive = {name.row(node): worker.asked for name, worker in self._workers.items() if worker.asked is not None}
        self._of_agent = +self._of_agent
        if not alive and not self._parts.keys:
            return

        def write(tx: Transaction) -> list[PartsKey]:
            for each in tx.session.beat_workers(alive.keys(), tx.now):
                row_of(tx, alive[each])
            return self._parts.over(tx)

        with suppress(StoreError):
            self._parts.drop(await self._access.run(write))

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
            return found, is_away or (row is not None and drains(row))

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
        """Ends holds, each on its own. A completion takes the parts with it."""
        with_parts = {(each.job_id, each.fence) for each in ends} & set(self._parts.keys)
        if with_parts:
            ends = [await self._with_parts(each) if (each.job_id, each.fence) in with_parts else each for each in ends]
        found = await self._access.run(lambda tx: end(tx, ends, agent, check_kind), beside=True)
        offers = {number: each for number, each in enumerate(found) if isinstance(each, Offer)}
        if offers:
            decisions = dict(zip(offers, await self._access.consult(list(offers.values())), strict=True))

            def judge(tx: Transaction) -> list[HoldEnded | HocketError]:
                return [_final(tx, ends[number], decisions.get(number), each) for number, each in enumerate(found)]

            done = await self._access.run(judge)
        else:
            done = [each for each in found if not isinstance(each, Offer)]
        self._parts.drop(
            (each.job_id, each.fence) for each, end in zip(ends, done, strict=True) if isinstance(end, HoldEnded)
        )
        return done

    async def _with_parts(self, end: End) -> End:
        if end.do != "complete":
            return end
        entry = await self._access.peek(lambda session: session.job(end.job_id))
        if entry is None or entry.job.fence != end.fence:
            return end
        job = entry.job
        return end._replace(made=await self._access.call(lambda: self._parts.outputs(job)))

    async def add_parts(
        self, agent: str, job_id: bytes, fence: int, values: Sequence[tuple[int, Any]], check_kind: CheckKind
    ) -> int:
        """Returns the number of the next part."""
        found = await self._access.run(lambda tx: find_hold(tx, job_id, fence, agent, check_kind), beside=True)
        if isinstance(found, HocketError):
            raise found
        if isinstance(found, Job):
            raise over(found, fence)
        return self._parts.add(found.job, agent, values)

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
