"""Moving the start of pending jobs. Who may submit a job may also say when it starts, so this needs the same grant as
cancelling it does. A worker that holds a job postpones it under its fence instead: see `requests.postpone`.
"""

from datetime import datetime
from typing import NamedTuple

from hocket.errors import Conflict, Usage
from hocket.families.jobs.drafts import Duration, moment_ms
from hocket.families.jobs.requests import Offer, author, decided_job, in_node_time, must
from hocket.families.jobs.rules import Job
from hocket.families.jobs.view import state_of
from hocket.kernel.arbitration import Reason
from hocket.kernel.ids import ulid_text
from hocket.kernel.policy import DELAY_MS_MAX, NOT_BEFORE_MS_MAX
from hocket.kernel.texts import duration_ms
from hocket.kernel.vocabulary import PostponeJob
from hocket.log import Transaction


class StartTime(NamedTuple):
    """When a job may start: `at_ms` by the real clock, or so long from now."""

    at_ms: int | None = None
    delay_ms: int = 0

    @property
    def written(self) -> tuple[int | None, int | None]:
        """The time, or else the delay."""
        return (None, self.delay_ms) if self.at_ms is None else (self.at_ms, None)


NOW = StartTime()


def start_time(at: int | str | datetime | None = None, delay: Duration | None = None, now: bool = False) -> StartTime:
    """The time that people and programs write in one of these ways. Raises Usage."""
    if (at is not None) + (delay is not None) + now != 1:
        raise Usage("say when the job may start: at a time, after a delay, or now")
    try:
        start = NOW if now else StartTime(delay_ms=duration_ms(delay)) if delay is not None else _at(at)
    except ValueError as error:
        raise Usage(f"bad time: {error}") from None
    if not 0 <= start.delay_ms <= DELAY_MS_MAX:
        raise Usage(f"a delay is at most {DELAY_MS_MAX // 86_400_000} days")
    if not 0 <= (start.at_ms or 0) <= NOT_BEFORE_MS_MAX:
        raise Usage("the time is too late or before 1970")
    return start


def start_of(not_before_ms: int | None, delay_ms: int | None) -> StartTime:
    return start_time(not_before_ms, None if delay_ms is None else f"{delay_ms}ms")


def _at(at: int | str | datetime | None) -> StartTime:
    return StartTime(None if at is None else moment_ms(at))


def postpone_pending(tx: Transaction, job_id: bytes, start: StartTime, reason: str) -> Job | Offer:
    """Moves the start of a pending job, earlier or later. Raises Conflict for a job that runs or has ended, and Usage
    in a strict mesh.
    """
    if tx.is_strict:
        raise Usage(
            f"job {ulid_text(job_id)} cannot be postponed: this is a strict mesh, and Likewise v0.1 has no op that"
            " postpones a job"
        )
    until_ms = in_node_time(tx, tx.physical + start.delay_ms if start.at_ms is None else start.at_ms)
    op = author(tx, PostponeJob(job_id, 0 if start == NOW else until_ms, reason))
    entry = tx.projection.jobs.entry(job_id)
    if entry is not None and op in (Reason.COMPLETED, Reason.ALREADY_CLAIMED):
        state = state_of(entry.job)
        raise Conflict(
            f"job {ulid_text(job_id)} {'is running' if state == 'running' else f'has ended: it is {state}'};"
            " only a pending job can be postponed"
        )
    if op is Reason.NOT_APPROVED:
        raise Conflict(f"job {ulid_text(job_id)} waits for an approval, which alone lets it start")
    return decided_job(tx, must(op, job_id), job_id)
