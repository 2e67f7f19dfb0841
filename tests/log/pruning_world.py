"""A mesh of a few logs on virtual time, whose members write anything at any time, exchange, move the horizon and follow
it. Members write by their own logs, so ids are bound and every author has one chain.
"""

from collections.abc import Callable
from typing import Any

from hocket.families.inbox.facts import AcknowledgeMessage, ClaimMessage, SendMessage
from hocket.families.jobs import claiming
from hocket.families.locks.facts import LOCK, AcquireLocks, BreakLock, LockMode, ReleaseLocks
from hocket.families.locks.rules import LOCKS, Scope
from hocket.families.retention.facts import Retained, SetRetention
from hocket.families.rows.facts import ROW, PutRow, Strategy
from hocket.families.rows.rules import ROWS
from hocket.kernel.arbitration import Reason
from hocket.kernel.authority import revoke_root
from hocket.kernel.ids import content_hash
from hocket.kernel.keys import SigningKey
from hocket.kernel.ops import NO_ID, Op, decode
from hocket.kernel.succession.chain import vote_text
from hocket.kernel.ucan import ROOT, Capability, issue
from hocket.kernel.vocabulary import (
    CancelJob,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DelegateUcan,
    DesignateCoordinator,
    EraseContent,
    FailWork,
    RetryJob,
    ScheduleJob,
    SetSuccession,
    Subject,
    TakeOver,
    Telemetry,
    number_of,
)
from hocket.log import Log
from hocket.log.rebuild import family_digests
from hocket.store import Store
from tests.log.roster.world import KEYS, USER, randomness
from tests.stores import new_store

HOUR = 3_600_000
DAY = 24 * HOUR
START = 1_700_000_000_000
WORKER = tuple(
    Capability(*grant)
    for grant in (
        *(("Job", action, {}) for action in ("Schedule", "Claim", "Complete")),
        *(("Artifact", "Write", {}), ("Inbox", "*", {}), ("Lock", "*", {}), ("Row", "*", {}), ("Ops", "Read", {})),
    )
)


def key_of(number: int) -> SigningKey:
    return KEYS[number] if number < len(KEYS) else SigningKey(content_hash(b"member %d" % number))


class World:
    def __init__(self, members: int = 2, *, has_coordinator: bool = True, workers: bool = False) -> None:
        self.now = START
        self.members = [
            Member(self, number, ROOT if number == 0 or not workers else WORKER) for number in range(members)
        ]
        for each in self.members[1:]:
            self.members[0].pull(each)
            each.pull(self.members[0])
        if has_coordinator:
            self.owner.say(DesignateCoordinator(self.owner.log.node))
        for each in self.members[1:]:
            each.pull(self.owner)

    @property
    def owner(self) -> "Member":
        return self.members[0]

    def wait(self, ms: int) -> None:
        self.now += ms

    def exchange(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            for each in self.members:
                for other in self.members:
                    if each is not other:
                        each.pull(other)


class Member:
    def __init__(self, world: World, number: int, grants: Any = ROOT, store: Store | None = None) -> None:
        self.world, self.number = world, number
        key = key_of(number)
        self.log = self.opened(store or new_store())
        self.token = issue(USER, key.public, grants, 0, None)
        self.say(DelegateUcan(content_hash(self.token), self.token))
        self.held: list[tuple[bytes, bytes]] = []
        self.held_messages: list[tuple[bytes, bytes]] = []
        self.jobs: list[bytes] = []
        self.messages: list[bytes] = []

    def opened(self, store: Any) -> Log:
        from hocket.kernel.keys import did_key

        return Log(
            store,
            key_of(self.number),
            did_key(USER.public),
            wall=lambda floor: max(self.world.now, floor),
            physical=lambda: self.world.now,
            randomness=randomness(key_of(self.number).public),
        )

    def say(self, payload: Any, deps: tuple[bytes, ...] = ()) -> Op | Reason:
        written = self.log.run(lambda tx: (tx.settle(), tx.author(payload, deps))[1])
        assert isinstance(written, Op | Reason)
        return written

    def pull(self, other: "Member", limit: int = 100_000) -> None:
        with self.log.store.read() as session:
            known = session.frontier()
        with other.log.store.read() as session:
            rows = session.entries_since(known, limit)
        sent = [other.log.signed(row.body) for row in rows]
        self.log.admit([(raw, decode(raw)) for raw in sent], decide=claiming.accept)

    # What it writes.

    def submit(self, kind: str, policy: bytes = b"") -> bytes:
        op = self.say(ScheduleJob(NO_ID, kind, b"{}", policy))
        if isinstance(op, Reason):
            return bytes(16)
        self.jobs.append(op.id)
        return op.id

    def claim(self, job_id: bytes) -> bytes | None:
        op = self.say(ClaimWork(job_id, self.log.node, 60_000))
        return op.id if isinstance(op, Op) else None

    def complete(self, job_id: bytes, claim: bytes) -> Op | Reason:
        made = self.say(CreateArtifact(NO_ID, "hocket.result", job_id, (), bytes(32), b"1", None, None, 1))
        if isinstance(made, Reason):
            return made
        return self.say(CompleteJob(job_id, (), (made.id,), Telemetry(1)), (claim,))

    def run_job(self, kind: str, policy: bytes = b"") -> bytes:
        job_id = self.submit(kind, policy)
        claim = self.claim(job_id)
        assert claim is not None
        self.complete(job_id, claim)
        return job_id

    def run_batch(self, kind: str, ended: int) -> list[bytes]:
        """Three jobs in bundles, of which so many are completed."""

        def write(tx: Any) -> list[bytes]:
            tx.settle()
            made = tx.author_all([(ScheduleJob(NO_ID, kind, b"{}", b""), ()) for _ in range(3)])
            if any(isinstance(each, Reason) for each in made):
                return []
            ids = [each.id for each in made]
            claims = tx.author_all([(ClaimWork(each, tx.node, 60_000), ()) for each in ids])
            good = [(i, claim.id) for i, claim in zip(ids, claims, strict=True) if not isinstance(claim, Reason)]
            done = [(CompleteJob(i, (), (), Telemetry(1)), (claim,)) for i, claim in good[:ended]]
            tx.author_all(done)
            return ids

        ids: list[bytes] = self.log.run(write)
        self.jobs += ids
        return ids

    def fail(self, job_id: bytes, claim: bytes) -> Op | Reason:
        return self.say(FailWork(job_id, self.log.node, "bad", "", False), (claim,))

    def cancel(self, job_id: bytes) -> Op | Reason:
        return self.say(CancelJob(job_id, "because"))

    def retry(self, job_id: bytes) -> Op | Reason:
        return self.say(RetryJob(job_id, "again"))

    def erase(self, job_id: bytes, kind: str) -> Op | Reason:
        return self.say(EraseContent(job_id, kind, "because"))

    def acquire(self, key: str, scope: str = "", ttl_ms: int = HOUR, wait_ms: int = 0) -> Op | Reason:
        return self.say(AcquireLocks(scope, (key,), "ann", LockMode.EXCLUSIVE, ttl_ms, wait_ms))

    def release(self, scope: str = "") -> Op | Reason | None:
        state = self.scope(scope)
        own = [] if state is None else [hold for hold in state.holds if hold.node == self.log.node]
        return self.say(ReleaseLocks(scope, "ann", own[0].fence)) if own else None

    def break_lock(self, key: str, scope: str = "") -> Op | Reason:
        return self.say(BreakLock(scope, key, "because"))

    def put(self, row: str, value: bytes, base: bytes | None = None) -> Op | Reason:
        return self.say(PutRow(row, "ann", base, value, Strategy.TAKE_RIGHT))

    def send(self, thread: bytes | None = None) -> bytes:
        op = self.say(SendMessage(NO_ID, "bob", "ann", "note", thread, thread, 0, DAY, 3, b"{}"))
        if isinstance(op, Reason):
            return bytes(16)
        self.messages.append(op.id)
        return op.id

    def take_message(self, message_id: bytes) -> bytes | None:
        op = self.say(ClaimMessage(message_id, "bob", 60_000))
        return op.id if isinstance(op, Op) else None

    def acknowledge(self, message_id: bytes, claim: bytes) -> Op | Reason:
        return self.say(AcknowledgeMessage(message_id, "bob"), (claim,))

    def revoke(self, other: "Member") -> Op | Reason:
        return self.say(revoke_root(USER, content_hash(other.token)))

    def retain(
        self,
        what: Retained = Retained.JOBS,
        match: str = "",
        ms: int | None = DAY,
        count: int | None = None,
        **more: Any,
    ) -> Op | Reason:
        return self.say(SetRetention(what, match, ms, count, more.get("waives", True), more.get("witnesses", 0)))

    # The horizon.

    def move_horizon(self, at_ms: int | None = None) -> bool:
        with self.log.store.read() as session:
            plan = self.log.horizons.plan(session, at_ms)
        return plan is not None and self.log.horizons.move(plan)

    def follow(self, steps: int = 10_000) -> list[Any]:
        events: list[Any] = []
        for _ in range(steps):
            step = self.log.horizons.step()
            events += step.events
            if not step.has_more:
                return events
        return events

    # What is there.

    def scope(self, name: str = "") -> Scope | None:
        with self.log.store.read() as session:
            state = session.subject_state(Subject(LOCK, name.encode()))
        return None if state is None else LOCKS.decode(state)

    def row(self, name: str) -> Any:
        with self.log.store.read() as session:
            state = session.subject_state(Subject(ROW, name.encode()))
        return None if state is None else ROWS.decode(state)

    def job(self, job_id: bytes) -> Any:
        self.log.settle()
        with self.log.store.read() as session:
            entry = session.job(job_id)
        return None if entry is None else entry.job

    def digests(self) -> dict[str, bytes]:
        self.log.settle()
        with self.log.store.read() as session:
            return family_digests(session)

    def shown(self) -> dict[str, Any]:
        """All states, by family and key."""
        self.log.settle()
        with self.log.store.read() as session:
            return {
                "jobs": {each.job.id: each.job for each in session.each_job()},
                "messages": {each.id: each for each in session.each_message()},
                "subjects": {row.subject: row.state for row in session.each_subject()},
                "artifacts": {each.id for each in session.artifacts(b"", 100_000)},
            }

    def entries(self) -> int:
        with self.log.store.read() as session:
            return session.entry_count()

    def read(self, what: Callable[[Any], Any]) -> Any:
        with self.log.store.read() as session:
            return what(session)


def take_over(world: World, successor: Member) -> None:
    """All members may follow the owner's node, and this one does, with the votes of a quorum."""
    owner = world.owner
    with owner.log.store.read() as session:
        (root,) = session.ops_of_variants((number_of(DesignateCoordinator),))
    nodes = tuple(each.log.node for each in world.members)
    quorum = len(nodes) // 2 + 1
    succession = owner.say(SetSuccession(root.id, nodes, quorum, 30_000))
    assert isinstance(succession, Op)
    world.exchange()
    text = vote_text(succession.id, root.id, 1, successor.log.node)
    votes = tuple((each.log.node, key_of(each.number).sign(text)) for each in world.members[-quorum:])
    payload = TakeOver(1, succession.id, root.id, votes)
    assert isinstance(successor.log.run(lambda tx: tx.author(payload, about=owner.log.node)), Op)
    world.exchange()
    assert {each.log.permissions().coordinators[-1][1] for each in world.members} == {successor.log.node}
