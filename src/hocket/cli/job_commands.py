"""`hocket jobs` lists jobs, once or until Ctrl-C; it redraws the list when a job changes, not on a timer. `cancel`,
`retry` and `postpone` change one job, named by its id or a unique beginning or end of it, or many, named by kind, state
and age.
"""

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec.structs import fields, replace

from hocket.api import jobs as operations
from hocket.api.job_lists import (
    LIMIT_MAX,
    JobQuery,
    JobsPage,
    JobsWatch,
    OutcomeName,
    RosterQuery,
    count_which,
    page,
)
from hocket.api.job_operations.job_changes import change_all, count_selected
from hocket.api.job_operations.job_filters import JobWhich, past_ms
from hocket.api.jobs import JobBrief
from hocket.api.operation import Input
from hocket.api.views import ago
from hocket.cli.declarations import Argument, Option, OptionGroup
from hocket.cli.options import StateOption
from hocket.cli.printing import confirmed, console, emit, lines_drawn, notice, on_terminal, progress, say
from hocket.cli.settings import open_service, settings
from hocket.errors import Conflict, Usage
from hocket.families.jobs.view import JobState
from hocket.kernel.texts import clean, counted, duration_ms, span

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hocket.families.jobs.bulk import BulkChange


# The list is redrawn at most once per DRAW_MIN_S, however fast the log grows. On a terminal it is redrawn at least once
# per DRAW_MAX_S, because it shows ages.
DRAW_MIN_S, DRAW_MAX_S = 0.1, 1.0
COLUMNS = ("job", "kind", "state", "tries", "prio", "when", "node", "note")


_METAVARS = {
    **{"submitter": "NODE", "since_ms": "TIME", "until_ms": "TIME", "id": "TEXT", "tag": "TAG", "error": "TEXT"},
    "arg": "PATH=VALUE",
}
_TIMES = ("since_ms", "until_ms")
# What `JobWhich` has besides the state and the kind.
FilterOptions = Annotated[
    dict[str, Any],
    OptionGroup(
        {
            each.name: Annotated[
                str | None,
                Option(
                    f"--{each.name.removesuffix('_ms')}",
                    metavar,
                    Input(each.name, each.type, None).description
                    + (" Like 1h, or 2030-01-31T09:00:00Z." if each.name in _TIMES else ""),
                    show_default=False,
                ),
            ]
            for each in fields(JobWhich)
            if (metavar := _METAVARS.get(each.name)) is not None
        }
    ),
]


def _which(values: dict[str, Any]) -> JobWhich:
    """The filters that a command line names."""
    given: dict[str, Any] = {name: value for name, value in values.items() if value is not None}
    return JobWhich(**given | {name: past_ms(given[name]) for name in _TIMES if name in given})


def jobs(
    state: StateOption = None,
    outcome: Annotated[
        OutcomeName | None, Option("--outcome", help="Only ended jobs with this outcome.", hidden=True)
    ] = None,
    kind: Annotated[str | None, Option("--kind", "KIND", "Only this kind; `acme.` for all kinds below acme.")] = None,
    limit: Annotated[int, Option("--limit", "N", "The most to list.", min=1, max=LIMIT_MAX)] = 50,
    claimable: Annotated[
        bool, Option("--claimable", help="Only pending jobs that this node may claim now, oldest first.")
    ] = False,
    overdue: Annotated[
        bool, Option("--overdue", help="Only running jobs that are past their deadline, oldest first.")
    ] = False,
    *,
    filters: FilterOptions,
    count: Annotated[bool, Option("--count", help="Only print how many jobs match.")] = False,
    watch: Annotated[bool, Option("--watch", help="Keep showing every change until Ctrl-C.")] = False,
) -> None:
    """List jobs, newest first. A terminal shows the ends of job ids, which name a job as well as whole ids do. In a
    pipe: one line per job, with tabs between the columns.

    \b
      hocket jobs --state pending --kind acme.
      hocket jobs --state failed --limit 10 --json
      hocket jobs --claimable --kind acme.render
      hocket jobs --tag nightly --since 1d --error "out of memory"
      hocket jobs --kind acme.render --arg frame=7
      hocket jobs --watch
    """
    which = _which(filters)
    if count:
        if claimable or overdue or watch or outcome is not None:
            raise Usage("--count counts what --state, --kind and the other filters match; leave out the rest")
        from hocket.cli.derived import perform

        perform(count_which, replace(which, state=None if state is None else JobState(state), kind=kind))
        return
    wanted = JobQuery(None if state is None else JobState(state), outcome, kind, limit, which=which)
    if claimable or overdue:
        if (claimable and overdue) or state is not None or outcome is not None or which != JobWhich():
            raise Usage("give one of --claimable, --overdue, and --state, --outcome or another filter but --kind")
        asked = RosterQuery.claimable if claimable else RosterQuery.overdue
        wanted = JobQuery(kind=kind, limit=limit, roster=asked)
    with open_service() as service:
        if watch:
            _watch(JobsWatch(service, wanted), kind)
            return
        service.refresh()
        listed = page(service, wanted)
    emit(listed.items)
    if settings.as_json:
        return
    if on_terminal():
        console().print(_drawn(listed, kind, console().width), soft_wrap=False)
    else:
        for row in _rows(listed):
            print("\t".join(clean(cell) for cell in row))


def _rows(listed: JobsPage) -> list[tuple[object, ...]]:
    """The jobs as lines of a pipe: every column, and whole ids."""
    return [
        (
            *(job.job_id, job.kind, _state(job), job.attempts, job.priority),
            *(_when(job, listed.now_ms), _holder(job, listed) or "-", _note(job) or "-"),
        )
        for job in listed.items
    ]


def _drawn(listed: JobsPage, kind: str | None, width: int) -> "RenderableType":
    """The jobs as a table, without the columns that tell nothing: if no job was retried, none has a priority."""
    from rich.console import Group
    from rich.text import Text

    from hocket.families.jobs.view import ending_chars

    if not listed.items:
        return Text(_nothing(kind), "dim")
    chars = ending_chars([job.job_id for job in listed.items], listed.jobs)
    rows = [
        (
            *(job.job_id[-chars:], job.kind, _state(job).split()[-1], job.attempts if job.attempts > 1 else ""),
            *(job.priority or "", _when(job, listed.now_ms), _holder(job, listed), _note(job)),
        )
        for job in listed.items
    ]
    shown = lines_drawn(COLUMNS, rows, width, middle=("kind",))
    cut = len(rows) < listed.total
    return Group(shown, Text(f"{len(rows)} of {listed.total}; --limit N shows more", "dim")) if cut else shown


def _nothing(kind: str | None) -> str:
    below = kind is not None and not kind.endswith(".")
    return f"no jobs of kind {clean(kind)}; `--kind {clean(kind)}.` lists the kinds below it" if below else "no jobs"


def _holder(job: JobBrief, listed: JobsPage) -> str:
    """The node that holds or held it, and which process of it, if that is known here."""
    pid = listed.processes.get(job.job_id)
    node = "" if job.claimer is None else listed.names.get(job.claimer, job.claimer)
    return node if pid is None else f"{node}/{pid}"


def _note(job: JobBrief) -> str:
    """What the handler says of a running job, or why it failed last, and how often it was returned."""
    if job.state == "running" and job.progress is not None:
        return job.progress if isinstance(job.progress, str) else msgspec.json.encode(job.progress).decode()
    returned = f"returned {counted(job.returns, 'time')}" if job.returns and job.outcome is None else ""
    return "" if job.outcome == "succeeded" else "; ".join(filter(None, (job.error, returned)))


def _state(job: JobBrief) -> str:
    """The state in one word, and what a pending job waits for in a second."""
    return f"pending {job.stage}" if job.stage in ("delayed", "blocked") else job.state


def _when(job: JobBrief, now: int) -> str:
    if job.done_ms is not None:
        return ago(job.done_ms, now)
    if job.state == "running" and job.deadline_ms is not None:
        return f"lease {span(max(0, job.deadline_ms - now))}"
    if job.ready_at_ms is not None:
        return ago(job.ready_at_ms, now)
    return ago(job.scheduled_ms, now)


def _waits(listed: JobsPage) -> list[str]:
    """What pending jobs wait for, a line each."""
    return [f"{count} waiting: {sentence}" for sentence, count in listed.waits.items()]


def _watch(watch: JobsWatch, kind: str | None) -> None:
    if on_terminal() and not settings.as_json:
        _watch_drawn(watch, kind)
        return
    known: dict[str, JobBrief] = {}
    shown: list[JobBrief] | None = None
    said: set[str] = set()
    while True:
        listed = watch.wait(DRAW_MAX_S)
        for line, sentence in zip(_waits(listed), listed.waits, strict=True):
            if sentence not in said:
                notice(line)
        said = set(listed.waits)
        if listed.items == shown:
            continue
        shown = listed.items
        emit(listed.items)
        if not settings.as_json:
            # A pipe gets only the lines that changed.
            for row, job in zip(_rows(listed), listed.items, strict=True):
                if known.get(job.job_id) != job:
                    print("\t".join(clean(cell) for cell in row))
        known = {job.job_id: job for job in listed.items}
        sys.stdout.flush()
        time.sleep(DRAW_MIN_S)


def _watch_drawn(watch: JobsWatch, kind: str | None) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            listed = watch.wait(DRAW_MAX_S)
            waits = Text("\n".join(map(clean, _waits(listed))), "dim")
            live.update(Group(_drawn(listed, kind, live.console.width), waits), refresh=True)
            time.sleep(DRAW_MIN_S)


OneJob = Annotated[str | None, Argument("JOB", "A job id, or a unique beginning or end of one.", show_default=False)]
KindFilter = Annotated[str | None, Option("--kind", "KIND", "All jobs of this kind; `acme.` means all kinds below it.")]
AgeFilter = Annotated[str | None, Option("--older-than", "DURATION", "All jobs submitted longer ago, like 1h.")]
YesOption = Annotated[bool, Option("--yes", help="Change many jobs without a question.")]
DryRunOption = Annotated[bool, Option("--dry-run", help="Only count the jobs that match.")]
ReasonOption = Annotated[str, Option("--reason", "TEXT", "Why; recorded on the log.")]


def cancel(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[str | None, Option("--state", "STATE", "All jobs in this state: pending or running.")] = None,
    older_than: AgeFilter = None,
    *,
    filters: FilterOptions,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "cancelled from the command line",
) -> None:
    """Cancel a pending or running job, or all that match. Workers stop their handlers; jobs that come after a cancelled
    one are cancelled too.

    \b
      hocket cancel 01J9ZC --reason "wrong frame"
      hocket cancel --kind acme. --state pending --older-than 1h
      hocket cancel --tag nightly --dry-run
    """
    from hocket.families.jobs.bulk import CANCEL

    which = _many(CANCEL, kind, state, older_than, filters)
    if job is None:
        _change_many(CANCEL, which, yes, reason, dry_run)
    else:
        _refuse_filters(which, dry_run)
        from hocket.cli.derived import perform

        perform(operations.cancel, job, reason)


def retry(
    job: OneJob = None,
    kind: KindFilter = None,
    state: Annotated[
        str | None, Option("--state", "STATE", "All jobs in this state: failed (the default) or cancelled.")
    ] = None,
    older_than: AgeFilter = None,
    *,
    filters: FilterOptions,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "retried from the command line",
) -> None:
    """Retry a failed or cancelled job, or all that match, with all their retries. Fences keep counting.

    \b
      hocket retry 01J9ZC --reason "disk replaced"
      hocket retry --kind acme.render --yes
      hocket retry --error "out of memory" --since 1d
    """
    from hocket.families.jobs.bulk import RETRY

    which = _many(RETRY, kind, state, older_than, filters)
    if job is None:
        _change_many(RETRY, which, yes, reason, dry_run)
    else:
        _refuse_filters(which, dry_run)
        from hocket.cli.derived import perform

        perform(operations.retry, job, reason)


def postpone(
    job: OneJob = None,
    not_before: Annotated[
        str | None, Option("--not-before", "TIME", "Start at this time, like +30s or 2030-01-31T09:00:00Z.")
    ] = None,
    delay: Annotated[str | None, Option("--for", "DURATION", "Start so long from now, like 10m.")] = None,
    now: Annotated[bool, Option("--now", help="Start now. This replaces every earlier start time.")] = False,
    kind: KindFilter = None,
    state: Annotated[
        str | None, Option("--state", "STATE", "All jobs in this state: pending (the default), ready or delayed.")
    ] = None,
    older_than: AgeFilter = None,
    *,
    filters: FilterOptions,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "postponed from the command line",
) -> None:
    """Move the start of a pending job, or of all that match: later, earlier, or to now. This also moves the next try
    of a job that failed. Give one of --not-before, --for and --now.

    \b
      hocket job postpone 01J9ZC --for 10m
      hocket job postpone --kind acme. --not-before 2030-01-31T09:00:00Z
      hocket job postpone --error "out of memory" --state delayed --now
    """
    from hocket.families.jobs.bulk import postponing
    from hocket.families.jobs.postponing import start_time

    start = start_time(not_before, delay, now)
    which = _many(postponing(start), kind, state, older_than, filters)
    if job is None:
        _change_many(postponing(start), which, yes, reason, dry_run)
    else:
        _refuse_filters(which, dry_run)
        from hocket.cli.derived import perform

        perform(operations.reschedule, job, reason, *start.written)


def _many(
    change: "BulkChange", kind: str | None, state: str | None, older_than: str | None, filters: dict[str, Any]
) -> JobWhich:
    from hocket.families.jobs.bulk import state_of

    which = replace(_which(filters), kind=kind, state=None if state is None else state_of(change, state))
    if older_than is None:
        return which
    if which.until_ms is not None:
        raise Usage("give one of --older-than and --until")
    try:
        return replace(which, until_ms=int(time.time() * 1000) - duration_ms(older_than))
    except ValueError as error:
        raise Usage(f"bad age: {error}") from None


def _refuse_filters(which: JobWhich, dry_run: bool) -> None:
    if which != JobWhich() or dry_run:
        raise Usage("give either a job, or --kind, --state and --older-than to name many")


def _change_many(change: "BulkChange", which: JobWhich, yes: bool, reason: str, dry_run: bool) -> None:
    """Asks before it changes many jobs, unless `yes`."""
    with open_service() as service:
        wanted, (found, is_cut) = count_selected(service, change, which)
        about = f"{'at least ' if is_cut else ''}{_counted(found)}"
        if dry_run:
            emit({"matched": found, "is_cut": is_cut})
            say(f"{about} would be {change.done}")
            return
        if found and not yes and not _confirmed(f"{change.verb} {about}?", about):
            raise Conflict("nothing was changed")
        with progress(change.verb) as bar:
            done = change_all(service, change, wanted, reason, lambda visited: bar(visited, max(found, visited)))
    emit({"matched": found, **done._asdict()})
    say(f"{change.done} {_counted(done.changed)}" if found else "no job matches")
    if done.refused:
        raise Conflict(f"{_counted(done.refused)} could not be {change.done}: {done.why}")


def _confirmed(question: str, about: str) -> bool:
    if settings.as_json or not (on_terminal(sys.stdin) and on_terminal(sys.stderr)):
        raise Usage(f"{about} match; give --yes to go on without a question")
    return confirmed(question, err=True)


def _counted(number: int) -> str:
    return f"{number:,} job{'' if number == 1 else 's'}"
