"""Adaptive tempo: a PI controller that makes the beat faster when work piles up and slower when agents idle, overrun
their phases or break their promises. Its guardrails: it moves only when it wants more than the policy's hysteresis, by
one beat a minute at most once a minute, within the limits, on a downbeat, and not at all during an incident. Where it
leaves the tempo as it is, it may move a beat of the bar from one phase to another, under the same guardrails.
"""

import msgspec

from hocket.extensions.tempo.beats.messages import BarReport
from hocket.extensions.tempo.beats.phases import Phases
from hocket.extensions.tempo.beats.policy import TempoPolicy
from hocket.extensions.tempo.beats.tempo import Tempo, TempoChange, changed

CHANGE_MS = 60_000
# The load at which the tempo is right: slots mostly busy, and a short queue.
_LOAD_TARGET = 0.9
_STRAIN_WEIGHT = 2.0
# A phase that more than this share of the tasks overrun gets a beat of another.
_OVERRUN_SHARE = 0.2
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


def redistribute(policy: TempoPolicy, phases: Phases, report: BarReport) -> dict[str, int] | None:
    """Phases with one beat moved to the one that most tasks overrun, if these are many, from the longest that none
    does; None if nothing is to move. The bar keeps its beats, and each phase one at least.
    """
    overrun = report.overruns_by_phase
    short = max((name for name in phases if phases[name]), key=lambda name: overrun.get(name, 0), default="")
    if overrun.get(short, 0) <= _OVERRUN_SHARE * report.tasks:
        return None
    spare = [name for name in phases if name != short and phases[name] > 1 and not overrun.get(name)]
    if not spare:
        return None
    longest = max(spare, key=lambda name: phases[name])
    return {name: beats + (name == short) - (name == longest) for name, beats in phases.items()}


def _is_beyond(policy: TempoPolicy, wanted: float, error: float) -> bool:
    return (wanted > policy.max_bpm and error > 0) or (wanted < policy.min_bpm and error < 0)


def _step(policy: TempoPolicy, bpm: int, wanted: float) -> int:
    """One beat a minute towards the wanted tempo, if that is far enough away."""
    if abs(wanted - bpm) * 100 <= policy.hysteresis_pct * bpm:
        return bpm
    return min(policy.max_bpm, max(policy.min_bpm, bpm + (1 if wanted > bpm else -1)))
