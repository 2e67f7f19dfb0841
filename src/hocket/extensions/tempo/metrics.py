"""The metrics of the tempo: what pulses and those that hear them count from their events, and the newest window that
the reverb of this process has reported.
"""

from hocket.api import Service
from hocket.events import Event
from hocket.extensions.tempo.beats.kpis import Alarm, Kpis, alarms
from hocket.extensions.tempo.beats.messages import BarReport, PromiseOutcome
from hocket.extensions.tempo.events import BarReported, BeatSent, FrameRefused, PulseFollows, PulseLeads
from hocket.extensions.tempo.reports import kpis_of
from hocket.server.monitoring.event_counts import EventCounts
from hocket.server.monitoring.metrics import Metric, MetricType, Samples

_COUNTER, _GAUGE, _HISTOGRAM = MetricType

# Of a pulse and of those that hear it, from their events.
BEATS_SENT = Metric("hocket_beats_sent_total", _COUNTER, "Beats that this pulse sent, led or degraded.", ("state",))
BEAT_LATENESS = Metric("hocket_beat_lateness_seconds", _HISTOGRAM, "How long after its start a beat left.")
PULSE_LEADS = Metric("hocket_pulse_leads", _GAUGE, "Whether this pulse leads its cluster.")
PULSE_DRIFT = Metric("hocket_pulse_drift_seconds", _GAUGE, "How far the time of day is ahead of the pulse's clock.")
TEMPO_BPM = Metric("hocket_tempo_bpm", _GAUGE, "The tempo of the last beat that this pulse sent, in beats a minute.")
FRAMES_REFUSED = Metric("hocket_frames_refused_total", _COUNTER, "Frames that this process refused.", ("reason",))

# Of the newest window that the reverb of this process has reported.
BAR_REPORTS = Metric("hocket_bar_reports_total", _COUNTER, "Reports of windows that this reverb made.")
BAR_TASKS = Metric("hocket_bar_tasks", _GAUGE, "Tasks of the last window by their last state.", ("state",))
BAR_AGENTS = Metric("hocket_bar_agents", _GAUGE, "Agents that claimed a task in the last window.")
BAR_OVERRUNS = Metric("hocket_bar_overruns", _GAUGE, "Tasks that ran over a phase in the last window.")
BAR_PROMISES = Metric("hocket_bar_promises", _GAUGE, "Promises that ended in the last window.", ("outcome",))
BAR_QUEUE = Metric("hocket_bar_queue_jobs", _GAUGE, "Ready jobs in the last window.")
BAR_UTILISATION = Metric("hocket_bar_utilisation_ratio", _GAUGE, "Share of the slots that were busy.")
BAR_TEMPO = Metric("hocket_bar_tempo_bpm", _GAUGE, "The tempo of the last window, and the suggested one.", ("tempo",))
KPI_TNT = Metric("hocket_kpi_deliverables_per_beat", _GAUGE, "Tasks done a beat in the last window.")
KPI_BPD = Metric("hocket_kpi_beats_per_deliverable", _GAUGE, "Beats of tasks for each task done.")
KPI_WR = Metric("hocket_kpi_wait_ratio", _GAUGE, "Share of the beats of tasks that was spent waiting.")
KPI_EFFICIENCY = Metric("hocket_kpi_efficiency_ratio", _GAUGE, "Share of the beats neither waited nor lost.")
KPI_PMR = Metric("hocket_kpi_promise_miss_ratio", _GAUGE, "Share of the promises that were late or broken.")
KPI_CPD = Metric("hocket_kpi_cost_per_deliverable", _GAUGE, "Cost of the jobs that ended, for each task done.")
KPI_TTFU = Metric("hocket_kpi_first_useful_seconds", _GAUGE, "Median time from submit to first artifact or end.")
ALARM = Metric("hocket_alarm", _GAUGE, "Whether the last window raises an alarm.", ("alarm",))

ALL = tuple(each for each in globals().values() if isinstance(each, Metric))


def count(counts: EventCounts, event: Event) -> None:
    match event:
        case BeatSent():
            counts.add(BEATS_SENT, "degraded" if event.is_degraded else "led")
            counts.observe(BEAT_LATENESS, event.late_s)
            counts.counters[PULSE_DRIFT, ()] = event.drift_s
            counts.counters[TEMPO_BPM, ()] = event.tempo_bpm
            counts.counters.setdefault((PULSE_LEADS, ()), 0)
        case PulseLeads() | PulseFollows():
            counts.counters[PULSE_LEADS, ()] = isinstance(event, PulseLeads)
        case FrameRefused(reason=reason, count=frames):
            counts.counters[FRAMES_REFUSED, (reason.replace(" ", "_"),)] += frames
        case BarReported(report=report):
            counts.add(BAR_REPORTS)
            newest = counts.shown.get("report")
            if not isinstance(newest, WindowSamples) or report.window_ms >= newest.report.window_ms:
                counts.shown["report"] = WindowSamples(report)


class WindowSamples:
    """The samples of a window."""

    def __init__(self, report: BarReport) -> None:
        self.report = report

    def __call__(self, service: Service) -> Samples:
        return report_samples(self.report, kpis_of(service, [self.report]))


def report_samples(report: BarReport, figures: Kpis) -> Samples:
    """A key figure that would divide by nothing is left out."""
    raised = alarms(report)
    key_figures: dict[Metric, float | None] = {
        KPI_TNT: figures.tnt,
        KPI_BPD: figures.bpd,
        KPI_WR: figures.wr,
        KPI_EFFICIENCY: figures.efficiency,
        KPI_PMR: figures.pmr,
        KPI_CPD: figures.cpd,
        KPI_TTFU: None if figures.ttfu_ms is None else figures.ttfu_ms / 1000,
    }
    return {
        BAR_TASKS: {(state.value,): count for state, count in report.states.items()},
        BAR_AGENTS: {(): report.agents},
        BAR_OVERRUNS: {(): report.overruns},
        BAR_PROMISES: {
            (PromiseOutcome.KEPT.value,): report.kept_promises,
            (PromiseOutcome.LATE.value,): report.late_promises,
            (PromiseOutcome.BROKEN.value,): report.broken_promises,
        },
        BAR_QUEUE: {(): report.queue_depth},
        BAR_UTILISATION: {(): report.utilisation},
        BAR_TEMPO: {("current",): report.tempo_bpm, ("suggested",): report.suggested_tempo_bpm},
        ALARM: {(alarm.value,): alarm in raised for alarm in Alarm},
        **{metric: {(): value} for metric, value in key_figures.items() if value is not None},
    }
