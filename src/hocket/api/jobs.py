"""One job: show it, wait for its result, submit, cancel, retry, postpone and approve it; and ops as lines."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from hocket.api import Service, ServiceAnswer
from hocket.api.operation import ULID, Arguments, InShell, OverHttp, TokenNeed, operation
from hocket.api.views import Line, Pairs, Table, Terminal, View, moment
from hocket.bus.hints import about
from hocket.errors import Unreachable, Usage
from hocket.families.jobs.progress import newest_notes
from hocket.families.jobs.view import WaitReason
from hocket.kernel.clock import parse_hlc
from hocket.kernel.decoding import convert
from hocket.kernel.ids import EXACT_MAX, node_text, ulid_text
from hocket.kernel.ops import BeatPlace
from hocket.kernel.policy import DELAY_MS_MAX
from hocket.kernel.vocabulary import JOB, Subject
from hocket.node.calls import id_of
from hocket.store import JobEntry, OpRow, Session, Stage

if TYPE_CHECKING:
    from hocket.families.jobs.parts import Part
    from hocket.families.jobs.rules import Job
    from hocket.mesh.waiting import Waiting
    from hocket.node.calls import StreamNews
    from hocket.node.node import Node

REASON_CHARS_MAX = 500
# The most jobs of one answer over HTTP, and how long one waits for a job.
PAGE_MAX = 1_000
WAIT_MS_MAX = 50_000

JobText = Annotated[
    str,
    OverHttp(Annotated[str, Meta(pattern=ULID, description="The job's id.")]),
    Meta(min_length=1, max_length=64, description="A job id, or a unique beginning or end of one."),
    InShell(metavar="JOB"),
]
NotBefore = Annotated[int, Meta(ge=0, le=EXACT_MAX, description="When the job may start, in ms since 1970.")]
StartDelay = Annotated[int, Meta(ge=0, le=DELAY_MS_MAX, description="How long from now it may not start; 0 for now.")]
ChangeReason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX, description="Why; it is on the log.")]


def kind_asked(service: Service, asked: Arguments) -> list[str]:
    """The kind, or the kinds below one, that a list is about."""
    return [] if asked["kind"] is None else [asked["kind"]]


READ_KIND = TokenNeed("Job", "Read", kind_asked)
READ = TokenNeed("Job", "Read", is_judged_later=True)
CHANGE = TokenNeed("Job", "Schedule", is_judged_later=True)


class OpLine(ServiceAnswer, frozen=True):
    """One op. `counts` is whether it has an effect; if not, `reason` says why. An op that was written under a tempo
    bears the stamp of its beat.
    """

    seq: int
    id: str
    type: str
    hlc: str
    author: str
    job_id: str | None
    counts: bool
    reason: str | None
    detail: str
    stamp: BeatPlace | None = None


class JobBrief(ServiceAnswer, frozen=True):
    """One line of a list."""

    job_id: str
    kind: str
    state: str
    stage: str
    outcome: str | None
    claimer: str | None
    fence: int
    deadline_ms: int | None
    attempts: int
    failures: int
    returns: int
    priority: int
    scheduled_ms: int
    ready_at_ms: int | None
    done_ms: int | None
    progress: Any
    error: str | None


class JobArtifact(ServiceAnswer, frozen=True):
    artifact_id: str
    type: str
    size: int
    evicted: bool


class JobQuestion(ServiceAnswer, frozen=True):
    """A question of a job that runs. `to` is the agent, with its node, who must answer by then; `text` is left out for
    a program that may not read that agent's messages. `asks_you`: the program that asks is that agent.
    """

    message_id: str
    to: str
    text: str | None
    until_ms: int
    asks_you: bool


class ErasureShown(ServiceAnswer, frozen=True):
    """Which node has erased the content of a job, when by its clock, and why."""

    node: str
    at_ms: int
    reason: str


class JobDetails(JobBrief, frozen=True):
    """Everything about one job, with its ops. `waits_for` says in a sentence why it does not run or what it waits for,
    and `wait_reason` in a word for programs; both are None if the job has ended. `degraded` says
    what its runs did when the beats of its score ran out. `erased` is by whom, when and why its content was erased: the
    payload is then None, unless its op has it. The result, the artifacts and `degraded` are left out for a
    program that may not read artifacts of this kind.
    """

    waits_for: str | None
    wait_reason: WaitReason | None
    payload: Any
    erased: ErasureShown | None
    options: dict[str, Any]
    after: list[str]
    result: Any
    artifacts: list[JobArtifact]
    degraded: list[Any]
    traceback: str | None
    ops: list[OpLine]
    question: JobQuestion | None = None

    @property
    def changed_ms(self) -> int:
        """When its state was last recorded."""
        if self.done_ms is not None:
            return self.done_ms
        return max((parse_hlc(op.hlc, 0).wall for op in self.ops), default=self.scheduled_ms)


class JobResult(ServiceAnswer, frozen=True):
    """What became of a job. `outcome` is None while it has not ended."""

    job_id: str
    state: str
    outcome: str | None
    result: Any
    error: str | None


def briefs(session: Session, entries: Sequence[JobEntry]) -> list[JobBrief]:
    from hocket.families.jobs import view

    notes = newest_notes(session, (entry.job for entry in entries))
    return [convert(view.brief(session, entry, notes), JobBrief) for entry in entries]


def find(service: Service, prefix: str) -> str:
    """The id of the one job whose id begins or ends with this text. Raises Usage if there is none, or more than one."""
    return ulid_text(service.runtime.find(prefix))


def _show(shown: JobDetails, names: dict[str, str]) -> Iterator[View]:
    yield Pairs(_fields(shown, names))
    for name, text in (("error", shown.error), ("traceback", shown.traceback)):
        if text:
            yield Line("")
            yield Line(f"{name}:", "bold")
            yield Line(text.rstrip("\n"), lines=True)
    yield Line("")
    yield Line("ops:", "bold")
    yield _history(shown.ops, names)


def _history(ops: Sequence[OpLine], names: dict[str, str]) -> View:
    """A line per op. On a terminal the day is shown only if the ops are of several days."""
    from hocket.kernel.clock import parse_hlc

    times = [moment(parse_hlc(op.hlc, 0).wall) or "" for op in ops]
    start = len("2026-01-31 ") if len({each[:10] for each in times}) == 1 else 0
    lines = [
        (op.seq, time[start : len("2026-01-31 12:00:00.000")], names.get(op.author, op.author), op.type, _detail(op))
        for op, time in zip(ops, times, strict=True)
    ]
    rows = [(op.seq, op.hlc, op.author, op.type, op.id, _detail(op)) for op in ops]
    return Terminal(
        Table(("seq", "time", "node", "op", "detail"), lines, "none", is_cut=True),
        Table(("seq", "hlc", "author", "type", "id", "detail"), rows, "none"),
    )


def _detail(op: OpLine) -> str:
    return op.detail if op.counts else rejected(op)


def is_rejection(reason: str) -> bool:
    """Whether an op does not count for good; else it does not count yet, or the coordinator has decided on it."""
    from hocket.families.jobs.view import ACCEPTED, REFUSED
    from hocket.kernel.arbitration import Reason

    return reason not in (Reason.WAITING.sentence, Reason.OFFERED.sentence, ACCEPTED) and not reason.startswith(REFUSED)


def rejected(op: OpLine) -> str:
    """Why an op does not count, or not yet, or how the coordinator has decided on it."""
    reason = str(op.reason)
    return f"REJECTED: {reason}" if is_rejection(reason) else reason


def _fields(shown: JobDetails, names: dict[str, str]) -> list[tuple[str, object]]:
    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()

    stage = "" if shown.stage in (shown.state, "ready") else f" ({shown.stage})"
    pairs: list[tuple[str, object]] = [
        ("job", shown.job_id),
        ("kind", shown.kind),
        ("state", shown.state + stage),
        ("attempts", shown.attempts),
        ("failures", shown.failures),
        ("returns", shown.returns),
        ("fence", shown.fence),
        ("priority", shown.priority),
        ("submitted", moment(shown.scheduled_ms)),
    ]
    optional: list[tuple[str, Any]] = [
        ("not before", moment(shown.ready_at_ms)),
        ("waits for", shown.waits_for),
        ("asks", None if shown.question is None else shown.question.text),
        ("claimer", None if shown.claimer is None else names.get(shown.claimer, shown.claimer)),
        ("lease until", moment(shown.deadline_ms)),
        ("ended", moment(shown.done_ms)),
        ("after", " ".join(shown.after)),
        ("options", text(shown.options) if shown.options else None),
        ("progress", None if shown.progress is None else text(shown.progress)),
    ]
    pairs += [(name, value) for name, value in optional if value]
    if (erased := shown.erased) is not None:
        by = names.get(erased.node, erased.node)
        pairs.append(("erased", f"by {by} at {moment(erased.at_ms)}, because: {erased.reason}"))
    pairs.append(("payload", text(shown.payload)))
    if shown.outcome == "succeeded":
        pairs.append(("result", text(shown.result)))
    pairs += [("degraded", text(each)) for each in shown.degraded]
    return pairs


@operation("show_job", "GET /v1/jobs/{job}", READ, show=_show)
def show(service: Service, job: JobText) -> JobDetails:
    """Show everything about one job: state, payload, result, error with traceback, and its ops.

    \b
      hocket show 01J9ZC
      hocket show 01J9ZC --json | jq .result
    """
    from hocket.families.jobs import view

    service.refresh()
    with service.view_of(job) as session:
        details = view.full(session, view.find(session, job), service.runtime.blobs)
    waits_for, reason, question = None, None, None
    service.check("Job", "Read", details["kind"])
    job_id = id_of(details["job_id"])
    if details["outcome"] is None and (waiting := service.runtime.waiting_of(job_id)) is not None:
        waits_for, reason = waiting.sentence, waiting.reason
    if reason is WaitReason.ANSWER:
        with service.read() as session:
            entry = session.job(job_id)
            question = None if entry is None else _question(service, session, entry.job)
    if not service.may("Artifact", "Read", details["kind"]):
        details |= {"result": None, "artifacts": [], "degraded": []}
    waits = {"waits_for": waits_for, "wait_reason": reason, "question": question}
    return convert(details | waits, JobDetails)


@operation("job_history", "GET /v1/jobs/{job}/history", READ, key=lambda op: f"{op.seq:020}")
def history(service: Service, job: JobText) -> list[OpLine]:
    """List the ops of a job: what happened to it, when, and on which node."""
    with service.view_of(job) as session:
        job_id = found_job(service, session, job, "Read").id
        return op_lines(session, session.ops_about(Subject(JOB, job_id)))


@operation("job_result", "GET /v1/jobs/{job}/result", READ)
async def result_of(
    service: Service,
    node: "Node",
    job: JobText,
    wait_ms: Annotated[
        int, Meta(ge=0, le=WAIT_MS_MAX, description="How long to wait for the end of the job; default: not at all.")
    ] = 0,
) -> JobResult:
    """Show the result of a job, or why it failed; the token also needs `artifact:read` for its kind. A job that has not
    ended by then has no outcome yet.
    """
    from hocket.families.jobs import view

    def details(session: Session) -> dict[str, Any]:
        found_job(service, session, job, "Read")
        shown = view.full(session, view.find(session, job), service.runtime.blobs)
        service.check("Artifact", "Read", shown["kind"])
        return shown

    shown = await node.read(details)
    if wait_ms and shown["outcome"] is None:
        job_id = id_of(shown["job_id"])

        def ended(session: Session) -> tuple[bool, None]:
            entry = session.job(job_id)
            return entry is None or entry.stage is Stage.DONE, None

        with suppress(TimeoutError):
            await node.until(lambda: node.read(ended), wait_ms / 1000, about(JOB, job_id))
        shown = await node.peek(details)
    return JobResult(*(shown[name] for name in JobResult.__struct_fields__))


def found_job(service: Service, session: Session, job: str, action: str) -> "Job":
    """A job, if the program that asks may do this to jobs of its kind."""
    from hocket.families.jobs import view

    found = view.find(session, job).job
    service.check("Job", action, found.kind)
    return found


def result(
    service: Service,
    job_id: str,
    timeout: float | None,
    tell: "Callable[[Waiting | None], None]" = lambda waiting: None,
) -> Any:
    """Waits for a job to end and returns its result. Calls `tell` every second with what the job waits for."""
    from hocket.node.delivery import TELL_S
    from hocket.node.handles import ending_of
    from hocket.node.signals import held_interrupts

    node, wanted, deadline = service.node, id_of(job_id), None if timeout is None else time.monotonic() + timeout
    while True:
        left = TELL_S if deadline is None else min(TELL_S, deadline - time.monotonic())
        try:
            return node.until(lambda session: ending_of(session, wanted), max(0.0, left), about(JOB, wanted))
        except TimeoutError:
            with held_interrupts():
                waiting = service.runtime.waiting_of(wanted, is_connected=True)
        if deadline is not None and time.monotonic() >= deadline:
            why = service.delivery.send() or ("it has just ended" if waiting is None else waiting.sentence)
            raise Unreachable(
                f"job {job_id} has not ended within {timeout:g} seconds: {why}; see `hocket show {job_id}`"
            )
        tell(waiting)


def stream(service: Service, job_id: str, news: "StreamNews") -> "Generator[Part, None, None]":
    """The parts of a job's result, each once and in order, until it ends. Raises JobFailed or JobCancelled."""
    return service.node.parts(id_of(job_id), news)


@operation("cancel_job", "POST /v1/jobs/{job}/cancel", CHANGE, show=lambda done: [Line(f"cancelled {done.job_id}")])
def cancel(service: Service, job: JobText, reason: ChangeReason) -> JobBrief:
    """Cancel a pending or running job. Its worker stops the handler; jobs that come after it are cancelled too."""
    service.check_writer()
    job_id = _target(service, job, reason)
    service.node.job(job_id).cancel(reason)
    return brief(service, job_id)


@operation("retry_job", "POST /v1/jobs/{job}/retry", CHANGE, show=lambda done: [Line(f"retried {done.job_id}")])
def retry(service: Service, job: JobText, reason: ChangeReason) -> JobBrief:
    """Retry a failed or cancelled job, with all its retries. Fences keep counting."""
    service.check_writer()
    job_id = _target(service, job, reason)
    service.node.job(job_id).retry(reason)
    return brief(service, job_id)


@operation(
    "reschedule_job", "POST /v1/jobs/{job}/reschedule", CHANGE, show=lambda done: [Line(f"postponed {done.job_id}")]
)
def reschedule(
    service: Service,
    job: JobText,
    reason: ChangeReason,
    not_before_ms: NotBefore | None = None,
    delay_ms: StartDelay | None = None,
) -> JobBrief:
    """Move the start of a pending job, also of one that waits for its next try: to a time, or by a delay from now; one
    of them. A worker postpones the job that it holds by `postpone`, with its fence.
    """
    service.check_writer()
    job_id = _target(service, job, reason)
    delay = None if delay_ms is None else f"{delay_ms}ms"
    service.node.job(job_id).postpone(not_before_ms, delay=delay, reason=reason)
    return brief(service, job_id)


def _question(service: Service, session: Session, job: "Job") -> JobQuestion | None:
    """What the job asks; its text only for who may read it: the agent that is asked, or one with the grant."""
    from hocket.families.inbox.questions import open_question

    found = open_question(session, job, service.runtime.log.physical())
    if found is None:
        return None
    is_asked = found.to == f"{service.own_agent(None, found.agent)}@{node_text(service.runtime.log.node)}"
    may_read = is_asked or service.may("Inbox", "Read", found.to)
    return convert(found.shown(asks_you=is_asked, has_text=may_read), JobQuestion)


def brief(service: Service, job_id: str) -> JobBrief:
    return convert(service.runtime.brief(id_of(job_id)), JobBrief)


def _target(service: Service, job: str, reason: str) -> str:
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    with service.read() as session:
        return ulid_text(found_job(service, session, job, "Schedule").id)


def op_lines(session: Session, rows: Sequence[OpRow]) -> list[OpLine]:
    """Ops as lines of the log. An offer that the coordinator has decided on says how."""
    from hocket.families.jobs import view

    decided: dict[bytes, str] = {}
    with suppress(ValueError):  # an op cannot be read; its own line says so
        decided = view.decided_offers(session, rows)
    lines = zip(rows, map(_op_line, rows), strict=True)
    return [replace(line, reason=decided[row.id]) if row.id in decided else line for row, line in lines]


def _op_line(row: OpRow) -> OpLine:
    from hocket.families.jobs import view

    try:
        return convert(view.op_line(row), OpLine)
    except ValueError as error:
        # `log verify` judges damage; here the rest of the log is still worth showing.
        op_id = ulid_text(row.id[:16]) if len(row.id) >= 16 else row.id.hex()
        problem = f"its bytes cannot be read: {error}"
        return OpLine(row.seq, op_id, "unreadable", "-", "-", None, False, problem, "")
