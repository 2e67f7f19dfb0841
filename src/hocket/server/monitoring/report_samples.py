"""The metrics of a window that a reverb has reported, and of its key figures."""

from hocket.kernel.beats.kpis import Alarm, Kpis, alarms
from hocket.kernel.beats.messages import BarReport, PromiseOutcome
from hocket.server.monitoring import metrics
from hocket.server.monitoring.metrics import Metric

Labels = tuple[str, ...]
Samples = dict[Metric, dict[Labels, float]]


def report_samples(report: BarReport, figures: Kpis) -> Samples:
    """A key figure that would divide by nothing is left out."""
    raised = alarms(report)
    found: dict[Metric, float | None] = {
        metrics.KPI_TNT: figures.tnt,
        metrics.KPI_BPD: figures.bpd,
        metrics.KPI_WR: figures.wr,
        metrics.KPI_EFFICIENCY: figures.efficiency,
        metrics.KPI_PMR: figures.pmr,
        metrics.KPI_CPD: figures.cpd,
        metrics.KPI_TTFU: None if figures.ttfu_ms is None else figures.ttfu_ms / 1000,
    }
    return {
        metrics.BAR_TASKS: {(state.value,): count for state, count in report.states.items()},
        metrics.BAR_AGENTS: {(): report.agents},
        metrics.BAR_OVERRUNS: {(): report.overruns},
        metrics.BAR_PROMISES: {
            (PromiseOutcome.KEPT.value,): report.kept_promises,
            (PromiseOutcome.LATE.value,): report.late_promises,
            (PromiseOutcome.BROKEN.value,): report.broken_promises,
        },
        metrics.BAR_QUEUE: {(): report.queue_depth},
        metrics.BAR_UTILISATION: {(): report.utilisation},
        metrics.BAR_TEMPO: {("current",): report.tempo_bpm, ("suggested",): report.suggested_tempo_bpm},
        metrics.ALARM: {(alarm.value,): alarm in raised for alarm in Alarm},
        **{metric: {(): value} for metric, value in found.items() if value is not None},
    }
