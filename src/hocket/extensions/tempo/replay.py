"""Plays a window again: every op and message of it in HLC order, each with its beat, and the report that the stored
content of the window gives. The window's report tells its tempo, so beats are right whatever the tempo is now.
"""

from collections.abc import Iterator

from hocket.api import Service, ServiceAnswer
from hocket.api.jobs import op_lines
from hocket.errors import NotFound
from hocket.extensions.tempo.beats.kpis import Alarm, alarms
from hocket.extensions.tempo.beats.messages import BarReport, NodeLoad, PromiseResult, StatusClaim, to_json
from hocket.extensions.tempo.beats.placing import place_of
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.beats.reverb import BarWindows, WindowContent, read_pair
from hocket.extensions.tempo.beats.tempo import Tempo, make_tempo, timeline
from hocket.extensions.tempo.window_archive import kept_report, kept_reports, kept_window
from hocket.kernel.clock import Hlc, pack, parse_hlc, unpack, wall_text
from hocket.store import Session

# The ops of a window that are played.
OPS_MAX = 10_000
_STEP = 1_000


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


def replay(service: Service, policy: TempoPolicy, at_ms: int | None = None) -> Replay:
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
    raise NotFound(f"there is no window{when} on the log; `hocket report` lists the newest")


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
