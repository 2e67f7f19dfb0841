"""When a schedule ticks, as far as every node must agree on it: the fold asks whether a job can be a schedule's newest
tick. When the next tick falls, by this machine's clock and timezones, is the question of `work.cron`.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cronsim import CronSim

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
# How far local time is from UTC anywhere.
_WEST, _EAST = timedelta(hours=12), timedelta(hours=14)


def could_be_newest(cron: str, timezone: str, tick_ms: int, now_ms: int) -> bool:
    """Whether that can be the schedule's newest tick now, by what every node knows. In UTC that is exact. In another
    timezone it takes a machine's table of timezones, and those differ between machines; so there it is only asked
    whether one of the days that it may be there has ticks, and a worker that claims the job asks its own table.
    """
    # Not with this module: a program that only submits has no schedules to judge.
    from cronsim import CronSim, CronSimError

    if tick_ms % 1000:
        return False
    try:
        at = _EPOCH + timedelta(milliseconds=tick_ms)
        if timezone == "UTC":
            # The search begins one second after the moment that it is given.
            return next(CronSim(cron, at - _SECOND)) == at and _EPOCH + timedelta(milliseconds=now_ms) < _next(cron, at)
        expression = _expression(cron)
        first, last = (at - _WEST).date(), (at + _EAST).date()
        days = (first + timedelta(days=n) for n in range((last - first).days + 1))
        return any(day.month in expression.months and expression.match_day(day) for day in days)
    except (CronSimError, StopIteration, ValueError, OverflowError):
        return False


def _next(cron: str, after: datetime) -> datetime:
    from cronsim import CronSim

    return next(CronSim(cron, after), datetime.max)


@lru_cache(256)
def _expression(cron: str) -> "CronSim":
    """Only to be asked, never to be iterated."""
    from cronsim import CronSim

    return CronSim(cron, _EPOCH)
