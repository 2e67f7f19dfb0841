"""The view of tempo: the beat, the windows that reverb has reported, promises of help, budgets, costs by account."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from hocket.api import Service
from hocket.errors import HocketError, Usage
from hocket.extensions.cost.costs import need_rates, rates_of, spent_on
from hocket.extensions.cost.kept_costs import keep_costs, kept_costs
from hocket.extensions.tempo.beats import PhaseSpan, Tempo, beat_at, phase_at, spans
from hocket.extensions.tempo.messages import BarReport, HelpPromise, from_json
from hocket.extensions.tempo.policy import TempoPolicy, make_policy
from hocket.extensions.tempo.policy_file import CLUSTER_DEFAULT, assumed_policy, home_timeline
from hocket.extensions.tempo.promises import PROMISE_TYPE, answered_at, promise_outcome, promise_times
from hocket.extensions.tempo.report_commands import figures
from hocket.extensions.tempo.reports import ReportShown, alarms, kept_reports, kpis_of
from hocket.extensions.tempo.views.sheet_drawing import drawn_windows, stacked
from hocket.families.inbox.requests import content_of
from hocket.families.jobs.rules import Job
from hocket.families.jobs.view import counted_as
from hocket.kernel.clock import wall_text
from hocket.kernel.ids import node_text, ulid_ms, ulid_text
from hocket.kernel.policy import Budget
from hocket.kernel.postcard import Malformed
from hocket.kernel.texts import counted, span
from hocket.page.views import PageView, Trouble, ViewCall
from hocket.store import JobFilter, Session, Stage

PACKAGE = "hocket.extensions.tempo.views"
# The newest windows that are drawn and listed, and of which the figures are.
WINDOWS = 48
# The newest ended jobs among which the cost per deliverable and the time to something useful are looked for.
ENDED_JOBS = 100
# How old the sums over these jobs may be that an open page shows.
SUMS_S = 10.0
# How old a window may be whose alarms the first view shows.
ALARM_MS = 600_000
# Promises of the last hour: so many messages are looked at, and so many promises shown.
PROMISES_MS = 3_600_000
MESSAGES_MAX, PROMISES_MAX = 400, 50
# Jobs that have not ended among which budgets are looked for, and budgets that are shown.
OPEN_JOBS_MAX, BUDGETS_MAX = 400, 50
T = TypeVar("T")


class BeatShown(NamedTuple):
    """`next_ms` is how long it is until the next beat begins, `lasts_ms` until the next window does."""

    number: int
    window: str
    phase: str
    next_ms: int
    lasts_ms: int
    tempo: Tempo
    phases: list[PhaseSpan]


class PromiseShown(NamedTuple):
    """`outcome` is open, kept, late or broken, by what the log has."""

    id: str
    thread: str
    helper: str
    asker: str
    promise: HelpPromise
    due_ms: int
    closes_ms: int
    outcome: str


class BudgetShown(NamedTuple):
    """What the ended runs of a job have used of its budget."""

    job_id: str
    kind: str
    state: str
    budget: Budget
    beats: int
    cost: float | None
    has_score: bool

    @property
    def other_caps(self) -> list[str]:
        caps = [f"{name} {beats}" for name, beats in self.budget.phase_caps.items()]
        caps += [f"wait for {name} {beats}" for name, beats in self.budget.wait_caps.items()]
        caps += [f"{name} {most:g} a beat" for name, most in self.budget.per_beat.items()]
        return caps + ([f"ends at bar+{self.budget.hard_end}"] if self.budget.hard_end else [])


def tempo(call: ViewCall) -> Mapping[str, Any]:
    service = call.service
    runtime = service.runtime
    now_ms = runtime.log.physical()
    policy, problem = _policy(service)
    in_force = home_timeline(runtime.home, policy).at(now_ms)
    values = {
        "title": "Tempo",
        "policy": policy,
        "problem": problem,
        "has_policy": runtime.home.tempo.exists(),
        "beat": _beat(policy, in_force, now_ms),
        "names": service.names(),
        "may_artifacts": service.may("Artifact", "Read"),
        "may_inbox": call.program.may_some("Inbox", "Read"),
        "may_jobs": call.program.may_some("Job", "Read"),
    }
    with service.read() as session:
        reports = kept_reports(session, now_ms, WINDOWS) if values["may_artifacts"] else []
        promises = _promises(call, session, in_force.beat_ms, now_ms) if values["may_inbox"] else []
        budgets = _budgets(call, session, in_force.beat_ms, now_ms) if values["may_jobs"] else []
    return {**values, **_windows(service, reports), "promises": promises, "budgets": budgets, **_costs(call)}


def _policy(service: Service) -> tuple[TempoPolicy, str]:
    """The policy of the home, or that of a cluster of one machine; and what is wrong with that of the home."""
    try:
        return assumed_policy(service.runtime.home), ""
    except Usage as error:
        return make_policy(CLUSTER_DEFAULT), str(error)


def _beat(policy: TempoPolicy, in_force: Tempo, now_ms: int) -> BeatShown:
    beat = beat_at(in_force, now_ms)
    phase = phase_at(policy.phases, in_force.bar_len, beat.index)
    next_ms, lasts_ms = beat.epoch_ms + in_force.beat_ms - now_ms, beat.window_ms + in_force.bar_ms - now_ms
    return BeatShown(
        *(beat.index, wall_text(beat.window_ms), phase.name, next_ms, lasts_ms, in_force),
        spans(policy.phases, in_force.bar_len),
    )


def _windows(service: Service, reports: list[BarReport]) -> Mapping[str, Any]:
    raised = {each.window: alarms(each) for each in reports}
    overruns, broken = sum(each.overruns for each in reports), sum(each.broken_promises for each in reports)
    tasks = counted(sum(each.tasks for each in reports), "task")
    sentence = (
        f"{counted(len(reports), 'window')}, the oldest first, a column each: {tasks},"
        f" {counted(overruns, 'overrun')}, {counted(broken, 'broken promise')}"
    )
    shown: list[tuple[str, str]] = []
    if reports and service.may("Job", "Read"):
        with suppress(HocketError):  # the sum of costs says what is wrong with the rate card
            shown = _kept(service, "figures", lambda: _figures(service, reports))
    return {
        "windows": reports,
        "stacked": {each.window: stacked(each) for each in reports},
        "alarms": raised,
        "timeline": drawn_windows(reports[::-1], sentence),
        "figures": shown,
    }


def _figures(service: Service, reports: list[BarReport]) -> list[tuple[str, str]]:
    rates = rates_of(service.runtime.home)
    found = kpis_of(service, reports, ENDED_JOBS)
    with service.read() as session:
        ended = session.jobs(JobFilter((Stage.DONE,)), ENDED_JOBS)
    if len(ended) == ENDED_JOBS and ended[-1].job.scheduled.wall > reports[-1].window_ms:
        # More jobs ended in these windows than were looked at.
        found = msgspec.structs.replace(found, cpd=None, ttfu_ms=None)
    shown = figures(ReportShown(reports, found, [], None if rates is None else rates.currency))
    return [(name, value) for name, value in shown if value != "-"]


_sums: dict[tuple[Path, str], tuple[float, Any]] = {}


def _kept(service: Service, name: str, make: Callable[[], T]) -> T:
    """A sum over many jobs, made again when it is old. All open pages of a server share it."""
    key, now = (service.runtime.home.path, name), time.monotonic()
    made_at, value = _sums.get(key, (-math.inf, None))
    if now - made_at >= SUMS_S:
        value = make()
        _sums[key] = now, value
    return value  # type: ignore[no-any-return]


def _promises(call: ViewCall, session: Session, beat_ms: int, now_ms: int) -> list[PromiseShown]:
    """The newest promises of the last hour that the visitor may read."""
    ids = [each for each in session.newest_messages(MESSAGES_MAX) if ulid_ms(each) >= now_ms - PROMISES_MS]
    found = (_promise(call, session, each, beat_ms, now_ms) for each in ids)
    return [*islice((each for each in found if each is not None), PROMISES_MAX)]


def _promise(call: ViewCall, session: Session, id: bytes, beat_ms: int, now_ms: int) -> PromiseShown | None:
    message = session.message(id)
    if message is None or message.reply_to is None or not call.may("Inbox", "Read", message.address.name):
        return None
    try:
        content = content_of(session, id)
        promise = from_json(content.body, HelpPromise) if content.message_type == PROMISE_TYPE else None
    except (Malformed, Usage):
        return None
    if promise is None:
        return None
    times = promise_times(promise, message.sent.wall, beat_ms)
    helper, at = f"{message.sender}@{node_text(message.sent.node)}", call.service.names()
    try:
        answered_ms = answered_at(session, promise.thread_id, helper)
    except (Usage, ValueError):
        return None  # it names no thread
    outcome = promise_outcome(times, answered_ms, now_ms)
    node = node_text(message.sent.node)
    return PromiseShown(
        *(ulid_text(id), promise.thread_id, f"{message.sender}@{at.get(node, node)}", message.address.name, promise),
        *(times.due_ms, times.closes_ms, "open" if outcome is None else str(outcome)),
    )


def _budgets(call: ViewCall, session: Session, beat_ms: int, now_ms: int) -> list[BudgetShown]:
    """The budgets of jobs that have not ended: of those that run first."""
    running = [(each.job, Stage.CLAIMED) for each in session.claimed()[:OPEN_JOBS_MAX]]
    waiting = session.jobs(JobFilter((Stage.READY, Stage.DELAYED, Stage.BLOCKED)), OPEN_JOBS_MAX)
    capped = [
        (job, stage)
        for job, stage in [*running, *((each.job, each.stage) for each in waiting)]
        if job.policy.budget is not None and call.may("Job", "Read", job.kind)
    ]
    return [_budget(call.service, session, job, stage, beat_ms, now_ms) for job, stage in capped[:BUDGETS_MAX]]


def _budget(service: Service, session: Session, job: Job, stage: Stage, beat_ms: int, now_ms: int) -> BudgetShown:
    assert job.policy.budget is not None
    try:
        rates = rates_of(service.runtime.home)
    except HocketError:
        rates = None
    spent = spent_on(session, service.runtime.blobs, job, rates, beat_ms, now_ms)
    return BudgetShown(
        *(ulid_text(job.id), job.kind, counted_as(stage, None), job.policy.budget, spent.beats),
        *(None if rates is None else spent.cost, job.policy.score is not None),
    )


def _costs(call: ViewCall) -> Mapping[str, Any]:
    """`costs` is None if there are no sums, and `no_costs` says why. `uncounted` ops of the log are not in them yet."""
    service = call.service
    if not (service.may("Job", "Read") and service.may("Artifact", "Read")):
        return {"costs": None, "no_costs": "This browser may not read costs: they need job:read and artifact:read."}
    try:
        rates = need_rates(service.runtime.home)
    except HocketError as error:
        return {"costs": None, "no_costs": f"{str(error)[:1].upper()}{str(error)[1:]}."}
    kept = kept_costs(service.runtime.home.path)
    with service.read() as session:
        uncounted = max(0, session.head().seq - kept.place)
    return {"costs": kept.costs(rates), "no_costs": "", "uncounted": uncounted, "left_out": kept.left_out}


def _troubles(call: ViewCall) -> Iterator[Trouble]:
    """The alarms of the newest window."""
    if not call.service.may("Artifact", "Read"):
        return
    now_ms = call.service.runtime.log.physical()
    with call.service.read() as session:
        reports = kept_reports(session, now_ms, 1)
    for each in reports:
        if (raised := alarms(each)) and now_ms - each.window_ms < ALARM_MS:
            ago = span(now_ms - each.window_ms)
            yield Trouble(f"The window of {ago} ago raised {' and '.join(raised)}.", "/tempo")


TEMPO = PageView("/tempo", "tempo.html", tempo, "Tempo", package=PACKAGE, keep=keep_costs, troubles=_troubles)
