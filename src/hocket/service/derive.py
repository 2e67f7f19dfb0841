"""The derivation pass. A pass is a job of a kind that only the coordinator may do; it begins and ends in one
transaction. Its payload says which ops it read, from one frontier to the next, and its result what follows from them
and the state to go on with. So any later coordinator can go on, and any node that has the ops can repeat the pass.
"""

import heapq
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hocket.bus.changes import LOG, about
from hocket.errors import Conflict, Failed, NotAuthorised
from hocket.kernel.canonical import canonical_json
from hocket.kernel.clock import Hlc, pack
from hocket.kernel.decoding import decode_json
from hocket.kernel.frontier import Frontier, frontier_text, parse_frontier
from hocket.kernel.ids import ulid_ms, ulid_text
from hocket.kernel.ops import Op, decode
from hocket.kernel.policy import DEFAULT
from hocket.kernel.roster import Job, Outcome
from hocket.kernel.vocabulary import ClaimWork, CreateArtifact, ScheduleJob
from hocket.log import Transaction
from hocket.mesh.outgoing import order_ops, own_frontier
from hocket.service import Service, ServiceAnswer
from hocket.store import JobFilter, Session, Stage
from hocket.work import jobs, view
from hocket.work.derivation import PREFIX, Derivation, run

# The most ops that one pass reads, and the most bytes that it may give.
PASS_OPS_MAX = 1_000
PASS_BYTES_MAX = 64 * 1024
# Passes end in the transaction that begins them.
LEASE_MS = 60_000
# How many ops of an author are read at once.
PAGE = 256
NOTHING: Frontier = {}


class PassPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload of a pass: the job of the pass before it, the frontiers between which it read, and how many ops with
    which hash of their ids.
    """

    after: str | None
    since: str
    until: str
    ops: int
    inputs: str


class DerivationDone(ServiceAnswer, frozen=True):
    """What was derived now: in how many passes, from how many ops, and how many values."""

    name: str
    passes: int
    ops: int
    values: int


class DerivationChecked(ServiceAnswer, frozen=True):
    """How many passes were repeated, and what differs: job ids of passes with other ops than here, and of passes whose
    result differs.
    """

    name: str
    passes: int
    other_ops: list[str]
    other_results: list[str]


def derive(service: Service, wanted: Derivation, progress: Callable[[int], None] = lambda ops: None) -> DerivationDone:
    """Runs passes until all ops are read. Raises NotAuthorised unless this node is the coordinator."""
    service.check_writer()
    log = service.runtime.log
    order_ops(log.store)
    passes = count = values = 0
    while True:
        with service.read() as session:
            before = _last(session, wanted)
            since, state = _reached(session, before, wanted)
            until, read = dict(since), []
            for op in _new(session, since, own_frontier(session)):
                until[op.node_id] = op.timestamp
                if _is_read(session, op):
                    read.append(op)
                if len(read) == PASS_OPS_MAX:
                    break
        if not read:
            return DerivationDone(wanted.name, passes, count, values)
        began = time.monotonic()
        derived = run(wanted, state, read)
        if len(derived.result) > PASS_BYTES_MAX:
            raise Failed(
                f"the derivation {wanted.name} gave {len(derived.result)} bytes for {len(read)} ops, at most"
                f" {PASS_BYTES_MAX}; keep less in its state, or derive less from each op"
            )
        after = None if before is None else ulid_text(before.id)
        plan = PassPlan(after, frontier_text(since), frontier_text(until), len(read), derived.inputs)
        _write(service, wanted, plan, derived.result, int((time.monotonic() - began) * 1000))
        passes, count = passes + 1, count + len(read)
        values += len(decode_json(derived.result, dict[str, Any])["derived"])
        progress(count)


def more(service: Service, seen: int) -> int:
    """Waits until the log has more ops than this, and returns how many."""

    def look(session: Session) -> tuple[bool, int]:
        count = session.head().seq
        return count > seen, count

    return service.node.until(look, None, about(LOG))


def check(service: Service, wanted: Derivation) -> DerivationChecked:
    """Repeats every pass from the ops that are here."""
    order_ops(service.runtime.log.store)
    other_ops, other_results = [], []
    count = 0
    with service.read() as session:
        before: Job | None = None
        for job in _passes(session, wanted):
            count += 1
            plan, said = _plan(session, job), canonical_json(view.result(session, job))
            state = wanted.initial if before is None else _reached(session, before, wanted)[1]
            found = _new(session, parse_frontier(plan.since), parse_frontier(plan.until))
            derived = run(wanted, state, [op for op in found if _is_read(session, op)])
            if derived.inputs != plan.inputs:
                other_ops.append(ulid_text(job.id))
            elif derived.result != said:
                other_results.append(ulid_text(job.id))
            before = job
    return DerivationChecked(wanted.name, count, other_ops, other_results)


def _write(service: Service, wanted: Derivation, plan: PassPlan, result: bytes, duration_ms: int) -> None:
    def request(tx: Transaction) -> None:
        if tx.projection.permissions.coordinator(tx.latest) != tx.node:
            raise NotAuthorised("only the coordinator derives; `hocket coordinator --show` names it")
        last = _last(tx.session, wanted)
        if (None if last is None else ulid_text(last.id)) != plan.after:
            raise Conflict(f"another process runs the derivation {wanted.name} now")
        job_id = jobs.submit_one(tx, jobs.Draft(wanted.kind, msgspec.json.encode(plan), DEFAULT)).job_id
        held = jobs.must(tx.author(ClaimWork(job_id, tx.node, LEASE_MS)), job_id)
        done = jobs.complete(tx, jobs.Held(job_id, held.id), result, duration_ms)
        if not isinstance(done, Job):
            raise Failed(f"the pass of the derivation {wanted.name} does not count: {done}")
        tx.projection.flush()

    service.runtime.log.run(request)
    service.wrote()


def _last(session: Session, wanted: Derivation) -> Job | None:
    """The last pass. Ids are in the order of their milliseconds only."""
    latest: Job | None = None
    asked = JobFilter((Stage.DONE,), Outcome.SUCCEEDED, wanted.kind)
    while entries := session.jobs(asked, PAGE):
        for entry in entries:
            if latest is not None and ulid_ms(entry.job.id) < ulid_ms(latest.id):
                return latest
            if latest is None or entry.job.scheduled > latest.scheduled:
                latest = entry.job
        asked = asked._replace(beyond=entries[-1].job.id)
    return latest


def _passes(session: Session, wanted: Derivation) -> list[Job]:
    """All passes, the first one first."""
    found, job = [], _last(session, wanted)
    while job is not None:
        found.append(job)
        after = _plan(session, job).after
        entry = None if after is None else view.find(session, after)
        job = None if entry is None else entry.job
    return found[::-1]


def _plan(session: Session, job: Job) -> PassPlan:
    row = session.op(job.schedule_op)
    payload = None if row is None else decode(row.body).payload
    try:
        assert isinstance(payload, ScheduleJob)
        return decode_json(payload.payload, PassPlan)
    except (AssertionError, ValueError, msgspec.MsgspecError) as error:
        raise Failed(f"job {ulid_text(job.id)} is no pass of a derivation: {error}") from None


def _reached(session: Session, before: Job | None, wanted: Derivation) -> tuple[Frontier, Any]:
    """How far the passes have read, and the state to go on with."""
    if before is None:
        return NOTHING, wanted.initial
    return parse_frontier(_plan(session, before).until), view.result(session, before)["state"]


def _new(session: Session, since: Frontier, until: Frontier) -> Iterator[Op]:
    """The ops between the frontiers, in the order of their times."""

    def of(author: int, end: Hlc) -> Iterator[Op]:
        after, last = pack(since[author]) if author in since else bytes(20), pack(end)
        while rows := session.ops_of_author(author.to_bytes(8, "big"), after, PAGE):
            yield from (decode(row.body) for row in rows if row.hlc <= last)
            after = rows[-1].hlc
            if after >= last:
                return

    return heapq.merge(*(of(author, end) for author, end in until.items()), key=lambda op: op.timestamp)


def _is_read(session: Session, op: Op) -> bool:
    """Whether a derivation reads the op: it counts, and is no part of a pass."""
    row = session.op(op.id)
    if row is None or row.reason:
        return False
    payload = op.payload
    kind = payload.kind if isinstance(payload, ScheduleJob) else None
    about = payload.source_job if isinstance(payload, CreateArtifact) else row.job
    if kind is None and about is not None and (entry := session.job(about)) is not None:
        kind = entry.job.kind
    return kind is None or not kind.startswith(PREFIX)
