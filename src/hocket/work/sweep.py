"""The sweep: what every process that stays up sees to for the whole node. Jobs of dead processes go back to the queue,
leases past their deadline are expired, schedules that are due make their jobs. All of it is one transaction; when that
fails, each part gets a transaction of its own, so that one bad job or schedule cannot keep the others from their turn.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from hocket.kernel.ids import ulid_text
from hocket.log import Transaction
from hocket.store import RegisterSession, Schedule, Session
from hocket.work import cron, jobs
from hocket.work.troubles import Troubles

T = TypeVar("T")

EXPIRED_MAX = 500


class SweepAccess(Protocol):
    async def run(self, request: Callable[[Transaction], T]) -> T: ...
    async def peek(self, query: Callable[[Session], T]) -> T: ...


class Sweep:
    def __init__(self, troubles: Troubles, notice: Callable[[str], None]) -> None:
        self._troubles = troubles
        self._notice = notice
        self._next_ticks: dict[tuple[bytes, int], int | None] = {}

    def is_due(self, session: Session, now: int) -> bool:
        """Whether a lease is past its deadline, or a schedule has a tick without a job."""
        deadline = session.next_deadline()
        return (deadline is not None and deadline < now) or bool(self._due(session, now))

    def _due(self, session: RegisterSession, now: int) -> list[Schedule]:
        """Four times a second a look must cost little, however many schedules there are; so the next tick of each is
        worked out once.
        """
        known, self._next_ticks = self._next_ticks, {}
        due = []
        for each in session.schedules():
            key = each.op, each.last_tick
            tick = known[key] if key in known else cron.next_tick(each, each.last_tick)
            self._next_ticks[key] = tick
            if tick is not None and tick <= now and not self._troubles.is_resting(each.op):
                due.append(each)
        return due

    def __call__(self, tx: Transaction, dead: set[int] | None) -> None:
        """`dead` are worker processes of this node that were found so; None when nobody looked."""
        if dead is not None:
            self._reclaim(tx, dead)
        jobs.expire(tx, EXPIRED_MAX)
        for schedule in self._due(tx.session, tx.now):
            self._tick(tx, schedule)

    async def one_by_one(self, access: SweepAccess, dead: set[int] | None) -> None:
        if dead is not None:
            with self._troubles.contained("reclaim", "handing back the jobs of dead worker processes"):
                await access.run(lambda tx: self._reclaim(tx, dead))
        with self._troubles.contained("expire", "looking for leases that have run out"):
            for job_id in await access.run(_overdue):
                with self._troubles.contained(job_id, f"expiring job {ulid_text(job_id)}"):
                    await access.run(lambda tx, job_id=job_id: jobs.expire_one(tx, job_id))  # type: ignore[misc]
        with self._troubles.contained("schedules", "looking for schedules that are due"):
            for schedule in await access.run(lambda tx: self._due(tx.session, tx.now)):
                with self._troubles.contained(schedule.op, f"schedule {schedule.name!r}"):
                    await access.run(lambda tx, schedule=schedule: self._tick(tx, schedule))  # type: ignore[misc]

    def _reclaim(self, tx: Transaction, dead: set[int]) -> None:
        lost = jobs.reclaim(tx, dead)
        if lost:
            self._notice(f"handed back {lost} jobs of a worker process that died")

    def _tick(self, tx: Transaction, schedule: Schedule) -> None:
        cron.make_tick(tx, schedule, self._untold)

    def _untold(self, schedule: Schedule, why: str) -> None:
        self._troubles.tell(schedule.op, f"schedule {schedule.name!r} makes no job: {why}")


def _overdue(tx: Transaction) -> list[bytes]:
    return [entry.job.id for entry in tx.session.overdue(tx.now, EXPIRED_MAX)]
