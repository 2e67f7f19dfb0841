"""How workers in any language get jobs, keep them and leave: claim, renew and goodbye."""

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import ULID, Arguments, OperationGroup, TokenNeed, operation
from hocket.api.views import Line
from hocket.bus.hints import about
from hocket.errors import HocketError, NotFound, StoreError, Unreachable, Usage
from hocket.families.inbox import questions
from hocket.families.inbox.questions import TEXT_CHARS_MAX as QUESTION_CHARS_MAX
from hocket.families.inbox.questions import AskedQuestion
from hocket.families.jobs.apart import Erased, check_kept, unsalted
from hocket.families.jobs.requests import KIND_LENGTH_MAX
from hocket.families.liveness import OVER_HTTP
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DELAY_MS_MAX, LEASE_MS_DEFAULT, LEASE_MS_MAX, check_labels
from hocket.kernel.vocabulary import JOB
from hocket.log import Transaction
from hocket.node.calls import id_of
from hocket.store import Session
from hocket.work.context import NOTE_BYTES_MAX
from hocket.work.presence import read_serving, serving_text
from hocket.work.remote.remote_claims import CLAIMED_MAX, ClaimAsked, GivenJob
from hocket.work.remote.remote_holds import (
    FENCE_MAX,
    REMOTE,
    CheckKind,
    End,
    EndKind,
    HeldJob,
    HoldState,
    RemoteName,
    Renewal,
    find_hold,
    json_of,
    over,
    read_row_name,
)

if TYPE_CHECKING:
    from hocket.node.node import Node

WAIT_MS_MAX = 50_000
LEASE_MS_MIN = 1_000
KINDS_MAX = 64
LABELS_MAX = 64

WorkerName = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._~-]{0,63}$",
        description="The worker's name, which it chooses anew for each process. It belongs to the token's agent.",
    ),
]
Kind = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=KIND_LENGTH_MAX,
        description="A kind, or `acme.*` for all kinds below acme.",
    ),
]
Fence = Annotated[int, Meta(ge=1, le=FENCE_MAX, description="The fence of the hold, as the claim gave it.")]
JobId = Annotated[str, Meta(pattern=ULID, description="The job's id.")]
LeaseMs = Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX, description="How long the lease lasts from now on.")]


class ClaimedJob(ServiceAnswer, frozen=True):
    """A job that the worker holds now. `lease_ms` is what remains of the lease; `attempt` is 1 for the first try, and
    `checkpoint` what an earlier try has kept.
    """

    job_id: str
    kind: str
    payload: Any
    fence: int
    attempt: int
    checkpoint: Any
    lease_ms: int


class JobsClaimed(ServiceAnswer, frozen=True):
    """A worker that is to `drain` ends what it holds, claims no more, and stops."""

    jobs: list[ClaimedJob]
    drain: bool


class HoldToRenew(ServiceAnswer, frozen=True):
    """A hold to renew, with the newest progress note and checkpoint."""

    job_id: JobId
    fence: Fence
    progress: Any = None
    checkpoint: Any = None


class HoldRenewed(ServiceAnswer, frozen=True, omit_defaults=True):
    """`held`: the lease lasts `lease_ms` from now on. `cancel`: the job was cancelled, stop it. `lost`: the lease has
    ended, stop the job and drop its result.
    """

    job_id: str
    fence: int
    state: HoldState
    lease_ms: int | None = None


class HoldsRenewed(ServiceAnswer, frozen=True):
    holds: list[HoldRenewed]
    drain: bool


class Goodbye(ServiceAnswer, frozen=True):
    """How many jobs went back to the queue."""

    returned: int


def _prefixes(kinds: Iterable[str]) -> list[str]:
    """The kinds as grants and queues have them: `acme.` for all below acme."""
    return [each[:-1] if each.endswith(".*") else each for each in kinds]


def _kinds_asked(service: Service, asked: Arguments) -> list[str]:
    return _prefixes(asked["kinds"])


CLAIM = TokenNeed("Job", "Claim", _kinds_asked)
HOLD = TokenNeed("Job", "Claim", is_judged_later=True)


@operation("claim_jobs", "POST /v1/jobs/claim", CLAIM, counted_apart=True)
async def claim(
    service: Service,
    node: "Node",
    worker: WorkerName,
    claim_id: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=64,
            description="An id that the worker chooses anew after each answer with jobs. The same id again gives the"
            " holds of that claim which still stand, and nothing new.",
        ),
    ],
    kinds: Annotated[list[Kind], Meta(min_length=1, max_length=KINDS_MAX)],
    count: Annotated[int, Meta(ge=1, le=CLAIMED_MAX, description="How many jobs at most.")] = 1,
    lease_ms: LeaseMs = LEASE_MS_DEFAULT,
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for the first job; default: not at all.")
    ] = 0,
    labels: Annotated[
        list[str], Meta(max_length=LABELS_MAX, description="What the worker has that jobs may need.")
    ] = [],  # noqa: B006
) -> JobsClaimed:
    """Claim jobs under a lease. The answer comes when there are jobs, or with none when the time is over. If the worker
    disconnects before the answer is written, its jobs go back.
    """
    service.check_writer()
    try:
        asked = ClaimAsked(
            _name(service, worker),
            *(claim_id, tuple(sorted(set(_prefixes(kinds)))), count, lease_ms, tuple(sorted(check_labels(labels)))),
            place=node.environment.liveness.place if service.is_process else OVER_HTTP,
        )
    except ValueError as error:
        raise Usage(str(error)) from None
    desk = node.remote_workers
    given = await desk.claim(asked, wait_ms / 1000)
    if given.jobs:
        service.undelivered = lambda: desk.undelivered(asked, given)
    jobs = [job for each in given.jobs if (job := await _with_payload(service, node, each)) is not None]
    return JobsClaimed([_claimed(each) for each in jobs], given.is_draining)


async def _with_payload(service: Service, node: "Node", given: GivenJob) -> GivenJob | None:
    """The job with a payload that is not on the log. One whose payload is erased fails here, and one whose payload
    cannot be fetched goes back to the queue; the worker gets neither.
    """
    apart, runtime = given.job.policy.content, service.runtime
    if apart is None:
        return given
    try:
        await node.read(lambda session: check_kept(session, given.job.id))
        blob = runtime.blobs.read(apart.digest) or await node.services().exchanges.fetch(apart.digest, apart.size)
        return given._replace(payload=unsalted(apart, blob, f"the payload of job {ulid_text(given.job.id)}"))
    except (Erased, Unreachable, StoreError) as error:
        do: EndKind = "fail" if isinstance(error, Erased) else "yield"
        ended = End(given.job.id, given.job.fence, do, text=str(error))
        await node.remote_workers.end(service.agent(None), [ended], lambda kind: None)
        return None


def held_by_agent(service: Service) -> list[tuple[str, int]]:
    """The jobs that the agent of the program holds on this node by requests, with their fences."""
    agent = service.agent(None)
    with service.read() as session:
        workers = {row.number: read_row_name(row.name) for row in session.workers()}
        own = {number for number, name in workers.items() if name is not None and name.agent == agent}
        return [(ulid_text(each.job.id), each.job.fence) for each in session.claimed() if each.worker in own]


def _name(service: Service, worker: str) -> RemoteName:
    return RemoteName(service.agent(None), worker, service.is_process)


def _claimed(given: GivenJob) -> ClaimedJob:
    job = given.job
    checkpoint = None if given.checkpoint is None else msgspec.json.decode(given.checkpoint)
    payload = msgspec.json.decode(given.payload or b"{}")
    return ClaimedJob(ulid_text(job.id), job.kind, payload, job.fence, job.failures + 1, checkpoint, given.lease_ms)


@operation("renew_jobs", "POST /v1/jobs/renew", HOLD)
async def renew(
    service: Service,
    node: "Node",
    worker: WorkerName,
    holds: Annotated[list[HoldToRenew], Meta(max_length=CLAIMED_MAX)] = [],  # noqa: B006
    lease_ms: LeaseMs | None = None,
) -> HoldsRenewed:
    """Renew the leases of all jobs that a worker holds, in one request. Each hold can bring the newest progress note
    and checkpoint. What became of each hold is in the answer; a lost hold is no error. An empty list asks whether to
    drain.
    """
    service.check_writer()
    renewals = [
        Renewal(
            id_of(each.job_id),
            each.fence,
            json_of(each.progress, "the progress note", NOTE_BYTES_MAX),
            json_of(each.checkpoint, "the checkpoint", NOTE_BYTES_MAX),
        )
        for each in holds
    ]
    name = _name(service, worker)
    found, drain = await node.remote_workers.renew(name, renewals, lease_ms, kind_check(service))
    renewed = [
        HoldRenewed(hold.job_id, hold.fence, each.state, each.lease_ms or None)
        for hold, each in zip(holds, found, strict=True)
    ]
    return HoldsRenewed(renewed, drain)


class JobAsked(ServiceAnswer, frozen=True):
    """A question of a job. `answer` is None while there is none, and after `until_ms` there will be none."""

    message_id: str
    to: str
    until_ms: int
    answer: str | None


@operation("ask_for_job", "POST /v1/jobs/{job}/ask", HOLD)
async def ask_for_job(
    service: Service,
    node: "Node",
    job: JobId,
    fence: Fence,
    question: Annotated[str, Meta(min_length=1, max_length=QUESTION_CHARS_MAX, description="What to ask, as text.")],
    within_ms: Annotated[int, Meta(ge=1, le=DELAY_MS_MAX, description="How long the question stays open.")],
    number: Annotated[int, Meta(ge=1, description="Tells questions of the job with the same text apart.")] = 1,
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX, description="How long this request waits.")] = 0,
) -> JobAsked:
    """Ask the submitter of a job that the worker holds, or the agent whom the submitter has named, and wait for the
    answer. The same question again asks nobody twice: it gets the answer, also that which an earlier worker got.
    """
    service.check_writer()
    job_id, agent = id_of(job), service.agent(None)

    def ask(tx: Transaction) -> AskedQuestion:
        found = find_hold(tx, job_id, fence, agent, kind_check(service))
        if isinstance(found, HocketError):
            raise found
        if not isinstance(found, HeldJob):
            raise over(found, fence)
        return questions.ask(tx, node.blobs, job_id, question, number, within_ms)

    asked = await node.run(ask)
    node.wrote()

    def look(session: Session) -> tuple[bool, AskedQuestion]:
        entry = session.job(job_id)
        found = None if entry is None else questions.asked(session, entry.job, question, number)
        return found is None or found.answer is not None, found or asked

    if asked.answer is None and wait_ms:
        with suppress(TimeoutError):
            asked = await node.until(lambda: node.peek(look), wait_ms / 1000, about(JOB, job_id))
    return JobAsked(ulid_text(asked.id), asked.to, asked.until_ms, asked.answer)


@operation("goodbye_worker", "POST /v1/jobs/goodbye", HOLD)
async def goodbye(service: Service, node: "Node", worker: WorkerName) -> Goodbye:
    """Return all jobs of a worker at once: it stops. Its waiting claim ends."""
    service.check_writer()
    return Goodbye(await node.remote_workers.goodbye(_name(service, worker)))


def kind_check(service: Service) -> CheckKind:
    return lambda kind: service.check("Job", "Claim", kind)


class WorkerDrained(ServiceAnswer, frozen=True):
    """The worker whose next answer says `drain`."""

    agent: str
    worker: str


@operation(
    "drain_worker",
    "POST /v1/agents/{agent}/workers/{worker}/drain",
    TokenNeed("Mesh", "Write"),
    command="worker drain",
    show=lambda done: [
        Line(f"{done.worker} of {done.agent} drains: it takes no new jobs, ends those it has, and stops")
    ],
)
def drain(
    service: Service,
    agent: Annotated[str, Meta(min_length=1, max_length=128, description="The agent: the name of the worker's token.")],
    worker: WorkerName,
) -> WorkerDrained:
    """Let one worker over HTTP finish its jobs and stop. Its next answer says so; a claim that waits is answered at
    once. `hocket node drain` does this to all workers of a node.

    \b
      hocket worker drain ci w1
    """
    service.check_writer()
    runtime, name = service.runtime, RemoteName(agent, worker).row(service.runtime.log.node)
    with runtime.store.write() as session:
        row = session.worker_named(name)
        if row is None:
            raise NotFound(f"no worker {worker!r} of the agent {agent!r} claims jobs of this node over HTTP")
        serves = [replace(each, drains=True) for each in read_serving(row.serves)]
        session.put_worker(row._replace(serves=serving_text(serves)))
    runtime.bus.publish(about(REMOTE, worker.encode()))
    return WorkerDrained(agent, worker)


commands = OperationGroup(
    """Workers in other languages, which claim jobs over HTTP while `hocket mesh serve` runs.

    \b
      hocket worker drain ci w1
    """,
    drain,
)
