"""When a schedule ticks, as far as every node must agree on it: the fold needs to know whether a job can be a
schedule's newest tick. `work.cron` finds the next tick by this machine's clock and timezones.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cronsim import CronSim

_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
# The largest distances of local time from UTC.
_WEST, _EAST = timedelta(hours=12), timedelta(hours=14)


def could_be_newest(cron: str, timezone: str, tick_ms: int, now_ms: int) -> bool:
    """Whether that can be the schedule's newest tick now, by what every node knows. In UTC the answer is exact. Another
    timezone needs a machine's table of timezones, and those differ; so here the test is only whether one of the
    possible local days has ticks, and a worker that claims the job checks its own table.
    """
    # Imported here, because a program that only submits has no schedules to judge.
    from cronsim import CronSim, CronSimError

    if tick_ms % 1000:
        return False
    try:
        at = _EPOCH + timedelta(milliseconds=tick_ms)
        if timezone == "UTC":
            # The search begins one second after the given moment.
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
    """For tests of days only; never iterate it."""
    from cronsim import CronSim

    return CronSim(cron, _EPOCH)
