"""The real log against the naive model: whatever the order, the duplication and the batching in which a history
arrives, every job and every op stand as the model says, a second order gives the same roster, and so does a rebuild.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from hocket.families.jobs.rules import Outcome, State
from hocket.kernel.arbitration import Reason
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import (
    AcceptWork,
    ClaimWork,
    CompleteJob,
    ExpireWork,
    FailWork,
    PostponeJob,
    PostponeWork,
    RetryJob,
    RouteKind,
    YieldWork,
)
from hocket.log import Log
from hocket.log.rebuild import rebuild, roster_digest
from hocket.store import Session
from tests.log.roster.histories import KINDS, deliveries, histories
from tests.log.roster.model import Mesh
from tests.log.roster.world import INTRODUCTIONS, NOW, new_log, sent, signed

MANY = settings(max_examples=settings().max_examples * 3 // 2)
JOB_FIELDS = (
    "fence", "failures", "returns", "claimer", "claim_op", "deadline", "ready_at", "done", "progress", "error_op",
    "artifacts", "last", "kind",
)  # fmt: skip


def received(batches: list[list[Op]]) -> Log:
    log = new_log()
    assert log.admit(sent(INTRODUCTIONS)).appended == len(INTRODUCTIONS)
    whole = {op.id: signed(op) for batch in batches for op in batch}
    for batch in batches:
        assert not log.admit([whole[op.id] for op in batch]).refused
    return log


def jobs_of(session: Session) -> dict[bytes, dict[str, Any]]:
    found = {}
    for entry in session.each_job():
        job = {field: getattr(entry.job, field) for field in JOB_FIELDS}
        outcome = entry.job.outcome
        job |= {
            "state": State(entry.job.state).name.lower(),
            "outcome": None if outcome is None else Outcome(outcome).name.lower(),
        }
        found[entry.job.id] = job
    return found


def reasons_of(session: Session) -> dict[bytes, int]:
    return {row.id: row.reason for row in session.ops_after(0, 10_000)}


def check(log: Log, mesh: Mesh, introductions: bool = True) -> tuple[bytes, dict[bytes, int]]:
    """Everything equal to the model; gives what must be equal in every other order. `introductions` says that the log
    began with the nodes' introductions, of which the model was not told.
    """
    with log.store.read() as session:
        jobs, reasons = jobs_of(session), reasons_of(session)
        digest = roster_digest(session)
    expected = {name: {f: job[f] for f in (*JOB_FIELDS, "state", "outcome")} for name, job in mesh.jobs.items()}
    for name in expected.keys() | jobs.keys():
        assert jobs.get(name) == expected.get(name)
    if introductions:
        reasons = {op_id: reason for op_id, reason in reasons.items() if op_id not in {op.id for op in INTRODUCTIONS}}
    assert reasons.keys() == mesh.verdicts.keys()
    wrong = {
        op_id.hex(): (
            Reason(reason).name if reason else "counts",
            mesh.verdicts[op_id],
            type(mesh.ops[op_id].payload).__name__,
        )
        for op_id, reason in reasons.items()
        if (reason not in mesh.verdicts[op_id] if mesh.verdicts[op_id] else reason != 0)
    }
    assert not wrong
    return digest, reasons


@pytest.mark.req(
    "LW-02", "LW-04", "LW-05", "LW-06", "LW-08", "LW-09", "LW-10", "LW-12", "LW-15", "LW-16", "LW-32", "LW-33"
)
@pytest.mark.req("LW-37", "LW-39", "LW-41")
@MANY
@given(st.data())
def test_the_log_says_what_the_model_says_in_every_order(data: st.DataObject) -> None:
    ops = data.draw(histories())
    mesh = Mesh(ops)
    first = received(data.draw(deliveries(ops)))
    said = check(first, mesh)
    second = received(data.draw(deliveries(ops)))
    assert check(second, mesh) == said
    result = rebuild(second.store, second.permissions_reader, NOW)
    assert result.unchanged
    assert check(second, mesh) == said


@pytest.mark.req("LW-17", "LW-32")
@given(st.data())
def test_the_queue_holds_what_the_model_holds_ready(data: st.DataObject) -> None:
    ops = data.draw(histories())
    mesh = Mesh(ops)
    log = received(data.draw(deliveries(ops)))
    with log.store.write() as session:
        for now in (0, *sorted({job["deadline"] for job in mesh.jobs.values()} - {None})):
            assert {entry.job.id for entry in session.overdue(now, 100)} == mesh.overdue(now)
            assert {entry.job.id for entry in session.overdue(now + 1, 100)} == mesh.overdue(now + 1)
        session.promote(NOW)
        for kind in KINDS:
            assert {entry.job.id for entry, _ in session.ready(kind, 100)} == mesh.pending(kind, NOW)
        assert set(session.ready_kinds()) == {kind for kind in KINDS if mesh.pending(kind, NOW)}
        assert {entry.job.id for entry in session.claimed()} == {
            name for name, job in mesh.jobs.items() if job["state"] == "claimed"
        }


@pytest.mark.slow
@pytest.mark.req("LW-32")
def test_the_histories_reach_the_deep_states() -> None:
    """Else the comparison would compare little."""
    histories_with: Counter[str] = Counter()
    total = 0

    def look(ops: list[Op]) -> None:
        nonlocal total
        mesh = Mesh(ops)
        counted = [op for op in ops if not mesh.verdicts[op.id]]
        seen = {type(op.payload).__name__ for op in counted}
        seen |= {reason.name for verdict in mesh.verdicts.values() for reason in verdict}
        if sum(type(op.payload) is ClaimWork for op in counted) > sum(job["fence"] for job in mesh.jobs.values()):
            seen.add("renewal")
        seen |= {f"fence {min(job['fence'], 3)}" for job in mesh.jobs.values()}
        seen |= {str(job["outcome"]) for job in mesh.jobs.values()}
        if any(job["policy"].get("after") and job["fence"] for job in mesh.jobs.values()):
            seen.add("a dependent job began")
        total += 1
        histories_with.update(seen)

    # Hypothesis varies what it drew before, so one run's histories are alike; several short runs are less so.
    for number in range(10):
        short = settings(
            max_examples=25, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )
        seed(number)(short(given(histories())(look)))()
    for payload in (ClaimWork, CompleteJob, FailWork, ExpireWork):
        assert histories_with[payload.__name__] > total * 0.25, (payload, dict(histories_with))
    for payload in (YieldWork, PostponeWork, PostponeJob, RetryJob, RouteKind, AcceptWork):
        assert histories_with[payload.__name__] > total * 0.1, (payload, dict(histories_with))
    for what in ("renewal", "fence 2", "fence 3", "succeeded", "failed", "cancelled", "a dependent job began"):
        assert histories_with[what] > total * 0.03, (what, dict(histories_with))
    beyond = (Reason.BAD_KIND, Reason.BAD_POLICY, Reason.NOT_ACCEPTED, Reason.NOT_COORDINATOR, Reason.NO_SNAPSHOT)
    beyond += (Reason.NOT_A_TICK, Reason.BAD_SCHEDULE)  # see tests/log/test_schedules.py
    beyond += (Reason.GIVEN_UP,)  # of locks and messages
    by_the_fold = [r.name for r in Reason if r < 60 and r not in beyond] + ["INTEGRITY"]
    for name in by_the_fold:
        assert histories_with[name] >= 3, (name, dict(histories_with))
