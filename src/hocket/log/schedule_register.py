"""Which schedules are set, by which op, and which of their ticks' jobs must be judged again when that changes.

When a schedule ticks, as far as every node must agree on it: the fold needs to know whether a job can be a schedule's
newest tick. `work.cron` finds the next tick by this machine's clock and timezones.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from hocket.kernel.clock import pack
from hocket.kernel.ids import ulid_ms
from hocket.kernel.ops import Op
from hocket.kernel.vocabulary import JOB, ClearSchedule, SetSchedule, subject_of
from hocket.log.projectors import Engine
from hocket.store import Schedule, Session

if TYPE_CHECKING:
    from cronsim import CronSim


class ScheduleRegister:
    payloads = (SetSchedule, ClearSchedule)

    def __init__(self, session: Session, engine: Engine) -> None:
        self._session, self._engine = session, engine

    def enter(self, op: Op) -> None:
        self._session.set_schedule(scheduled(op), counts=True)
        self._follow(op, is_in_force=True)

    def strike(self, op: Op) -> None:
        self._session.strike_schedule(op.id)
        self._follow(op, is_in_force=False)

    def wait(self, op: Op) -> None:
        """The op would count if the schedule that blocks it turned out not to."""
        self._session.set_schedule(scheduled(op), counts=False)

    def _follow(self, op: Op, is_in_force: bool) -> None:
        """An op that sets or clears a schedule and arrives late, or no longer counts, changes who could change the
        schedule since then, and until when the one before it ticked.
        """
        assert isinstance(op.payload, SetSchedule | ClearSchedule)
        at = pack(op.timestamp)
        for later in self._session.schedule_ops_after(op.payload.name, at):
            self._engine.doubt(later)
        earlier = self._session.schedule_before(op.payload.name, at)
        if earlier is not None and (not is_in_force or earlier.last_tick > op.timestamp.wall):
            self._doubt_ticks(earlier.op, op.timestamp.wall)

    def doubt_ticks_of(self, node: int) -> None:
        """The grants of a node have changed, so the ticks of its schedules must be judged again."""
        for schedule_op in self._session.schedule_ops_by(node.to_bytes(8, "big")):
            self._doubt_ticks(schedule_op, 0)

    def _doubt_ticks(self, schedule_op: bytes, since: int) -> None:
        """Marks the jobs of the schedule's ticks after that time to be judged again."""
        for citing in self._engine.citations.citing(schedule_op):
            op, _ = self._engine.known(citing)
            subject = None if op is None else subject_of(op.payload)
            if subject is not None and subject.family == JOB and ulid_ms(subject.key) > since:
                self._engine.ask_again(subject, permissions=True)


def scheduled(op: Op) -> Schedule:
    """What an op says of a schedule."""
    payload = op.payload
    hlc = pack(op.timestamp)
    if isinstance(payload, SetSchedule):
        job = payload.kind, payload.payload, payload.policy_envelope
        return Schedule(payload.name, hlc, payload.cron, payload.timezone, *job, op.timestamp.wall, op.id)
    assert isinstance(payload, ClearSchedule)
    return Schedule(payload.name, hlc, None, "", "", b"", b"", 0, op.id)


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
