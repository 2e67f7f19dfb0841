"""An adaptive tempo under load, before a fleet tries it: agents take jobs bar by bar, and the real controller hears the
real reports. A job that needs longer than a bar overruns and takes another one, so a tempo can be too fast.
"""

import random
from collections.abc import Callable
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
