"""`hocket tempo report` and `hocket tempo replay`: the windows that reverb has reported, with key figures and alarms,
and their ops and messages played again by the beat.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import op_lines
from hocket.cli.declarations import App, Option
from hocket.cli.options import PolicyOption
from hocket.cli.printing import emit, fields, notice, say, table
from hocket.cli.settings import open_service
from hocket.errors import NotFound, Usage
from hocket.extensions.tempo.beats import Tempo, make_tempo, place_of, timeline
from hocket.extensions.tempo.messages import BarReport, NodeLoad, PromiseResult, StatusClaim, to_json
from hocket.extensions.tempo.policy import TempoPolicy
from hocket.extensions.tempo.policy_file import assumed_policy
from hocket.extensions.tempo.reports import Alarm, alarms, kept_report, kept_reports, kept_window
from hocket.extensions.tempo.windows import BarWindows, WindowContent, read_pair
from hocket.kernel.clock import Hlc, pack, parse_hlc, parse_wall, unpack, wall_text
from hocket.kernel.texts import counted, span
from hocket.store import Session

if TYPE_CHECKING:
    from hocket.extensions.tempo.messages import BarReport
    from hocket.extensions.tempo.reports import ReportShown

WINDOWS_DEFAULT = 8
report_app = App()
replay_app = App()
# The ops of a window that are played.
OPS_MAX = 10_000
_STEP = 1_000


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
      hocket tempo report
      hocket tempo report --window 100 --json | jq .kpis
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
    from hocket.extensions.tempo.messages import ClaimState

    missed = f"{each.late_promises + each.broken_promises}/{each.promises}"
    more = "+" if each.truncated else ""
    done = each.states.get(ClaimState.DONE, 0)
    return each.window, f"{each.tasks}{more}", done, each.overruns, missed, each.queue_depth, _percent(each.utilisation)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


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
      hocket tempo replay
      hocket tempo replay --window 2025-09-03T02:12:16.000Z --json
    """
    at_ms = None if window is None else _time(window)
    with open_service() as service:
        shown = replayed(service, assumed_policy(service.runtime.home, policy), at_ms)
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


class PlayedLine(ServiceAnswer, frozen=True):
    """An op, or the last message about something. `who` is its author or agent, `about` its job, task or thread."""

    beat_index: int
    window: str
    hlc: str
    type: str
    who: str
    about: str | None
    detail: str


class Replay(ServiceAnswer, frozen=True):
    """`report` is on the log. `is_same` is whether the content of the window gives the same report, byte for byte.
    `is_cut` is whether there are more ops than are played.
    """

    report: BarReport
    is_same: bool
    alarms: list[Alarm]
    lines: list[PlayedLine]
    is_cut: bool


def replayed(service: Service, policy: TempoPolicy, at_ms: int | None = None) -> Replay:
    """The window that contains this time; without one, the newest. Raises NotFound, and Unreachable if the content of
    the window cannot be fetched from another node.
    """
    log, blobs = service.runtime.log, service.runtime.blobs
    with service.read() as session:
        report = _report(session, log.reading().wall, at_ms)
        tempo = make_tempo(report.tempo_bpm, report.bar_len_beats, report.window_ms)
        content = kept_window(session, blobs, report.window_ms, service.fetch)
        if content is None:
            raise NotFound(f"the log has the report of window {report.window}, but no longer its content")
        end_ms = report.window_ms + tempo.bar_ms
        ops = list(_ops(session, tempo, report.window_ms, end_ms))
    lines = [*ops[:OPS_MAX], *_messages(content, tempo)]
    windows = BarWindows(policy, timeline(tempo))
    is_same = windows.absorb(content, end_ms) and to_json(windows.report(report.window_ms)) == to_json(report)
    lines.sort(key=lambda line: parse_hlc(line.hlc, 0))
    return Replay(report, is_same, alarms(report), lines, len(ops) > OPS_MAX)


def _report(session: Session, now_ms: int, at_ms: int | None) -> BarReport:
    before_ms = None if at_ms is None else at_ms + 1
    for report in kept_reports(session, now_ms, 1, before_ms):
        bar_ms = make_tempo(report.tempo_bpm, report.bar_len_beats).bar_ms
        if at_ms is None or at_ms < report.window_ms + bar_ms:
            return kept_report(session, report.window_ms) or report
    when = "" if at_ms is None else f" at {wall_text(at_ms)}"
    raise NotFound(f"there is no window{when} on the log; `hocket tempo report` lists the newest")


def _ops(session: Session, tempo: Tempo, start_ms: int, end_ms: int) -> Iterator[PlayedLine]:
    """One more than are played, if there are so many."""
    after, count = pack(Hlc(start_ms, 0, 0)), 0
    while rows := session.ops_in_order(after, _STEP):
        for row, line in zip(rows, op_lines(session, rows), strict=True):
            stamp = unpack(row.hlc)
            if stamp.wall >= end_ms or count > OPS_MAX:
                return
            count, place = count + 1, place_of(tempo, stamp)
            detail = line.detail if line.counts else f"does not count: {line.reason}"
            yield PlayedLine(place.beat_index, place.window, place.hlc, line.type, line.author, line.job_id, detail)
        after = rows[-1].hlc


def _messages(content: WindowContent, tempo: Tempo) -> Iterator[PlayedLine]:
    def line(wall: int, logical: int, type: type, who: str, about: str | None, detail: str) -> PlayedLine:
        place = place_of(tempo, Hlc(wall, logical, 0))
        return PlayedLine(place.beat_index, place.window, place.hlc, type.__name__, who, about, detail)

    for key, task in content.tasks.items():
        left = f"{task.state}, {task.beats_left} beats left at least"
        yield line(task.wall, task.logical, StatusClaim, task.agent_id, read_pair(key)[1], left)
    for key, promise in content.promises.items():
        agent, thread = read_pair(key)
        yield line(promise.wall, promise.logical, PromiseResult, agent, thread, promise.outcome)
    for node, load in content.loads.items():
        told = f"{load.queue_depth} ready, {load.busy} of {load.slots} slots busy"
        yield line(load.wall, load.logical, NodeLoad, node, None, told)
