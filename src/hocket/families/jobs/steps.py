"""What each op about a job did to it: the job after every op that counts, by the op's id. The ops that count are known,
so the rules are asked with a context that refuses nothing.
"""

from typing import Any

import msgspec

from hocket.families.jobs.rules import JOBS, Job, Outcome, new_job
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op, decode
from hocket.kernel.vocabulary import (
    ACCEPTANCES,
    EVENTS,
    JOB,
    ClaimWork,
    CompleteJob,
    FailWork,
    Payload,
    ScheduleJob,
    Subject,
)
from hocket.kernel.vocabulary import discriminant as number_of
from hocket.store import Session


class _Counting:
    """The context of ops that count."""

    def __init__(self, is_strict: bool, offers: dict[bytes, bytes], claims: set[bytes]) -> None:
        self.is_strict, self.offer_of, self._claims = is_strict, offers.get, claims

    def is_claim(self, op_id: bytes, job_id: bytes) -> bool:
        return op_id in self._claims


def event_of(payload: Payload) -> str:
    """What has happened, in one word, as far as the payload alone says it."""
    return EVENTS.get(number_of(payload), f"op.{number_of(payload)}")


class JobStep:
    """What an op did: its event, the fence after it, and the op itself, which for an acceptance is the accepted one."""

    def __init__(self, before: Job | None, op: Op, after: Job | None) -> None:
        self.op, payload = op, op.payload
        self.fence = None if after is None or not after.fence else after.fence
        self.event = event_of(payload)
        if before is None or after is None:
            return
        if type(payload) is ClaimWork and after.fence == before.fence:
            self.event = "job.renewed"
        elif after.outcome is Outcome.FAILED and before.outcome is None:
            self.event = "job.failed"
        elif type(payload) is FailWork:
            self.event = "job.try_failed"


def steps(session: Session, job_id: bytes, is_strict: bool) -> dict[bytes, JobStep]:
    """The steps of a job, by the ids of the ops. Of an op of the past that is not known here nothing follows."""
    rows = session.ops_about(Subject(JOB, job_id))
    ops = [(row.reason, decode(row.body)) for row in rows]
    by_id = {op.id: op for _, op in ops}
    accepted: dict[bytes, bytes] = {
        op.id: op.payload.offer  # type: ignore[union-attr]
        for _, op in ops
        if type(op.payload) in ACCEPTANCES
    }
    claims = {op.id for op in by_id.values() if type(op.payload) is ClaimWork}
    claims |= {op_id for op_id, offer in accepted.items() if offer in claims}
    context: Any = _Counting(is_strict, accepted, claims)
    found: dict[bytes, JobStep] = {}
    job: Job | None = None
    for reason, op in ops:
        offered = by_id.get(accepted.get(op.id, op.id))
        if reason or offered is None:
            continue
        after = _after(job, op, offered, context, is_strict)
        found[op.id] = JobStep(job, offered, after)
        job = after
    return found


def _after(job: Job | None, op: Op, offered: Op, context: Any, is_strict: bool) -> Job | None:
    if type(offered.payload) is ScheduleJob:
        made = new_job(offered, offered.payload, is_strict) if job is None else job
        return None if isinstance(made, Reason) else made
    if job is None:
        return None
    if job.policy.open and op is not offered and type(offered.payload) is CompleteJob:
        verdict = JOBS.accept_open(job, op, offered)
    else:
        at = msgspec.structs.replace(offered, id=op.id, timestamp=op.timestamp)
        verdict = JOBS.apply_decided(job, at, context, offered.node_id)
    return job if isinstance(verdict, Reason) else verdict
