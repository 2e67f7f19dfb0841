"""`hocket jobs`: the list of jobs, once or for as long as somebody watches. It is drawn anew when a job changes, not
on a beat.
"""

import sys
import time
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from hocket.bus.changes import about
from hocket.cli.app import new_app
from hocket.cli.output import ago, console, drawn, emit, on_terminal, span, table
from hocket.cli.settings import HomeOption, JsonOption, open_desk, settings
from hocket.kernel.roster import Outcome
from hocket.kernel.safe_text import clean
from hocket.kernel.subjects import JOB
from hocket.node.runtime import Runtime
from hocket.store import JobFilter, Session, Stage
from hocket.work import view

LIMIT_MAX = 100_000
# The list is drawn at most this often, however fast the log grows; on a terminal at least this often, because there
# are ages in it.
DRAW_MIN_S, DRAW_MAX_S = 0.1, 1.0
COLUMNS = ("job", "kind", "state", "attempts", "priority", "when", "held by")

app = new_app()


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


class JobList(NamedTuple):
    """Which jobs the list is of, and at most how many."""

    filter: JobFilter
    limit: int


@app.command()
def jobs(
    state: Annotated[StateName | None, typer.Option("--state", help="Only jobs in this state.")] = None,
    outcome: Annotated[OutcomeName | None, typer.Option("--outcome", help="Only jobs that ended so.")] = None,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="PREFIX", help="Only this kind and those below it.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=LIMIT_MAX, help="At most so many.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Go on, and show every change, until Ctrl-C.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, the newest first. In a pipe: a line for each job, tabs between the columns.

    \b
      hocket jobs --state pending --kind acme
      hocket jobs --outcome failed --limit 10 --json
      hocket jobs --watch
    """
    wanted = JobList(JobFilter(STAGES[state], None if outcome is None else Outcome[outcome.upper()], kind), limit)
    with open_desk() as runtime:
        if watch:
            _watch(runtime, wanted)
            return
        with runtime.read() as session:
            listed, rows = _listed(session, wanted)
    emit(listed)
    table(COLUMNS, rows, "no jobs")


def _listed(session: Session, wanted: JobList) -> tuple[list[dict[str, Any]], list[tuple[object, ...]]]:
    """The jobs for programs, and the same as rows for people."""
    entries = session.jobs(wanted.filter, wanted.limit)
    listed = [view.brief(entry) for entry in entries]
    now = max(int(time.time() * 1000), session.head().wall)
    pids = {worker.number: worker.pid for worker in session.workers()}
    rows: list[tuple[object, ...]] = []
    for entry, job in zip(entries, listed, strict=True):
        pid = pids.get(entry.worker) if entry.worker is not None and job["state"] == "claimed" else None
        holder = "-" if job["claimer"] is None else job["claimer"] if pid is None else f"{job['claimer']}/{pid}"
        counts = (job["attempts"], job["priority"])
        rows.append((job["job_id"], job["kind"], state_of(job), *counts, _when(job, now), holder))
    return listed, rows


def state_of(job: dict[str, Any]) -> str:
    """One word, and a second one for what a pending job waits for."""
    if job["outcome"] is not None:
        return str(job["outcome"])
    return (
        "claimed" if job["state"] == "claimed" else f"pending {'' if job['stage'] == 'ready' else job['stage']}".strip()
    )


def _when(job: dict[str, Any], now: int) -> str:
    if job["done_ms"] is not None:
        return ago(job["done_ms"], now)
    if job["state"] == "claimed" and job["deadline_ms"] is not None:
        return f"lease {span(max(0, job['deadline_ms'] - now))}"
    if job["ready_at_ms"] is not None:
        return ago(job["ready_at_ms"], now)
    return ago(job["scheduled_ms"], now)


class JobsWatch:
    """The list as it was seen last, and the wait for it to change."""

    def __init__(self, runtime: Runtime, wanted: JobList) -> None:
        from hocket.node.node import SyncNode

        self._node = SyncNode(runtime)
        self._wanted = wanted
        self.listed: list[dict[str, Any]] | None = None
        self.rows: list[tuple[object, ...]] = []

    def wait(self, timeout: float | None = None) -> None:
        """Until the list has changed, or the time is over."""
        try:
            self._node.until(self._look, timeout, about(JOB))
        except TimeoutError:
            pass

    def _look(self, session: Session) -> tuple[bool, None]:
        before = self.listed
        self.listed, self.rows = _listed(session, self._wanted)
        return self.listed != before, None


def _watch(runtime: Runtime, wanted: JobList) -> None:
    watch = JobsWatch(runtime, wanted)
    if on_terminal() and not settings.as_json:
        _watch_drawn(watch)
        return
    known: dict[str, Any] = {}
    while True:
        watch.wait()
        listed = watch.listed or []
        emit(listed)
        if not settings.as_json:
            # A pipe gets each line that has changed.
            for row, job in zip(watch.rows, listed, strict=True):
                if known.get(job["job_id"]) != job:
                    print("\t".join(clean(cell) for cell in row))
        known = {job["job_id"]: job for job in listed}
        sys.stdout.flush()
        time.sleep(DRAW_MIN_S)


def _watch_drawn(watch: JobsWatch) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            watch.wait(DRAW_MAX_S)
            live.update(drawn(COLUMNS, watch.rows) if watch.rows else Text("no jobs"), refresh=True)
            time.sleep(DRAW_MIN_S)
