"""`hocket report` and `hocket replay`: the windows that reverb has reported, with key figures and alarms, and their ops
and messages played again by the beat.
"""

from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, Option
from hocket.cli.options import PolicyOption
from hocket.cli.output import emit, fields, notice, say, table
from hocket.cli.settings import open_service
from hocket.errors import Usage
from hocket.extensions.tempo.policy_file import assumed_policy
from hocket.kernel.clock import parse_wall
from hocket.kernel.texts import counted, span

if TYPE_CHECKING:
    from hocket.extensions.tempo.beats.messages import BarReport
    from hocket.extensions.tempo.reports import ReportShown

WINDOWS_DEFAULT = 8

report_app = App()


@report_app.command()
def report(
    window: Annotated[
        int, Option("--window", metavar="N", min=1, max=1000, help="The newest N windows.")
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
    from hocket.extensions.tempo.reports import report

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
    from hocket.extensions.tempo.beats.messages import ClaimState

    missed = f"{each.late_promises + each.broken_promises}/{each.promises}"
    more = "+" if each.truncated else ""
    done = each.states.get(ClaimState.DONE, 0)
    return each.window, f"{each.tasks}{more}", done, each.overruns, missed, each.queue_depth, _percent(each.utilisation)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


replay_app = App()


@replay_app.command()
def replay(
    window: Annotated[
        str | None,
        Option("--window", metavar="TIME", help="A time in it, like 2025-09-03T02:12:16.000Z. Default: newest."),
    ] = None,
    policy: PolicyOption = None,
) -> None:
    """Play a window again that a reverb has reported: every op and message of it, in order, each with its beat, its
    window and its HLC. Of each task, promise and node, the last message is there. Then the report is made again from
    what was kept of the window, and compared with the report on the log.

    \b
      hocket replay
      hocket replay --window 2025-09-03T02:12:16.000Z --json
    """
    from hocket.extensions.tempo.replay import replay

    at_ms = None if window is None else _time(window)
    with open_service() as service:
        shown = replay(service, assumed_policy(service.runtime.home, policy), at_ms)
    emit(shown)
    table(
        ("beat", "time", "type", "who", "about", "detail"),
        [(each.beat_index, each.hlc, each.type, each.who, each.about or "-", each.detail) for each in shown.lines],
        "no ops and no messages",
    )
    if shown.is_cut:
        notice("there are more ops in this window than are played")
    report = shown.report
    raised = f"; alarms: {', '.join(shown.alarms)}" if shown.alarms else ""
    say(f"window {report.window}: {counted(report.tasks, 'task')}, {counted(report.overruns, 'overrun')}{raised}")
    if shown.is_same:
        say("what was kept of the window gives the report that is on the log")
    else:
        say("what was kept of the window gives another report than the log has; was --policy another then?", "red")


def _time(text: str) -> int:
    try:
        return parse_wall(text)
    except ValueError:
        raise Usage(f"bad --window {text[:60]!r}; write a time like 2025-09-03T02:12:16.000Z") from None
