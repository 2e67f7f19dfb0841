"""When a worker may claim a job that goes by rank: real ops in a real store, and rows and presence of workers that do
not run. The test moves the machine's clock.
"""

from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from hocket.errors import Usage
from hocket.families.availability.facts import Availability
from hocket.families.availability.requests import set_availability
from hocket.families.jobs import claiming
from hocket.families.jobs import requests as jobs
from hocket.families.jobs.candidates import EPOCH_MS, worker_id
from hocket.families.jobs.drafts import policy
from hocket.families.jobs.rendezvous import AnnouncedClaim, rank, rank_sticky, rank_weighted
from hocket.families.jobs.rules import Job, State
from hocket.families.liveness import ProcessLock, lock_path
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.jws import open_detached
from hocket.kernel.ops import decode, unsigned
from hocket.kernel.policy import DEFAULT
from hocket.kernel.signing import is_marked
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import DelegateUcan, RouteKind
from hocket.log import Transaction
from hocket.node.runtime import Runtime
from hocket.store import Place, Stage, WorkerRow
from hocket.work import claim_order
from hocket.work.claim_order import UNSIGNED_MS, ClaimOrder, HeardClaims
from hocket.work.handlers import kind
from hocket.work.members import EXPIRY_MS, REFRESH_MS, Members
from hocket.work.presence import NodePresence, NodeSaid, Serving, serving_text
from tests.mesh.world import Guest

KIND = "acme.render"
TIMEOUT_MS = 5_000
LEASE_MS = 60_000
# Another node of the mesh that is only a key.
FRIEND = Guest(7)


class Fleet:
    """Workers of this node, each with its own view."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.log = runtime, runtime.log
        self.later_ms = 0
        wall, physical = self.log.wall, self.log.physical
        self.log.wall = lambda floor: max(floor, wall(0) + self.later_ms)
        self.log.physical = lambda: physical() + self.later_ms
        self.orders: dict[str, ClaimOrder] = {}
        self.locks: dict[str, ProcessLock] = {}

    def worker(self, name: str, weight: float = 1.0, kinds: tuple[str, ...] = (KIND,)) -> str:
        id = worker_id(self.log.node, name)
        liveness = self.runtime.liveness()
        self.locks[id] = ProcessLock(self.runtime.home.processes, name)
        told = serving_text([Serving(kinds, id=id, weight=weight)])
        node = self.log.node.to_bytes(8, "big")
        self.log.run(
            lambda tx: tx.session.put_worker(WorkerRow(0, name, 1, tx.now, node, tx.now, liveness.place, told))
        )
        self.orders[id] = self.order(id)
        return id

    def die(self, id: str) -> None:
        """As after SIGKILL: the file of its lock stays, and nobody holds it."""
        self.locks.pop(id).close()
        lock_path(self.runtime.home.processes, id.partition("/")[2]).touch()
        del self.orders[id]

    def order(self, id: str) -> ClaimOrder:
        heard = HeardClaims(self.log.physical)
        return ClaimOrder(id, Members(self.runtime.liveness(), self.log), heard)

    def submit(self, count: int = 1, payload: dict[str, Any] | None = None, **options: Any) -> list[Job]:
        drafts = [kind(KIND, **{"claim": "rendezvous"} | options).draft(payload or {}) for _ in range(count)]
        made = self.log.run(lambda tx: jobs.submit(tx, drafts))
        return [self.job(each.job_id) for each in made]

    def job(self, job_id: bytes) -> Job:
        with self.log.store.read() as session:
            entry = session.job(job_id)
        assert entry is not None
        return entry.job

    def waits(self, job: Job) -> dict[str, int]:
        """For each worker, how many claim timeouts after the job became ready it may try."""
        return {id: self.wait(order, job) // TIMEOUT_MS for id, order in self.orders.items()}

    def wait(self, order: ClaimOrder, job: Job) -> int:
        return self.log.run(lambda tx: order.may_claim_at(tx, job, tx.body(job.schedule_op))) - job.last.wall

    def first(self, job: Job) -> str:
        (found,) = [id for id, place in self.waits(job).items() if place == 0]
        return found

    def seed(self, job: Job) -> bytes:
        """By hand, from the signature of the op or of the bundle that it came in."""
        with self.log.store.read() as session:
            row = session.op(job.schedule_op)
        assert row is not None
        signature = decode(self.log.signed(row.bundle or row.body)).signature
        half = open_detached(signature or b"", self.log.node)[:32]
        return half if row.bundle is None else sha256(half + job.schedule_op).digest()

    def look(self) -> None:
        """So that every worker has read the store."""
        for job in self.submit():
            self.waits(job)

    def live(self, ms: int) -> None:
        """Lets time pass for workers that look for jobs again and again."""
        for _ in range(max(1, ms // 2_000)):
            self.later_ms += ms // max(1, ms // 2_000)
            self.look()

    def invite(self, guest: Guest, capabilities: tuple[Capability, ...] = ROOT) -> None:
        user = self.runtime.home.user_key()
        token = issue(user, guest.key.public, capabilities, self.log.physical() // 1000, None)
        self.log.run(lambda tx: tx.author(DelegateUcan(content_hash(token), token)))

    def elsewhere(self, node: int, *names: str, weight: float = 1.0, ago_ms: int = 0) -> list[str]:
        workers = tuple(Serving((KIND,), id=worker_id(node, name), weight=weight) for name in names)
        heard = NodePresence(node, NodeSaid(workers), self.log.physical() - ago_ms)
        with self.log.store.write() as session:
            session.put_presence(heard.row)
        return [each.id for each in workers]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with closing(Runtime.init(tmp_path / "home")) as runtime:
        made = Fleet(runtime)
        made.invite(FRIEND)
        yield made
        for lock in made.locks.values():
            lock.close()


@pytest.mark.req("GR-07", "GR-10")
def test_the_first_in_rank_may_try_at_once_and_each_further_rank_one_timeout_later(fleet: Fleet) -> None:
    for number in range(4):
        fleet.worker(f"w{number}")
    for job in fleet.submit(20):
        places = fleet.waits(job)
        assert sorted(places.values()) == [0, 1, 2, 3]
        assert sorted(places, key=places.__getitem__) == rank(ulid_text(job.id), fleet.seed(job), places)


def test_a_kind_without_ranks_is_claimed_by_whichever_worker_asks(fleet: Fleet) -> None:
    order = fleet.orders[fleet.worker("one")]
    fleet.worker("two")
    for job in fleet.submit(10, claim="first"):
        assert not job.policy.is_ranked
        assert fleet.log.run(lambda tx, job=job: order.may_claim_at(tx, job, b"") <= tx.now)


@pytest.mark.req("GR-07")
def test_a_claim_takes_only_the_jobs_whose_turn_it_is_and_says_when_the_next_one_is(fleet: Fleet) -> None:
    ids = [fleet.worker(name) for name in ("one", "two")]
    mine = {id: {job.id for job in jobs if fleet.first(job) == id} for jobs in [fleet.submit(12)] for id in ids}

    def claims(id: str) -> claiming.Claims:
        order = fleet.orders[id]
        return fleet.log.run(
            lambda tx: claiming.claim(
                tx, 1, 100, lambda kind: LEASE_MS, may_claim_at=lambda job, op: order.may_claim_at(tx, job, op)
            )
        )

    taken = claims(ids[0])
    assert {each.job.id for each in taken.taken} == mine[ids[0]]
    assert taken.again_at is not None and taken.again_at > fleet.log.physical()
    fleet.later_ms += TIMEOUT_MS + 1
    assert {each.job.id for each in claims(ids[0]).taken} == mine[ids[1]]


class Looker:
    """A worker that looks at the queue without taking anything."""

    def __init__(self, fleet: Fleet, id: str) -> None:
        self._fleet, self._order = fleet, fleet.orders[id]

    def look(self) -> tuple[set[bytes], int | None]:
        """The jobs that it had to read, and when to look again."""
        read: set[bytes] = set()

        def look(tx: Transaction) -> claiming.Claims:
            def may_claim_at(job: Job, schedule: bytes) -> int:
                read.add(job.id)
                return max(self._order.may_claim_at(tx, job, schedule), tx.now + 1)

            left_until = self._order.look(tx)
            return claiming.claim(tx, 1, 100, lambda kind: LEASE_MS, may_claim_at=may_claim_at, left_until=left_until)

        return read, self._fleet.log.run(look).again_at

    def ahead(self, wanted: int) -> None:
        log = self._fleet.log
        with log.store.read() as session:
            now = max(log.physical(), session.head().wall)
            view = SimpleNamespace(session=session, node=log.node, now=now, physical=log.physical(), signed=log.signed)
            self._order.look_ahead(view, [KIND], wanted)


@pytest.mark.req("GR-07")
def test_what_was_ranked_in_a_look_ahead_is_not_read_in_the_transaction_that_claims(fleet: Fleet) -> None:
    own, other = (fleet.worker(name) for name in ("one", "two"))
    waiting = fleet.submit(40)
    looker = Looker(fleet, own)
    looker.ahead(100)
    read, again_at = looker.look()
    assert read == {job.id for job in waiting if fleet.first(job) == own}
    assert again_at is not None
    new = fleet.submit(10)
    assert looker.look()[0] == read | {job.id for job in new}  # they were not looked at ahead
    fleet.die(other)
    fleet.later_ms += 1_000
    assert looker.look()[0] == {job.id for job in waiting + new}


def test_a_look_ahead_ends_when_it_has_found_enough_and_the_next_one_goes_on_from_there(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_order, "AHEAD_PAGE", 10)
    own = fleet.worker("one")
    fleet.worker("two")
    waiting = fleet.submit(60)
    looker, order = Looker(fleet, own), fleet.orders[own]
    ranked: list[int] = []
    for _ in range(20):
        looker.ahead(5)
        ranked.append(len(order._known))
    assert 10 <= ranked[0] < ranked[1] < ranked[-1] == len(waiting)


@pytest.mark.parametrize("claim", [{"claim": "first"}, {"claim": "sticky", "sticky": "repository"}])
def test_a_look_ahead_does_not_read_on_for_jobs_that_are_not_ranked_ahead(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, claim: dict[str, str]
) -> None:
    monkeypatch.setattr(claim_order, "AHEAD_PAGE", 10)
    own = fleet.worker("one")
    fleet.worker("two")
    waiting = fleet.submit(40, {"repository": "r"}, **claim)
    Looker(fleet, own).ahead(5)
    assert not fleet.orders[own]._known
    assert fleet.orders[own]._ahead[KIND].job == waiting[9]


@pytest.mark.req("GR-07")
def test_a_job_that_comes_back_after_a_look_ahead_is_claimed_in_its_turn(fleet: Fleet) -> None:
    own, other = (fleet.worker(name) for name in ("one", "two"))
    job = next(each for each in fleet.submit(12) if fleet.first(each) == other)
    looker = Looker(fleet, own)
    looker.ahead(100)
    (claim,) = fleet.log.run(
        lambda tx: claiming.claim(tx, 1, 100, lambda kind: LEASE_MS, wants=lambda each, op: each.id == job.id)
    ).taken
    assert claim.job.claim_op is not None and job.id not in looker.look()[0]
    held = jobs.Held(job.id, claim.job.claim_op)
    fleet.log.run(lambda tx: jobs.hand_back(tx, held, ""))
    looker.ahead(100)
    assert job.id in looker.look()[0]


@pytest.mark.req("GR-07")
def test_jobs_that_are_left_to_others_are_not_read_again_until_their_turn(fleet: Fleet) -> None:
    own, other = (fleet.worker(name) for name in ("one", "two"))
    waiting = fleet.submit(12)
    theirs = {job.id for job in waiting if fleet.first(job) == other}
    mine = {job.id for job in waiting} - theirs
    looker = Looker(fleet, own)
    assert looker.look()[0] == mine  # `first` has asked about all before
    again_at = looker.look()[1]
    assert again_at is not None
    new = fleet.submit(12)
    assert looker.look()[0] == mine | {job.id for job in new}
    fleet.later_ms += TIMEOUT_MS + 1
    assert looker.look()[0] == mine | theirs | {job.id for job in new}


@pytest.mark.req("GR-07")
def test_the_next_look_is_when_the_first_job_that_is_left_to_others_may_be_claimed(fleet: Fleet) -> None:
    own, other = (fleet.worker(name) for name in ("one", "two"))
    job = next(each for each in fleet.submit(12) if fleet.first(each) == other)
    fleet.log.run(
        lambda tx: claiming.claim(tx, 1, 100, lambda kind: LEASE_MS, wants=lambda each, op: each.id != job.id)
    )
    looker = Looker(fleet, own)
    assert looker.look() == (set(), job.scheduled.wall + TIMEOUT_MS)


@pytest.mark.req("GR-06", "GR-07")
@pytest.mark.parametrize("change", ["the winner dies", "the winner passes", "the job comes back"])
def test_jobs_that_are_left_to_others_are_read_again_when_something_changes(fleet: Fleet, change: str) -> None:
    own, other = (fleet.worker(name) for name in ("one", "two"))
    theirs = [job for job in fleet.submit(12) if fleet.first(job) == other]
    looker = Looker(fleet, own)
    assert not looker.look()[0] & {job.id for job in theirs}
    changed = {theirs[0].id}
    if change == "the winner dies":
        fleet.die(other)
        fleet.later_ms += REFRESH_MS
        changed = {job.id for job in theirs}
    elif change == "the winner passes":
        fleet.orders[own].heard.hear_pass(theirs[0].id, theirs[0].fence, other)
    else:
        fleet.log.run(
            lambda tx: claiming.claim(tx, 1, 1, lambda kind: LEASE_MS, wants=lambda job, op: job.id in changed)
        )
        held = fleet.job(theirs[0].id)
        assert held.claim_op is not None
        fleet.log.run(lambda tx: jobs.hand_back(tx, jobs.Held(held.id, held.claim_op), "a test"))
    assert looker.look()[0] & {job.id for job in theirs} == changed


def test_a_job_that_comes_back_is_ranked_from_then_on(fleet: Fleet) -> None:
    id = fleet.worker("one")
    fleet.worker("two")
    job = next(each for each in fleet.submit(12) if fleet.first(each) != id)
    fleet.later_ms += 60_000
    assert fleet.wait(fleet.orders[id], job) == TIMEOUT_MS  # long ago
    fleet.log.run(lambda tx: claiming.claim(tx, 1, 100, lambda kind: LEASE_MS))
    held = fleet.job(job.id)
    assert held.claim_op is not None
    fleet.log.run(lambda tx: jobs.hand_back(tx, jobs.Held(held.id, held.claim_op), "a test"))
    again = fleet.job(job.id)
    assert again.last.wall >= job.last.wall + 60_000
    assert fleet.wait(fleet.orders[id], again) == TIMEOUT_MS


@pytest.mark.req("GR-06")
def test_a_worker_whose_process_has_ended_is_no_member(fleet: Fleet) -> None:
    ids = [fleet.worker(f"w{number}") for number in range(3)]
    fleet.look()
    dead = ids.pop()
    fleet.die(dead)
    fleet.later_ms += REFRESH_MS
    for job in fleet.submit(20):
        assert sorted(fleet.waits(job).values()) == [0, 1]


@pytest.mark.req("GR-06")
def test_ghosts_win_nothing_for_longer_than_the_expiry(fleet: Fleet) -> None:
    """A node is killed and restarted a hundred times, each time under another name."""
    own = fleet.worker("own")
    fleet.look()
    for number in range(100):
        fleet.elsewhere(FRIEND.id, f"w{number}")
        fleet.later_ms += REFRESH_MS
        fleet.look()
    with fleet.log.store.read() as session:
        fleet.orders[own].members.refresh(session, fleet.log.physical(), now=True)
    fleet.later_ms += EPOCH_MS
    seen = fleet.orders[own].members
    with fleet.log.store.read() as session:
        seen.refresh(session, fleet.log.physical())
    assert seen.candidates(KIND, fleet.log.physical()).weights.keys() == {own, worker_id(FRIEND.id, "w99")}
    fleet.later_ms += EXPIRY_MS
    for job in fleet.submit(10):
        assert fleet.first(job) == own


def test_a_node_that_falls_silent_is_out_after_two_heartbeats_and_a_half(fleet: Fleet) -> None:
    own = fleet.worker("own")
    (other,) = fleet.elsewhere(FRIEND.id, "w", ago_ms=EXPIRY_MS - 2_000)
    job = fleet.submit()[0]
    members = fleet.orders[own].members
    fleet.waits(job)
    assert other in members.candidates(KIND, fleet.log.physical()).weights
    fleet.later_ms += 2_000
    fleet.waits(job)
    assert members.candidates(KIND, fleet.log.physical()).weights.keys() == {own}


def test_joining_and_new_weights_count_from_the_next_epoch(fleet: Fleet) -> None:
    own = fleet.worker("own")
    members = fleet.orders[own].members
    fleet.live(2 * EPOCH_MS)
    fleet.live(EPOCH_MS - fleet.log.physical() % EPOCH_MS)
    (other,) = fleet.elsewhere(FRIEND.id, "w")
    fleet.live(REFRESH_MS)
    assert other not in members.candidates(KIND, fleet.log.physical()).weights
    fleet.live(EPOCH_MS)
    assert members.candidates(KIND, fleet.log.physical()).weights[other] == 1.0
    fleet.elsewhere(FRIEND.id, "w", weight=1000.0)
    fleet.live(REFRESH_MS)
    assert members.candidates(KIND, fleet.log.physical()).weights[other] == 1.0
    fleet.live(EPOCH_MS)
    assert members.candidates(KIND, fleet.log.physical()).weights[other] == 1000.0


def test_a_draining_node_has_no_members(fleet: Fleet) -> None:
    own = fleet.worker("own")
    (other,) = fleet.elsewhere(FRIEND.id, "w")
    fleet.look()
    members = fleet.orders[own].members
    assert other in members.candidates(KIND, fleet.log.physical()).weights
    fleet.log.run(lambda tx: set_availability(tx, FRIEND.id, Availability.DRAINING, ""))
    fleet.later_ms += REFRESH_MS
    fleet.look()
    assert members.candidates(KIND, fleet.log.physical()).weights.keys() == {own}


@pytest.mark.req("LW-49")
@pytest.mark.parametrize(
    "capabilities",
    [
        (Capability("Job", "Read", {"kind_prefix": ["other."]}),),
        (Capability("Job", "Claim", {"kind_prefix": ["other."]}), Capability("Job", "Complete", {})),
        (Capability("Job", "Claim", {}),),
        None,
    ],
)
def test_only_workers_of_nodes_that_may_claim_the_kind_are_ranked(
    fleet: Fleet, capabilities: tuple[Capability, ...] | None
) -> None:
    reader = Guest(8)
    if capabilities is not None:
        fleet.invite(reader, capabilities)
    own = fleet.worker("own")
    made_up = fleet.elsewhere(reader.id, *(f"w{number}" for number in range(64)), weight=1000.0)
    for job in fleet.submit(5):
        assert fleet.waits(job) == {own: 0}
    fleet.invite(reader, (Capability("Job", "Claim", {}), Capability("Job", "Complete", {})))
    fleet.later_ms += REFRESH_MS
    fleet.look()
    candidates = fleet.orders[own].members.candidates(KIND, fleet.log.physical())
    assert candidates.weights.keys() == {own, *made_up}


@pytest.mark.req("LW-49")
@pytest.mark.touches("GR-07")
def test_a_node_with_64_workers_that_claim_nothing_delays_a_job_by_one_timeout(fleet: Fleet) -> None:
    fleet.worker("own")
    fleet.elsewhere(FRIEND.id, *(f"w{number}" for number in range(64)), weight=1000.0)
    for job in fleet.submit(10):
        assert max(fleet.waits(job).values()) <= 1
    later = fleet.worker("later")
    fleet.later_ms += REFRESH_MS
    for job in fleet.submit(10):
        assert fleet.waits(job)[later] <= 3, "one turn of the other node for each of its own"


def test_the_workers_of_other_nodes_are_not_ranked_for_a_kind_that_is_routed(fleet: Fleet) -> None:
    own = fleet.worker("own")
    (other,) = fleet.elsewhere(FRIEND.id, "w", weight=1000.0)
    fleet.look()
    members = fleet.orders[own].members
    for route, ranked in ((fleet.log.node, {own}), (FRIEND.id, {other}), (None, {own, other})):
        fleet.log.run(lambda tx, route=route: tx.author(RouteKind(KIND, route)))
        fleet.later_ms += REFRESH_MS
        fleet.look()
        assert members.candidates(KIND, fleet.log.physical()).weights.keys() == ranked


def test_a_node_speaks_for_its_own_workers_only(fleet: Fleet) -> None:
    own = fleet.worker("own")
    workers = (
        Serving((KIND,), id=worker_id(8, "w")),
        Serving((KIND,)),
        Serving((KIND,), id=worker_id(FRIEND.id, "a/b")),
    )
    heard = NodePresence(FRIEND.id, NodeSaid(workers), fleet.log.physical())
    with fleet.log.store.write() as session:
        session.put_presence(heard.row)
    fleet.look()
    assert fleet.orders[own].members.candidates(KIND, fleet.log.physical()).weights.keys() == {own}


def test_unreadable_presence_is_no_member(fleet: Fleet) -> None:
    own = fleet.worker("own")
    with fleet.log.store.write() as session:
        session.put_presence(
            NodePresence(FRIEND.id, NodeSaid(), fleet.log.physical()).row._replace(said='{"workers":3}')
        )
    fleet.look()
    assert fleet.orders[own].members.candidates(KIND, fleet.log.physical()).weights.keys() == {own}


def test_weights_go_into_the_ranking(fleet: Fleet) -> None:
    heavy, light = fleet.worker("heavy", 50.0), fleet.worker("light", 1.0)
    for job in fleet.submit(10):
        ranking = rank_weighted(ulid_text(job.id), fleet.seed(job), {heavy: 50.0, light: 1.0})
        assert fleet.first(job) == ranking[0]


def test_a_worker_without_the_labels_that_the_job_needs_is_not_ranked(fleet: Fleet) -> None:
    for name in ("one", "two"):
        fleet.worker(name)
    for job in fleet.submit(5, needs="gpu"):
        assert set(fleet.waits(job).values()) == {0}  # an empty set: each may try


def test_an_op_that_is_not_signed_yet_is_looked_at_again_soon(fleet: Fleet) -> None:
    own, other = (fleet.orders[fleet.worker(name)] for name in ("one", "two"))
    job = fleet.submit()[0]
    signer, op = fleet.log.signer, decode(fleet.log.run(lambda tx: tx.body(job.schedule_op)))
    fresh = signer.for_log(unsigned(op))
    fleet.log.run(lambda tx: own.may_claim_at(tx, job, fresh))
    assert own._known[job.id].seed == fleet.seed(job)  # its own node signs it

    def elsewhere(tx: Any) -> int:
        """As in a store that several nodes share."""
        node, tx.node = tx.node, tx.node ^ 1
        try:
            return other.may_claim_at(tx, job, fresh) - tx.now
        finally:
            tx.node = node

    assert fleet.log.run(elsewhere) == UNSIGNED_MS
    assert job.id not in other._known


@pytest.mark.req("GR-01", "LW-51")
def test_workers_read_the_seeds_of_jobs_that_came_in_one_bundle(fleet: Fleet) -> None:
    ahead, claimer = (fleet.orders[fleet.worker(name)] for name in ("ahead", "claimer"))
    alone, together = fleet.submit(), fleet.submit(5)

    def claim(tx: Transaction) -> None:
        ahead.look_ahead(tx, [KIND], 10)
        claiming.claim(tx, 1, 10, lambda kind: LEASE_MS, may_claim_at=lambda job, op: claimer.may_claim_at(tx, job, op))

    def now(tx: Transaction) -> list[Job]:
        """As a request that runs in the transaction of those who submit."""
        drafts = [kind(KIND, claim="rendezvous").draft({}) for _ in range(2)]
        made = [tx.projection.jobs.entry(each.job_id) for each in jobs.submit(tx, drafts)]
        claim(tx)
        return [each.job for each in made if each is not None]

    fleet.log.run(claim)
    by_hand = {job.id: fleet.seed(job) for job in alone + together}
    for order in (ahead, claimer):
        assert {id: each.seed for id, each in order._known.items()} == by_hand
    fresh = fleet.log.run(now)
    assert [claimer._known[job.id].seed for job in fresh] == [fleet.seed(job) for job in fresh]


@pytest.mark.parametrize(("claim", "waits"), [("rendezvous", False), ("sticky", False), ("first", True)])
def test_the_op_of_a_job_that_goes_by_rank_has_its_signature_before_the_commit(
    fleet: Fleet, claim: str, waits: bool
) -> None:
    options = {"sticky": "key"} if claim == "sticky" else {}
    draft = kind(KIND, claim=claim, **options).draft({"key": 1})
    assert fleet.log.run(lambda tx: is_marked(tx.body(jobs.submit_one(tx, draft).job_id))) is waits


# What workers tell each other.


@pytest.mark.req("GR-02")
def test_a_claim_that_was_heard_holds_takeovers_back_for_one_timeout(fleet: Fleet) -> None:
    ids = [fleet.worker(f"w{number}") for number in range(3)]
    job = fleet.submit()[0]
    places = fleet.waits(job)
    winner, second = sorted(ids, key=places.__getitem__)[:2]
    order = fleet.orders[second]
    fleet.later_ms += TIMEOUT_MS - 1_000
    order.heard.hear_claim(job.id, job.fence, AnnouncedClaim(ulid_text(job.id), winner, Hlc(1, 0, fleet.log.node)))
    held_until = fleet.wait(order, job)
    assert 2 * TIMEOUT_MS - 1_000 <= held_until < 3 * TIMEOUT_MS
    fleet.later_ms += 500
    for number in range(50):  # a liar that repeats itself, under many names
        lie = AnnouncedClaim(ulid_text(job.id), worker_id(9, f"liar{number}"), Hlc(number, 0, 9))
        order.heard.hear_claim(job.id, job.fence, lie)
    assert fleet.wait(order, job) == held_until
    assert fleet.wait(fleet.orders[winner], job) == 0
    fleet.orders[winner].heard.hear_claim(job.id, job.fence, AnnouncedClaim("", worker_id(9, "liar"), Hlc(0, 0, 9)))
    assert fleet.wait(fleet.orders[winner], job) == 0  # the arbiter decides


@pytest.mark.req("GR-03")
def test_of_two_claims_that_were_heard_the_earlier_holds_back_the_other(fleet: Fleet) -> None:
    fleet.worker("one")
    fleet.worker("two")
    job = fleet.submit(open=True)[0]
    winner = fleet.first(job)
    heard = fleet.orders[winner].heard
    heard.hear_claim(job.id, 0, AnnouncedClaim("", winner, Hlc(5, 0, fleet.log.node)))
    heard.hear_claim(job.id, 0, AnnouncedClaim("", worker_id(9, "later"), Hlc(6, 0, 9)))
    assert fleet.wait(fleet.orders[winner], job) == 0
    heard.hear_claim(job.id, 0, AnnouncedClaim("", worker_id(9, "earlier"), Hlc(4, 0, 9)))
    assert fleet.wait(fleet.orders[winner], job) >= TIMEOUT_MS


def test_the_next_in_rank_need_not_wait_for_one_that_passed(fleet: Fleet) -> None:
    ids = [fleet.worker(f"w{number}") for number in range(3)]
    job = fleet.submit()[0]
    places = fleet.waits(job)
    first, second, third = sorted(ids, key=places.__getitem__)
    for order in fleet.orders.values():
        order.heard.hear_pass(job.id, job.fence, first)
    assert fleet.waits(job) == {first: 2, second: 0, third: 1}


def test_what_was_heard_holds_for_one_fence_and_is_bounded() -> None:
    heard = HeardClaims(lambda: 1_000)
    heard.hear_pass(b"job", 0, "w")
    heard.hear_claim(b"job", 0, AnnouncedClaim("", worker_id(1, "w"), Hlc(1, 0, 1)))
    assert (heard.passed(b"job", 1), heard.claimed_until(b"job", 1, "x", 5)) == (frozenset(), 0)
    for number in range(10_000):
        heard.hear_pass(number.to_bytes(16, "big"), 0, "w")
    assert len(heard._said) <= 4_096 and heard.dropped > 5_000
    for number in range(200):
        heard.hear_pass(b"flooded", 0, f"w{number}")
        heard.hear_claim(b"flooded", 0, AnnouncedClaim("", worker_id(number, "w"), Hlc(1, 0, number)))
    assert len(heard.passed(b"flooded", 0)) == 64


# Sticky jobs.


def test_jobs_with_the_same_key_go_to_the_same_worker(fleet: Fleet) -> None:
    for number in range(5):
        fleet.worker(f"w{number}")
    homes = {}
    for repository in ("a", "b", "c", "d", "e", "f"):
        found = fleet.submit(4, {"repository": repository}, claim="sticky", sticky="repository")
        (homes[repository],) = {fleet.first(job) for job in found}
    assert len(set(homes.values())) > 1


def test_a_sticky_job_passes_over_a_worker_with_too_much_to_do(fleet: Fleet) -> None:
    for number in range(3):
        fleet.worker(f"w{number}")
    (other,) = fleet.elsewhere(FRIEND.id, "w")
    options = {"claim": "sticky", "sticky": "key"}
    fleet.look()
    weights = dict.fromkeys([*fleet.orders, other], 1.0)
    key = next(key for key in map(str, range(200)) if rank_sticky(key, weights, {})[0] == other)
    before = fleet.submit(1, {"key": key}, **options)[0]
    assert min(fleet.waits(before).values()) == 1
    more = [each.id for each in fleet.submit(6, {"key": key}, **options)]
    with fleet.log.store.write() as session:
        entries = session.jobs_by_id(more)
        busy = [
            entry._replace(
                job=msgspec.structs.replace(entry.job, state=State.CLAIMED, claimer=FRIEND.id, deadline=2**40),
                stage=Stage.CLAIMED,
            )
            for entry in entries
        ]
        session.put_jobs(busy)
    assert min(fleet.waits(before).values()) == 0


def test_a_sticky_job_without_its_key_is_ranked_like_the_others(fleet: Fleet) -> None:
    for number in range(3):
        fleet.worker(f"w{number}")
    job = fleet.submit(1, {"other": 1}, claim="sticky", sticky="key")[0]
    places = fleet.waits(job)
    assert sorted(places, key=places.__getitem__) == rank(ulid_text(job.id), fleet.seed(job), places)


# The options.


def test_the_options_are_checked() -> None:
    for bad in (
        {"claim": "best"},
        {"claim": "sticky"},
        {"sticky": "key"},
        {"claim": "sticky", "sticky": ""},
        {"claim": "rendezvous", "claim_timeout": "1ms"},
    ):
        with pytest.raises(Usage):
            policy(DEFAULT, **bad)
    made = policy(DEFAULT, claim="sticky", sticky="repository", claim_timeout="2s")
    assert (made.claim, made.sticky, made.claim_timeout_ms) == ("sticky", "repository", 2_000)


def test_a_row_without_an_id_is_no_member(fleet: Fleet) -> None:
    """A worker of an earlier version takes jobs as they come."""
    own = fleet.worker("own")
    told = serving_text([Serving((KIND,))])
    node = fleet.log.node.to_bytes(8, "big")
    fleet.log.run(lambda tx: tx.session.put_worker(WorkerRow(0, "old", 1, tx.now, node, tx.now, Place(), told)))
    fleet.look()
    assert fleet.orders[own].members.candidates(KIND, fleet.log.physical()).weights.keys() == {own}
