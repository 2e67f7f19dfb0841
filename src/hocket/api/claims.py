"""Why a job went to the worker that has it, or who may try it and when: the ranking as this node knows the workers now,
and the claims that are on the log.
"""

from collections.abc import Iterable, Iterator, Mapping

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import READ, JobText
from hocket.api.operation import operation
from hocket.api.views import Line, View, moment
from hocket.families.jobs.rendezvous import may_try_at
from hocket.families.jobs.rules import Job, State
from hocket.kernel.clock import unpack
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.reasons import BY_NUMBER, Reason
from hocket.kernel.texts import counted, span
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    ClaimWork,
    ExpireWork,
    FailWork,
    PostponeWork,
    RetryJob,
    ScheduleJob,
    Subject,
    YieldWork,
)
from hocket.store import OpRow, Session
from hocket.work import view
from hocket.work.claim_order import is_ranked, ranking
from hocket.work.members import Members

MAKES_READY = (ScheduleJob, YieldWork, ExpireWork, FailWork, PostponeWork, RetryJob)


class RankedWorker(ServiceAnswer, frozen=True):
    """One candidate: from when on it may try, and whether it is of the node that holds or held the job."""

    rank: int
    worker: str
    node_name: str | None
    weight: float
    may_try_ms: int


class ClaimTried(ServiceAnswer, frozen=True):
    """A claim on the log: of which node, when, and what became of it."""

    node: str
    node_name: str | None
    at_ms: int
    after_ms: int
    result: str


class ClaimsExplained(ServiceAnswer, frozen=True):
    """`ready_ms` is since when the job could be claimed, for the last time. `candidates` is the digest of the ranked
    workers: two nodes that know the same workers have the same.
    """

    job_id: str
    kind: str
    state: str
    claim: str
    key: str | None
    claim_timeout_ms: int
    ready_ms: int
    holder: str | None
    epoch: int | None
    candidates: str | None
    ranking: list[RankedWorker]
    tried: list[ClaimTried]


def _show(told: ClaimsExplained) -> Iterator[View]:
    yield Line(f"job {told.job_id} {told.kind}, {told.state}, ready since {moment(told.ready_ms)}")
    if told.claim == "first":
        yield Line("  whichever worker asks first gets it")
    else:
        how = "by rank" if told.key is None else f"by rank for the key {told.key!r}"
        yield Line(
            f"  {how}: {counted(len(told.ranking), 'candidate')} in epoch {told.epoch} ({told.candidates}), as this"
            f" node knows them; each rank waits {span(told.claim_timeout_ms)}"
        )
        if not told.ranking:
            yield Line("  no worker is known, so any may try at once")
    for each in told.ranking:
        named = f" on {each.node_name}" if each.node_name else ""
        weight = "" if each.weight == 1 else f", weight {each.weight:g}"
        after_ms = each.may_try_ms - told.ready_ms
        when = f"after {span(after_ms)}, at {moment(each.may_try_ms)}" if after_ms else "at once"
        yield Line(f"  rank {each.rank}: {each.worker}{named}{weight}: may try {when}")
    for tried in told.tried:
        after = span(max(0, tried.after_ms))
        yield Line(f"  node {tried.node_name or tried.node} tried {after} after that: {tried.result}")
    if not told.tried:
        yield Line("  no node has tried it")


@operation(
    "explain_claims",
    "GET /v1/jobs/{job}/claims",
    READ,
    command="claims explain",
    show=_show,
    examples=("hocket claims explain 01J9ZC", "hocket claims explain 01J9ZC --json | jq '.ranking[0].worker'"),
)
def explain(service: Service, job: JobText) -> ClaimsExplained:
    """Explain which workers may claim a job, in which order and from when on, and which nodes have tried. The ranking
    is by the workers that this node knows now: for a job that was claimed long ago they may have been others.
    """
    service.check("Mesh", "Read")
    log = service.runtime.log
    with service.read() as session:
        entry = view.find(session, job)
        found = entry.job
        service.check("Job", "Read", found.kind)
        names = service.names(session)
        ops = [(row, decode(row.body)) for row in session.ops_about(Subject(JOB, found.id))]
        ready_ms, now_ms = _ready_ms(session, found, ops), session.head().wall
        epoch, digest, key, ranked = None, None, None, []
        if is_ranked(found):
            members = Members(service.runtime.liveness(), log)
            members.refresh(session, log.physical())
            schedule = next(row.signed_body for row, op in ops if op.id == found.schedule_op)
            announced_ms = log.physical() - max(0, log.reading().wall - ready_ms)
            order = ranking(session, members, found, decode(log.signed(schedule)), ready_ms, announced_ms)
            epoch, digest, key = order.candidates.epoch, order.candidates.digest, order.key
            timeout_ms = found.policy.claim_timeout_ms
            ranked = [
                RankedWorker(
                    place,
                    worker,
                    names.get(worker.partition("/")[0]),
                    order.candidates.weights[worker],
                    may_try_at(place, ready_ms, timeout_ms),
                )
                for place, worker in enumerate(order.workers)
            ]
    return ClaimsExplained(
        ulid_text(found.id),
        found.kind,
        found.state.name.lower(),
        found.policy.claim,
        key,
        found.policy.claim_timeout_ms,
        ready_ms,
        None if found.claimer is None else node_text(found.claimer),
        epoch,
        digest,
        ranked,
        list(_tried(ops, names, ready_ms, view.refused_claims(ops, found, now_ms))),
    )


def _ready_ms(session: Session, job: Job, ops: Iterable[tuple[OpRow, Op]]) -> int:
    """When the job last became ready; for one that is claimed or over, before its last claim."""
    done = [entry.job.done for entry in session.jobs_by_id(job.policy.dependencies()) if entry.job.done is not None]
    ready = [op.timestamp for row, op in ops if row.reason == 0 and isinstance(op.payload, MAKES_READY)]
    if job.state is not State.PENDING:
        claims = [op.timestamp for row, op in ops if row.reason == 0 and isinstance(op.payload, ClaimWork | AcceptWork)]
        ready = [each for each in ready if not claims or each < max(claims)]
    not_before = job.ready_at if job.state is State.PENDING else job.policy.not_before or 0
    return max(max(ready, default=job.scheduled).wall, not_before, *(each.wall for each in done))


def _tried(
    ops: Iterable[tuple[OpRow, Op]], names: dict[str, str], ready_ms: int, refused: Mapping[bytes, str]
) -> Iterable[ClaimTried]:
    accepted = {op.payload.offer for row, op in ops if row.reason == 0 and isinstance(op.payload, AcceptWork)}
    held: set[int] = set()
    for row, op in sorted(ops, key=lambda each: unpack(each[0].hlc)):
        if not isinstance(op.payload, ClaimWork):
            continue
        if row.reason == 0:
            result = "renewed" if op.node_id in held else "counts"
        elif op.id in accepted:
            result = "renewed" if op.node_id in held else view.ACCEPTED
        elif op.id in refused:
            result = refused[op.id]
        else:
            result = "offered" if row.reason == Reason.OFFERED else BY_NUMBER[row.reason].sentence
        if result != "renewed":
            node = node_text(op.node_id)
            yield ClaimTried(node, names.get(node), op.timestamp.wall, op.timestamp.wall - ready_ms, result)
        if row.reason == 0 or op.id in accepted:
            held = {op.node_id}
