"""Runs handlers in processes of their own, which can be killed. The worker keeps the claims, the renewals and the
commits, so that no handler can block them; a handler process only runs handlers, and tells the worker what they make
and how they end. A handler that does not stop costs its process: another one takes its place at once, and the process
is killed when its other runs have ended, at the latest after a grace. Commands run on threads of the worker; they have
processes of their own anyway.

A process that dies takes its runs with it. A run that was alone in it fails: its handler is the cause. Of several runs
the cause is unknown: they go back to the queue, and here each of them runs alone from then on.

A job with which whole workers died gets a process of its own, which ends with the run. A plan for no processes is for
these alone: all other handlers run on threads of the worker.
"""

import asyncio
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from hocket.errors import Usage
from hocket.families.jobs.requests import Claim
from hocket.kernel.retrying import PROCESS_RETRIES
from hocket.work.handler_threads import HandlerThreads, ProcessPlan
from hocket.work.pacing import Ending
from hocket.work.run_outputs import RunOutput
from hocket.work.runner import Run, Step

# How long the other runs of a process with a stuck handler may go on.
GRACE_S = 10.0
# How long a process may take to end when it is told to.
CLOSING_S = 2.0
_BEGIN = """
import sys
from importlib import import_module
sys.path[:] = sys.argv[4:]
import_module(sys.argv[1]).main(int(sys.argv[2]), int(sys.argv[3]))
"""
# How long the last messages to the other end may take to be written.
FLUSHED_S = 1.0


class Setup(NamedTuple):
    """The first message to a process: the node's home, the modules (name and file) with the handlers, their kinds, and
    how many handlers it runs at once.
    """

    home: Path
    modules: Sequence[tuple[str, str]]
    kinds: Sequence[str]
    slots: int
    argv: Sequence[str]


class Ready(NamedTuple):
    """The process has loaded its handlers, or says why it cannot."""

    error: str | None


# To a process. A run is known by its number.


class Start(NamedTuple):
    run: int
    kind: str
    claim: Claim
    lease_ms: int
    claimed_at: float
    twins: Mapping[str, tuple[str, Any]]
    """What paces the run in the process, by extension."""


class Renewed(NamedTuple):
    run: int
    ends_at: float
    deadline_ms: int


class Take(NamedTuple):
    """A step that is due; None stops the run."""

    run: int
    step: Step | None


class Close(NamedTuple):
    """No more runs will come."""


# To the worker.


class Noted(NamedTuple):
    run: int
    note: bytes


class Saved(NamedTuple):
    run: int
    checkpoint: bytes


class Paced(NamedTuple):
    """What the twin of a pacer tells it."""

    run: int
    extension: str
    message: Any


class PartAdded(NamedTuple):
    """The next part of the result, as JSON."""

    run: int
    part: bytes
    is_bytes: bool


class Made(NamedTuple):
    """An output of a run, or the record of a model call: as `begun` while there is no answer, then with it."""

    run: int
    output: RunOutput
    call_id: bytes | None = None
    begun: bool = False


class StuckAt(NamedTuple):
    """Where a handler is that was told to stop and goes on."""

    run: int
    stack: str


class Ended(NamedTuple):
    run: int
    ending: Ending
    stopped: bool


class Channel:
    """One end. Any thread may call `send`, even one that an exception can interrupt anywhere; it never blocks. One
    thread receives.
    """

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        self._connection = connection
        self._outgoing: SimpleQueue[bytes | None] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="hocket-handler-channel", daemon=True)
        self._writer.start()

    def send(self, message: NamedTuple) -> None:
        self._outgoing.put(pickle.dumps(message))

    def receive(self, patience_s: float | None = None) -> Any:
        """The next message; None if there is none in time. Raises EOFError or OSError when the other end is gone."""
        return self._connection.recv() if self._connection.poll(patience_s) else None

    def close(self) -> None:
        """Sends what is waiting, and closes this end."""
        self._outgoing.put(None)
        self._writer.join(FLUSHED_S)

    def _write(self) -> None:
        with suppress(OSError):
            while (message := self._outgoing.get()) is not None:
                self._connection.send_bytes(message)
        with suppress(OSError):
            self._connection.close()


class _Process:
    """One handler process. It is killed by the kernel, with everything that it has started, when this one ends."""

    def __init__(self, plan: ProcessPlan, slots: int, *, is_lone: bool = False) -> None:
        self.is_ready = False
        self.is_lone = is_lone
        self.error: str | None = None
        self.retires_at = math.inf
        self.runs: dict[int, Run] = {}
        self.unanswered: dict[bytes, RunOutput] = {}
        self.ended = threading.Event()
        self._reaping = threading.Lock()
        ours, theirs = Pipe()
        lifeline, self._lifeline = os.pipe()
        fds = theirs.fileno(), lifeline
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", _BEGIN, plan.program, *map(str, fds), *sys.path],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.channel = Channel(ours)
        self.channel.send(Setup(plan.home, plan.modules, sorted(plan.kinds), slots, sys.argv))

    @property
    def is_retiring(self) -> bool:
        return self.retires_at < math.inf

    def kill(self) -> None:
        """Kills it, and whatever its handlers have started in its session."""
        with self._reaping, suppress(ProcessLookupError):
            if self.popen.returncode is None:
                os.killpg(self.popen.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Call this once, when it is about to end: its exit code, or the negative number of a signal."""
        hurry = threading.Timer(CLOSING_S, self.kill)
        hurry.start()
        os.waitid(os.P_PID, self.popen.pid, os.WEXITED | os.WNOWAIT)
        hurry.cancel()
        self.kill()  # it has ended, but its number still stands for its session
        with self._reaping:
            code = self.popen.wait()
        self.channel.close()
        os.close(self._lifeline)
        self.ended.set()
        return code


class HandlerProcesses(HandlerThreads):
    def __init__(
        self, plan: ProcessPlan, slots: int, finished: Callable[[Run], None], monotonic: Callable[[], float]
    ) -> None:
        super().__init__(slots, finished, monotonic)
        self._plan = plan
        self._each = math.ceil(slots / max(1, plan.processes))
        self._processes: list[_Process] = []
        self._numbers = count()
        self._suspects: set[bytes] = set()
        self._can_isolate = True
        self._failures = 0
        self._starts_at = 0.0
        self._changed: Callable[[], object] = lambda: None
        self._is_closed = False

    async def open(self) -> None:
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        self._changed = lambda: loop.call_soon_threadsafe(changed.set)
        self._start_missing(self._monotonic())
        try:
            while sum(each.is_ready for each in self._standing()) < self._plan.processes:
                await changed.wait()
                changed.clear()
                if self.trouble is not None:
                    raise Usage(self.trouble)
        finally:
            self._changed = lambda: None

    @property
    def slots(self) -> int:
        if not self._plan.processes:
            return self._slots
        ready = sum(each.is_ready and not each.is_retiring for each in self._standing())
        return min(self._slots, ready * self._each)

    def isolates(self, kind: str) -> bool:
        return self._can_isolate and kind in self._plan.kinds

    def _standing(self) -> list[_Process]:
        """The processes that stay, whichever runs end."""
        return [each for each in list(self._processes) if not each.is_lone]

    def stop(self, run: Run) -> None:
        super().stop(run)
        self._say(run, None)

    def renewed(self, run: Run) -> None:
        if (found := self._find(run)) is not None:
            process, number = found
            process.channel.send(Renewed(number, run.lease.ends_at, run.deadline_ms))

    def look(self, now: float) -> list[Run]:
        given_up = super().look(now)
        for process in list(self._processes):
            if process.is_retiring and (not process.runs or now >= process.retires_at):
                for run in list(process.runs.values()):
                    run.stopped = True
                process.kill()
        self._start_missing(now)
        return given_up

    def close(self) -> None:
        self._is_closed = True
        super().close()
        processes = list(self._processes)
        for process in processes:
            process.channel.send(Close())
        until = self._monotonic() + CLOSING_S
        for process in processes:
            if not process.ended.wait(max(0.0, until - self._monotonic())):
                process.kill()
                process.ended.wait(CLOSING_S)

    # Runs.

    def _is_lone(self, run: Run) -> bool:
        return run.is_alone and self.isolates(run.job_type.kind)

    def _is_for_process(self, run: Run) -> bool:
        return self._is_lone(run) or (self._plan.processes > 0 and run.job_type.kind in self._plan.kinds)

    def _has_room(self, run: Run) -> bool:
        return self._is_lone(run) or not self._is_for_process(run) or self._place(run) is not None

    def _place(self, run: Run) -> _Process | None:
        """The process with the fewest runs that may take one more."""
        room = 1 if run.job.id in self._suspects else self._each
        places = [
            each
            for each in self._standing()
            if each.is_ready
            and not each.is_retiring
            and len(each.runs) < room
            and not any(other.job.id in self._suspects for other in list(each.runs.values()))
        ]
        return min(places, key=lambda each: len(each.runs), default=None)

    def _is_for_thread(self, run: Run) -> bool:
        return not self._is_for_process(run) and super()._is_for_thread(run)

    def _launch(self, run: Run) -> None:
        if not self._is_for_process(run):
            super()._launch(run)
            return
        process, number = self._start_lone() if self._is_lone(run) else self._place(run), next(self._numbers)
        assert process is not None
        process.runs[number] = run
        kind, claim = run.job_type.kind, run.claim
        twins = {name: pacer.twin for name, pacer in run.pacers.items() if pacer.twin is not None}
        process.channel.send(Start(number, kind, claim, run.lease_ms, run.claimed_at, twins))

    def _take(self, run: Run, step: Step) -> None:
        super()._take(run, step)
        if step is not Step.GIVE_UP:
            self._say(run, step)

    def _give_up(self, run: Run) -> None:
        found = self._find(run)
        if found is None:  # it runs on a thread, or has just ended
            if not self._is_for_process(run):
                super()._give_up(run)
            return
        process, number = found
        with self._lock:
            process.retires_at = min(process.retires_at, self._monotonic() + GRACE_S)
            if len(process.runs) == 1:
                process.kill()
                return  # the run is over when its process has ended
            process.runs.pop(number, None)
        self._over(run)

    def _say(self, run: Run, step: Step | None) -> None:
        if (found := self._find(run)) is not None:
            process, number = found
            process.channel.send(Take(number, step))

    def _find(self, run: Run) -> tuple[_Process, int] | None:
        for process in list(self._processes):
            for number, other in list(process.runs.items()):
                if other is run:
                    return process, number
        return None

    # Processes.

    def _start_missing(self, now: float) -> None:
        while sum(not each.is_retiring for each in self._standing()) < self._plan.processes:
            if self._is_closed or now < self._starts_at:
                return
            try:
                process = _Process(self._plan, self._each)
            except OSError as error:
                self._failed(f"no process can be started: {error.strerror}")
                return
            self._add(process)

    def _start_lone(self) -> _Process:
        try:
            process = _Process(self._plan, 1, is_lone=True)
        except OSError as error:
            raise RuntimeError(f"no process can be started: {error.strerror}") from error
        self._add(process)
        return process

    def _add(self, process: _Process) -> None:
        self._processes.append(process)
        threading.Thread(target=self._listen, args=(process,), name="hocket-handler-process", daemon=True).start()

    def _listen(self, process: _Process) -> None:
        """A thread for each process: hears it until it ends."""
        with suppress(EOFError, OSError):
            while True:
                self._heard(process, process.channel.receive())
        self._died(process, process.reap())

    def _heard(self, process: _Process, message: Any) -> None:
        if isinstance(message, Ready):
            process.error = message.error
            process.is_ready = message.error is None
            if process.is_ready:
                self._failures = 0
                self._changed()
                self._fill()
            return
        run = process.runs.get(message.run)
        if run is None:
            return
        if isinstance(message, Noted):
            run.report(message.note)
        elif isinstance(message, Saved):
            run.save(message.checkpoint)
        elif isinstance(message, PartAdded):
            run.add_part(message.part, message.is_bytes)
        elif isinstance(message, Paced):
            run.pacers[message.extension].hear(message.message)
        elif isinstance(message, StuckAt):
            run.traceback = message.stack
        elif isinstance(message, Made):
            self._made(process, run, message)
        elif isinstance(message, Ended):
            process.runs.pop(message.run, None)
            if process.is_lone:
                process.channel.send(Close())
            self._suspects.discard(run.job.id)
            run.stopped = run.stopped or message.stopped
            run.conclude(message.ending._replace(traceback=message.ending.traceback or run.traceback))
            self._over(run)

    def _made(self, process: _Process, run: Run, made: Made) -> None:
        products, call_id = run.products, made.call_id
        try:
            if call_id is None:
                products.add(made.output)
            elif made.begun:
                process.unanswered[call_id] = made.output
                products.begin(call_id, lambda now: made.output)
            else:
                products.end(call_id, made.output)
                begun = process.unanswered.pop(call_id, None)
                if begun is not None and begun.staged is not None:
                    products.kit.blobs.drop(begun.staged)
        except Usage:
            pass  # the run is over, and its outputs are sealed

    def _died(self, process: _Process, code: int) -> None:
        with self._lock:
            self._processes.remove(process)
            runs, process.runs = list(process.runs.values()), {}
        if not process.is_ready:
            if process.is_lone and process.error is not None:
                self._can_isolate = False
                for run in runs:
                    run.stopped = True
            self._failed(process.error or f"a handler process {_how(code)} before its handlers were loaded")
        for run in runs:
            if len(runs) == 1 and not run.stopped:
                self._suspects.discard(run.job.id)
                run.conclude(Ending(None, f"its process {_how(code)}", run.traceback))
            elif not run.given_up:
                run.stopped = True
                self._suspects.add(run.job.id)
            self._over(run)

    def _failed(self, error: str) -> None:
        """A process cannot be started. Another one is tried after a while."""
        self._failures += 1
        self._starts_at = self._monotonic() + PROCESS_RETRIES.delay_s(self._failures, 0.5)
        self.trouble = error
        self._changed()


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
