"""Jobs: list, watch, show, submit, cancel, retry."""

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from hocket.bus.changes import about
from hocket.errors import Unreachable, Usage
from hocket.kernel.ids import parse_ulid, ulid_text
from hocket.kernel.plurals import counted
from hocket.kernel.roster import Outcome
from hocket.kernel.subjects import JOB
from hocket.service import ListPage, Service, ServiceAnswer
from hocket.service.ops import OpLine
from hocket.store import JobEntry, JobFilter, Session, Stage
from hocket.work import view
from hocket.work.jobs import Draft, Submitted

REASON_CHARS_MAX = 500
LIMIT_MAX = 100_000
# How many jobs a count reads at once.
COUNT_STEP = 1_000


class StateName(StrEnum):
    pending = "pending"
    claimed = "claimed"
    completed = "completed"


class OutcomeName(StrEnum):
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


STAGES = {
    None: (),
    StateName.pending: (Stage.READY, Stage.DELAYED, Stage.BLOCKED),
    StateName.claimed: (Stage.CLAIMED,),
    StateName.completed: (Stage.DONE,),
}


class JobQuery(msgspec.Struct, frozen=True):
    """Which jobs to list: at most `limit`, newest first, all older than the job `before`."""

    state: StateName | None = None
    outcome: OutcomeName | None = None
    kind: str | None = None
    limit: int = 50
    before: str | None = None


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
    """Everything about one job, with its ops."""

    payload: Any
    options: dict[str, Any]
    after: list[str]
    result: Any
    artifacts: list[JobArtifact]
    traceback: str | None
    ops: list[OpLine]


class JobsPage(ListPage[JobBrief], frozen=True):
    """`total` counts the jobs of all pages, `jobs` all jobs. `names` maps the ids of nodes to their names, `processes`
    the id of a claimed job to the process that holds it, if a worker of this store does.
    """

    now_ms: int
    total: int
    jobs: int
    names: dict[str, str]
    processes: dict[str, int]


def page(service: Service, wanted: JobQuery) -> JobsPage:
    with service.read() as session:
        return _page(service, session, wanted)


def _page(service: Service, session: Session, wanted: JobQuery) -> JobsPage:
    entries = _select(session, wanted, wanted.limit + 1)
    shown = entries[: wanted.limit]
    pids = {worker.number: worker.pid for worker in session.workers()}
    held = [entry for entry in shown if entry.stage is Stage.CLAIMED and entry.worker in pids]
    return JobsPage(
        [msgspec.convert(view.brief(session, entry), JobBrief) for entry in shown],
        ulid_text(shown[-1].job.id) if len(entries) > wanted.limit else None,
        max(int(time.time() * 1000), session.head().wall),
        session.job_count(_filter(wanted)),
        session.job_count(JobFilter()),
        service.names(session),
        {ulid_text(entry.job.id): pids[entry.worker] for entry in held if entry.worker is not None},
    )


def _select(session: Session, wanted: JobQuery, limit: int) -> list[JobEntry]:
    """The newest jobs that match."""
    before = None if wanted.before is None else _id(wanted.before)
    return session.jobs(_filter(wanted)._replace(beyond=before), limit)


def _filter(wanted: JobQuery) -> JobFilter:
    outcome = None if wanted.outcome is None else Outcome[wanted.outcome.upper()]
    return JobFilter(STAGES[wanted.state], outcome, wanted.kind)


def count(service: Service, wanted: JobQuery) -> int:
    """How many jobs match, whatever the limit."""
    with service.read() as session:
        if wanted.kind is None and wanted.before is None:
            stages = STAGES[wanted.state] or tuple(Stage)
            outcome = None if wanted.outcome is None else Outcome[wanted.outcome.upper()]
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
        self._service = service
        self._node = service.node
        self._wanted = wanted
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
        before, self.seen = self.seen, _page(self._service, session, self._wanted)
        return before is None or self.seen.items != before.items, None


def find(service: Service, prefix: str) -> str:
    """The id of the one job whose id begins or ends with this text. Raises Usage if there is none, or more than one."""
    return ulid_text(service.runtime.find(prefix))


def show(service: Service, prefix: str) -> JobDetails:
    return msgspec.convert(service.runtime.show(prefix), JobDetails)


def submit(service: Service, drafts: Sequence[Draft]) -> list[Submitted]:
    """Submits all jobs in one transaction, or none."""
    service.check_writer()
    return service.runtime.submit(drafts)


def result(service: Service, job_id: str, timeout: float | None) -> Any:
    """Waits for a job to end and returns its result."""
    try:
        return service.node.job(job_id).result(timeout)
    except TimeoutError:
        waited = counted(timeout or 0.0, "second")
        raise Unreachable(
            f"job {job_id} has not ended within {waited}; it is still active, see `hocket show {job_id}`"
        ) from None


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
    return msgspec.convert(service.runtime.brief(_id(job_id)), JobBrief)


def _target(service: Service, prefix: str, reason: str) -> str:
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    return find(service, prefix)
