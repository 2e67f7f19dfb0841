"""An adaptive tempo under load, before a fleet tries it: agents take jobs bar by bar, and the real controller hears the
real reports. A job that needs longer than a bar overruns and takes another one, so a tempo can be too fast.

What a simulation found can be drawn as SVG: tempo, queue and utilisation, one below the other.
"""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from hocket.extensions.tempo.beats import beat_at
from hocket.extensions.tempo.messages import BarReport, ClaimState
from hocket.extensions.tempo.policy import ControlState, TempoPolicy, control, read_policy
from hocket.kernel.clock import Hlc, hlc_text, wall_text

MINUTE_MS = 60_000
SLOTS = 20
MINUTES = 120
# How long a job runs: the median, and the spread of its logarithm.
JOB_MS = 12_000
JOB_SPREAD = 0.35
POLICY = read_policy(
    b"{cluster_id: simulated, initial_bpm: 12, bar_len_beats: 8, limits: {min_bpm: 6, max_bpm: 24},"
    b" adaptation: {enable: true}}"
)
WIDTH, HEIGHT = 720, 130
LEFT, RIGHT, TOP, GAP = 60, 15, 30, 25
TICK_MINUTES = 20
COLOURS = ("#2563eb", "#dc2626", "#16a34a")
INCIDENT = "#fde68a"


class TempoLoad(NamedTuple):
    """`jobs` is how many jobs come in a minute, and `is_incident` whether the tempo is frozen then."""

    name: str
    jobs: Callable[[float], float]
    is_incident: Callable[[float], bool] = lambda minute: False


LOADS = (
    TempoLoad("step", lambda minute: 20 if minute < 30 else 45),
    TempoLoad("burst", lambda minute: 120 if 30 <= minute < 40 else 20),
    TempoLoad("starvation", lambda minute: 25 if minute < 30 else 2),
    TempoLoad("incident", lambda minute: 20 if minute < 30 else 45, lambda minute: 40 <= minute < 70),
)


class SimulatedBar(NamedTuple):
    """One bar. `utilisation` is the share of slots that had a job."""

    minute: float
    bpm: int
    queue: int
    utilisation: float
    overruns: int
    is_incident: bool


def simulate_tempo(load: TempoLoad, seed: int = 0, policy: TempoPolicy = POLICY) -> list[SimulatedBar]:
    chance, state, tempo = random.Random(seed), ControlState(), policy.initial_tempo
    now_ms, queue, arriving, bars = 0, 0, 0.0, []
    while now_ms < MINUTES * MINUTE_MS:
        minute, bar_ms = now_ms / MINUTE_MS, tempo.bar_ms
        arriving += load.jobs(minute) * bar_ms / MINUTE_MS
        queue, arriving = queue + int(arriving), arriving - int(arriving)
        running = min(SLOTS, queue)
        overruns = sum(JOB_MS * chance.lognormvariate(0, JOB_SPREAD) > bar_ms for _ in range(running))
        queue -= running - overruns
        is_incident = load.is_incident(minute)
        bars.append(SimulatedBar(minute, tempo.bpm, queue, running / SLOTS, overruns, is_incident))
        report = _report(policy, tempo.bpm, now_ms, running, overruns, queue)
        now_ms += bar_ms
        state, change = control(policy, state, tempo, report, now_ms, is_frozen=is_incident)
        if change is not None:
            assert change.since_ms == now_ms and beat_at(tempo, now_ms).is_downbeat
            tempo = change.tempo
    return bars


def _report(policy: TempoPolicy, bpm: int, window_ms: int, tasks: int, overruns: int, queue: int) -> BarReport:
    return BarReport(
        cluster_id=policy.cluster_id,
        window=wall_text(window_ms),
        tempo_bpm=bpm,
        bar_len_beats=policy.bar_len_beats,
        agents=SLOTS,
        tasks=tasks,
        states={ClaimState.DONE: tasks - overruns, ClaimState.EXECUTING: overruns},
        overruns=overruns,
        kept_promises=0,
        late_promises=0,
        broken_promises=0,
        queue_depth=queue,
        utilisation=tasks / SLOTS,
        suggested_tempo_bpm=bpm,
        truncated=False,
        hlc=hlc_text(Hlc(window_ms, 0, 0)),
    )


class _Curve(NamedTuple):
    name: str
    values: list[float]
    most: float


def tempo_plot(title: str, bars: Sequence[SimulatedBar]) -> str:
    """The text of an SVG file. The same bars give the same text."""
    minutes = [bar.minute for bar in bars]
    last = max(minutes)
    curves = (
        _Curve("beats a minute", [bar.bpm for bar in bars], 25),
        _Curve("jobs waiting", [bar.queue for bar in bars], max(10, *(bar.queue for bar in bars))),
        _Curve("slots busy, %", [100 * bar.utilisation for bar in bars], 100),
    )
    height = TOP + len(curves) * (HEIGHT + GAP) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        ' font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" font-size="14">{title}</text>',
    ]
    for place, curve in enumerate(curves):
        top = TOP + place * (HEIGHT + GAP)
        lines += _frozen(bars, last, top)
        lines += _axes(curve, last, top)
        points = " ".join(
            f"{_x(minute, last):.1f},{_y(value, curve.most, top):.1f}"
            for minute, value in zip(minutes, curve.values, strict=True)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{COLOURS[place]}" stroke-width="1.5"/>')
    lines.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">minutes</text>')
    return "\n".join([*lines, "</svg>", ""])


def _axes(curve: _Curve, last: float, top: int) -> list[str]:
    bottom = top + HEIGHT
    lines = [
        f'<path d="M{LEFT} {top}V{bottom}H{WIDTH - RIGHT}" fill="none" stroke="#6b7280"/>',
        f'<text x="{LEFT + 6}" y="{top + 12}">{curve.name}</text>',
        f'<text x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{curve.most:.0f}</text>',
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>',
    ]
    for minute in range(0, int(last) + 1, TICK_MINUTES):
        lines.append(f'<text x="{_x(minute, last):.1f}" y="{bottom + 14}" text-anchor="middle">{minute}</text>')
    return lines


def _frozen(bars: Sequence[SimulatedBar], last: float, top: int) -> list[str]:
    """A background where an incident froze the tempo."""
    frozen = [bar.minute for bar in bars if bar.is_incident]
    if not frozen:
        return []
    left, right = _x(min(frozen), last), _x(max(frozen), last)
    return [f'<rect x="{left:.1f}" y="{top}" width="{right - left:.1f}" height="{HEIGHT}" fill="{INCIDENT}"/>']


def _x(minute: float, last: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * minute / last


def _y(value: float, most: float, top: int) -> float:
    return top + HEIGHT - HEIGHT * value / most
