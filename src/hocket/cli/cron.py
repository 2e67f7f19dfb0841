"""`hocket cron`: schedules. While a worker of the node runs, each tick of a cron expression submits a job."""

from enum import StrEnum
from typing import Annotated

from hocket.api import schedules
from hocket.api.views import moment
from hocket.cli.declarations import Argument, Option, new_app
from hocket.cli.derived import add_operations
from hocket.cli.options import ScheduleOptions, job_options, payload
from hocket.cli.output import emit, say
from hocket.cli.settings import open_service

app = new_app()


class Overlap(StrEnum):
    skip = "skip"
    queue = "queue"


@app.callback()
def cron_group() -> None:
    """Submit jobs on a schedule. If no worker ran at a tick, the next worker makes it up, once.

    \b
      hocket cron add nightly '30 2 * * *' acme.backup
      hocket cron list
    """


@app.command()
def add(
    name: Annotated[str, Argument("NAME", "The schedule's name; replaces a schedule of that name.")],
    expression: Annotated[
        str, Argument("'EXPR'", "Five fields: minute hour day month weekday; or @daily and the like.")
    ],
    kind: Annotated[str, Argument("KIND", "The kind of its jobs.")],
    data: Annotated[str | None, Argument("[JSON|@FILE|-]", "Their payload.", show_default=False)] = None,
    timezone: Annotated[str, Option("--timezone", "NAME", "Like Europe/Vienna.")] = "UTC",
    overlap: Annotated[
        Overlap, Option("--overlap", help="If the last job has not ended at a tick: skip the tick, or queue a job.")
    ] = Overlap.skip,
    *,
    options: ScheduleOptions,
) -> None:
    """Set a schedule. It submits its first job at the next tick.

    Its jobs run with this node's authority, whichever node submits them. To replace or remove another node's schedule,
    a node must itself be allowed to schedule jobs of that kind.

    \b
      hocket cron add nightly '30 2 * * *' acme.backup '{"full": true}' --timezone Europe/Vienna
      hocket cron add pulse '*/5 * * * *' acme.ping --retries 2 --overlap queue
      hocket cron add report @daily acme.report
    """
    from hocket.families.jobs.cron import NewSchedule
    from hocket.families.jobs.drafts import draft

    made = draft(kind, payload(data), job_options(options))
    with open_service() as service:
        shown = schedules.add(service, NewSchedule(name, expression, timezone, made, overlap.value))
    emit(shown)
    if shown is not None:
        say(f"schedule {name} set; next tick {moment(shown.next_ms) or 'never'}")


add_operations(app, schedules.listing, schedules.remove)
