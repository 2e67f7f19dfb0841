"""How the runs of one worker ended: counted, and told as events."""

from collections.abc import Callable

from hocket.errors import StoreError
from hocket.events import Emit, listens
from hocket.events.jobs import JobHandedBack, JobPostponed, ResultDiscarded, RetryPlanned, RunFailed, RunFinished
from hocket.events.troubles import Troubles
from hocket.families.jobs.rules import Job, Outcome
from hocket.kernel.arbitration import Reason
from hocket.work.handler_errors import ERROR_CHARS_MAX
from hocket.work.runner import Run


class RunOutcomes:
    """`finished` is called with each run and the job after it, or the reason why its outcome does not
    count.
    """

    def __init__(
        self,
        finished: Callable[[Run, Job | Reason], None],
        troubles: Troubles,
        emit: Emit,
    ) -> None:
        self._finished, self._troubles, self._emit = finished, troubles, emit
        self.succeeded = 0
        self.failed = 0
        self.handed_back = 0
        self.postponed = 0
        self.look_for_listeners()

    def look_for_listeners(self) -> None:
        """Call this now and then: a program may choose another level for its logs."""
        self._tells_ends = listens(self._emit, RunFinished)

    def count(self, run: Run, outcome: Job | Reason) -> None:
        if run.trace is not None:
            run.trace.end(*_trace_end(run, outcome))
        if isinstance(outcome, Reason):
            self._emit(ResultDiscarded(run.job_id, outcome.sentence))
        elif outcome.outcome is Outcome.SUCCEEDED:
            self.succeeded += 1
            if self._tells_ends:
                self._emit(RunFinished(*_about(run), run.ran_s, run.cost))
        elif run.later_ms is not None:
            self.postponed += 1
            self._emit(JobPostponed(*_about(run), run.later_ms / 1000, run.error or ""))
        elif run.error is not None:
            self.failed += 1
            self._tell_failure(run, run.error, outcome)
        else:
            self.handed_back += 1
            self._emit(JobHandedBack(*_about(run)))
        try:
            self._finished(run, outcome)
        except StoreError:
            raise
        except Exception as error:
            self._troubles.failed("finished", "telling the end of job", error, run.job.id)

    def _tell_failure(self, run: Run, error: str, job: Job) -> None:
        about = _about(run)
        last_line = run.traceback.rstrip().rpartition("\n")[2].strip()
        # A one-line error is the last line of its traceback.
        more = "" if last_line in error or error in last_line else last_line[:ERROR_CHARS_MAX]
        is_final = job.outcome is not None
        rest_s = max(0, job.ready_at - job.last.wall) / 1000
        self._emit(RunFailed(*about, error, more, is_final, run.ran_s, run.cost, None if is_final else rest_s))
        if not is_final:
            self._emit(RetryPlanned(*about, job.failures, rest_s))


def _about(run: Run) -> tuple[str, str, int]:
    return run.job_id, run.job.kind, run.job.fence


def _trace_end(run: Run, outcome: Job | Reason) -> tuple[str, str | None]:
    """How a run ended, and its error if it has one."""
    if isinstance(outcome, Reason):
        return "discarded", outcome.sentence
    if outcome.outcome is not None:
        return outcome.outcome.name.lower(), run.error
    return ("returned" if run.error is None else "tried again"), run.error
