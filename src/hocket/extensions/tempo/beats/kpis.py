"""The key figures of Backbeat 14.4 and its alarms, from the reports of windows. Reports have sums only, so the figures
of many windows are those of one long window, in whatever order the reports come. What a report cannot know comes from
the log: what the deliverables cost, and how long each took to show something useful.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import msgspec

from hocket.extensions.tempo.beats.messages import BarReport, ClaimState

# A window in which a larger share of the promises was not kept, or of the tasks ran over, raises an alarm.
PROMISE_MISS_RATE_MAX = 0.2
OVERRUN_RATE_MAX = 0.2


class Alarm(StrEnum):
    PROMISE_MISS_RATE = "promise_miss_rate"
    OVERRUN_RATE = "overrun_rate"
    NO_STATUS_CLAIMS = "no_status_claims"


class Kpis(msgspec.Struct, frozen=True):
    """A deliverable is a task that is done. `tnt`, tempo-normalised throughput, is deliverables a beat; `bpd` is beats
    per deliverable. Of the beats of tasks, `wr` is the share that was spent waiting, and `efficiency` the share that
    was spent neither waiting nor on a task that failed. `pmr` is the share of the promises that were late or broken,
    `cpd` the cost per deliverable, and `ttfu_ms` the median of the times to something useful. A figure that would
    divide by nothing is None.
    """

    windows: int
    deliverables: int
    tnt: float | None
    bpd: float | None
    wr: float | None
    efficiency: float | None
    pmr: float | None
    cpd: float | None
    ttfu_ms: float | None


def kpis(reports: Sequence[BarReport], cost: float | None, useful_ms: Sequence[float]) -> Kpis:
    """`cost` is what the runs of that time cost, and `useful_ms` has the time to something useful of each job."""
    done = sum(each.states.get(ClaimState.DONE, 0) for each in reports)
    beats = sum(each.task_beats for each in reports)
    waits, lost = sum(each.wait_beats for each in reports), sum(each.lost_beats for each in reports)
    missed = sum(each.late_promises + each.broken_promises for each in reports)
    return Kpis(
        windows=len(reports),
        deliverables=done,
        tnt=_ratio(done, sum(each.bar_len_beats for each in reports)),
        bpd=_ratio(beats, done),
        wr=_ratio(waits, beats),
        efficiency=_ratio(beats - waits - lost, beats),
        pmr=_ratio(missed, missed + sum(each.kept_promises for each in reports)),
        cpd=None if cost is None else _ratio(cost, done),
        ttfu_ms=median(useful_ms) if useful_ms else None,
    )


def alarms(report: BarReport) -> list[Alarm]:
    """What one window raises. That no task was claimed is in order if nodes tell that they have nothing to do."""
    missed = report.late_promises + report.broken_promises
    is_idle = report.nodes > 0 and report.utilisation == 0 and report.queue_depth == 0
    raised = {
        Alarm.PROMISE_MISS_RATE: missed > PROMISE_MISS_RATE_MAX * (missed + report.kept_promises),
        Alarm.OVERRUN_RATE: report.overruns > OVERRUN_RATE_MAX * report.tasks,
        Alarm.NO_STATUS_CLAIMS: report.tasks == 0 and not is_idle,
    }
    return [alarm for alarm, is_raised in raised.items() if is_raised]


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
