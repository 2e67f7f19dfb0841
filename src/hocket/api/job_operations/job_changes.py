"""Cancelling, retrying or postponing all jobs that match, in transactions of bounded size, with progress; or only
counting them.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta
from msgspec.structs import replace

from hocket.api import Service, ServiceAnswer
from hocket.api.job_operations.job_filters import JobWhich
from hocket.api.jobs import REASON_CHARS_MAX, ChangeReason, NotBefore, StartDelay, kind_asked
from hocket.api.operation import JoinedMembers, TokenNeed, operation
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.families.jobs.bulk import BulkChange, Changed, Selection
    from hocket.node.node import Node
    from hocket.store import JobCount, Session

# The most jobs that one request over HTTP changes.
CHANGES_MAX = 100_000


class JobsChanged(ServiceAnswer, frozen=True):
    """How far a change of many jobs is. `matched` is how many matched at the beginning, at least so many if `is_cut`;
    `visited` how many of them it has reached, `changed` how many of these it has changed. The others had ended
    meanwhile, or were `refused`; `why` is the first reason. The last line `is_done`.
    """

    matched: int
    is_cut: bool
    visited: int
    changed: int
    refused: int
    why: str | None
    is_done: bool


CHANGE_KIND = TokenNeed("Job", "Schedule", kind_asked)
Which = Annotated[JobWhich, JoinedMembers()]
DryRun = Annotated[bool, Meta(description="Only count the jobs that match.")]
ChangeLimit = Annotated[int, Meta(ge=1, le=CHANGES_MAX, description="The most jobs to change; the oldest first.")]


@operation("cancel_jobs", "POST /v1/jobs/cancel", CHANGE_KIND)
async def cancel_jobs(
    service: Service,
    node: "Node",
    which: Which,
    reason: ChangeReason,
    dry_run: DryRun = False,
    limit: ChangeLimit = CHANGES_MAX,
) -> AsyncIterator[JobsChanged]:
    """Cancel all pending and running jobs that match, or with a `state` only those in it. Name at least one filter.
    With `dry_run` they are only counted. A line comes after each transaction; if the program disconnects, the rest is
    left as it is.
    """
    from hocket.families.jobs.bulk import CANCEL

    return await _begun(service, node, CANCEL, which, reason, dry_run, limit)


@operation("retry_jobs", "POST /v1/jobs/retry", CHANGE_KIND)
async def retry_jobs(
    service: Service,
    node: "Node",
    which: Which,
    reason: ChangeReason,
    dry_run: DryRun = False,
    limit: ChangeLimit = CHANGES_MAX,
) -> AsyncIterator[JobsChanged]:
    """Retry all failed jobs that match, or the cancelled ones with `"state": "cancelled"`. Otherwise it is like
    cancelling many.
    """
    from hocket.families.jobs.bulk import RETRY

    return await _begun(service, node, RETRY, which, reason, dry_run, limit)


@operation("reschedule_jobs", "POST /v1/jobs/reschedule", CHANGE_KIND)
async def reschedule_jobs(
    service: Service,
    node: "Node",
    which: Which,
    reason: ChangeReason,
    not_before_ms: NotBefore | None = None,
    delay_ms: StartDelay | None = None,
    dry_run: DryRun = False,
    limit: ChangeLimit = CHANGES_MAX,
) -> AsyncIterator[JobsChanged]:
    """Move the start of all pending jobs that match, to a time or by a delay from now. Otherwise it is like cancelling
    many.
    """
    from hocket.families.jobs.bulk import postponing
    from hocket.families.jobs.postponing import NOW, start_of

    is_told = not_before_ms is not None or delay_ms is not None
    change = postponing(NOW if dry_run and not is_told else start_of(not_before_ms, delay_ms))
    return await _begun(service, node, change, which, reason, dry_run, limit)


async def _begun(
    service: Service, node: "Node", change: "BulkChange", which: JobWhich, reason: str, dry_run: bool, limit: int
) -> AsyncIterator[JobsChanged]:
    """Checks and counts before the first line."""
    from hocket.families.jobs import bulk

    service.check_writer()

    def read(session: "Session") -> "tuple[Selection, JobCount]":
        wanted = selected(service, session, change, which)
        return wanted, bulk.count(session, wanted)

    wanted, count = await node.read(read)
    return _changes(node, change, wanted, count, reason, None if dry_run else limit)


async def _changes(
    node: "Node", change: "BulkChange", wanted: "Selection", count: "JobCount", reason: str, limit: int | None
) -> AsyncGenerator[JobsChanged, None]:
    from hocket.families.jobs import bulk

    done = JobsChanged(*count, 0, 0, 0, None, is_done=True)
    if limit is not None:
        async for visited, (changed, refused, why) in bulk.changes(node, change, wanted, reason, limit):
            done = JobsChanged(*count, visited, changed, refused, why, is_done=True)
            yield replace(done, is_done=False)
        node.wrote()
    yield done


def selected(service: Service, session: "Session", change: "BulkChange", which: JobWhich) -> "Selection":
    """The jobs that a change is about. Raises Usage if nothing says which."""
    from hocket.families.jobs import bulk

    if which == JobWhich():
        raise Usage(f"say which jobs to {change.verb}: by kind, state, age or another filter")
    return bulk.selection(change, which.state, which.selection(service, session))


def count_selected(service: Service, change: "BulkChange", which: JobWhich) -> "tuple[Selection, JobCount]":
    from hocket.families.jobs import bulk

    with service.read() as session:
        wanted = selected(service, session, change, which)
        return wanted, bulk.count(session, wanted)


def change_all(
    service: Service, change: "BulkChange", wanted: "Selection", reason: str, progress: Callable[[int], None]
) -> "Changed":
    """Makes the change of all jobs that match, in transactions of bounded size."""
    from hocket.families.jobs import bulk

    service.check_writer()
    if not 0 < len(reason) <= REASON_CHARS_MAX:
        raise Usage(f"a reason must have 1 to {REASON_CHARS_MAX} characters, not {len(reason)}")
    try:
        return service.node.with_node(lambda node: bulk.change_all(node, change, wanted, reason, progress))
    finally:
        service.wrote()
