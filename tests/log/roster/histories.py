"""Histories of ops as a mesh might have written them: a plausible run, step after step, with deviations. The model
tells where the run stands, so that the next op is mostly a sensible one and the deep states are reached; every so
often it is a wrong one: late, early, by the wrong node, citing the wrong thing, twice, or at another op's very time.
"""

from typing import Any

from hypothesis import strategies as st

from hocket.families.jobs.rules import UNSTARTED
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import ulid_text
from hocket.kernel.ops import Op
from hocket.kernel.policy import Policy, encode_policy
from hocket.kernel.vocabulary import (
    AcceptWork,
    ApproveJob,
    CancelJob,
    ClaimWork,
    CompleteJob,
    CreateArtifact,
    DesignateCoordinator,
    ExpireWork,
    FailWork,
    Payload,
    PostponeJob,
    PostponeWork,
    RefuseJob,
    ReportProgress,
    RetryJob,
    RouteKind,
    SaveCheckpoint,
    ScheduleJob,
    Telemetry,
    YieldWork,
)
from tests.log.roster.model import Mesh
from tests.log.roster.world import NODES, START, job_id, op_id

KINDS = ("a.one", "a.two")
LEASES = (1_000, 10_000)
OPS_MAX = 40
ACTS = (
    "complete",
    "expire",
    "fail",
    "renew",
    "complete",
    "yield",
    "postpone",
    "expire",
    "fail",
    "renew",
    "report",
    "cancel",
    "rival",
)
# Ids that some op may cite and that no op ever has.
NOWHERE = 9_000


class Run:
    """The drawing of one history."""

    def __init__(self, draw: Any) -> None:
        self._draw = draw
        self.nodes = NODES[: self.pick((2, 3, 3))]
        self.jobs = [job_id(number) for number in range(self.pick((1, 2, 3, 4)))]
        self.ops: list[Op] = []
        self.wall = START
        self._stamps: set[Hlc] = set()
        self._accepted: set[bytes] = set()
        self.arbitrated = self.chance(50)

    def pick(self, options: Any) -> Any:
        return self._draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        # Hypothesis shrinks towards False: the plain run without the deviation.
        return bool(self._draw(st.integers(0, 99)) >= 100 - percent)

    def step(self) -> None:
        self.wall += self.pick((1, 1, 5, 400, 1_500, 20_000))
        mesh = Mesh(self.ops)
        if self.arbitrated and (not mesh.coordinators or self.chance(2)):
            self.say(self.pick(self.nodes), DesignateCoordinator(self.pick(self.nodes)), self.any_deps(4))
            return
        if self.accept(mesh):
            return
        if self.chance(6):
            self.say(
                self.pick(self.nodes), RouteKind(self.pick(KINDS), self.pick((None, *self.nodes))), self.any_deps(40)
            )
            return
        unscheduled = [job for job in self.jobs if job not in mesh.jobs]
        if unscheduled and self.chance(80):
            self.schedule(unscheduled[0])
            return
        # What has succeeded is over; little more can come of it.
        open_jobs = [job for job in self.jobs if mesh.jobs.get(job, {}).get("outcome") != "succeeded"]
        job = self.pick(open_jobs if open_jobs and not self.chance(10) else self.jobs)
        state = mesh.jobs.get(job)
        if state is None or self.chance(3):
            self.schedule(job) if self.chance(50) else self.stray(job, mesh)
        elif self.chance(12):
            self.stray(job, mesh)
        elif state["state"] == "pending" and state["approval"] and self.chance(80):
            node, agent = self.pick(self.nodes), self.pick(("alice", "alice", "alice", "bob"))
            answer = RefuseJob if self.chance(10) else ApproveJob
            self.say(node, answer(job, agent, ""), self.any_deps(4))
        elif state["state"] == "pending" and self.chance(10):
            self.say(self.pick(self.nodes), PostponeJob(job, self.wall + self.pick((0, 900, 900, 30_000)), ""))
        elif state["state"] == "pending":
            is_waited_for = not state["approval"] and self.chance(75)
            self.wall = max(self.wall, state["ready_at"]) if is_waited_for else self.wall
            routed = mesh._routed(state["kind"], Hlc(self.wall, 0, 0))
            node = routed if routed is not None and self.chance(80) else self.pick(self.nodes)
            self.say(node, ClaimWork(job, node, self.pick(LEASES)), self.any_deps(4))
        elif state["state"] == "claimed":
            self.held(job, state)
        else:
            self.ended(job)

    def accept(self, mesh: Mesh) -> bool:
        """The arbiter decides on something that was offered; now and then somebody else tries to, or on anything."""
        arbiter = mesh.coordinator(Hlc(self.wall, 2**32 - 1, 2**64 - 1))
        offers = [op for op in self.ops if mesh.verdicts[op.id] == {Reason.OFFERED} and op.id not in self._accepted]
        if arbiter is None or not offers or not self.chance(70):
            return False
        offer = self.pick(offers) if not self.chance(4) else self.pick(self.ops)
        self._accepted.add(offer.id)
        job = getattr(offer.payload, "job_id", self.jobs[0]) if not self.chance(2) else self.pick(self.jobs)
        node = arbiter if not self.chance(4) else self.pick(self.nodes)
        self.say(node, AcceptWork(job, offer.id), self.any_deps(2))
        return True

    def schedule(self, job: bytes) -> None:
        index = self.jobs.index(job)
        # Mostly after jobs that were made before, now and then in a circle.
        others = self.jobs if self.chance(5) else self.jobs[:index]
        after = tuple(ulid_text(other) for other in others if self.chance(35))
        policy = Policy(
            not_before=self.wall + 700 if self.chance(20) else None,
            retries=self.pick((None, 0, 1, 2)),
            backoff_ms=self.pick((0, 300, 1_000)),
            backoff_max_ms=self.pick((3_600_000, 1_200)),
            after=after,
            open=self.chance(25),
            ttl_ms=40_000 if job == self.jobs[-1] else None,
            approval_by=self.pick((None,) * 5 + ("alice", f"alice@{self.nodes[0]:016x}")),
            approval_within_ms=20_000 if job == self.jobs[-1] else None,
        )
        self.say(
            self.pick(self.nodes), ScheduleJob(job, KINDS[index % 2], b"{}", encode_policy(policy)), self.any_deps(8)
        )

    def held(self, job: bytes, state: dict[str, Any]) -> None:
        holder, claim = state["claimer"], state["claim_op"]
        deps = (claim,) if self.chance(80) else self.any_deps(20)
        act = self.pick(ACTS)
        match act:
            case "complete":
                if self.chance(20):
                    made = self.say(
                        holder, CreateArtifact(op_id(job[0]), "t", job, (), bytes(32), b"", None, None, 0, None)
                    )
                    deps = (*deps, made.id)
                self.say(holder, CompleteJob(job, (), (job,) if self.chance(20) else (), Telemetry(1)), deps)
            case "fail":
                self.say(holder, FailWork(job, holder, "e", "t", not self.chance(20)), deps)
            case "expire":
                # Past the deadline, at it, or too soon.
                self.wall = self.pick((state["deadline"] + 1,) * 6 + (state["deadline"], self.wall))
                for node in self.nodes[: self.pick((1, 1, 2, 3))]:
                    self.say(node, ExpireWork(job, holder, ""), self.any_deps(4))
            case "renew":
                if self.chance(20):
                    self.wall = self.pick((state["deadline"], state["deadline"] + 1))
                self.say(holder, ClaimWork(job, holder, self.pick(LEASES)), deps)
            case "yield":
                self.say(holder, YieldWork(job, holder, self.pick(("", "", UNSTARTED))), deps)
            case "postpone":
                delay = self.pick((1, 1_000, 1_000, 1_000, 60_000, 0, 2**40))
                self.say(holder, PostponeWork(job, holder, delay, ""), deps)
            case "report":
                self.say(holder, ReportProgress(job, holder, b"%d" % len(self.ops)), deps)
            case "cancel":
                self.say(self.pick(self.nodes), CancelJob(job, ""), self.any_deps(4))
            case "rival":
                node = self.pick(self.nodes)
                self.say(node, ClaimWork(job, node, self.pick(LEASES)), self.any_deps(4))

    def ended(self, job: bytes) -> None:
        if self.chance(35):
            self.say(self.pick(self.nodes), RetryJob(job, ""), self.any_deps(4))
        else:
            node = self.pick(self.nodes)
            self.say(node, ClaimWork(job, node, 1_000), ())

    def stray(self, job: bytes, mesh: Mesh) -> None:
        """Any op by anybody, whatever the state: mostly refused, unless an op that comes late lets it count."""
        node, named = self.pick(self.nodes), self.pick(self.nodes)
        payload: Payload = self.pick(
            (
                ClaimWork(job, node, self.pick((*LEASES, 0, 2**60))),
                ClaimWork(job, named, 1_000),
                CompleteJob(job, (), (), Telemetry(1)),
                YieldWork(job, named, ""),
                ExpireWork(job, named, ""),
                FailWork(job, named, "", "", True),
                PostponeWork(job, named, 1_000, ""),
                PostponeJob(job, self.pick((0, self.wall, self.wall + 900, self.wall + 30_000, 2**60)), ""),
                CancelJob(job, ""),
                RetryJob(job, ""),
                ApproveJob(job, "alice", ""),
                ReportProgress(job, named, b"x"),
                SaveCheckpoint(job, named, b"x"),
            )
        )
        claims = sorted(mesh.claims_of.get(job, ()))
        deps = (self.pick(claims),) if claims and self.chance(60) else self.any_deps(30)
        self.say(node, payload, deps)

    def any_deps(self, percent: int) -> tuple[bytes, ...]:
        """Mostly none; else ops of the past, ops that come later, ops that never come."""
        if not self.chance(percent):
            return ()
        future = op_id(len(self.ops) + self._draw(st.integers(0, 4)))
        past = [op.id for op in self.ops] or [future]
        nowhere = op_id(NOWHERE)
        count = self.pick((1, 1, 2))
        return tuple(
            self.pick((self.pick(past), self.pick(past), self.pick(past), future, nowhere)) for _ in range(count)
        )

    def say(self, node: int, payload: Payload, deps: tuple[bytes, ...] = ()) -> Op:
        wall = self.wall
        if self.chance(8):  # a node whose clock is behind, or an op that took long to write
            wall = max(START, wall - self.pick((1, 5, 401, 1_500, 25_000)))
        stamp = Hlc(wall, 0, node)
        mine = [op.timestamp for op in self.ops if op.node_id == node]
        if mine and self.chance(3):
            stamp = self.pick(mine)
        else:
            while stamp in self._stamps:
                stamp = stamp._replace(logical=stamp.logical + 1)
        self._stamps.add(stamp)
        op = Op(op_id(len(self.ops)), stamp, node, deps, payload)
        self.ops.append(op)
        return op


@st.composite
def histories(draw: Any, ops_max: int = OPS_MAX) -> list[Op]:
    run = Run(draw)
    length = draw(st.integers(ops_max * 3 // 4, ops_max) | st.integers(1, ops_max))
    while len(run.ops) < length:
        run.step()
    # Some of them get lost on the way and never arrive.
    lost = draw(st.sets(st.integers(0, length), max_size=2)) if run.chance(15) else set()
    return [op for number, op in enumerate(run.ops) if number not in lost]


@st.composite
def deliveries(draw: Any, ops: list[Op]) -> list[list[Op]]:
    """The ops in any order, some of them twice, cut into batches anywhere."""
    shape = draw(st.sampled_from(("any", "reversed", "in order", "nearly in order")))
    if shape == "any":
        order = draw(st.permutations(ops))
    else:
        order = sorted(ops, key=lambda op: op.timestamp, reverse=shape == "reversed")
        if shape == "nearly in order" and len(order) > 1:
            for place in draw(st.lists(st.integers(0, len(order) - 2), max_size=8)):
                order.insert(draw(st.integers(0, len(order) - 1)), order.pop(place))
    twice = draw(st.lists(st.sampled_from(ops), max_size=4)) if ops else []
    for op in twice:
        order.insert(draw(st.integers(0, len(order))), op)
    style = draw(st.sampled_from(("one by one", "all at once", "cut")))
    if style == "one by one":
        return [[op] for op in order]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(order) - 1)), max_size=8))) if style == "cut" else []
    return [order[low:high] for low, high in zip([0, *cuts], [*cuts, len(order)], strict=True)]
