"""The reports of reverb that are on the log, with the key figures and alarms of their windows."""

from collections.abc import Sequence

from hocket.api import Service, ServiceAnswer
from hocket.errors import NotFound
from hocket.extensions.command.proof import PROOF_TYPE
from hocket.extensions.cost.costs import job_cost
from hocket.extensions.cost.node_costs import prices_of, rates_of
from hocket.extensions.tempo.beats.kpis import Alarm, Kpis, alarms, kpis
from hocket.extensions.tempo.beats.messages import BarReport
from hocket.extensions.tempo.beats.tempo import make_tempo
from hocket.extensions.tempo.window_archive import kept_reports
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.clock import unpack
from hocket.store import JobFilter, Session, Stage

# The newest ended jobs whose costs and times count.
JOBS_MAX = 10_000


class RaisedAlarm(ServiceAnswer, frozen=True):
    alarm: Alarm
    window: str


class ReportShown(ServiceAnswer, frozen=True):
    """The newest windows, the newest first, and the figures of all of them together. `currency` is that of the cost
    per deliverable; None without a rate card.
    """

    windows: list[BarReport]
    kpis: Kpis
    alarms: list[RaisedAlarm]
    currency: str | None


def report(service: Service, windows: int) -> ReportShown:
    """Raises NotFound if there is no report on the log."""
    with service.read() as session:
        found = kept_reports(session, service.runtime.log.reading().wall, windows)
    if not found:
        raise NotFound("there is no report of a window on the log; `hocket reverb` makes them")
    rates = rates_of(service.runtime.home)
    return ReportShown(
        found,
        kpis_of(service, found),
        [RaisedAlarm(alarm, each.window) for each in found for alarm in alarms(each)],
        None if rates is None else rates.currency,
    )


def kpis_of(service: Service, reports: Sequence[BarReport]) -> Kpis:
    """The figures of these windows, with the costs and times of the jobs that ended in them."""
    rates, blobs = rates_of(service.runtime.home), service.runtime.blobs
    spans = [(each.window_ms, each.window_ms + _bar_ms(each)) for each in reports]
    with service.read() as session:
        ended = [
            entry.job
            for entry in session.jobs(JobFilter((Stage.DONE,)), JOBS_MAX)
            if entry.job.done is not None and _is_within(entry.job.done.wall, spans)
        ]
        cost = None
        if rates is not None:
            prices = prices_of(service.runtime.home, rates, service.runtime.log.reading())
            cost = sum(job_cost(session, blobs, job, prices).cost for job in ended)
        useful = [_useful_ms(session, job) for job in ended if job.outcome is Outcome.SUCCEEDED]
    return kpis(reports, cost, useful)


def _bar_ms(report: BarReport) -> int:
    return make_tempo(report.tempo_bpm, report.bar_len_beats).bar_ms


def _is_within(at_ms: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(start_ms <= at_ms < end_ms for start_ms, end_ms in spans)


def _useful_ms(session: Session, job: Job) -> int:
    """From a job's submission to its first artifact, or to its end."""
    assert job.done is not None
    made = [unpack(each.made).wall for each in session.artifacts_of_job(job.id) if each.type != PROOF_TYPE]
    return min([*made, job.done.wall]) - job.scheduled.wall
