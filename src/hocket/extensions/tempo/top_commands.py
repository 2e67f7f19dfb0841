"""`hocket tempo top`: a live view of the mesh in a terminal, for 80 columns and more. It shows the beat, the nodes, who
holds what until when, the queue, alarms and cost.
"""

import time
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from hocket.api import Service, ServiceAnswer, locks, nodes
from hocket.api.nodes import LiveNode
from hocket.cli.declarations import Option
from hocket.cli.options import PolicyOption
from hocket.cli.printing import Row, console, emit, lines_drawn, on_terminal
from hocket.cli.settings import open_service, settings
from hocket.errors import Usage
from hocket.extensions.cost.costs import CostRow, prices_of, rates_of, row_of_job
from hocket.extensions.tempo.beats import beat_at, phase_at
from hocket.extensions.tempo.policy import TempoPolicy
from hocket.extensions.tempo.policy_file import assumed_policy
from hocket.extensions.tempo.reports import Alarm, alarms, kept_reports
from hocket.families.jobs.progress import newest_notes
from hocket.families.jobs.view import counted_as, readable
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_text
from hocket.kernel.texts import counted, span
from hocket.store import JobFilter, Session, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

# It is drawn on each beat, and this often if beats are slower.
DRAW_S = 1.0
DRAW_S_MIN = 0.2
# Lines that a frame needs beside its lists, and that a list has at least.
FRAME_LINES = 12
LIST_LINES_MIN = 3
# The most holds that are shown, and the newest ended jobs whose costs are summed.
HOLDS_MAX = 200
JOBS_MAX = 500
COST_MS = 3_600_000


class BeatOnTop(ServiceAnswer, frozen=True):
    cluster_id: str
    tempo_bpm: int
    beat_index: int
    bar_len_beats: int
    phase: str
    window: str
    next_ms: int


class HoldOnTop(ServiceAnswer, frozen=True):
    """A job or a lock, its holder, until when it is held, and the progress of a job."""

    type: str
    what: str
    holder: str
    until_ms: int | None
    progress: Any = None


class Top(ServiceAnswer, frozen=True):
    """`alarms` are those of the newest window, `window`, on the log; without a window, None and none. `cost` is that of
    the jobs that ended within an hour; None without a rate card. `unpriced` of their runs have no price by that card,
    and are not in it.
    """

    now_ms: int
    beat: BeatOnTop
    nodes: list[LiveNode]
    holds: list[HoldOnTop]
    queue: dict[str, int]
    window: str | None
    alarms: list[Alarm]
    cost: float | None
    currency: str | None
    unpriced: int


class TopView:
    """Looks again and again. What an ended job has cost does not change, so it is computed once."""

    def __init__(self, service: Service, policy: TempoPolicy) -> None:
        self._service, self._policy = service, policy
        self._rates = rates_of(service.runtime.home)
        self._costs: dict[bytes, CostRow] = {}

    def look(self) -> Top:
        service = self._service
        now_ms = service.runtime.log.physical()
        held = locks.listing(service)
        with service.read() as session:
            names = service.names(session)
            claimed = sorted(session.claimed(), key=lambda entry: entry.job.deadline or 0)
            queue = {counted_as(stage, None): 0 for stage in Stage if stage is not Stage.DONE}
            for (stage, _), count in session.counts().items():
                if stage is not Stage.DONE:
                    queue[counted_as(stage, None)] += count
            costs = self._ended_costs(session, now_ms)
            reports = kept_reports(session, now_ms, 1)
            notes = newest_notes(session, (entry.job for entry in claimed[:HOLDS_MAX]))
        jobs = []
        for entry in claimed[:HOLDS_MAX]:
            holder = "" if entry.job.claimer is None else node_text(entry.job.claimer)
            what = f"{entry.job.kind} {ulid_text(entry.job.id)}"
            note = notes.get(entry.job.id)
            progress = None if note is None else readable(note)
            jobs.append(HoldOnTop("job", what, names.get(holder, holder), entry.job.deadline, progress))
        return Top(
            now_ms,
            _beat_at(self._policy, now_ms),
            nodes.live(service),
            jobs + [HoldOnTop("lock", each.key, f"{each.agent}@{each.holder}", each.expires_ms) for each in held],
            queue,
            reports[0].window if reports else None,
            alarms(reports[0]) if reports else [],
            None if self._rates is None else sum(each.cost for each in costs),
            None if self._rates is None else self._rates.currency,
            sum(each.unpriced for each in costs),
        )

    def _ended_costs(self, session: Session, now_ms: int) -> list[CostRow]:
        if self._rates is None:
            return []
        newest = [entry.job for entry in session.jobs(JobFilter((Stage.DONE,)), JOBS_MAX)]
        ended = [job for job in newest if job.done is not None and job.done.wall > now_ms - COST_MS]
        runtime, known = self._service.runtime, self._costs
        prices = prices_of(runtime.home, self._rates, runtime.log.reading())
        self._costs = {
            job.id: known[job.id] if job.id in known else row_of_job(session, runtime.blobs, job, prices)
            for job in ended
        }
        return list(self._costs.values())


def _beat_at(policy: TempoPolicy, now_ms: int) -> BeatOnTop:
    tempo = policy.initial_tempo
    beat = beat_at(tempo, now_ms)
    phase = phase_at(policy.phases, tempo.bar_len, beat.index).name
    next_ms = beat.epoch_ms + tempo.beat_ms
    return BeatOnTop(policy.cluster_id, tempo.bpm, beat.index, tempo.bar_len, phase, wall_text(beat.window_ms), next_ms)


def top(
    once: Annotated[bool, Option("--once", help="Print one frame and end; also into a pipe.")] = False,
    policy: PolicyOption = None,
) -> None:
    """Show the mesh, live: the beat and its phase, the nodes, who holds which job or lock until when, the queue, the
    alarms of the newest window, and what the jobs of the last hour cost. Ctrl-C ends it.

    The beat is that of the policy by this machine's clock.

    \b
      hocket tempo top
      hocket tempo top --once
      hocket tempo top --once --json | jq .queue
    """
    once = once or settings.as_json
    if not once and not on_terminal():
        raise Usage("hocket tempo top needs a terminal; `hocket tempo top --once` prints one frame")
    with open_service() as service:
        service.refresh()
        view = TopView(service, assumed_policy(service.runtime.home, policy))
        if not once:
            _live(view.look)
            return
        shown = view.look()
    emit(shown)
    if not settings.as_json:
        shell = console()
        shell.print(frame(shown, shell.width, None), soft_wrap=False)


def _live(look: "Callable[[], Top]") -> None:
    from rich.live import Live

    shell = console()
    try:
        with Live(console=shell, screen=True, auto_refresh=False) as live:
            while True:
                shown = look()
                live.update(frame(shown, shell.width, shell.height), refresh=True)
                left_s = (shown.beat.next_ms - shown.now_ms) / 1000
                time.sleep(min(max(left_s, DRAW_S_MIN), DRAW_S))
    except KeyboardInterrupt:
        return


def frame(shown: Top, width: int, height: int | None) -> "RenderableType":
    """One picture. With a height, lists are cut so that it fits."""
    from rich.console import Group
    from rich.text import Text

    room = None if height is None else max(2 * LIST_LINES_MIN, height - FRAME_LINES)
    nodes_room = None if room is None else max(LIST_LINES_MIN, min(len(shown.nodes), room // 3))
    holds_room = None if room is None or nodes_room is None else room - nodes_room
    nodes = [
        (each.name or each.node, each.grade, each.availability.state, each.running, ", ".join(each.labels) or "-")
        for each in shown.nodes
    ]
    holds = [(each.type, each.what, each.holder, _until(each, shown.now_ms), _progress(each)) for each in shown.holds]
    queue = "  ".join(f"{name} {count:,}" for name, count in shown.queue.items())
    return Group(
        Text(_beat_line(shown.beat), "bold", no_wrap=True, overflow="ellipsis"),
        Text(f"queue   {queue}", no_wrap=True, overflow="ellipsis"),
        Text.assemble("alarms  ", _alarms(shown), no_wrap=True, overflow="ellipsis"),
        Text(f"cost    {_cost(shown)}", no_wrap=True, overflow="ellipsis"),
        Text(),
        *_list(("node", "state", "takes jobs", "running", "labels"), nodes, width, nodes_room, "node"),
        Text(),
        *_list(("held", "what", "by", "until", "progress"), holds, width, holds_room, "hold"),
    )


def _beat_line(beat: BeatOnTop) -> str:
    bar = "".join("●" if number == beat.beat_index else "·" for number in range(1, min(beat.bar_len_beats, 16) + 1))
    return f"{beat.cluster_id}  {bar}  beat {beat.beat_index}/{beat.bar_len_beats}  {beat.phase}  {beat.tempo_bpm} bpm"


def _alarms(shown: Top) -> tuple[str, str]:
    if shown.window is None:
        return "no reports on the log: run `hocket tempo reverb`", "dim"
    return (", ".join(shown.alarms), "bold red") if shown.alarms else (f"none in window {shown.window}", "green")


def _cost(shown: Top) -> str:
    if shown.cost is None:
        return "no rate card"
    left_out = f", without {counted(shown.unpriced, 'run')} that have no price" if shown.unpriced else ""
    return f"{shown.cost:.6g} {shown.currency} in the last hour{left_out}"


def _until(hold: HoldOnTop, now_ms: int) -> str:
    if hold.until_ms is None:
        return "-"
    left_ms = hold.until_ms - now_ms
    return f"{span(left_ms)} left" if left_ms > 0 else f"over for {span(-left_ms)}"


def _progress(hold: HoldOnTop) -> str:
    if hold.progress is None:
        return ""
    return hold.progress if isinstance(hold.progress, str) else msgspec.json.encode(hold.progress).decode()


def _list(
    columns: tuple[str, ...], rows: "Sequence[Row]", width: int, room: int | None, noun: str
) -> "list[RenderableType]":
    from rich.text import Text

    if not rows:
        return [Text(f"no {noun}s", "dim")]
    shown = rows if room is None else rows[:room]
    more = [] if len(shown) == len(rows) else [Text(f"and {counted(len(rows) - len(shown), noun)} more", "dim")]
    return [lines_drawn(columns, shown, width, ("what",)), *more]
