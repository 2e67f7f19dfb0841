"""Setting, removing and ticking schedules. The id of a tick's job is derived from the op that set the schedule and the
tick's time, so two nodes create the same job; it runs with the authority of the schedule's author, whichever node
creates it. After a pause of several ticks, only the last one is made up, once. When an expression fires is decided by
this machine's timezone table.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hocket.errors import NotAuthorised, Usage
from hocket.families.jobs.requests import Draft, chosen_policy
from hocket.families.jobs.rules import CRON_LENGTH_MAX, NAME_LENGTH_MAX, Job, tick_id, tick_policy
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import node_text, ulid_ms
from hocket.kernel.ops import decode
from hocket.kernel.policy import check_policy, decode_policy, encode_policy
from hocket.kernel.vocabulary import ClearSchedule, ScheduleJob, SetSchedule
from hocket.log import Transaction
from hocket.store import OpSession, RegisterSession, Schedule

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# Called with a schedule whose tick failed, and why.
Failed = Callable[[Schedule, str], None]


class NewSchedule(NamedTuple):
    """A schedule to set: each tick submits a job like `draft`."""

    name: str
    cron: str
    timezone: str
    draft: Draft
    overlap: str = "skip"


def check(plan: NewSchedule) -> NewSchedule:
    """The schedule as the log has it: with five fields for a name like @daily. Raises Usage."""
    plan = plan._replace(cron=NAMED.get(plan.cron.strip().lower(), plan.cron))
    if not 0 < len(plan.name) <= NAME_LENGTH_MAX or not plan.name.isprintable():
        raise Usage(f"bad schedule name {plan.name!r}; use 1 to {NAME_LENGTH_MAX} printable characters")
    zone(plan.timezone)
    check_expression(plan.cron)
    if plan.draft.policy.unique is not None or plan.draft.policy.after:
        raise Usage("a schedule takes neither a unique key nor `after`, because its ticks identify its jobs")
    return plan


def add(tx: Transaction, plan: NewSchedule) -> None:
    """Sets a schedule; replaces one of the same name, unless that is the same. It first fires at the next tick. Raises
    NotAuthorised if this node may not schedule such jobs, or may not replace the existing schedule.
    """
    draft = plan.draft
    before = _in_force(tx.session, plan.name)
    # A tick must be exactly what its schedule says, so the schedule takes the options of the kind.
    policy = chosen_policy(tx, draft)
    envelope = encode_policy(check_policy(msgspec.structs.replace(policy, overlap=plan.overlap)))
    content = plan.name, plan.cron, plan.timezone, draft.kind, draft.payload, envelope
    if before is not None and before.author == tx.node and (before.name, *before[2:7]) == content:
        return
    if before is not None and before.kind != draft.kind:
        # A node that may only read jobs of the old kind does not receive the new schedule, but receives this.
        _must(tx, ClearSchedule(plan.name), before)
    _must(tx, SetSchedule(*content), before)


def remove(tx: Transaction, name: str) -> None:
    before = _in_force(tx.session, name)
    if before is None:
        raise Usage(f"no schedule {name!r}; `hocket cron list` shows them")
    _must(tx, ClearSchedule(name), before)


def _in_force(session: RegisterSession, name: str) -> Schedule | None:
    return next((each for each in session.schedules() if each.name == name), None)


def _must(tx: Transaction, payload: SetSchedule | ClearSchedule, before: Schedule | None) -> None:
    op = tx.author(payload)
    if op is Reason.STRICT:
        raise Usage(
            f"the schedule {payload.name!r} cannot be set in a strict mesh, because Likewise v0.1 has no op for"
            " schedules; use the system's cron to run `hocket submit`"
        )
    if op is Reason.OTHERS_SCHEDULE:
        assert before is not None
        raise NotAuthorised(
            f"node {node_text(before.author)} set the schedule {payload.name!r}, and this node may not schedule"
            f" {before.kind} jobs; choose another name, or ask the owner for a grant of that kind"
        )
    if isinstance(op, Reason):
        wanted = f"schedule {payload.kind} jobs" if isinstance(payload, SetSchedule) else "remove schedules"
        raise NotAuthorised(f"this node may not {wanted}: {op.sentence}")


def due_tick(schedule: Schedule, now: int) -> int | None:
    """The schedule's newest tick, if it has no job yet."""
    tick = last_tick(schedule, now)
    return tick if tick is not None and tick > schedule.last_tick else None


def is_overlapped(schedule: Schedule, tick: int, last: Job | None) -> bool:
    """Whether this tick fell while the job of the `last` one had not ended, and the schedule skips such ticks."""
    if last is None or decode_policy(schedule.policy).overlap == "queue":
        return False
    return last.done is None or last.done.wall >= tick


def last_job_id(schedule: Schedule) -> bytes:
    """The id of the job of the newest tick that has one."""
    return tick_id(schedule.op, schedule.last_tick)


def make_due(tx: Transaction, failed: Failed = lambda schedule, why: None) -> int:
    """Submits the jobs of due ticks; returns their number. A schedule that fails does not delay others."""
    return sum(make_tick(tx, schedule, failed) for schedule in tx.session.schedules())


def make_tick(tx: Transaction, schedule: Schedule, failed: Failed = lambda schedule, why: None) -> bool:
    tick = due_tick(schedule, tx.now)
    if tick is None:
        return False
    last = tx.projection.jobs.entry(last_job_id(schedule))
    if is_overlapped(schedule, tick, None if last is None else last.job):
        return False
    policy = tick_policy(decode_policy(schedule.policy), schedule.name, schedule.op)
    job = ScheduleJob(tick_id(schedule.op, tick), schedule.kind, schedule.payload, encode_policy(policy))
    op = tx.author(job, (schedule.op,), at_once=policy.is_ranked)
    if isinstance(op, Reason):
        failed(schedule, op.sentence)
    return not isinstance(op, Reason)


def is_tick(session: OpSession, job: Job) -> bool | None:
    """Whether a tick's job was created at the newest tick, by this machine's timezone table; None if that cannot tell.
    The log itself can be exact only about UTC, since timezone tables differ between machines.
    """
    set_by = job.policy.set_by()
    row = None if set_by is None else session.op(set_by)
    payload = None if row is None else decode(row.body).payload
    if not isinstance(payload, SetSchedule):
        return None
    try:
        zone(payload.timezone)
    except Usage:
        return None
    return tick(payload.cron, payload.timezone, job.scheduled.wall + 1, reverse=True) == ulid_ms(job.id)


def next_tick(schedule: Schedule, after_ms: int) -> int | None:
    """The first tick after that time."""
    return tick(schedule.cron, schedule.timezone, after_ms, reverse=False)


def last_tick(schedule: Schedule, now_ms: int) -> int | None:
    """The newest tick that is not later than now."""
    return tick(schedule.cron, schedule.timezone, now_ms + 1, reverse=True)


def check_expression(cron: str) -> None:
    """Raises Usage if the expression is bad or never matches."""
    from cronsim import CronSim, CronSimError

    if len(cron) > CRON_LENGTH_MAX:
        raise Usage(f"the cron expression has {len(cron)} characters, at most {CRON_LENGTH_MAX}")
    try:
        next(CronSim(cron, datetime(2024, 1, 1)))
    except CronSimError as error:
        raise Usage(f"bad cron expression {cron!r}: {error}; write five fields like '*/5 * * * *', or @daily") from None
    except StopIteration:
        raise Usage(f"the cron expression {cron!r} never matches") from None


def zone(name: str) -> "ZoneInfo":
    """Raises Usage for an unknown timezone."""
    # Every worker loads this module, and few have schedules.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Usage(f"unknown timezone {name!r}; use a name like UTC or Europe/Vienna") from None


def tick(cron: str | None, timezone: str, at_ms: int, reverse: bool) -> int | None:
    """The first tick after that time, or the last before it. None if there is no such tick, or if the schedule, which
    may come from another node, is invalid.
    """
    from cronsim import CronSim, CronSimError

    assert cron is not None
    # The search starts strictly after the given moment and ticks fall on whole seconds, so a fraction of a second must
    # not hide one.
    try:
        at = datetime.fromtimestamp(at_ms // 1000, zone(timezone))
        if reverse and at_ms % 1000:
            at += timedelta(seconds=1)
        return int(next(CronSim(cron, at, reverse=reverse)).timestamp()) * 1000
    except (StopIteration, CronSimError, Usage, ValueError, OverflowError, OSError):
        return None
