"""Jobs: list, watch, show, submit, cancel, retry; and their ops as lines."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.operation import ULID, Arguments, InShell, OverHttp, TokenNeed, operation
from hocket.api.views import Line, Pairs, Table, Terminal, View, moment
from hocket.bus.hints import about
from hocket.errors import Unreachable, Usage
from hocket.families.jobs.progress import newest_notes
from hocket.families.jobs.rules import KIND_LENGTH_MAX, Outcome
from hocket.families.jobs.view import STATE_WORDS, JobState
from hocket.kernel.decoding import convert
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.ops import BeatPlace
from hocket.kernel.vocabulary import JOB, Subject
from hocket.store import JobEntry, JobFilter, OpRow, Session, Stage

if TYPE_CHECKING:
    from hocket.families.jobs.parts import Part
    from hocket.families.jobs.requests import Draft, Submitted
    from hocket.mesh.waiting import Waiting
    from hocket.node.calls import StreamNews
    from hocket.node.node import Node

REASON_CHARS_MAX = 500
LIMIT_MAX = 100_000
# A watch says what the newest pending jobs wait for, up to so many.
EXPLAINED_MAX = 50
# How many jobs a count reads at once.
COUNT_STEP = 1_000
# The most jobs of one answer over HTTP, and how long one waits for a job.
PAGE_MAX = 1_000
WAIT_MS_MAX = 50_000

JobText = Annotated[
    str,
    OverHttp(Annotated[str, Meta(pattern=ULID, description="The job's id.")]),
    Meta(min_length=1, max_length=64, description="A job id, or a unique beginning or end of one."),
    InShell(metavar="JOB"),
]
ChangeReason = Annotated[str, Meta(min_length=1, max_length=REASON_CHARS_MAX, description="Why; it is on the log.")]


def _kind_asked(service: Service, asked: Arguments) -> list[str]:
    """The kind, or the kinds below one, that a list is about."""
    return [] if asked["kind"] is None else [asked["kind"]]


READ_KIND = TokenNeed("Job", "Read", _kind_asked)
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


class OutcomeName(StrEnum):
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


class RosterQuery(StrEnum):
    """What a worker asks the roster: the jobs that this node may claim now, or those whose lease is over."""

    claimable = "claimable"
    overdue = "overdue"


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs to list: at most `limit`, newest first, all older than the job `before`. With a question to the
    `roster`, the oldest first, and neither a state nor an outcome counts.
    """

    state: JobState | None = None
    outcome: OutcomeName | None = None
    kind: str | None = None
    limit: int = 50
    before: str | None = None
    roster: RosterQuery | None = None


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


class JobDetails(JobBrief, frozen=True):
    """Everything about one job, with its ops. `waits_for` is a sentence; None if the job has ended. `degraded` says
    what its runs did when the beats of its score ran out. The result, the artifacts and `degraded` are left out for a
    program that may not read artifacts of this kind.
    """

    waits_for: str | None
    payload: Any
    options: dict[str, Any]
    after: list[str]
    result: Any
    artifacts: list[JobArtifact]
    degraded: list[Any]
    traceback: str | None
    ops: list[OpLine]


class JobResult(ServiceAnswer, frozen=True):
    """What became of a job. `outcome` is None while it has not ended."""

    job_id: str
    state: str
    outcome: str | None
    result: Any
    error: str | None


class JobsPage(ListPage[JobBrief], frozen=True):
    """`total` counts the jobs of all pages, `jobs` all jobs. `names` maps the ids of nodes to their names, `processes`
    the id of a claimed job to the process that holds it, if a worker of this store does. `waits` maps what pending jobs
    wait for to how many do; only a watch has it.
    """

    now_ms: int
    total: int
    jobs: int
    names: dict[str, str]
    processes: dict[str, int]
    waits: dict[str, int] = msgspec.field(default_factory=dict)


def query(
    state: str | None = None,
    outcome: str | None = None,
    kind: str | None = None,
    limit: int = 50,
    before: str | None = None,
) -> JobQuery:
    """The query that these words mean. Raises Usage."""
    try:
        found = None if state is None else JobState(state)
    except ValueError:
        raise Usage(f"no job is {state!r}; states are {', '.join(STATE_WORDS)}") from None
    try:
        return JobQuery(found, None if outcome is None else OutcomeName(outcome), kind, limit, before)
    except ValueError:
        raise Usage(f"no job has the outcome {outcome!r}; outcomes are {', '.join(OutcomeName)}") from None


@operation("list_jobs", "GET /v1/jobs", READ_KIND)
def listing(
    service: Service,
    state: Annotated[str, OverHttp(JobState), Meta(description="Only jobs in this state.")] | None = None,
    kind: Annotated[
        str, Meta(min_length=1, max_length=KIND_LENGTH_MAX, description="Only this kind; `acme.` for all below acme.")
    ]
    | None = None,
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="The most jobs of one page.")] = 100,
    after: Annotated[str, Meta(pattern=ULID, description="`next` of the page before.")] | None = None,
) -> ListPage[JobBrief]:
    """List jobs, newest first. A token whose grant has a prefix names a kind that begins with it."""
    wanted = query(state, None, kind, limit, after)
    with service.read() as session:
        entries = _select(session, wanted, limit + 1)
        return ListPage(
            _briefs(session, entries[:limit]), ulid_text(entries[limit - 1].job.id) if len(entries) > limit else None
        )


def _briefs(session: Session, entries: Sequence[JobEntry]) -> list[JobBrief]:
    from hocket.families.jobs import view

    notes = newest_notes(session, (entry.job for entry in entries))
    return [convert(view.brief(session, entry, notes), JobBrief) for entry in entries]


def page(service: Service, wanted: JobQuery) -> JobsPage:
    with service.read() as session:
        return _page(service, session, wanted)


def _page(service: Service, session: Session, wanted: JobQuery) -> JobsPage:
    entries = _select(session, wanted, wanted.limit + 1) if wanted.roster is None else _asked(service, session, wanted)
    shown = entries[: wanted.limit]
    pids = {worker.number: worker.pid for worker in session.workers()}
    held = [entry for entry in shown if entry.stage is Stage.CLAIMED and entry.worker in pids]
    return JobsPage(
        _briefs(session, shown),
        ulid_text(shown[-1].job.id) if len(entries) > wanted.limit else None,
        max(service.runtime.log.physical(), session.head().wall),
        session.job_count(_filter(wanted)) if wanted.roster is None else len(entries),
        session.job_count(JobFilter()),
        service.names(session),
        {ulid_text(entry.job.id): pids[entry.worker] for entry in held if entry.worker is not None},
    )


def _asked(service: Service, session: Session, wanted: JobQuery) -> list[JobEntry]:
    """The jobs that answer a question to the roster, and one more than wanted if there are more."""
    from hocket.work import roster_queries  # few lists need it

    ask = roster_queries.overdue if wanted.roster is RosterQuery.overdue else roster_queries.claimable
    return ask(service.runtime.log, session, wanted.kind, wanted.limit + 1)


def _select(session: Session, wanted: JobQuery, limit: int) -> list[JobEntry]:
    """The newest jobs that match."""
    before = None if wanted.before is None else _id(wanted.before)
    return session.jobs(_filter(wanted)._replace(beyond=before), limit)


def _filter(wanted: JobQuery) -> JobFilter:
    named = JobFilter() if wanted.state is None else wanted.state.filter
    outcome = None if wanted.outcome is None else Outcome[wanted.outcome.upper()]
    if None not in (outcome, named.outcome) and outcome is not named.outcome:
        raise Usage(f"no job is {wanted.state} with the outcome {wanted.outcome}; give one of the two")
    return named._replace(outcome=named.outcome if outcome is None else outcome, kind=wanted.kind)


def count(service: Service, wanted: JobQuery) -> int:
    """How many jobs match, whatever the limit."""
    with service.read() as session:
        if wanted.kind is None and wanted.before is None:
            named = _filter(wanted)
            stages, outcome = named.stages or tuple(Stage), named.outcome
            counts = session.counts().items()
            return sum(n for (stage, ended), n in counts if stage in stages and outcome in (None, ended))
        found = 0
        while entries := _select(session, wanted, COUNT_STEP):
            found += len(entries)
            wanted = msgspec.structs.replace(wanted, before=ulid_text(entries[-1].job.id))
        return found


def _id(text: str) -> bytes:
    try:
        return parse_ulid(text)
    except ValueError as error:
        raise Usage(f"{text!r} is not a job id: {error}") from None


class JobsWatch:
    """The last seen list, and the wait for a change."""

    def __init__(self, service: Service, wanted: JobQuery) -> None:
        self._service, self._node = service, service.node
        self._wanted = wanted
        self._began = time.monotonic()
        self.seen: JobsPage | None = None

    def wait(self, timeout: float | None = None) -> JobsPage:
        """The list after a change, or as it is when the time is over."""
        try:
            self._node.until(self._look, timeout, about(JOB))
        except TimeoutError:
            pass
        assert self.seen is not None
        return self.seen

    def _look(self, session: Session) -> tuple[bool, None]:
        found = _page(self._service, session, self._wanted)
        before, self.seen = self.seen, msgspec.structs.replace(found, waits=self._waits(session, found))
        return before is None or self.seen.items != before.items, None

    def _waits(self, session: Session, found: JobsPage) -> dict[str, int]:
        """What the pending jobs of the page wait for. A job that has just come may be claimed at once."""
        from hocket.node.delivery import TELL_S

        if time.monotonic() < self._began + TELL_S:
            return {}
        before = found.now_ms - TELL_S * 1000
        waiting_jobs = [each for each in found.items if each.state == JobState.pending and each.scheduled_ms <= before]
        read = self._service.runtime.wait_reader(session, is_connected=True)
        asked = [_id(each.job_id) for each in waiting_jobs[:EXPLAINED_MAX]]
        entries = [entry for each in asked if (entry := session.job(each)) is not None]
        told = [waiting for entry in entries if (waiting := read(entry)) is not None]
        sentences = {waiting.key: waiting.sentence for waiting in told}
        return dict(Counter(sentences[waiting.key] for waiting in told))


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


def rejected(op: OpLine) -> str:
    """Why an op does not count, or not yet, or how the coordinator has decided on it."""
    from hocket.families.jobs.view import ACCEPTED, REFUSED
    from hocket.kernel.reasons import Reason

    reason = str(op.reason)
    is_told = reason in (Reason.WAITING.sentence, Reason.OFFERED.sentence, ACCEPTED) or reason.startswith(REFUSED)
    return reason if is_told else f"REJECTED: {reason}"


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
        ("claimer", None if shown.claimer is None else names.get(shown.claimer, shown.claimer)),
        ("lease until", moment(shown.deadline_ms)),
        ("ended", moment(shown.done_ms)),
        ("after", " ".join(shown.after)),
        ("options", text(shown.options) if shown.options else None),
        ("progress", None if shown.progress is None else text(shown.progress)),
    ]
    pairs += [(name, value) for name, value in optional if value]
    pairs.append(("payload", text(shown.payload)))
    if shown.outcome == "succeeded":
        pairs.append(("result", text(shown.result)))
    pairs += [("degraded", text(each)) for each in shown.degraded]
    return pairs


@operation("show_job", "GET /v1/jobs/{job}", READ, command="show", show=_show)
def show(service: Service, job: JobText) -> JobDetails:
    """Show everything about one job: state, payload, result, error with traceback, and its ops.

    \b
      hocket show 01J9ZC
      hocket show 01J9ZC --json | jq .result
    """
    service.refresh()
    details, waits_for = service.runtime.show(job), None
    service.check("Job", "Read", details["kind"])
    if details["outcome"] is None:
        waiting = service.runtime.waiting_of(_id(details["job_id"]))
        waits_for = None if waiting is None else waiting.sentence
    if not service.may("Artifact", "Read", details["kind"]):
        details |= {"result": None, "artifacts": [], "degraded": []}
    return convert(details | {"waits_for": waits_for}, JobDetails)


@operation("job_history", "GET /v1/jobs/{job}/history", READ, key=lambda op: f"{op.seq:020}")
def history(service: Service, job: JobText) -> list[OpLine]:
    """List the ops of a job: what happened to it, when, and on which node."""
    with service.read() as session:
        job_id = parse_ulid(_found(service, session, job, "Read"))
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
        _found(service, session, job, "Read")
        shown = view.full(session, view.find(session, job))
        service.check("Artifact", "Read", shown["kind"])
        return shown

    shown = await node.peek(details)
    if wait_ms and shown["outcome"] is None:
        job_id = _id(shown["job_id"])

        def ended(session: Session) -> tuple[bool, None]:
            entry = session.job(job_id)
            return entry is None or entry.stage is Stage.DONE, None

        with suppress(TimeoutError):
            await node.until(lambda: node.read(ended), wait_ms / 1000, about(JOB, job_id))
        shown = await node.peek(details)
    return JobResult(*(shown[name] for name in JobResult.__struct_fields__))


def _found(service: Service, session: Session, job: str, action: str) -> str:
    """The id of a job, if the program that asks may do this to jobs of its kind."""
    from hocket.families.jobs import view

    found = view.find(session, job).job
    service.check("Job", action, found.kind)
    return ulid_text(found.id)


def submit(service: Service, drafts: "Sequence[Draft]") -> "list[Submitted]":
    """Submits all jobs in one transaction, or none."""
    service.check_writer()
    runtime = service.runtime

    def write() -> "list[Submitted]":
        for check in runtime.submit_checks(drafts):
            check()
        return runtime.submit(drafts)

    if runtime.spool is None:
        made = write()
    else:
        from hocket.node.kept_requests import keep_jobs, written_or_kept  # for a store in a database server

        made = written_or_kept(runtime, write, lambda error: keep_jobs(runtime, error, drafts))
    service.wrote()
    return made


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

    node, wanted, deadline = service.node, _id(job_id), None if timeout is None else time.monotonic() + timeout
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
    return service.node.parts(_id(job_id), news)


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


def brief(service: Service, job_id: str) -> JobBrief:
    return convert(service.runtime.brief(_id(job_id)), JobBrief)


def _target(service: Service, job: str, reason: str) -> str:
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    with service.read() as session:
        return _found(service, session, job, "Schedule")


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
