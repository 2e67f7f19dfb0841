"""Lists of jobs: which there are, how many, and how they change; and cancelling or retrying many at once."""

import time
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from hocket.api import ListPage, Service, ServiceAnswer
from hocket.api.job_operations.job_filters import JobWhich
from hocket.api.jobs import PAGE_MAX, READ_KIND, JobBrief, briefs
from hocket.api.operation import ANSWER_BYTES, ULID, JoinedMembers, json_size, operation
from hocket.api.views import Line
from hocket.bus.hints import about
from hocket.errors import Usage
from hocket.families.jobs.rules import Outcome
from hocket.families.jobs.view import STATE_WORDS, JobState
from hocket.kernel.ids import ulid_text
from hocket.kernel.vocabulary import JOB
from hocket.node.calls import id_of
from hocket.store import JobEntry, JobFilter, Session, Stage

if TYPE_CHECKING:
    from hocket.families.jobs.selection import JobSelection

LIMIT_MAX = 100_000
# A watch says what the newest pending jobs wait for, up to so many.
EXPLAINED_MAX = 50
# How many jobs of a page are read before its size is looked at.
BRIEFS_STEP = 50


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
    `roster`, the oldest first, and neither a state nor an outcome counts. `which` says more about the jobs.
    """

    state: JobState | None = None
    outcome: OutcomeName | None = None
    kind: str | None = None
    limit: int = 50
    before: str | None = None
    roster: RosterQuery | None = None
    which: JobWhich = JobWhich()


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


class JobsCounted(ServiceAnswer, frozen=True):
    """`is_cut` is whether the count had to stop before the end: then there are at least so many."""

    jobs: int
    is_cut: bool


Which = Annotated[JobWhich, JoinedMembers()]
EVERY = JobWhich()


@operation("list_jobs", "GET /v1/jobs", READ_KIND, step=PAGE_MAX)
def listing(
    service: Service,
    which: Which = EVERY,
    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="The most jobs of one page.")] = 100,
    after: Annotated[str, Meta(pattern=ULID, description="`next` of the page before.")] | None = None,
) -> ListPage[JobBrief]:
    """List jobs, newest first. A page looks at a bounded number of jobs, so it may have fewer than `limit`, or none,
    and yet a `next`; the list ends where `next` is null. A token whose grant has a prefix names a kind that begins with
    it.
    """
    with service.read() as session:
        wanted = which.selection(service, session)
        filter = wanted.filter._replace(beyond=None if after is None else id_of(after))
        found = session.job_page(filter, limit, wanted.passes(session))
        items: list[JobBrief] = []
        size = 0
        for first in range(0, len(found.entries), BRIEFS_STEP):
            items += (some := briefs(session, found.entries[first : first + BRIEFS_STEP]))
            size += sum(len(each.error or "") for each in some) + json_size(each.progress for each in some)
            if size > ANSWER_BYTES:
                return ListPage(items, items[-1].job_id)
        return ListPage(items, None if found.beyond is None else ulid_text(found.beyond))


@operation(
    "count_jobs",
    "GET /v1/jobs/count",
    READ_KIND,
    show=lambda found: [Line(f"{'at least ' if found.is_cut else ''}{found.jobs}")],
)
def count_which(service: Service, which: Which = EVERY) -> JobsCounted:
    """Count jobs. By state and kind, ended jobs are counted without being read; by anything else, the count stops after
    a bounded number of them and says so.
    """
    with service.read() as session:
        wanted = which.selection(service, session)
        return JobsCounted(*session.bounded_count(wanted.filter, wanted.passes(session)))


def page(service: Service, wanted: JobQuery) -> JobsPage:
    with service.read() as session:
        return _page(service, session, wanted)


def _page(service: Service, session: Session, wanted: JobQuery) -> JobsPage:
    sought = _selection(service, session, wanted)
    if wanted.roster is None:
        entries = _select(session, sought, wanted)
    else:
        entries = _asked(service, session, wanted)
    shown = entries[: wanted.limit]
    pids = {worker.number: worker.pid for worker in session.workers()}
    held = [entry for entry in shown if entry.stage is Stage.CLAIMED and entry.worker in pids]
    return JobsPage(
        briefs(session, shown),
        ulid_text(shown[-1].job.id) if len(entries) > wanted.limit else None,
        max(service.runtime.log.physical(), session.head().wall),
        session.bounded_count(sought.filter, sought.passes(session)).jobs if wanted.roster is None else len(entries),
        session.job_count(JobFilter()),
        service.names(session),
        {ulid_text(entry.job.id): pids[entry.worker] for entry in held if entry.worker is not None},
    )


def _asked(service: Service, session: Session, wanted: JobQuery) -> list[JobEntry]:
    """The jobs that answer a question to the roster, and one more than wanted if there are more."""
    from hocket.work import members as roster_queries  # few lists need it

    ask = roster_queries.overdue if wanted.roster is RosterQuery.overdue else roster_queries.claimable
    return ask(service.runtime.log, session, wanted.kind, wanted.limit + 1)


def _select(session: Session, sought: "JobSelection", wanted: JobQuery) -> list[JobEntry]:
    """The newest jobs that match, and one more if there are more."""
    filter, passes = sought.filter, sought.passes(session)
    beyond = None if wanted.before is None else id_of(wanted.before)
    found: list[JobEntry] = []
    while len(found) <= wanted.limit:
        part = session.job_page(filter._replace(beyond=beyond), wanted.limit + 1 - len(found), passes)
        found, beyond = found + part.entries, part.beyond
        if beyond is None:
            break
    return found


def _selection(service: Service, session: Session, wanted: JobQuery) -> "JobSelection":
    outcome = None if wanted.outcome is None else Outcome[wanted.outcome.upper()]
    return wanted.which.selection(service, session)._replace(state=wanted.state, outcome=outcome, kind=wanted.kind)


def count(service: Service, wanted: JobQuery) -> int:
    """How many jobs match, whatever the limit."""
    with service.read() as session:
        return session.job_count(_selection(service, session, wanted).filter)


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
