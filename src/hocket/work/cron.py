"""Schedules: when a cron expression's ticks fall, and the job that a tick makes. A tick's job has an id made
from the schedule's name and the tick's time, so two makers make one job. A node that slept through several
ticks makes up the last of them, once.
"""

from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from hocket.errors import NotAuthorised, Usage
from hocket.kernel.ids import derived_ulid
from hocket.kernel.policy import Policy, decode_policy, encode_policy
from hocket.kernel.vocabulary import ClearSchedule, SetSchedule
from hocket.log import Transaction
from hocket.store import Schedule, Session
from hocket.work import jobs
from hocket.work.jobs import Draft

NAME_LENGTH_MAX = 128
_ID_DOMAIN = b"hocket.schedule"


class Plan(NamedTuple):
    """A schedule to be set: at each tick a job like `draft` is made."""

    name: str
    cron: str
    timezone: str
    draft: Draft


def check(plan: Plan) -> Plan:
    if not 0 < len(plan.name) <= NAME_LENGTH_MAX or not plan.name.isprintable():
        raise Usage(f"bad schedule name {plan.name!r}; 1 to {NAME_LENGTH_MAX} printable characters")
    _zone(plan.timezone)
    try:
        next(CronSim(plan.cron, datetime(2024, 1, 1)))
    except CronSimError as error:
        raise Usage(f"bad cron expression {plan.cron!r}: {error}; five fields like '*/5 * * * *'") from None
    except StopIteration:
        raise Usage(f"the cron expression {plan.cron!r} never comes true") from None
    if plan.draft.policy.unique is not None or plan.draft.policy.after:
        raise Usage("a schedule's jobs are told apart by their ticks; it takes no unique key and nothing to come after")
    return plan


def add(tx: Transaction, plan: Plan) -> None:
    """Sets a schedule; one of the same name is replaced. Its first tick is the next one."""
    draft = plan.draft
    tx.author(SetSchedule(plan.name, plan.cron, plan.timezone, draft.kind, draft.payload, encode_policy(draft.policy)))


def remove(tx: Transaction, name: str) -> None:
    if all(schedule.name != name for schedule in tx.session.schedules()):
        raise Usage(f"no schedule {name!r}; `hocket cron list` shows them")
    tx.author(ClearSchedule(name))


def is_due(session: Session, now: int) -> bool:
    """Whether a schedule has a tick for which there is no job yet."""
    return any((tick := last_tick(each, now)) and tick > each.last_tick for each in session.schedules())


def make_due(tx: Transaction) -> int:
    """Makes the jobs of the ticks that have come since the last look; gives how many."""
    made = 0
    for schedule in tx.session.schedules():
        tick = last_tick(schedule, tx.now)
        if tick is None or tick <= schedule.last_tick:
            continue
        try:
            policy = _with_schedule(decode_policy(schedule.policy), schedule.name)
            job_id = derived_ulid(tick, _ID_DOMAIN, schedule.name.encode())
            made += jobs.submit(tx, [Draft(schedule.kind, schedule.payload, policy, job_id)])[0].created
        except (ValueError, NotAuthorised):
            continue  # One that asks for what cannot be, or not of this node; it must not hold up the others.
    return made


def next_tick(schedule: Schedule, after_ms: int) -> int | None:
    """The first tick after that time."""
    return _tick(schedule, after_ms, reverse=False)


def last_tick(schedule: Schedule, now_ms: int) -> int | None:
    """The newest tick that is not later than now."""
    return _tick(schedule, now_ms + 1, reverse=True)


def _tick(schedule: Schedule, at_ms: int, reverse: bool) -> int | None:
    """None when there is no such tick, also when the schedule, which may come from elsewhere, cannot be read."""
    assert schedule.cron is not None
    # The search starts strictly beyond the given moment and ticks fall on whole seconds, so a part of a second
    # must not hide one.
    try:
        at = datetime.fromtimestamp(at_ms // 1000, _zone(schedule.timezone))
        if reverse and at_ms % 1000:
            at += timedelta(seconds=1)
        return int(next(CronSim(schedule.cron, at, reverse=reverse)).timestamp()) * 1000
    except (StopIteration, CronSimError, Usage):
        return None


def _with_schedule(policy: Policy, name: str) -> Policy:
    return Policy(**{field: getattr(policy, field) for field in policy.__struct_fields__} | {"schedule": name})


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Usage(f"unknown timezone {name!r}; use a name like UTC or Europe/Vienna") from None
