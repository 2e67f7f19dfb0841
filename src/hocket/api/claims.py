"""How jobs find their workers.

`explain`: why a job went to the worker that has it, or who may try it and when: the ranking as this node knows the
workers now, and the claims that are on the log.

`grid`: how the jobs that go by rank spread over the workers: the members of each kind, the share of the claims that
each node and each worker got against the share that weights and the time in the ranking promise, takeovers, refused
claims and double starts. Read from the log for the newest jobs within a window. The log knows nodes; workers tell their
claims with their presence.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import READ, JobText
from hocket.api.operation import operation
from hocket.api.views import Line, View, moment
from hocket.families.jobs import view
from hocket.families.jobs.candidates import EPOCH_MS, Candidates, epoch_at, node_of
from hocket.families.jobs.rendezvous import ClaimPeriod, Expectation, RankedSpell, expectations, may_try_at
from hocket.families.jobs.rules import Job, State
from hocket.kernel.arbitration import BY_NUMBER, Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import covers
from hocket.kernel.texts import counted, span
from hocket.kernel.vocabulary import (
    JOB,
    AcceptWork,
    ClaimWork,
    ExpireWork,
    FailWork,
    PostponeJob,
    PostponeWork,
    RetryJob,
    ScheduleJob,
    Subject,
    YieldWork,
)
from hocket.store import JobFilter, OpRow, Session, Stage
from hocket.work.claim_order import ranking
from hocket.work.members import Members
from hocket.work.presence import MINUTE_MS, Serving, read_presence, read_serving

MAKES_READY = (ScheduleJob, YieldWork, ExpireWork, FailWork, PostponeWork, PostponeJob, RetryJob)


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


@operation("explain_claims", "GET /v1/jobs/{job}/claims", READ, command="claims explain", show=_show)
def explain(service: Service, job: JobText) -> ClaimsExplained:
    """Explain which workers may claim a job, in which order and from when on, and which nodes have tried. The ranking
    is by the workers that this node knows now: for a job that was claimed long ago they may have been others.

    \b
      hocket claims explain 01J9ZC
      hocket claims explain 01J9ZC --json | jq '.ranking[0].worker'
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
        if found.policy.is_ranked:
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


# The newest jobs that are looked at.
JOBS_MAX = 2_000
WINDOW_MS = 600_000


class GridShare(ServiceAnswer, frozen=True):
    """Claims, and the claims that weights and the time in the ranking promise. The shares are between 0 and 1. None
    where nothing can be said: without claims, or for a node that has no workers now. `is_beyond_chance` marks a
    deviation that happens by chance less than once in a thousand times.
    """

    claims: int
    share: float | None
    expected_claims: float | None
    expected: float | None
    is_beyond_chance: bool


class GridWorker(GridShare, frozen=True):
    """A worker that is ranked now, and its claims, as it tells them itself, by the minute."""

    worker: str
    weight: float
    since_ms: int


class GridNode(GridShare, frozen=True):
    """A node with workers of a kind, or with claims on its jobs, as the log has them."""

    node: str
    name: str | None
    workers: list[GridWorker]
    weight: float


class GridKind(ServiceAnswer, frozen=True):
    """`takeovers` are claims after the first claim timeout, `refused` offers that the coordinator did not accept,
    `double_starts` claims on open jobs that another node held already.
    """

    kind: str
    epoch: int
    candidates: str
    claims: int
    takeovers: int
    refused: int
    double_starts: int
    nodes: list[GridNode]


@dataclass
class _Counts:
    claims: Counter[int] = field(default_factory=Counter)
    by_rank: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The claims of each node in each epoch, on jobs whose winner the weights decide."""
    takeovers: int = 0
    refused: int = 0
    double_starts: int = 0

    def add(self, job: Job, ops: Iterable[tuple[OpRow, Op]], since_ms: int) -> None:
        """Counts the claims on one job, in the order of the log."""
        in_order = sorted(ops, key=lambda each: unpack(each[0].hlc))
        accepted = {
            op.payload.offer: op for row, op in in_order if row.reason == 0 and isinstance(op.payload, AcceptWork)
        }
        ready_ms, holder = 0, None
        for row, op in in_order:
            at_ms = op.timestamp.wall
            if row.reason == 0 and isinstance(op.payload, MAKES_READY):
                ready_ms, holder = max(at_ms, job.policy.not_before or 0), None
            if not isinstance(op.payload, ClaimWork) or op.node_id == holder:
                continue
            if row.reason == 0 or op.id in accepted:
                holder = op.node_id
                if at_ms >= since_ms:
                    self.claims[op.node_id] += 1
                    self.by_rank[op.node_id, epoch_at(at_ms)] += job.policy.claim == "rendezvous"
                    self.takeovers += at_ms - ready_ms >= job.policy.claim_timeout_ms
            elif at_ms >= since_ms:
                self.refused += not job.policy.open
                self.double_starts += bool(job.policy.open)


def grid(service: Service, kind: str | None = None, window_ms: int = WINDOW_MS) -> list[GridKind]:
    """The kinds whose jobs go by rank and that have jobs in the window, or those that `kind` covers."""
    log = service.runtime.log
    with service.read() as session:
        since_ms = log.reading().wall - window_ms
        counts: dict[str, _Counts] = {}
        for job in _newest(session, kind):
            ops = [(row, decode(row.body)) for row in session.ops_about(Subject(JOB, job.id))]
            counts.setdefault(job.kind, _Counts()).add(job, ops, since_ms)
        members = Members(service.runtime.liveness(), log)
        now_ms = log.physical()
        members.refresh(session, now_ms)
        names, told = service.names(session), _told(session)
        return [
            _shown(name, found, members.candidates(name, now_ms), told, names, now_ms - window_ms)
            for name, found in sorted(counts.items())
        ]


def _newest(session: Session, kind: str | None) -> Sequence[Job]:
    wanted = JobFilter((Stage.READY, Stage.CLAIMED, Stage.DONE))
    found = [entry.job for entry in session.jobs(wanted, JOBS_MAX)]
    return [job for job in found if job.policy.is_ranked and (kind is None or covers(kind, job.kind))]


def _told(session: Session) -> dict[str, Serving]:
    """What every worker of which this node knows says about itself."""
    here = [each for row in session.workers() for each in read_serving(row.serves)]
    elsewhere = [each for row in session.presence() for each in read_presence(row).workers]
    return {each.id: each for each in (*elsewhere, *here)}


def _shown(
    kind: str,
    counts: _Counts,
    candidates: Candidates,
    told: Mapping[str, Serving],
    names: Mapping[str, str],
    since_ms: int,
) -> GridKind:
    # Joining counts from the epoch after the one in which a worker began.
    spells = {
        worker: RankedSpell(worker, weight, (epoch_at(told[worker].since_ms) + 1) * EPOCH_MS)
        for worker, weight in sorted(candidates.weights.items())
        if worker in told
    }
    workers = _workers(kind, spells, told, since_ms)
    of_node: dict[int, list[GridWorker]] = {}
    for each in workers:
        of_node.setdefault(node_of(each.worker), []).append(each)
    by_node = expectations(
        [spell._replace(name=node_text(node_of(worker))) for worker, spell in spells.items()],
        [
            ClaimPeriod(epoch * EPOCH_MS, (epoch + 1) * EPOCH_MS, claims)
            for (node, epoch), claims in counts.by_rank.items()
            if node in of_node
        ],
    )
    ranked = Counter[int]()
    for (node, _), claims in counts.by_rank.items():
        ranked[node] += claims
    known = sum(ranked[node] for node in of_node)
    nodes = [
        GridNode(
            *_share(counts.claims[node], counts.claims.total(), by_node.get(node_text(node)), ranked[node], known),
            node_text(node),
            names.get(node_text(node)),
            of_node.get(node, []),
            sum(each.weight for each in of_node.get(node, [])),
        )
        for node in sorted(of_node.keys() | counts.claims.keys())
    ]
    return GridKind(
        kind,
        candidates.epoch,
        candidates.digest,
        counts.claims.total(),
        counts.takeovers,
        counts.refused,
        counts.double_starts,
        nodes,
    )


def _workers(
    kind: str, spells: Mapping[str, RankedSpell], told: Mapping[str, Serving], since_ms: int
) -> list[GridWorker]:
    claims, minutes = Counter[str](), Counter[int]()
    for worker in spells:
        for name, minute, count in told[worker].claimed:
            if name == kind and (minute + 1) * MINUTE_MS > since_ms:
                claims[worker] += count
                minutes[minute] += count
    periods = [ClaimPeriod(each * MINUTE_MS, (each + 1) * MINUTE_MS, count) for each, count in minutes.items()]
    expected, total = expectations(list(spells.values()), periods), claims.total()
    return [
        GridWorker(
            *_share(claims[worker], total, expected[worker], claims[worker], total),
            worker,
            spell.weight,
            told[worker].since_ms,
        )
        for worker, spell in spells.items()
    ]


def _share(
    claims: int, total: int, expected: Expectation | None, ranked: int, known: int
) -> tuple[int, float | None, float | None, float | None, bool]:
    """The fields of a GridShare. `ranked` are the claims that are compared with the expectation, of all `known` ones
    of that sort.
    """
    share = claims / total if total else None
    if expected is None or not known:
        return claims, share, None, None, False
    return claims, share, round(expected.claims, 3), expected.claims / known, expected.is_beyond_chance(ranked)
