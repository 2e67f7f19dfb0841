"""The runs of a job according to the log: which node held it, from when to when."""

from typing import NamedTuple

from hocket.kernel.clock import unpack
from hocket.kernel.ops import decode
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    CancelJob,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeWork,
    Subject,
    YieldWork,
)
from hocket.store import Session

_ENDS = (CompleteJob, FailWork, YieldWork, PostponeWork, ExpireWork, CancelJob)


class RunSpan(NamedTuple):
    """One run. `ran_ms` is how long its handler ran if the worker said so, else how long the node held the job."""

    node: int
    began_ms: int
    ended_ms: int
    ran_ms: int


def run_spans(session: Session, job_id: bytes) -> list[RunSpan]:
    """The runs that have ended, in their order."""
    rows = sorted(session.ops_about(Subject(JOB, job_id)), key=lambda row: unpack(row.hlc))
    ops = [(row, decode(row.body)) for row in rows]
    accepted = {op.payload.offer for row, op in ops if row.reason == 0 and isinstance(op.payload, AcceptWork)}
    spans: list[RunSpan] = []
    holder: int | None = None
    began_ms = 0
    for row, op in ops:
        if row.reason != 0 and op.id not in accepted:
            continue
        at_ms = op.timestamp.wall
        if isinstance(op.payload, ClaimWork) and holder is None:
            holder, began_ms = op.node_id, at_ms
        elif isinstance(op.payload, _ENDS) and holder is not None:
            held_ms = max(0, at_ms - began_ms)
            ran_ms = held_ms
            if isinstance(op.payload, CompleteJob):
                ran_ms = min(held_ms, op.payload.telemetry.duration_ms)
            spans.append(RunSpan(holder, began_ms, at_ms, ran_ms))
            holder = None
    return spans
