"""`hocket report`: the windows that reverb has reported, with their key figures and alarms."""

from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, fields, say, table
from hocket.cli.settings import open_service
from hocket.kernel.durations import span

if TYPE_CHECKING:
    from hocket.kernel.beats.messages import BarReport
    from hocket.service.reports import ReportShown

WINDOWS_DEFAULT = 8

app = new_app()


@app.command()
def report(
    window: Annotated[
        int, typer.Option("--window", metavar="N", min=1, max=1000, help="The newest N windows.")
    ] = WINDOWS_DEFAULT,
) -> None:
    """Show the newest windows that a reverb has reported: tasks, overruns, promises, load, key figures and alarms.

    The figures are of all shown windows together. Throughput is deliverables a beat, whatever the tempo; a deliverable
    is a task that is done. Efficiency is the share of the beats of tasks that was spent neither waiting nor on a task
    that failed. Costs need a rate card, and the time to something useful is the median from the submission of a job to
    its first artifact or its end.

    \b
      hocket report
      hocket report --window 100 --json | jq .kpis
    """
    from hocket.service.reports import report

    with open_service() as service:
        shown = report(service, window)
    emit(shown)
    fields(figures(shown))
    table(
        ("window", "tasks", "done", "overruns", "missed", "queue", "busy"),
        [_row(each) for each in shown.windows],
        "no windows",
    )
    for each in shown.alarms:
        say(f"alarm {each.alarm} in window {each.window}", "red")


def figures(shown: "ReportShown") -> list[tuple[str, str]]:
    found = shown.kpis
    cost = "-" if found.cpd is None else f"{found.cpd:.6g} {shown.currency}"
    return [
        ("deliverables", str(found.deliverables)),
        ("throughput", "-" if found.tnt is None else f"{found.tnt:.3g} a beat"),
        ("beats per deliverable", "-" if found.bpd is None else f"{found.bpd:.3g}"),
        ("waiting", _percent(found.wr)),
        ("efficiency", _percent(found.efficiency)),
        ("promises missed", _percent(found.pmr)),
        ("cost per deliverable", cost),
        ("first useful after", "-" if found.ttfu_ms is None else span(round(found.ttfu_ms))),
    ]


def _row(each: "BarReport") -> tuple[object, ...]:
    from hocket.kernel.beats.messages import ClaimState

    missed = f"{each.late_promises + each.broken_promises}/{each.promises}"
    more = "+" if each.truncated else ""
    done = each.states.get(ClaimState.DONE, 0)
    return each.window, f"{each.tasks}{more}", done, each.overruns, missed, each.queue_depth, _percent(each.utilisation)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"
