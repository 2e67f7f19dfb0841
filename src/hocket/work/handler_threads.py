"""Runs handlers in the worker's slots: plain functions on threads of their own, coroutines on an event loop of their
own. Neither can block the worker's loop, which keeps renewing leases whatever a handler does. A `ProcessPlan` says
which handlers run in processes instead; `handler_processes` starts them.
"""

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from hocket.cancelling import end_loop
from hocket.errors import Usage
from hocket.events import Emit
from hocket.events.troubles import Troubles
from hocket.events.workers import HandlerLoopBlocked, HandlerStuck, StepFailed, WorkerSpent
from hocket.work.handlers import JobType
from hocket.work.runner import Run, Step

BLOCKED_LOOP_S = 5.0
PROCESSES_MAX = 256


class ProcessPlan(NamedTuple):
    """How many processes, for the handlers of which kinds, and where those are defined; none if only runs that must be
    alone get a process. `program` is the module that a process runs.
    """

    processes: int
    program: str
    home: Path
    modules: list[tuple[str, str]]
    kinds: frozenset[str]


def plan(processes: int, program: str, home: Path, types: Iterable[JobType]) -> ProcessPlan:
    """Raises Usage if a process could not import the handlers."""
    if not 0 <= processes <= PROCESSES_MAX:
        raise Usage(f"{processes} processes are too few or too many; give 1 to {PROCESSES_MAX}")
    modules: dict[tuple[str, str], None] = {}
    served = [each for each in types if each.function is not None]
    for each in served:
        name = getattr(each.function, "__module__", "")
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None:
            raise Usage(f"the handler of {each.kind} is in no file, so no process can import it; put it into a module")
        modules[name, str(Path(file).resolve())] = None
    return ProcessPlan(processes, program, home, list(modules), frozenset(each.kind for each in served))


class HandlerThreads:
    """Threads and a loop for the handlers of one worker. `finished` is called, from any thread, with each run that has
    ended; `monotonic` is the clock. A handler that does not end is given up: its slot gets a new thread, or async
    handlers a new loop.
    """

    def __init__(self, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._finished = finished
        self._monotonic = monotonic
        self._waiting: deque[Run] = deque()
        self._running: dict[Run, None] = {}  # in the order of their starts
        self._stuck: set[Run] = set()
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._is_narrow = False
        self._threads = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.trouble: str | None = None
        """Why there are fewer slots than there should be. The worker reports it and sets it to None."""

    async def open(self) -> None:
        """Call this before the first `start`."""

    def start(self, run: Run) -> None:
        """Starts the run as soon as a slot is free."""
        self.start_all((run,))

    def start_all(self, runs: Iterable[Run], are_quick: bool = False) -> None:
        """Starts the runs as slots become free. If they `are_quick`, one thread executes all that are for threads, one
        after the other, unless `spread` finds that they take longer: to wake a thread takes longer than such a run.
        """
        with self._lock:
            self._waiting.extend(runs)
            self._is_narrow = are_quick
            self._launch_all()

    def spread(self, quick_s: float) -> bool:
        """Uses all slots again if every run under way has taken this long. False if runs wait for a thread that is
        quick enough.
        """
        with self._lock:
            since = self._monotonic() - quick_s
            started = [run.started_at for run in self._running if run.started_at is not None]
            if self._is_narrow and self._waiting and any(at > since for at in started):
                return False
            self._is_narrow = False
            self._launch_all()
            return True

    def refuse(self, run: Run) -> None:
        """Ends a run that has no time at all, without its handler."""
        run.pacers = {}
        if run.begin(self._monotonic()):
            run.take(Step.TIME_OUT)
            run.end(self._monotonic())
            self._finished(run)

    def stop(self, run: Run) -> None:
        run.stop()

    def renewed(self, run: Run) -> None:
        """The run's lease was renewed."""

    def isolates(self, kind: str) -> bool:
        """Whether a run of that kind can get a process of its own."""
        return False

    @property
    def slots(self) -> int:
        """How many runs can be under way at once."""
        return self._slots

    @property
    def is_spent(self) -> bool:
        """Whether as many handlers are stuck as there are slots; each of them occupies a thread for ever."""
        return len(self._stuck) >= self._slots

    def look(self, now: float) -> list[Run]:
        """Takes the steps that are due. Returns the runs that it gave up."""
        given_up = []
        with self._lock:
            running = list(self._running)
        for run in running:
            due, step = run.next_step()
            if now >= due:
                self._take(run, step)
                if step is Step.GIVE_UP:
                    given_up.append(run)
        return given_up

    def close(self) -> None:
        """Lets the threads end when they are free; a thread that is stuck in a handler ends with the process."""
        self._waiting.clear()
        for _ in range(self._threads):
            self._queue.put(None)
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _fill(self) -> None:
        with self._lock:
            self._launch_all()

    def _launch_all(self, run: Run | None = None) -> None:
        """Launches a run that has begun, and those that wait as far as slots are free."""
        run = run or self._begin_next_elsewhere()
        while run is not None:
            try:
                self._launch(run)
            except RuntimeError:  # the system gives no thread: the worker returns the job after a while
                del self._running[run]
                run.started_at = None
                return
            run = self._begin_next_elsewhere()

    def _begin_next_elsewhere(self) -> Run | None:
        """The next run for another thread than this one. One thread is enough for quick runs."""
        is_enough = self._is_narrow and any(self._is_for_thread(run) for run in self._running)
        if is_enough and self._waiting and self._is_for_thread(self._waiting[0]):
            return None
        return self._begin_next()

    def _begin_next(self) -> Run | None:
        """The next run that waits for a slot, if one is free."""
        while len(self._running) < self.slots and self._waiting and self._has_room(self._waiting[0]):
            run = self._waiting.popleft()
            if run.begin(self._monotonic()):
                self._running[run] = None
                return run
        return None

    def _has_room(self, run: Run) -> bool:
        return True

    def _launch(self, run: Run) -> None:
        if run.job_type.is_async:
            loop = self.loop or self._start_loop()
            loop.call_soon_threadsafe(self._start_task, loop, run)
            return
        # The run is among those under way. If they are more than the threads, no thread is free for it.
        if self._threads < sum(map(self._is_for_thread, self._running)):
            threading.Thread(target=self._slot, name=f"hocket-handler-{self._threads + 1}", daemon=True).start()
            self._threads += 1
        self._queue.put(run)

    def _take(self, run: Run, step: Step) -> None:
        run.take(step)
        if step is Step.GIVE_UP:
            self._give_up(run)

    def _give_up(self, run: Run) -> None:
        with self._lock:
            if run not in self._running:
                return
            del self._running[run]
            self._stuck.add(run)
            if run.job_type.is_async:
                self.loop = None
                for other in [each for each in self._running if each.job_type.is_async and not each.has_begun]:
                    self._launch(other)  # the loop that it waits for may be blocked
            else:
                self._threads -= 1
        self._over(run)

    def _over(self, run: Run) -> None:
        with self._lock:
            self._running.pop(run, None)
        is_first = run.end(self._monotonic())
        self._fill()
        if is_first:
            self._finished(run)

    def _came_back(self, run: Run) -> bool:
        """A handler has ended: whether its run was given up before."""
        is_late = run in self._stuck
        self._stuck.discard(run)
        self._running.pop(run, None)
        return is_late

    def _slot(self) -> None:
        """Executes what is in the queue. As long as other runs wait, it goes on with the next of them: no other thread
        is woken for that.
        """
        run = self._queue.get()
        while run is not None:
            run.execute()
            with self._lock:
                if self._came_back(run):
                    return  # another thread has this slot
                following = self._next_here()
            if run.end(self._monotonic()):
                self._finished(run)
            run = following or self._queue.get()

    def _next_here(self) -> Run | None:
        """The next run, if this thread can execute it. If not, that run is launched."""
        run = self._begin_next()
        if run is None or self._is_for_thread(run):
            return run
        self._launch_all(run)
        return None

    def _is_for_thread(self, run: Run) -> bool:
        return not run.job_type.is_async

    def _start_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=_serve, args=(loop,), name="hocket-async-handlers", daemon=True).start()
        self.loop = loop
        return loop

    def _start_task(self, loop: asyncio.AbstractEventLoop, run: Run) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            with self._lock:
                is_over = task is run.task and not self._came_back(run)
            if is_over:
                self._over(run)
            if loop is not self.loop and not asyncio.all_tasks(loop):
                loop.stop()  # another loop has taken its place

        task = loop.create_task(run.execute_async())
        task.add_done_callback(ended)
        if not run.attach(task) or run.cancelled:
            task.cancel()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Runs the loop until it is stopped, and ends it: a program may run many workers, one after the other."""
    try:
        loop.run_forever()
    finally:
        end_loop(loop)


class HandlerWatch:
    """What goes wrong with the handlers of a worker: one that does not end, one that blocks the loop of the async ones,
    and a handler process that does not start. `look` reports it, from time to time.
    """

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
