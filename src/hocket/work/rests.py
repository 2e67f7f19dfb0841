"""Jobs that a worker of a strict mesh leaves alone for a while, because its handler failed or wanted to run later.
Likewise v0.1 has no op that says so: the job is pending for every node, and only this worker waits.
"""

from msgspec.structs import replace

from hocket.families.jobs.requests import Result
from hocket.families.jobs.rules import Job
from hocket.kernel.retrying import backoff_ms
from hocket.log import Transaction
from hocket.work.runner import Run

# A worker remembers this many of them, and forgets first the one that it has left alone longest.
RESTS_MAX = 10_000


class Rests:
    def __init__(self) -> None:
        self._until: dict[bytes, int] = {}

    def after(self, tx: Transaction, run: Run, result: Result) -> Result:
        """The result of a run, with the time until which this worker leaves the job alone."""
        is_returned = run.stopped and not run.timed_out
        if run.error is None or is_returned or not tx.is_strict or not isinstance(result, Job):
            return result
        until = tx.now + _rest_ms(run, result)
        self._until.pop(result.id, None)
        while len(self._until) >= RESTS_MAX:
            del self._until[next(iter(self._until))]
        self._until[result.id] = until
        return replace(result, ready_at=max(until, result.ready_at))

    def until(self, job_id: bytes, now: int) -> int:
        """A time that has passed, unless the job is left alone."""
        if (at := self._until.get(job_id, 0)) and at <= now:
            del self._until[job_id]
        return at


def _rest_ms(run: Run, job: Job) -> int:
    """As long as another mesh's log would have the job wait. The longest wait stands for "never again"."""
    if run.later_ms is not None:
        return run.later_ms
    policy = job.policy
    if not run.may_retry:
        return policy.backoff_max_ms
    return backoff_ms(job.returns, policy.backoff_ms, policy.backoff_max_ms)
