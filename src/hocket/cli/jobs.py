"""`hocket jobs`: lists jobs, once or until Ctrl-C. It redraws the list when a job changes, not on a timer."""

import sys
import time
from typing import Annotated

import typer

from hocket.cli.app import new_app
from hocket.cli.output import ago, console, drawn, emit, notice, on_terminal, table
from hocket.cli.settings import HomeOption, JsonOption, open_service, settings
from hocket.kernel.durations import span
from hocket.kernel.safe_text import clean
from hocket.service.jobs import LIMIT_MAX, JobBrief, JobQuery, JobsPage, JobsWatch, OutcomeName, StateName, page

# The list is redrawn at most once per DRAW_MIN_S, however fast the log grows. On a terminal it is redrawn at least once
# per DRAW_MAX_S, because it shows ages.
DRAW_MIN_S, DRAW_MAX_S = 0.1, 1.0
COLUMNS = ("job", "kind", "state", "attempts", "priority", "when", "held by")

app = new_app()


@app.command()
def jobs(
    state: Annotated[StateName | None, typer.Option("--state", help="Only jobs in this state.")] = None,
    outcome: Annotated[OutcomeName | None, typer.Option("--outcome", help="Only jobs with this outcome.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="PREFIX", help="Only this kind and the kinds below it.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LIMIT_MAX, help="The most to list.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing every change until Ctrl-C.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first. In a pipe: one line per job, with tabs between the columns.

    \b
      hocket jobs --state pending --kind acme
      hocket jobs --outcome failed --limit 10 --json
      hocket jobs --watch
    """
    wanted = JobQuery(state, outcome, kind, limit)
    with open_service() as service:
        if watch:
            _watch(JobsWatch(service, wanted))
            return
        listed = page(service, wanted)
    emit(listed.items)
    table(COLUMNS, _rows(listed), "no jobs")


def _rows(listed: JobsPage) -> list[tuple[object, ...]]:
    """The jobs as table rows."""
    rows: list[tuple[object, ...]] = []
    for job in listed.items:
        pid = listed.processes.get(job.job_id)
        holder = "-" if job.claimer is None else job.claimer if pid is None else f"{job.claimer}/{pid}"
        when = _when(job, listed.now_ms)
        rows.append((job.job_id, job.kind, _state(job), job.attempts, job.priority, when, holder))
    return rows


def _state(job: JobBrief) -> str:
    """The state in one word, and what a pending job waits for in a second."""
    if job.outcome is not None:
        return job.outcome
    return "claimed" if job.state == "claimed" else f"pending {'' if job.stage == 'ready' else job.stage}".strip()


def _when(job: JobBrief, now: int) -> str:
    if job.done_ms is not None:
        return ago(job.done_ms, now)
    if job.state == "claimed" and job.deadline_ms is not None:
        return f"lease {span(max(0, job.deadline_ms - now))}"
    if job.ready_at_ms is not None:
        return ago(job.ready_at_ms, now)
    return ago(job.scheduled_ms, now)


def _waits(listed: JobsPage) -> list[str]:
    """What pending jobs wait for, a line each."""
    return [f"{count} waiting: {sentence}" for sentence, count in listed.waits.items()]


def _watch(watch: JobsWatch) -> None:
    if on_terminal() and not settings.as_json:
        _watch_drawn(watch)
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


def _watch_drawn(watch: JobsWatch) -> None:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            listed = watch.wait(DRAW_MAX_S)
            rows, waits = _rows(listed), Text("\n".join(map(clean, _waits(listed))), "dim")
            live.update(Group(drawn(COLUMNS, rows) if rows else Text("no jobs"), waits), refresh=True)
            time.sleep(DRAW_MIN_S)
