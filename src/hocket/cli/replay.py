"""`hocket replay`: plays a window that reverb has reported again."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, notice, say, table
from hocket.cli.settings import open_service
from hocket.cli.tempo_policy import PolicyOption, assumed_policy
from hocket.errors import Usage
from hocket.kernel.clock import parse_wall
from hocket.kernel.plurals import counted

app = new_app()


@app.command()
def replay(
    window: Annotated[
        str | None,
        typer.Option("--window", metavar="TIME", help="A time in it, like 2025-09-03T02:12:16.000Z. Default: newest."),
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
    from hocket.service.replay import replay

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
