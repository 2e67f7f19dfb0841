"""When a cron expression fires in a timezone, by this machine's timezone table."""

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from hocket.errors import Usage
from hocket.families.jobs.rules import CRON_LENGTH_MAX


def check_expression(cron: str) -> None:
    """Raises Usage if the expression is bad or never matches."""
    if len(cron) > CRON_LENGTH_MAX:
        raise Usage(f"the cron expression has {len(cron)} characters, at most {CRON_LENGTH_MAX}")
    try:
        next(CronSim(cron, datetime(2024, 1, 1)))
    except CronSimError as error:
        raise Usage(f"bad cron expression {cron!r}: {error}; write five fields like '*/5 * * * *', or @daily") from None
    except StopIteration:
        raise Usage(f"the cron expression {cron!r} never matches") from None


def zone(name: str) -> ZoneInfo:
    """Raises Usage for an unknown timezone."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Usage(f"unknown timezone {name!r}; use a name like UTC or Europe/Vienna") from None


def tick(cron: str | None, timezone: str, at_ms: int, reverse: bool) -> int | None:
    """The first tick after that time, or the last before it. None if there is no such tick, or if the schedule, which
    may come from another node, is invalid.
    """
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
