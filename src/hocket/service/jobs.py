"""Jobs: list, watch, show, submit, cancel, retry."""

import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec

from hocket.bus.changes import about
from hocket.errors import Unreachable, Usage
from hocket.kernel.decoding import convert
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.roster import Outcome
from hocket.kernel.subjects import JOB
from hocket.service import ListPage, Service, ServiceAnswer
from hocket.service.op_lines import OpLine
from hocket.store import JobEntry, JobFilter, Session, Stage
from hocket.work.job_states import JobState
from hocket.work.progress import newest_notes

if TYPE_CHECKING:
    from hocket.kernel.parts import Part
    from hocket.mesh.waiting import Waiting
    from hocket.node.requests import StreamNews
    from hocket.work.jobs import Draft, Submitted

REASON_CHARS_MAX = 500
LIMIT_MAX = 100_000
# A watch says what the newest pending jobs wait for, up to so many.
EXPLAINED_MAX = 50
# How many jobs a count reads at once.
COUNT_STEP = 1_000


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
    what its runs did when the beats of its score ran out.
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


def page(service: Service, wanted: JobQuery) -> JobsPage:
    with service.read() as session:
        return _page(service, session, wanted)


def _page(service: Service, session: Session, wanted: JobQuery) -> JobsPage:
    entries = _select(session, wanted, wanted.limit + 1) if wanted.roster is None else _asked(service, session, wanted)
    shown = entries[: wanted.limit]
    from hocket.work import view

    pids = {worker.number: worker.pid for worker in session.workers()}
    notes = newest_notes(session, (entry.job for entry in shown))
    held = [entry for entry in shown if entry.stage is Stage.CLAIMED and entry.worker in pids]
    return JobsPage(
        [convert(view.brief(session, entry, notes), JobBrief) for entry in shown],
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


def show(service: Service, prefix: str) -> JobDetails:
    shown, waits_for = service.runtime.show(prefix), None
    if shown["outcome"] is None:
        waiting = service.runtime.waiting_of(_id(shown["job_id"]))
        waits_for = None if waiting is None else waiting.sentence
    return convert(shown | {"waits_for": waits_for}, JobDetails)


def submit(service: Service, drafts: "Sequence[Draft]") -> "list[Submitted]":
    """Submits all jobs in one transaction, or none."""
    service.check_writer()
    runtime = service.runtime

    def write() -> "list[Submitted]":
        if any(each.policy.budget is not None for each in drafts):
            from hocket.node.costs import check_budgets  # it loads more than a submit needs

            check_budgets(runtime, drafts)
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


def cancel(service: Service, prefix: str, reason: str) -> JobBrief:
    """Cancels a job, pending or running."""
    service.check_writer()
    job_id = _target(service, prefix, reason)
    service.node.job(job_id).cancel(reason)
    return brief(service, job_id)


def retry(service: Service, prefix: str, reason: str) -> JobBrief:
    """Retries a failed or cancelled job."""
    service.check_writer()
    job_id = _target(service, prefix, reason)
    service.node.job(job_id).retry(reason)
    return brief(service, job_id)


def brief(service: Service, job_id: str) -> JobBrief:
    return convert(service.runtime.brief(_id(job_id)), JobBrief)


def _target(service: Service, prefix: str, reason: str) -> str:
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    return find(service, prefix)
