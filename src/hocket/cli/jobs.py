"""`hocket jobs`: lists jobs, once or until Ctrl-C. It redraws the list when a job changes, not on a timer."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import msgspec

from hocket.api.jobs import LIMIT_MAX, JobBrief, JobQuery, JobsPage, JobsWatch, OutcomeName, RosterQuery, page
from hocket.api.views import ago
from hocket.cli.declarations import Option, new_app
from hocket.cli.options import StateOption
from hocket.cli.output import console, emit, lines_drawn, notice, on_terminal
from hocket.cli.settings import open_service, settings
from hocket.errors import Usage
from hocket.kernel.texts import clean, counted, span
from hocket.work.job_states import JobState

if TYPE_CHECKING:
    from rich.console import RenderableType

# The list is redrawn at most once per DRAW_MIN_S, however fast the log grows. On a terminal it is redrawn at least once
# per DRAW_MAX_S, because it shows ages.
DRAW_MIN_S, DRAW_MAX_S = 0.1, 1.0
COLUMNS = ("job", "kind", "state", "tries", "prio", "when", "node", "note")

app = new_app()


@app.command()
def jobs(
    state: StateOption = None,
    outcome: Annotated[
        OutcomeName | None, Option("--outcome", help="Only ended jobs with this outcome.", hidden=True)
    ] = None,
    kind: Annotated[
        str | None, Option("--kind", metavar="KIND", help="Only this kind; `acme.` for all kinds below acme.")
    ] = None,
    limit: Annotated[int, Option("--limit", metavar="N", min=1, max=LIMIT_MAX, help="The most to list.")] = 50,
    claimable: Annotated[
        bool, Option("--claimable", help="Only pending jobs that this node may claim now, oldest first.")
    ] = False,
    overdue: Annotated[
        bool, Option("--overdue", help="Only running jobs that are past their deadline, oldest first.")
    ] = False,
    watch: Annotated[bool, Option("--watch", help="Keep showing every change until Ctrl-C.")] = False,
) -> None:
    """List jobs, newest first. A terminal shows the ends of job ids, which name a job as well as whole ids do. In a
    pipe: one line per job, with tabs between the columns.

    \b
      hocket jobs --state pending --kind acme.
      hocket jobs --state failed --limit 10 --json
      hocket jobs --claimable --kind acme.render
      hocket jobs --watch
    """
    wanted = JobQuery(None if state is None else JobState(state), outcome, kind, limit)
    if claimable or overdue:
        if (claimable and overdue) or state is not None or outcome is not None:
            raise Usage("give one of --claimable, --overdue, and --state or --outcome")
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

    from hocket.work.view import ending_chars

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
