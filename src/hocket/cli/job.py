"""`cancel` and `retry`: they change one job, named by its id or a unique beginning or end of it, or many, named by
kind, state and age.
"""

import sys
from typing import TYPE_CHECKING, Annotated

from hocket.api import jobs
from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.derived import perform
from hocket.cli.output import confirmed, emit, on_terminal, progress, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, Usage

if TYPE_CHECKING:
    from hocket.work.bulk import BulkChange

cancel_app, retry_app = new_app(), new_app()

OneJob = Annotated[
    str | None, Argument(metavar="JOB", help="A job id, or a unique beginning or end of one.", show_default=False)
]
KindFilter = Annotated[
    str | None, Option("--kind", metavar="KIND", help="All jobs of this kind; `acme.` means all kinds below it.")
]
AgeFilter = Annotated[
    str | None, Option("--older-than", metavar="DURATION", help="All jobs submitted longer ago, like 1h.")
]
YesOption = Annotated[bool, Option("--yes", help="Change many jobs without a question.")]
ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Why; recorded on the log.")]


@cancel_app.command()
def cancel(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[
        str | None, Option("--state", metavar="STATE", help="All jobs in this state: pending or running.")
    ] = None,
    older_than: AgeFilter = None,
    yes: YesOption = False,
    reason: ReasonOption = "cancelled from the command line",
) -> None:
    """Cancel a pending or running job, or all that match. Workers stop their handlers; jobs that come after a cancelled
    one are cancelled too.

    \b
      hocket cancel 01J9ZC --reason "wrong frame"
      hocket cancel --kind acme. --state pending --older-than 1h
    """
    if job is None:
        from hocket.api.bulk import CANCEL

        _change_many(CANCEL, kind, state, older_than, yes, reason)
    else:
        _refuse_filters(kind, state, older_than)
        perform(jobs.cancel, job, reason)


@retry_app.command()
def retry(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[
        str | None,
        Option("--state", metavar="STATE", help="All jobs in this state: failed (the default) or cancelled."),
    ] = None,
    older_than: AgeFilter = None,
    yes: YesOption = False,
    reason: ReasonOption = "retried from the command line",
) -> None:
    """Retry a failed or cancelled job, or all that match, with all their retries. Fences keep counting.

    \b
      hocket retry 01J9ZC --reason "disk replaced"
      hocket retry --kind acme.render --yes
    """
    if job is None:
        from hocket.api.bulk import RETRY

        _change_many(RETRY, kind, state, older_than, yes, reason)
    else:
        _refuse_filters(kind, state, older_than)
        perform(jobs.retry, job, reason)


def _refuse_filters(*filters: str | None) -> None:
    if any(each is not None for each in filters):
        raise Usage("give either a job, or --kind, --state and --older-than to name many")


def _change_many(
    change: "BulkChange", kind: str | None, state: str | None, older_than: str | None, yes: bool, reason: str
) -> None:
    """Asks before it changes many jobs, unless `yes`."""
    from hocket.api import bulk

    with open_service() as service:
        wanted = bulk.select(service, change, state, kind, older_than)
        found = bulk.count(service, wanted)
        if found and not yes and not _confirmed(f"{change.verb} {_counted(found)}?", found):
            raise Conflict("nothing was changed")
        with progress(change.verb) as bar:
            done = bulk.change_all(service, change, wanted, reason, lambda visited: bar(visited, found))
    emit({"matched": found, **done._asdict()})
    say(f"{change.done} {_counted(done.changed)}" if found else "no job matches")
    if done.refused:
        raise Conflict(f"{_counted(done.refused)} could not be {change.done}: {done.why}")


def _confirmed(question: str, found: int) -> bool:
    if settings.as_json or not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
        raise Usage(f"{_counted(found)} match; give --yes to go on without a question")
    return confirmed(question, err=True)


def _counted(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"
