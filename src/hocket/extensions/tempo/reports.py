"""The windows of reverb on the log, and their key figures (Backbeat 14.4) and alarms.

For each report the log has an artifact, and for the content that it was made of another, which the report names as its
input. Both expire. Their ids begin with the time of the window's downbeat, so a window is found by its time. Of several
reports of one window, the last one written counts.

Reports have sums only, so the figures of many windows are those of one long window, in whatever order the reports come.
What a report cannot know comes from the log: what the deliverables cost, and how long each took to show something
useful.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from statistics import median
from typing import NamedTuple

import msgspec

from hocket.api import Service, ServiceAnswer
from hocket.errors import NotAuthorised, NotFound
from hocket.extensions.command.proof import PROOF_TYPE
from hocket.extensions.cost.costs import prices_of, rates_of, row_of_job
from hocket.extensions.tempo.beats import make_tempo
from hocket.extensions.tempo.messages import BarReport, ClaimState, from_json, to_json
from hocket.extensions.tempo.windows import WindowContent, decode_content
from hocket.families import artifacts
from hocket.families.artifacts import Fetch
from hocket.families.blobs import Blobs
from hocket.families.jobs.requests import Content, creation
from hocket.families.jobs.rules import Job, Outcome
from hocket.families.retention.facts import REPORT_TYPE, WINDOW_TYPE
from hocket.kernel.arbitration import Reason
from hocket.kernel.clock import unpack
from hocket.kernel.ids import make_ulid, ulid_ms
from hocket.kernel.ops import artifact_id
from hocket.kernel.vocabulary import Ids
from hocket.log import Transaction
from hocket.store import Artifact, JobFilter, Session, Stage
from hocket.work.run_outputs import contain

# The newest ended jobs whose costs and times count.
JOBS_MAX = 10_000
# A window in which a larger share of the promises was not kept, or of the tasks ran over, raises an alarm.
PROMISE_MISS_RATE_MAX = 0.2
OVERRUN_RATE_MAX = 0.2
# How long a report and its window are kept.
KEPT_MS = 7 * 86_400_000
PAGE = 100
_FIRST, _PAST = bytes(10), b"\xff" * 10


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


class PackedWindow(NamedTuple):
    window_ms: int
    content: Content
    report: Content


def packed_window(blobs: Blobs, report: BarReport, content: WindowContent) -> PackedWindow:
    """Stages what is too large for an op. Call it before the transaction."""
    return PackedWindow(content.window_ms, contain(blobs, to_json(content)), contain(blobs, to_json(report)))


def keep(tx: Transaction, blobs: Blobs, packed: PackedWindow) -> bool:
    """Writes a report and its window on the log. False if they are what the log has already."""
    window_ms, data, told = packed
    known = {type: _last(tx.session, type, window_ms) for type in (WINDOW_TYPE, REPORT_TYPE)}
    hashes = {type: None if found is None else found.hash for type, found in known.items()}
    if hashes == {WINDOW_TYPE: data.hash, REPORT_TYPE: told.hash}:
        if data.staged is not None:
            blobs.drop(data.staged)
        return False
    inputs: Ids = ()
    for type, each in ((WINDOW_TYPE, data), (REPORT_TYPE, told)):
        if each.staged is not None:
            blobs.keep(each.staged)
        made = creation(make_ulid(window_ms, _FIRST), type, None, inputs, each, KEPT_MS)
        made = msgspec.structs.replace(made, artifact_id=artifact_id(tx.node, made))
        if tx.session.artifact(made.artifact_id) is None:
            op = tx.author(made, ())
            if isinstance(op, Reason):
                raise NotAuthorised(f"this node cannot keep the reports of windows: {op.sentence}")
        inputs = (made.artifact_id,)
    return True


def kept_reports(session: Session, now_ms: int, limit: int, before_ms: int | None = None) -> list[BarReport]:
    """The reports of the newest windows, of those before a time if one is given, the newest window first."""
    found: dict[int, Artifact] = {}
    for each in _newest(session, REPORT_TYPE, now_ms, before_ms):
        window_ms = ulid_ms(each.id)
        if window_ms not in found and len(found) == limit:
            break
        if window_ms not in found or found[window_ms].made < each.made:
            found[window_ms] = each
    return [_report(session, each) for each in found.values()]


def kept_report(session: Session, window_ms: int) -> BarReport | None:
    found = _last(session, REPORT_TYPE, window_ms)
    return None if found is None else _report(session, found)


def kept_window(session: Session, blobs: Blobs, window_ms: int, fetch: Fetch | None = None) -> WindowContent | None:
    """Raises Unreachable if the content is on another node only."""
    found = _last(session, WINDOW_TYPE, window_ms)
    return None if found is None else decode_content(artifacts.content(session, blobs, found, fetch))


def _newest(session: Session, type: str, now_ms: int, before_ms: int | None) -> Iterator[Artifact]:
    since = make_ulid(max(0, now_ms - KEPT_MS), _FIRST)
    before = make_ulid(now_ms if before_ms is None else before_ms, _PAST if before_ms is None else _FIRST)
    while page := session.artifacts_of_type(type, since, before, PAGE):
        yield from (each for each in page if not session.is_evicted(each.id))
        before = page[-1].id


def _last(session: Session, type: str, window_ms: int) -> Artifact | None:
    first, past = make_ulid(window_ms, _FIRST), make_ulid(window_ms + 1, _FIRST)
    found = session.artifacts_of_type(type, first, past, PAGE)
    return max((each for each in found if not session.is_evicted(each.id)), key=lambda each: each.made, default=None)


def _report(session: Session, artifact: Artifact) -> BarReport:
    content = artifacts.creation_of(session, artifact)[1].content_inline
    assert content is not None
    return from_json(content, BarReport)


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
        raise NotFound("there is no report of a window on the log; `hocket tempo reverb` makes them")
    rates = rates_of(service.runtime.home)
    return ReportShown(
        found,
        kpis_of(service, found),
        [RaisedAlarm(alarm, each.window) for each in found for alarm in alarms(each)],
        None if rates is None else rates.currency,
    )


def kpis_of(service: Service, reports: Sequence[BarReport], jobs_max: int = JOBS_MAX) -> Kpis:
    """The figures of these windows, with the costs and times of the newest jobs, as far as they ended in them."""
    rates, blobs = rates_of(service.runtime.home), service.runtime.blobs
    spans = [(each.window_ms, each.window_ms + _bar_ms(each)) for each in reports]
    with service.read() as session:
        ended = [
            entry.job
            for entry in session.jobs(JobFilter((Stage.DONE,)), jobs_max)
            if entry.job.done is not None and _is_within(entry.job.done.wall, spans)
        ]
        cost = None
        if rates is not None:
            prices = prices_of(service.runtime.home, rates, service.runtime.log.reading())
            cost = sum(row_of_job(session, blobs, job, prices).cost for job in ended)
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
