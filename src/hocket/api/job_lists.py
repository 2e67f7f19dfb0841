"""Lists of jobs: which there are, how many, and how they change; and cancelling or retrying many at once."""

import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from hocket.api import ListPage, Service
from hocket.api.jobs import PAGE_MAX, READ_KIND, REASON_CHARS_MAX, JobBrief, briefs, id_of
from hocket.api.operation import ULID, OverHttp, operation
from hocket.bus.hints import about
from hocket.errors import Usage
from hocket.families.jobs.rules import KIND_LENGTH_MAX, Outcome
from hocket.families.jobs.view import STATE_WORDS, JobState
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import JOB
from hocket.store import JobEntry, JobFilter, Session, Stage

if TYPE_CHECKING:
    from hocket.families.jobs.bulk import BulkChange, Changed, Selection

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
            briefs(session, entries[:limit]), ulid_text(entries[limit - 1].job.id) if len(entries) > limit else None
        )


def page(service: Service, wanted: JobQuery) -> JobsPage:
    with service.read() as session:
        return _page(service, session, wanted)


def _page(service: Service, session: Session, wanted: JobQuery) -> JobsPage:
    entries = _select(session, wanted, wanted.limit + 1) if wanted.roster is None else _asked(service, session, wanted)
    shown = entries[: wanted.limit]
    pids = {worker.number: worker.pid for worker in session.workers()}
    held = [entry for entry in shown if entry.stage is Stage.CLAIMED and entry.worker in pids]
    return JobsPage(
        briefs(session, shown),
        ulid_text(shown[-1].job.id) if len(entries) > wanted.limit else None,
        max(service.runtime.log.physical(), session.head().wall),
        session.job_count(_filter(wanted)) if wanted.roster is None else len(entries),
        session.job_count(JobFilter()),
        service.names(session),
        {ulid_text(entry.job.id): pids[entry.worker] for entry in held if entry.worker is not None},
    )


def _asked(service: Service, session: Session, wanted: JobQuery) -> list[JobEntry]:
    """The jobs that answer a question to the roster, and one more than wanted if there are more."""
    from hocket.work import members as roster_queries  # few lists need it

    ask = roster_queries.overdue if wanted.roster is RosterQuery.overdue else roster_queries.claimable
    return ask(service.runtime.log, session, wanted.kind, wanted.limit + 1)


def _select(session: Session, wanted: JobQuery, limit: int) -> list[JobEntry]:
    """The newest jobs that match."""
    before = None if wanted.before is None else id_of(wanted.before)
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
        asked = [id_of(each.job_id) for each in waiting_jobs[:EXPLAINED_MAX]]
        entries = [entry for each in asked if (entry := session.job(each)) is not None]
        told = [waiting for entry in entries if (waiting := read(entry)) is not None]
        sentences = {waiting.key: waiting.sentence for waiting in told}
        return dict(Counter(sentences[waiting.key] for waiting in told))


def select(
    service: Service, change: "BulkChange", state: str | None, kind: str | None, older_than: str | None
) -> "Selection":
    """The jobs that these options name."""
    from hocket.families.jobs import bulk

    now_ms = service.runtime.log.reading().wall
    return bulk.select(change, now_ms, state=state, kind=kind, older_than=older_than)


def count_selected(service: Service, wanted: "Selection") -> int:
    from hocket.families.jobs import bulk

    with service.read() as session:
        return bulk.count(session, wanted)


def change_all(
    service: Service, change: "BulkChange", wanted: "Selection", reason: str, progress: Callable[[int], None]
) -> "Changed":
    """Cancels or retries all jobs that match, in transactions of bounded size."""
    from hocket.families.jobs import bulk

    service.check_writer()
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    try:
        return service.node.with_node(lambda node: bulk.change_all(node, change, wanted, reason, progress))
    finally:
        service.wrote()
