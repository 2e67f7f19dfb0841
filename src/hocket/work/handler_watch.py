"""What goes wrong with the handlers of a worker: one that does not end, one that blocks the loop of the async ones, and
a handler process that does not start. `look` reports it, from time to time.
"""

from hocket.events import Emit
from hocket.events.troubles import Troubles
from hocket.events.workers import HandlerLoopBlocked, HandlerStuck, StepFailed, WorkerSpent
from hocket.work.handler_threads import HandlerThreads

BLOCKED_LOOP_S = 5.0


class HandlerWatch:
    def __init__(self, runner: HandlerThreads, slots: int, troubles: Troubles, emit: Emit) -> None:
        self._runner, self._slots, self._troubles, self._emit = runner, slots, troubles, emit
        self._beat_sent: float | None = None
        self.is_spent = False
        """Whether every slot has a stuck handler."""

    def look(self, now: float) -> None:
        self._look_at_loop(now)
        for run in self._runner.look(now):
            self._emit(HandlerStuck(run.job_id, run.job.kind))
        trouble, self._runner.trouble = self._runner.trouble, None
        if trouble is not None:
            self._troubles.tell("slots", StepFailed("starting a handler process", trouble))
        if self._runner.is_spent and not self.is_spent:
            self.is_spent = True
            self._emit(WorkerSpent(self._slots))

    def _look_at_loop(self, now: float) -> None:
        loop = self._runner.loop
        if loop is None:
            return
        if self._beat_sent is None:
            self._beat_sent = now
            loop.call_soon_threadsafe(self._beaten)
        elif now - self._beat_sent > BLOCKED_LOOP_S:
            self._emit(HandlerLoopBlocked(now - self._beat_sent))
            self._beat_sent = now

    def _beaten(self) -> None:
        self._beat_sent = None
