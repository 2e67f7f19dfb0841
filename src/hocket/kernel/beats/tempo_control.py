"""Adaptive tempo: a PI controller that makes the beat faster when work piles up and slower when agents idle, overrun
their phases or break their promises. Its guardrails: it moves only when it wants more than the policy's hysteresis, by
one beat a minute at most once a minute, within the limits, on a downbeat, and not at all during an incident.
"""

import msgspec

from hocket.kernel.beats.messages import BarReport
from hocket.kernel.beats.policy import TempoPolicy
from hocket.kernel.beats.tempo import Tempo, TempoChange, changed

CHANGE_MS = 60_000
# The load at which the tempo is right: slots mostly busy, and a short queue.
_LOAD_TARGET = 0.9
_STRAIN_WEIGHT = 2.0
_PROPORTIONAL = 0.5
_INTEGRAL = 0.1
_INTEGRAL_MAX = 10.0


class ControlState(msgspec.Struct, frozen=True):
    """`integral` is the sum of the errors so far; `changed_ms` is the downbeat of the last change, if there was one."""

    integral: float = 0.0
    changed_ms: int | None = None


def load_error(report: BarReport) -> float:
    """How far the window was from the right load: positive if the beat should be faster."""
    tasks = max(1, report.tasks)
    promises = max(1, report.kept_promises + report.late_promises + report.broken_promises)
    # The role with the deepest queue decides: it needs the beat most.
    depth = max(report.queue_by_role.values(), default=report.queue_depth)
    queue = depth / (depth + tasks)
    busy = max(report.utilisation, report.cpu_utilisation, report.gpu_utilisation or 0.0)
    strain = max(min(1.0, report.overruns / tasks), report.broken_promises / promises)
    return queue + busy - _LOAD_TARGET - _STRAIN_WEIGHT * strain


def suggested_bpm(policy: TempoPolicy, bpm: int, error: float) -> int:
    """The tempo that one window alone asks for. Every node that has the window computes the same."""
    return _step(policy, bpm, bpm * (1 + _PROPORTIONAL * error))


def control(
    policy: TempoPolicy, state: ControlState, tempo: Tempo, report: BarReport, now_ms: int, *, is_frozen: bool
) -> tuple[ControlState, TempoChange | None]:
    """Call this once for each bar, with the report of the last one. Frozen means an incident or a missing leader:
    nothing changes then, and nothing is added up.
    """
    if is_frozen or not policy.is_adaptive:
        return state, None
    error = load_error(report)
    total = min(_INTEGRAL_MAX, max(-_INTEGRAL_MAX, state.integral + error))
    wanted = policy.initial_bpm * (1 + _PROPORTIONAL * error + _INTEGRAL * total)
    # At a limit nothing more is added up in its direction, or leaving the limit would take as long as it was held.
    integral = state.integral if _is_beyond(policy, wanted, error) else total
    change = changed(tempo, _step(policy, tempo.bpm, wanted), now_ms)
    is_early = state.changed_ms is not None and change.since_ms - state.changed_ms < CHANGE_MS
    if change.tempo.bpm == tempo.bpm or is_early:
        return ControlState(integral, state.changed_ms), None
    return ControlState(integral, change.since_ms), change


def _is_beyond(policy: TempoPolicy, wanted: float, error: float) -> bool:
    return (wanted > policy.max_bpm and error > 0) or (wanted < policy.min_bpm and error < 0)


def _step(policy: TempoPolicy, bpm: int, wanted: float) -> int:
    """One beat a minute towards the wanted tempo, if that is far enough away."""
    if abs(wanted - bpm) * 100 <= policy.hysteresis_pct * bpm:
        return bpm
    return min(policy.max_bpm, max(policy.min_bpm, bpm + (1 if wanted > bpm else -1)))
