"""What jobs used and cost, from the log: the proofs of commands have what the runner measured, and every other run is
charged for its time.
"""

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

import msgspec

from hocket.errors import HocketError
from hocket.kernel.execution import Resources
from hocket.kernel.ids import node_id, node_text, ulid_text
from hocket.kernel.ops import schedule_payload
from hocket.kernel.proof import PROOF_TYPE, BadProof, check, decode_proof
from hocket.kernel.rate_card import (
    BEAT_MS_DEFAULT,
    Estimate,
    RateCard,
    ResourceUse,
    beats_used,
    charge,
    estimate,
    usage_of,
)
from hocket.kernel.roster import Job, Outcome
from hocket.store import JobFilter, Session, Stage
from hocket.work import artifacts
from hocket.work.artifacts import Fetch
from hocket.work.blobs import Blobs
from hocket.work.run_spans import RunSpan, run_spans

# The newest jobs that a sum looks at, and the newest of a kind that an estimate does.
JOBS_MAX = 100_000
HISTORY_MAX = 200


class MeteredRun(NamedTuple):
    """A run and what it used. `resources` are those of its proof; None for a run that has none."""

    node: int
    ended_ms: int
    resources: Resources | None
    usage: ResourceUse


class Spent(NamedTuple):
    beats: int
    cost: float


def metered_runs(
    session: Session, blobs: Blobs, job: Job, beat_ms: int, fetch: Fetch | None = None
) -> Iterator[MeteredRun]:
    """The ended runs of a job. A proof counts for the last run of its signer that began before it was on the log."""
    spans = run_spans(session, job.id)
    found: dict[RunSpan, Resources] = {}
    for node, at_ms, used in _proofs(session, blobs, job, fetch):
        if before := [span for span in spans if span.node == node and span.began_ms <= at_ms]:
            found[before[-1]] = used
    for span in spans:
        resources = found.get(span)
        usage = ResourceUse(beats_used(span.ran_ms, beat_ms)) if resources is None else usage_of(resources, beat_ms)
        yield MeteredRun(span.node, span.ended_ms, resources, usage)


def _proofs(session: Session, blobs: Blobs, job: Job, fetch: Fetch | None) -> Iterator[tuple[int, int, Resources]]:
    for artifact in session.artifacts_of_job(job.id):
        if artifact.type != PROOF_TYPE:
            continue
        op, _ = artifacts.creation_of(session, artifact)
        try:
            proof = decode_proof(artifacts.content(session, blobs, artifact, fetch))
            if node_id(proof.worker) == op.node_id:
                yield op.node_id, op.timestamp.wall, check(proof).resources
        except (HocketError, BadProof):
            continue  # the run is charged for its time


def spent_on(session: Session, blobs: Blobs, job: Job, rates: RateCard | None) -> Spent:
    """What the runs of a job have used so far. Without rates, they cost nothing."""
    beat_ms = BEAT_MS_DEFAULT if rates is None else rates.beat_ms
    used = [each.usage for each in metered_runs(session, blobs, job, beat_ms)]
    costs = [] if rates is None else [charge(each, rates, job.kind).total for each in used]
    return Spent(sum(each.beats for each in used), math.fsum(costs))


class CostRow(msgspec.Struct, frozen=True):
    """What the runs of a kind, on a node, for an account or of a job used and cost. `name` is None for the runs of jobs
    without an account.
    """

    name: str | None
    jobs: int
    runs: int
    usage: ResourceUse
    cost: float
    currency: str


class CostsBy(StrEnum):
    KIND = "kind"
    NODE = "node"
    ACCOUNT = "account"


class Costs(msgspec.Struct, frozen=True):
    """`rows` are those that cost most first, `total` is their sum. `is_cut` is whether there are older jobs that were
    not looked at.
    """

    rows: list[CostRow]
    total: CostRow
    is_cut: bool = False


def job_cost(session: Session, blobs: Blobs, job: Job, rates: RateCard, fetch: Fetch | None = None) -> CostRow:
    runs = list(metered_runs(session, blobs, job, rates.beat_ms, fetch))
    return _row(ulid_text(job.id), [(job, each) for each in runs], rates)


def costs_by(
    session: Session, blobs: Blobs, by: CostsBy, rates: RateCard, since_ms: int = 0, fetch: Fetch | None = None
) -> Costs:
    """The costs of the runs that ended since that time, of the newest jobs."""
    found: dict[str | None, list[tuple[Job, MeteredRun]]] = {}
    newest = session.jobs(JobFilter(), JOBS_MAX + 1)
    for entry in newest[:JOBS_MAX]:
        for run in metered_runs(session, blobs, entry.job, rates.beat_ms, fetch):
            if run.ended_ms >= since_ms:
                found.setdefault(_name(by, entry.job, run), []).append((entry.job, run))
    rows = [_row(name, runs, rates) for name, runs in found.items()]
    total = _row(None, [each for runs in found.values() for each in runs], rates)
    return Costs(sorted(rows, key=lambda row: (-row.cost, row.name or "")), total, len(newest) > JOBS_MAX)


def cost_estimate(session: Session, blobs: Blobs, rates: RateCard, kind: str, program: str | None) -> Estimate | None:
    """What the newest jobs of this kind cost that succeeded; of commands, those of the same program. None if there are
    none.
    """
    ended = session.jobs(JobFilter((Stage.DONE,), Outcome.SUCCEEDED, kind), JOBS_MAX)
    alike = (entry.job for entry in ended if program is None or _program(session, entry.job) == program)
    return estimate([job_cost(session, blobs, job, rates).cost for job in islice(alike, HISTORY_MAX)])


def _program(session: Session, job: Job) -> str | None:
    row = session.op(job.schedule_op)
    if row is None:
        return None
    payload = msgspec.json.decode(schedule_payload(row.body))
    command = payload.get("command") if isinstance(payload, dict) else None
    return str(command[0]) if isinstance(command, list) and command else None


def _name(by: CostsBy, job: Job, run: MeteredRun) -> str | None:
    if by is CostsBy.KIND:
        return job.kind
    if by is CostsBy.NODE:
        return node_text(run.node)
    return None if job.policy.budget is None else job.policy.budget.charge_to


def _row(name: str | None, runs: Sequence[tuple[Job, MeteredRun]], rates: RateCard) -> CostRow:
    used = sum((run.usage for _, run in runs), ResourceUse())
    cost = math.fsum(charge(run.usage, rates, job.kind).total for job, run in runs)
    return CostRow(name, len({job.id for job, _ in runs}), len(runs), used, cost, rates.currency)
