"""The job rules once more, as plainly as they can be said: all ops, sorted by HLC, replayed from nothing over
dictionaries. Written from the requirements (LW-02, 04 to 09, 12, 15, 16, 37 and the per-job part of 41) and, for
Hocket's own ops, from the words of the roster's and the policy's documentation. It shares no logic with the roster.

An op's verdict is the set of every reason against it; the empty set means that it counts. Which of several reasons is
given is the roster's choice, so a comparison asks that its reason be one of these.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from blake3 import blake3

from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import Hlc
from hocket.kernel.ids import parse_ulid
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import (
    AcceptWork,
    ApproveJob,
    CancelJob,
    ClaimWork,
    CompleteJob,
    DesignateCoordinator,
    ExpireWork,
    FailWork,
    PostponeJob,
    PostponeWork,
    RefuseJob,
    ReportProgress,
    RetryJob,
    RouteKind,
    SaveCheckpoint,
    ScheduleJob,
    YieldWork,
)

JOB_OPS = (
    ScheduleJob,
    ClaimWork,
    CompleteJob,
    YieldWork,
    ExpireWork,
    FailWork,
    CancelJob,
    RetryJob,
    ReportProgress,
    PostponeWork,
    PostponeJob,
    ApproveJob,
    RefuseJob,
    SaveCheckpoint,
    AcceptWork,
)
# Ops that the arbiter does not decide.
NOTES = (ReportProgress, SaveCheckpoint)
MONTH_MS = 30 * 24 * 3600 * 1000

Verdict = set[Reason]


class Mesh:
    """Everything that a set of ops means. `jobs` by id, `verdicts` by op id."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.ops = {op.id: op for op in ops}
        self.jobs: dict[bytes, dict[str, Any]] = {}
        self.verdicts: dict[bytes, Verdict] = {}
        self.routes: list[tuple[Hlc, str, int | None]] = []
        self.coordinators: list[tuple[Hlc, int]] = []
        self.claims_of: dict[bytes, set[bytes]] = {}
        self.settled_by_arbiter = False
        for op in self.ops.values():
            if isinstance(op.payload, ClaimWork | AcceptWork):
                self.claims_of.setdefault(op.payload.job_id, set()).add(op.id)
        times = Counter(op.timestamp for op in self.ops.values())
        for op in sorted(self.ops.values(), key=lambda op: op.timestamp):
            if times[op.timestamp] > 1:
                self.verdicts[op.id] = {Reason.INTEGRITY}
            else:
                self._meet(op)

    def _meet(self, op: Op) -> None:
        verdict = self._dependencies(op)
        if not verdict:
            if isinstance(op.payload, JOB_OPS):
                verdict = self._job_op(op)
            elif isinstance(op.payload, RouteKind):
                self.routes.append((op.timestamp, op.payload.kind, op.payload.route))
            elif isinstance(op.payload, DesignateCoordinator):
                self.coordinators.append((op.timestamp, op.payload.coordinator))
        self.verdicts[op.id] = verdict
        if isinstance(op.payload, JOB_OPS) and op.payload.job_id in self.jobs:
            self.jobs[op.payload.job_id]["last"] = op.timestamp

    # LW-15, LW-16: an op waits for what it cites; it cannot cite what is not earlier; nothing follows from
    # what was rejected.
    def _dependencies(self, op: Op) -> Verdict:
        cited = [self.ops.get(dep) for dep in op.causal_deps]
        if any(dep is not None and dep.timestamp >= op.timestamp for dep in cited):
            return {Reason.DEPENDENCY_CYCLE}
        verdicts = [{Reason.WAITING} if dep is None else self._worth(dep, op) for dep in cited]
        if isinstance(op.payload, AcceptWork):
            offer = self.ops.get(op.payload.offer)
            if offer is not None and offer.timestamp >= op.timestamp:
                return {Reason.DEPENDENCY_CYCLE}
            verdicts.append({Reason.WAITING} if offer is None else set())
        if isinstance(op.payload, ScheduleJob):
            for name in json.loads(op.payload.policy_envelope or b"{}").get("after", ()):
                schedules = self._schedules(parse_ulid(name))
                earlier = [self.verdicts[each.id] for each in schedules if each.timestamp < op.timestamp]
                if schedules and not earlier:
                    return {Reason.DEPENDENCY_CYCLE}
                # Of several the best: one that counts, else one that waits.
                verdicts.append(min(earlier, key=lambda v: (bool(v), v != {Reason.WAITING}), default={Reason.WAITING}))
        if any(verdict and verdict != {Reason.WAITING} for verdict in verdicts):
            return {Reason.DEPENDENCY_REJECTED}
        return {Reason.WAITING} if any(verdicts) else set()

    # LW-15, LW-39: an offer counts when the arbiter has accepted it, be it later than the op that cites it.
    def _worth(self, dep: Op, op: Op) -> Verdict:
        if self.verdicts[dep.id] != {Reason.OFFERED}:
            return self.verdicts[dep.id]
        for each in self.ops.values():
            if isinstance(each.payload, AcceptWork) and each.payload.offer == dep.id:
                about = each.payload.job_id == dep.payload.job_id  # type: ignore[union-attr]
                alone = sum(other.timestamp == each.timestamp for other in self.ops.values()) == 1
                if about and alone and self.coordinator(min(each.timestamp, op.timestamp)) == each.node_id:
                    return set()
        return {Reason.WAITING}

    # LW-16: a job comes after jobs that were scheduled before it, so there are no cycles.
    def _schedules(self, job_id: bytes) -> list[Op]:
        times = Counter(each.timestamp for each in self.ops.values())
        ops = [each for each in self.ops.values() if isinstance(each.payload, ScheduleJob)]
        return [each for each in ops if each.payload.job_id == job_id and times[each.timestamp] == 1]  # type: ignore[union-attr]

    def _job_op(self, op: Op) -> Verdict:
        payload: Any = op.payload
        job = self.jobs.get(payload.job_id)
        if isinstance(payload, ScheduleJob):
            if job is not None:
                return {Reason.DUPLICATE_JOB}
            policy = json.loads(payload.policy_envelope or b"{}")
            self.jobs[payload.job_id] = {
                "kind": payload.kind,
                "policy": policy,
                "state": "pending",
                "outcome": None,
                "fence": 0,
                "failures": 0,
                "returns": 0,
                "claimer": None,
                "claim_op": None,
                "deadline": None,
                "ready_at": policy.get("not_before") or 0,
                "done": None,
                "progress": None,
                "error_op": None,
                "artifacts": (),
                "settled": False,
                "waits_since": op.timestamp.wall,
            }
            self._ask_approval(self.jobs[payload.job_id])
            return set()
        if job is None:
            return {Reason.UNKNOWN_JOB}
        arbiter = None if job["policy"].get("open") else self.coordinator(op.timestamp)
        if isinstance(payload, AcceptWork):
            return self._accept(job, op, payload, self.coordinator(op.timestamp))
        if arbiter not in (None, op.node_id) and not isinstance(payload, NOTES):
            return {Reason.OFFERED}
        self.settled_by_arbiter = arbiter is not None and not isinstance(payload, NOTES)
        try:
            return self._rule(job, op, payload)
        finally:
            self.settled_by_arbiter = False

    def coordinator(self, at: Hlc) -> int | None:
        return max([each for each in self.coordinators if each[0] <= at], default=(None, None))[1]

    # LW-39: what the arbiter writes or accepts happens then; routes and other jobs were its business at that time.
    def _accept(self, job: dict[str, Any], op: Op, payload: AcceptWork, arbiter: int | None) -> Verdict:
        offer = self.ops[payload.offer]
        if arbiter != op.node_id or not isinstance(offer.payload, JOB_OPS) or offer.payload.job_id != payload.job_id:
            return {Reason.NOT_ARBITER}
        if isinstance(offer.payload, (ScheduleJob, AcceptWork, *NOTES)):
            return {Reason.NOT_ARBITER}
        if job["policy"].get("open"):
            return self._stamp(job, op, offer)
        accepted = Op(op.id, op.timestamp, offer.node_id, offer.causal_deps, offer.payload)
        self.settled_by_arbiter = True
        try:
            return self._rule(job, accepted, offer.payload)
        finally:
            self.settled_by_arbiter = False

    # LW-43: the first completion of an open job that the arbiter accepts is the job's for good.
    def _stamp(self, job: dict[str, Any], op: Op, offer: Op) -> Verdict:
        if job["settled"] or not isinstance(offer.payload, CompleteJob):
            return {Reason.NOT_ARBITER}
        if job["outcome"] != "succeeded":
            self._end(job, "succeeded", op)
        job.update(settled=True, claimer=offer.node_id, artifacts=offer.payload.output_artifacts)
        return set()

    def _rule(self, job: dict[str, Any], op: Op, payload: Any) -> Verdict:
        rule = {
            ClaimWork: self._claim,
            CompleteJob: self._complete,
            YieldWork: self._yield,
            ExpireWork: self._expire,
            FailWork: self._fail,
            PostponeWork: self._postpone,
            PostponeJob: self._move_start,
            ApproveJob: self._approve,
            RefuseJob: self._refuse_approval,
            CancelJob: self._cancel,
            RetryJob: self._retry,
            ReportProgress: self._progress,
            SaveCheckpoint: self._checkpoint,
        }[type(payload)]
        return rule(job, op, payload)

    # LW-04, LW-08, LW-09, LW-12, LW-37; not-before and `after` of LW-41.
    def _claim(self, job: dict[str, Any], op: Op, payload: ClaimWork) -> Verdict:
        wall = op.timestamp.wall
        against: Verdict = set()
        if job["state"] == "completed":
            against.add(Reason.COMPLETED)
        if payload.claimer != op.node_id:
            against.add(Reason.NOT_CLAIMER)
        if payload.lease_duration_ms == 0 or payload.lease_duration_ms > MONTH_MS:
            against.add(Reason.BAD_LEASE)
        routed = None if self.settled_by_arbiter else self._routed(job["kind"], op.timestamp)
        if routed not in (None, payload.claimer):
            against.add(Reason.ROUTED_ELSEWHERE)
        if self._cites_an_older_claim(job, op):
            against.add(Reason.STALE_CLAIM)
        if job["state"] == "claimed":
            if job["claimer"] != payload.claimer:
                against.add(Reason.ALREADY_CLAIMED)
            elif wall > job["deadline"] and not self._is_decided(job, op):
                against.add(Reason.LEASE_PASSED)
        if job["state"] == "pending":
            if job["approval"]:
                against.add(Reason.NOT_APPROVED)
            elif wall < job["ready_at"]:
                against.add(Reason.TOO_EARLY)
            ttl_ms = 2**62 if job["approval"] else job["policy"].get("ttl_ms", 2**62)
            if job["waits_since"] is not None and wall - job["waits_since"] > ttl_ms:
                against.add(Reason.TTL_PASSED)
            for name in () if self.settled_by_arbiter else job["policy"].get("after", ()):
                before = self.jobs.get(parse_ulid(name))
                if before is None or before["outcome"] != "succeeded":
                    against.add(Reason.AFTER_UNMET)
        if against:
            return against
        if job["state"] == "pending":
            job.update(state="claimed", claimer=payload.claimer, claim_op=op.id, fence=job["fence"] + 1)
            job["waits_since"] = None
        job["deadline"] = wall + payload.lease_duration_ms
        return set()

    # LW-38, LW-39: the arbiter judges leases by its own machine's clock, which is not on the log.
    def _is_decided(self, job: dict[str, Any], op: Op) -> bool:
        if job["policy"].get("open"):
            return False
        return self.settled_by_arbiter or self.coordinator(op.timestamp) == op.node_id

    def _routed(self, kind: str, at: Hlc) -> int | None:
        so_far = [(when, node) for when, routed, node in self.routes if routed == kind and when <= at]
        return max(so_far)[1] if so_far else None

    # LW-37: a claim is known by its op id, whatever the node; software that cites no claim at all speaks as its node.
    def _cites_an_older_claim(self, job: dict[str, Any], op: Op) -> bool:
        cited = set(op.causal_deps) & self.claims_of.get(op.payload.job_id, set())  # type: ignore[union-attr]
        claim = self.ops.get(job["claim_op"])
        names = {job["claim_op"], claim.payload.offer if claim and isinstance(claim.payload, AcceptWork) else None}
        return bool(cited) and not cited & names

    # LW-05: only the current claimer.
    def _not_the_holder(self, job: dict[str, Any], op: Op, named: int) -> Verdict:
        if job["state"] == "completed":
            return {Reason.COMPLETED}
        if job["state"] == "pending":
            return {Reason.NOT_CLAIMED}
        against: Verdict = set()
        if not op.node_id == named == job["claimer"]:
            against.add(Reason.NOT_CLAIMER)
        if self._cites_an_older_claim(job, op):
            against.add(Reason.STALE_CLAIM)
        return against

    def _complete(self, job: dict[str, Any], op: Op, payload: CompleteJob) -> Verdict:
        against = self._not_the_holder(job, op, op.node_id)
        if not against:
            self._end(job, "succeeded", op)
            job["artifacts"] = payload.output_artifacts
        return against

    def _yield(self, job: dict[str, Any], op: Op, payload: YieldWork) -> Verdict:
        against = self._not_the_holder(job, op, payload.claimer)
        if not against and payload.reason == "not started by the worker":
            self._release(job)
        elif not against:
            self._return(job, op)
        return against

    # LW-06, LW-07: anybody's, about the holder, once its own HLC wall is past the deadline.
    def _expire(self, job: dict[str, Any], op: Op, payload: ExpireWork) -> Verdict:
        if job["state"] == "completed":
            return {Reason.COMPLETED}
        if job["state"] == "pending":
            return {Reason.NOT_CLAIMED}
        against: Verdict = set()
        if payload.expired_claimer != job["claimer"]:
            against.add(Reason.NOT_CLAIMER)
        if not op.timestamp.wall > job["deadline"]:
            against.add(Reason.LEASE_RUNNING)
        if not against:
            self._return(job, op)
        return against

    # Three returns are free, then each rests twice as long as the one before, from a second to a minute; the 25th
    # is the end.
    def _return(self, job: dict[str, Any], op: Op) -> None:
        job["returns"] += 1
        if job["returns"] == 25:
            self._end(job, "failed", op)
            return
        self._release(job)
        if job["returns"] > 3:
            job["ready_at"] = op.timestamp.wall + min(60_000, 1_000 * 2 ** (job["returns"] - 4))

    # Retries with backoff; beyond them, or when the handler says so, the end.
    def _fail(self, job: dict[str, Any], op: Op, payload: FailWork) -> Verdict:
        against = self._not_the_holder(job, op, payload.claimer)
        if against:
            return against
        job["failures"] += 1
        job["error_op"] = op.id
        policy = job["policy"]
        if not payload.retry or job["failures"] > policy.get("retries", 1000):
            self._end(job, "failed", op)
            return set()
        self._release(job)
        cap = policy.get("backoff_max_ms", 3_600_000)
        rest = min(cap, policy.get("backoff_ms", 1_000) * 2 ** (job["failures"] - 1))
        spread = int.from_bytes(blake3(op.id).digest()[:2], "big")
        job["ready_at"] = op.timestamp.wall + min(cap, rest + rest * spread // 131_072)
        return set()

    # Back in the queue for a while, which costs nothing.
    def _postpone(self, job: dict[str, Any], op: Op, payload: PostponeWork) -> Verdict:
        against = self._not_the_holder(job, op, payload.claimer)
        if not 1 <= payload.delay_ms <= MONTH_MS:
            against = against | {Reason.BAD_DELAY}
        if not against:
            self._release(job)
            job["ready_at"] = op.timestamp.wall + payload.delay_ms
        return against

    # Whoever may cancel a job may move its start. The last word counts; a time that has passed means now.
    def _move_start(self, job: dict[str, Any], op: Op, payload: PostponeJob) -> Verdict:
        if job["state"] != "pending":
            return {Reason.COMPLETED if job["state"] == "completed" else Reason.ALREADY_CLAIMED}
        if job["approval"]:
            return {Reason.NOT_APPROVED}
        if payload.until_ms > 2**53:
            return {Reason.BAD_DELAY}
        job["ready_at"] = max(op.timestamp.wall, payload.until_ms)
        if job["waits_since"] is not None:
            job["waits_since"] = job["ready_at"]
        return set()

    def _cancel(self, job: dict[str, Any], op: Op, payload: CancelJob) -> Verdict:
        if job["state"] == "completed":
            return {Reason.COMPLETED}
        self._end(job, "cancelled", op)
        job["error_op"] = op.id
        return set()

    # A job that failed for good or was called off begins anew; its fences go on.
    def _retry(self, job: dict[str, Any], op: Op, payload: RetryJob) -> Verdict:
        if job["outcome"] not in ("failed", "cancelled"):
            return {Reason.NOT_FAILED}
        self._release(job)
        job.update(outcome=None, done=None, failures=0, returns=0, ready_at=0)
        job["waits_since"] = op.timestamp.wall
        self._ask_approval(job)
        return set()

    # A job that must be approved has no start before; each retry asks anew.
    def _ask_approval(self, job: dict[str, Any]) -> None:
        job["approval"] = "approval_by" in job["policy"]
        if job["approval"]:
            job["ready_at"] = 2**62

    def _approve(self, job: dict[str, Any], op: Op, payload: ApproveJob) -> Verdict:
        against = self._not_the_approver(job, op, payload.agent)
        if not against:
            job["ready_at"] = max(op.timestamp.wall, job["policy"].get("not_before") or 0)
            job.update(approval=False, waits_since=job["ready_at"])
        return against

    def _refuse_approval(self, job: dict[str, Any], op: Op, payload: RefuseJob) -> Verdict:
        against = self._not_the_approver(job, op, payload.agent)
        if not against:
            self._end(job, "cancelled", op)
            job["error_op"] = op.id
        return against

    def _not_the_approver(self, job: dict[str, Any], op: Op, agent: str) -> Verdict:
        if job["state"] == "completed":
            return {Reason.COMPLETED}
        if not (job["state"] == "pending" and job["approval"]):
            return {Reason.NO_APPROVAL}
        against: Verdict = set()
        if f"{agent}@{op.node_id:016x}" != job["policy"]["approval_by"] != agent:
            against.add(Reason.NOT_APPROVER)
        if op.timestamp.wall - job["waits_since"] > job["policy"].get("approval_within_ms", 2**62):
            against.add(Reason.APPROVAL_LATE)
        return against

    def _progress(self, job: dict[str, Any], op: Op, payload: ReportProgress) -> Verdict:
        against = self._not_the_holder(job, op, payload.claimer)
        if not against:
            job["progress"] = payload.note
        return against

    def _checkpoint(self, job: dict[str, Any], op: Op, payload: SaveCheckpoint) -> Verdict:
        return self._not_the_holder(job, op, payload.claimer)

    def _release(self, job: dict[str, Any]) -> None:
        job.update(state="pending", claimer=None, claim_op=None, deadline=None, progress=None)

    def _end(self, job: dict[str, Any], outcome: str, op: Op) -> None:
        job.update(state="completed", outcome=outcome, done=op.timestamp, deadline=None)

    # LW-17.

    def pending(self, kind: str, now: int) -> set[bytes]:
        """The jobs of the kind that could be claimed now, routes apart."""
        found = set()
        for name, job in self.jobs.items():
            after = [self.jobs.get(parse_ulid(each)) for each in job["policy"].get("after", ())]
            met = all(each is not None and each["outcome"] == "succeeded" for each in after)
            if job["kind"] == kind and job["state"] == "pending" and job["ready_at"] <= now and met:
                found.add(name)
        return found

    def overdue(self, now: int) -> set[bytes]:
        return {name for name, job in self.jobs.items() if job["state"] == "claimed" and job["deadline"] < now}
