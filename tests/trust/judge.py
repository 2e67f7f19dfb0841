"""The judge of a mesh with rogues in it: after every move it looks at what an honest member shows, and says whether
the members' grants, taken together, allow it. It asks the naive authority (tests/kernel/naive_authority.py) who may
write what, and remembers what honest members have shown before. It shares no code with the log but the shapes.

What must hold:

- Every op that counts was allowed to its author; a tick to the author of its schedule; an acceptance to the
  coordinator, and the op that it accepts to that op's author.
- A coordinator's word counts only if it was known when the successor was designated.
- A job's kind, payload, policy and submitter never change, nor does what an artifact's id stands for.
- A completion that the coordinator knows stands, with its results, unless their author is revoked or has forked.
- Coordinators, routes and honest members' schedules change by those who may change them. A delegation is gone only
  if its issuer, an issuer above it or the user's key revoked it. Names are those that the inviter gave.
- What counts for nothing changes nothing.
- Honest members agree in the end, and a rebuild says the same.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from hocket.families.jobs.rules import Job, Outcome, State
from hocket.kernel import vocabulary as v
from hocket.kernel.arbitration import UNAUTHORISED, Reason
from hocket.kernel.authority import Standing
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import content_hash, ulid_text
from hocket.kernel.keys import verify
from hocket.kernel.ops import Op, pin_to
from hocket.kernel.policy import decode_policy
from hocket.kernel.ucan import Delegation
from hocket.kernel.ucan import read as read_token
from hocket.mesh.names import names
from tests.kernel import naive_authority
from tests.kernel.naive_authority import Naive
from tests.trust.members import DAY_MS, DID, USER, Member, decode

DECIDED = (
    *(v.ClaimWork, v.CompleteJob, v.YieldWork, v.ExpireWork, v.FailWork, v.CancelJob, v.RetryJob),
    *(v.PostponeJob, v.ApproveJob, v.RefuseJob),
)
PROOFS = (v.ReportFork, v.RevokeRoot)
OWNERS = (v.DesignateCoordinator, v.RouteKind)
LAW = (v.DelegateUcan, v.RevokeUcan, *PROOFS)


class Violation(AssertionError):
    """Something that no grant allows."""


def fail(rule: str, member: Member, about: object) -> None:
    raise Violation(f"{rule}: at {member.name}, {about}")


class Sight:
    """All that one member shows: its log, and everything that the log says of jobs and of the mesh."""

    def __init__(self, member: Member) -> None:
        self.writes = member.store.writes
        with member.store.read() as session:
            rows = session.ops_after(0, 1_000_000)
            self.jobs = {entry.job.id: entry.job for entry in session.each_job()}
            self.artifacts = {each.id: each for each in session.artifacts(bytes(16), 10_000)}
            self.evicted = [each for each in self.artifacts if session.is_evicted(each)]
            self.schedules = sorted(session.schedules())
            self.routes = session.routes()
            self.coordinators = session.coordinators()
            self.permissions = member.log.permissions(session)
        self.names = names(self.permissions)
        self.ops = {row.id: decode(row.body) for row in rows}
        self.reasons = {row.id: row.reason for row in rows}
        self.counting = sorted((self.ops[i] for i, reason in self.reasons.items() if not reason), key=_time)

    def of(self, *payloads: type) -> list[Op]:
        return [op for op in self.counting if isinstance(op.payload, payloads)]

    @cached_property
    def state(self) -> dict[str, Any]:
        """What all members must agree on."""
        permissions = self.permissions
        return {
            "jobs": list(self.jobs.values()),
            "artifacts": list(self.artifacts.values()),
            "evicted": self.evicted,
            "schedules": self.schedules,
            "routes": self.routes,
            "coordinators": [(each.hlc, each.node, each.pin) for each in self.coordinators],
            "forks": sorted(permissions.forks.items()),
            "members": sorted((d.cid, str(permissions.authority.fault(d))) for d in permissions.delegations),
            "names": sorted(self.names.items()),
        }

    @cached_property
    def digest(self) -> bytes:
        return content_hash(msgspec.msgpack.encode(self.state))


_read = lru_cache(1_000)(read_token)


class Remembering(Naive):
    """Gives the same answer to the same question, since its delegations and revocations do not change."""

    def __init__(self, delegations: list[Delegation], revoked: set[bytes]) -> None:
        super().__init__(delegations, revoked)
        self._made: dict[bytes, str | None] = {}
        self._refusals: dict[tuple[int, Any, int, str | None], str | None] = {}

    @cached_property
    def unrevoked(self) -> "Remembering":
        return Remembering(list(self.all.values()), set())

    def badly_made(self, d: Delegation) -> str | None:
        if d.cid not in self._made:
            self._made[d.cid] = super().badly_made(d)
        return self._made[d.cid]

    def refusal(self, node: int, payload: Any, wall_ms: int, kind: str | None) -> str | None:
        asked = node, payload, wall_ms, kind
        if asked not in self._refusals:
            self._refusals[asked] = super().refusal(*asked)
        return self._refusals[asked]


def _time(op: Op) -> Hlc:
    return op.timestamp


class Judge:
    """`owner` is the user's own node."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.coordinator = owner
        self.rogues: set[int] = set()
        self._names: dict[int, str] = {}
        self._sights: dict[int, Sight] = {}
        self._naive: dict[tuple[bytes, ...], Remembering] = {}
        self._jobs: dict[bytes, tuple[Any, ...]] = {}
        self._artifacts: dict[bytes, tuple[Any, ...]] = {}
        # What the coordinator has shown as completed: by whom, with which results.
        self._done: dict[bytes, tuple[int | None, tuple[bytes, ...]]] = {}
        self._done_at: dict[int, set[bytes]] = {}
        # Of each designation, the ops of the predecessor that were known when it was written.
        self._known: dict[bytes, set[bytes]] = {}
        # Which members have heard which ops in time. They may let one in later, when their clocks have reached it.
        self._in_time: set[tuple[int, bytes]] = set()
        # Of each designation, the completed jobs that the new coordinator found undecided.
        self._undecided: dict[bytes, set[bytes]] = {}

    def name(self, node: int, name: str) -> None:
        self._names[node] = name

    def designated(self, by: Member, op: Op, before: int) -> None:
        payload = op.payload
        assert isinstance(payload, v.DesignateCoordinator)
        self.coordinator = payload.coordinator
        self._known[op.id] = {each.id for _, each in by.ops() if each.node_id == before}

    def sight(self, member: Member) -> Sight:
        member.log.settle()
        sight = self._sights.get(member.node)
        if sight is None or sight.writes != member.store.writes:
            sight = self._sights[member.node] = Sight(member)
        return sight

    # Around what a member is shown.

    def shown(self, member: Member, before: Sight, sent: Sequence[tuple[bytes, Op]], now: int, sender: int) -> None:
        sight = self.sight(member)
        new = sight.ops.keys() - before.ops.keys()
        if sight.digest != before.digest:
            accepted = {op.payload.offer for op in sight.of(v.AcceptWork)}  # type: ignore[union-attr]
            idle = {i for i in new if sight.reasons[i] in UNAUTHORISED and not isinstance(sight.ops[i].payload, LAW)}
            if idle - accepted - self._pinned(sight) == new:
                fail("what counts for nothing changes nothing", member, [sight.ops[i] for i in new])
        if sender not in (self.owner, self.coordinator):
            naive = self._authority(sight)
            for op in [op for _, op in sent if op.node_id in self.rogues]:
                if not self._is_late(naive, op, sight, now):
                    self._in_time.add((member.node, op.id))
                elif op.id in new and (member.node, op.id) not in self._in_time:
                    fail("a grant that has ended is not used again", member, op)
        self.look(member)

    def _pinned(self, sight: Sight) -> set[bytes]:
        """The ops that a designation commits to. When one arrives, the history that it ends stands."""
        pins = {dep for op in sight.of(v.DesignateCoordinator) for dep in op.causal_deps}
        return {op.id for op in sight.ops.values() if pin_to(op.timestamp, op.id) in pins}

    def _is_late(self, naive: Remembering, op: Op, sight: Sight, now: int) -> bool:
        if isinstance(op.payload, (*LAW, *OWNERS)):
            return False
        kind = self._kind(op.payload)
        wall = op.timestamp.wall
        is_tick = isinstance(op.payload, v.ScheduleJob) and decode_policy(op.payload.policy_envelope).set_by()
        allowing = [
            d
            for d in naive.good(op.node_id, wall)
            if is_tick
            or isinstance(op.payload, v.AcceptWork)
            or naive.allows(d, op.payload, wall, kind, naive_authority.written_as(op.payload))
        ]
        return bool(allowing) and all(d.expires is not None and d.expires * 1000 + DAY_MS < now for d in allowing)

    # What a member shows.

    def look(self, member: Member) -> None:
        sight = self.sight(member)
        self._identities(member, sight)
        naive = self._authority(sight)
        for op in sight.counting:
            if not self._is_allowed(naive, op, sight):
                fail("whatever counts was allowed", member, op)
        self._mesh(member, sight, naive)
        self._schedules(member, sight, naive)
        for job in sight.jobs.values():
            self._job(member, job, sight)
        self._results(member, sight, naive)

    def _identities(self, member: Member, sight: Sight) -> None:
        for job in sight.jobs.values():
            made = sight.ops[job.schedule_op]
            payload = made.payload
            assert isinstance(payload, v.ScheduleJob)
            by = made.node_id
            if (set_by := job.policy.set_by()) is not None:
                by = sight.ops[set_by].node_id
            identity = payload.job_id, payload.kind, payload.payload, payload.policy_envelope, by
            if self._jobs.setdefault(job.id, identity) != identity or job.kind != payload.kind:
                fail("a job stays the job that it was", member, identity)
        for artifact in sight.artifacts.values():
            thing = artifact.op_id, artifact.hash, artifact.type, artifact.source_job
            if self._artifacts.setdefault(artifact.id, thing) != thing:
                fail("a result stays the result that it was", member, artifact)

    def _authority(self, sight: Sight) -> Remembering:
        """Who may do what, by all the delegations and revocations on the log. `hocket` revocations carry no order."""
        # An author with two histories has lost its word; the user's key has not.
        void = {i for i, reason in sight.reasons.items() if reason in (Reason.INTEGRITY, Reason.FORKED)}
        ops = [op for op in sight.ops.values() if isinstance(op.payload, LAW) and op.id not in void]
        key = tuple(sorted(op.id for op in ops))
        if key in self._naive:
            return self._naive[key]
        tokens = [_read(op.payload.ucan_bytes) for op in ops if isinstance(op.payload, v.DelegateUcan)]
        user = naive_authority.USER
        delegations = [msgspec.structs.replace(d, issuer=user if d.issuer == DID else d.issuer) for d in tokens]
        free = Naive(delegations, set())
        revoked = set()
        for op in ops:
            payload = op.payload
            if (
                isinstance(payload, v.RevokeUcan) and free.may_revoke(op.node_id, payload.ucan_cid, op.timestamp.wall)
            ) or (
                isinstance(payload, v.RevokeRoot)
                and verify(USER.public, payload.signature, b"hocket node revoke root\0" + payload.ucan_cid)
            ):
                revoked.add(payload.ucan_cid)
        naive = self._naive[key] = Remembering(delegations, revoked)
        return naive

    def _kind(self, payload: Any) -> str | None:
        known = self._jobs.get(getattr(payload, "job_id", b""))
        return known[1] if known else None

    def _is_allowed(self, naive: Remembering, op: Op, sight: Sight) -> bool:
        payload, wall = op.payload, op.timestamp.wall
        if isinstance(payload, (v.DelegateUcan, *PROOFS)):
            return True  # what they are worth is asked elsewhere
        if isinstance(payload, OWNERS):
            return op.node_id == self.owner
        if isinstance(payload, v.EvictArtifact):
            return self._may_evict(op, payload, sight)
        if isinstance(payload, v.ScheduleJob) and (set_by := decode_policy(payload.policy_envelope).set_by()):
            schedule = sight.ops[set_by]
            asked = schedule.payload
            return (
                isinstance(asked, v.SetSchedule)
                and (payload.kind, payload.payload) == (asked.kind, asked.payload)
                and naive.refusal(schedule.node_id, payload, wall, None) is None
            )
        if naive.refusal(op.node_id, payload, wall, self._kind(payload)) is not None:
            return False
        if isinstance(payload, v.AcceptWork):
            offer = sight.ops[payload.offer]
            could = naive.unrevoked
            return self._decides(op, sight) and (
                could.refusal(offer.node_id, offer.payload, offer.timestamp.wall, self._kind(payload)) is None
            )
        if isinstance(payload, DECIDED) and not decode_policy(self._jobs[payload.job_id][3]).open:
            return self._decides(op, sight)
        return True

    def _decides(self, op: Op, sight: Sight) -> bool:
        """Whether the author was the coordinator at that time, and its successor knew of this."""
        tenures = [each for each in sight.of(v.DesignateCoordinator) if each.node_id == self.owner]
        index = sum(each.timestamp <= op.timestamp for each in tenures) - 1
        if index < 0 or tenures[index].payload.coordinator != op.node_id:  # type: ignore[union-attr]
            return False
        if index + 1 == len(tenures) or op.node_id not in self.rogues:
            return True
        return op.id in self._known[tenures[index + 1].id]

    def _was_decided(self, job: Job, sight: Sight) -> bool:
        """Whether a member has the coordinator's word on a completion, and not only the completion."""

        def is_word(op: Op) -> bool:
            if isinstance(op.payload, v.AcceptWork):
                return isinstance(sight.ops[op.payload.offer].payload, v.CompleteJob)
            return isinstance(op.payload, v.CompleteJob) and self._decides(op, sight)

        return any(getattr(op.payload, "job_id", None) == job.id and is_word(op) for op in sight.counting)

    def _may_evict(self, op: Op, payload: v.EvictArtifact, sight: Sight) -> bool:
        made = sight.ops[self._artifacts[payload.artifact_id][0]]
        owners = {made.node_id, self.owner}
        job = self._jobs.get(made.payload.source_job or b"")  # type: ignore[union-attr]
        return op.node_id in owners | ({job[4]} if job else set())

    def _mesh(self, member: Member, sight: Sight, naive: Remembering) -> None:
        permissions = sight.permissions
        mine = {op.id for op in sight.ops.values() if op.node_id == self.owner}
        if {each.op_id for each in sight.coordinators} != {
            i for i in mine if isinstance(sight.ops[i].payload, v.DesignateCoordinator)
        }:
            fail("the owner designates coordinators", member, sight.coordinators)
        routes = {i for i in mine if isinstance(sight.ops[i].payload, v.RouteKind)}
        if len(sight.routes) != len({sight.ops[i].payload.kind for i in routes}):  # type: ignore[union-attr]
            fail("the owner routes kinds", member, sight.routes)
        if not permissions.forks.keys() <= self.rogues:
            fail("nobody is accused without proof", member, permissions.forks)
        for each in naive.all.values():
            if naive.unresolved(each):
                continue
            fault = next(permissions.authority.fault(d) for d in permissions.delegations if d.cid == each.cid)
            if fault is None and naive.badly_made(each):
                fail("a delegation grants no more than its issuer has", member, each)
            if (fault is Reason.REVOKED) != naive.was_revoked(each) and not naive.badly_made(each):
                fail("a delegation is revoked by its issuer, one above, or the user's key", member, each)
        for node, name in self._names.items():
            if sight.names.get(node) != name and naive.held(node):
                fail("names are what the inviter says", member, sight.names)
            standing = permissions.authority.standing(node, member.clock.now)
            if node not in self.rogues and naive.held(node) and standing is not Standing.ACTIVE:
                fail("honest members stay members", member, name)

    def _schedules(self, member: Member, sight: Sight, naive: Remembering) -> None:
        last: dict[str, Op] = {}
        for op in sight.of(v.SetSchedule, v.ClearSchedule):
            payload: Any = op.payload
            before = last.get(payload.name)
            if before is not None and before.node_id != op.node_id and isinstance(before.payload, v.SetSchedule):
                job = v.ScheduleJob(bytes(16), before.payload.kind, b"", b"")
                if naive.refusal(op.node_id, job, op.timestamp.wall, None) is not None:
                    fail("a schedule is changed by those who could have set it", member, op)
            last[payload.name] = op
        there = {name: op.id for name, op in last.items() if isinstance(op.payload, v.SetSchedule)}
        if {each.name: each.op for each in sight.schedules} != there:
            fail("the last word on a schedule counts", member, sight.schedules)

    def _job(self, member: Member, job: Job, sight: Sight) -> None:
        said: list[tuple[int, Any]] = []
        for op in sight.counting:
            payload: Any = op.payload
            if getattr(payload, "job_id", None) == job.id:
                author = op.node_id
                if isinstance(payload, v.AcceptWork):
                    author, payload = sight.ops[payload.offer].node_id, sight.ops[payload.offer].payload
                said.append((author, payload))

        def has(kinds: type | tuple[type, ...], by: int | None = None) -> bool:
            return any(isinstance(payload, kinds) and by in (None, author) for author, payload in said)

        if job.state is State.CLAIMED and not has(v.ClaimWork, job.claimer):
            fail("a job is held by a claim", member, job)
        ends: dict[Outcome, Any] = {
            Outcome.SUCCEEDED: v.CompleteJob,
            Outcome.CANCELLED: (v.CancelJob, v.RefuseJob),
            Outcome.FAILED: (v.FailWork, v.YieldWork, v.ExpireWork),
        }
        if job.outcome is not None and not has(ends[job.outcome]):
            fail("a job ends by an op", member, job)
        if job.outcome is Outcome.SUCCEEDED and not any(
            isinstance(payload, v.CompleteJob) and payload.output_artifacts == job.artifacts and author == job.claimer
            for author, payload in said
        ):
            fail("a result is its holder's", member, job)

    def _results(self, member: Member, sight: Sight, naive: Remembering) -> None:
        # A coordinator that has not heard of its designation decides nothing yet.
        tenure = max(sight.coordinators) if sight.coordinators else None
        is_decider = (
            tenure is not None and tenure.node == member.node.to_bytes(8, "big") and member.node == self.coordinator
        )
        here = self._done_at.setdefault(member.node, set())
        if is_decider and tenure is not None and tenure.op_id not in self._undecided:
            # What its predecessor has left undecided may go: the completions of open jobs.
            found = [job for job in sight.jobs.values() if job.outcome is Outcome.SUCCEEDED]
            self._undecided[tenure.op_id] = {job.id for job in found if not self._was_decided(job, sight)}
        for job in sight.jobs.values():
            if self._jobs[job.id][4] in self.rogues:
                continue
            shown = job.claimer, job.artifacts
            if job.outcome is Outcome.SUCCEEDED and is_decider and job.id not in self._undecided[tenure.op_id]:
                self._done.setdefault(job.id, shown)
            if job.outcome is Outcome.SUCCEEDED and self._done.get(job.id) == shown and self._was_decided(job, sight):
                here.add(job.id)
        self.final(member, sight, naive, here)

    def final(self, member: Member, sight: Sight, naive: Remembering, done: Iterable[bytes]) -> None:
        for job_id in done:
            job = sight.jobs.get(job_id)
            if (
                job is None
                or job.outcome is not Outcome.SUCCEEDED
                or (job.claimer, job.artifacts) != self._done[job_id]
            ):
                fail("a completion stands", member, (ulid_text(job_id), job))
            for artifact in self._done[job_id][1]:
                made = self._artifacts.get(artifact)
                if made is None or artifact in sight.artifacts:
                    continue
                author = sight.ops[made[0]].node_id
                is_forked = author in sight.permissions.forks
                if not is_forked and not any(naive.was_revoked(d) for d in naive.held(author)):
                    fail("the result of a completed job stays", member, (ulid_text(job_id), artifact))

    # At the end.

    def agree(self, members: Sequence[Member]) -> None:
        for member in members:
            self.look(member)
            sight = self.sight(member)
            self.final(member, sight, self._authority(sight), self._done)
        first = self.sight(members[0])
        for member in members:
            before = self.sight(member)
            if before.digest != first.digest:
                fail("honest members agree", member, _difference(first.state, before.state))
            member.rebuilt()
            after = self.sight(member)
            if after.digest != before.digest:
                fail("a rebuild says the same", member, _difference(before.state, after.state))


def _difference(left: dict[str, Any], right: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {left[name]} / {right[name]}" for name in left if left[name] != right[name])
