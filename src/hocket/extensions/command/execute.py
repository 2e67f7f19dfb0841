"""Runs commands for a worker through a fork server, a separate process that starts with the first command and ends with
the worker. None of a command's processes is left when `run` returns, however it returns. This needs Linux.
"""

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

from hocket.extensions.command.execution import Resources
from hocket.extensions.command.fork_server_connection import ForkServerConnection
from hocket.extensions.command.gpus import Gpus
from hocket.extensions.command.running import CommandOrder, Heard, Running
from hocket.extensions.command.streams import Kept

__all__ = ["CommandOrder", "CommandResult", "CommandRunner", "Heard", "Kept", "Why"]

# How often a silent command is checked for a request to stop.
ROUND_S = 0.1
# How often an order is sent: to a waiting supervisor, which may have died, to a new one, and to one of a new fork
# server.
TRIES = 3

Why = Literal["exited", "timeout", "stopped", "disk full", "out of memory", "over budget", "not started", "lost"]


class CommandBudget(Protocol):
    """Looks at a command every `look_s` seconds. One that is over its budget has `stop_s` to end."""

    look_s: float
    stop_s: float

    def over(self, used: Resources) -> str | None:
        """Why the command must stop that has used this so far; None if it may go on."""


class CommandResult(NamedTuple):
    """How a command ended. `lost` means that its supervisor or the fork server was killed, and the command with it."""

    exit_code: int | None
    signal: int | None
    why: Why
    detail: str
    started_ms: int
    finished_ms: int
    resources: Resources
    stdout: Kept
    stderr: Kept


class CommandRunner:
    """Safe to use from several threads. The fork server starts when it is needed, and again if it has died."""

    def __init__(self, gpus: Gpus | None = None) -> None:
        self._gpus = gpus
        self._lock = threading.Lock()
        self._line: ForkServerConnection | None = None
        self._is_closed = False

    @property
    def process(self) -> int | None:
        """The pid of the fork server; None while there is none."""
        line = self._line
        return line.process.pid if line is not None else None

    def run(
        self,
        order: CommandOrder,
        heard: Heard,
        should_stop: Callable[[], bool],
        now_ms: Callable[[], int],
        budget: CommandBudget | None = None,
    ) -> CommandResult:
        """Runs the command and blocks until all its processes are gone. `heard` is called with its output while it
        runs, as ("stdout" or "stderr", bytes). An exception in this thread meanwhile, from `heard` or from another
        thread, stops the command, and is raised again when the command is gone.
        """
        started_ms = now_ms()
        over: str | None = None
        try:
            running = Running(order if budget is None else order._replace(watched_s=budget.look_s), self._gpus)
        except OSError as error:
            return _unprepared(order, error, started_ms, now_ms())
        try:
            try:
                problem = self._give(running)
                while not (running.is_over or problem):
                    running.listen(heard, ROUND_S)
                    if budget is not None and over is None and running.usage is not None:
                        over = budget.over(_used(running, running.usage))
                    if budget is not None and over is not None:
                        running.stop(min(order.grace_s, budget.stop_s))
                    elif self._is_closed or should_stop():
                        running.stop()
                self._give_up(running)
                running.drain(heard)
                return _ended(running, problem, started_ms, now_ms(), over)
            except BaseException:
                running.stop()
                while not running.is_over:
                    running.listen(_deaf, ROUND_S)
                self._give_up(running)
                running.drain(_deaf)
                raise
        finally:
            running.close()

    def prepare(self) -> None:
        """Call this when there is time: it speeds up starting the next command."""
        if (line := self._line) is not None:
            line.prepare()

    def close(self) -> None:
        """Stops every command and ends the fork server."""
        with self._lock:
            self._is_closed = True
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def _give(self, running: Running) -> str:
        """Sends the order; returns an error sentence if that is not possible."""
        for number in range(TRIES):
            line = self._line
            if line is None or not line.is_open:
                # On a thread of its own: an exception from outside in this thread must not leave half a fork server
                # behind.
                starter = threading.Thread(target=self._start, name="hocket-fork-start", daemon=True)
                starter.start()
                starter.join()
                line = self._line
            if line is None:
                return "the fork server cannot be started" if not self._is_closed else "the worker is stopping"
            try:
                if running.give(line):
                    return ""
            except OSError as error:
                return f"cannot start another command: {error.strerror}"
            if number > 0 and not line.is_dead():
                return "the fork server cannot start another process; see its stderr"
        return "the fork server exits as soon as it starts"

    def _start(self) -> None:
        with self._lock:
            if self._is_closed or (self._line is not None and self._line.is_open):
                return
            if self._line is not None:
                self._line.close()
                self._line = None
            try:
                self._line = ForkServerConnection()
            except OSError as error:
                print(f"hocket: cannot start the fork server: {error.strerror}", file=sys.stderr)

    def _give_up(self, running: Running) -> None:
        """Makes sure that a supervisor without a report is dead. The fork server then kills everything below it."""
        line = self._line
        if running.report is None and running.supervisor and line is not None:
            line.kill(running.supervisor)


def _deaf(stream: str, chunk: bytes) -> None:
    pass


def _unprepared(order: CommandOrder, error: OSError, started_ms: int, finished_ms: int) -> CommandResult:
    nothing = [Kept(order.streams / name, 0, 0) for name in ("stdout", "stderr")]
    detail = f"cannot write the command's output to {order.streams}: {error.strerror}"
    return CommandResult(None, None, "not started", detail, started_ms, finished_ms, Resources(), *nothing)


def _used(running: Running, report: dict[str, Any]) -> Resources:
    return Resources(
        **{name: report[name] for name in _MEASURED},
        network_bytes=None if running.order.network else 0,
        gpu_s=dict(running.gpus.seconds) if running.gpus is not None else {},
    )


def _ended(running: Running, problem: str, started_ms: int, finished_ms: int, over: str | None = None) -> CommandResult:
    report = running.report or {"is": "lost"}
    order = running.order
    why: Why
    resources = Resources()
    if problem:
        why, detail = "not started", problem
    elif report["is"] == "not started":
        why, detail = "not started", _refusal(order, report["step"], report["errno"])
    elif report["is"] == "lost" or report["why"] == "abandoned":
        why, detail = "lost", "the command's supervisor was killed, and the command with it"
    elif report["why"] == "stopped" and over is not None:
        why, detail = "over budget", over
    else:
        why = report["why"]
        detail = _sentence(order, why, report["exit_code"], report["signal"])
    if report["is"] == "ended":
        if running.gpus is not None:
            running.gpus.finish(time.monotonic())
        resources = _used(running, report)
        if report["hanging"]:
            detail += f"; {report['hanging']} of its processes do not end after SIGKILL"
    kept = running.finish()
    for name, keeping in running.kept.items():
        if keeping.problem is not None:
            detail += f"; only {kept[name].size} bytes of {name} are kept: {keeping.problem}"
    return CommandResult(
        report.get("exit_code"),
        report.get("signal"),
        why,
        detail,
        started_ms,
        finished_ms,
        resources,
        kept["stdout"],
        kept["stderr"],
    )


_MEASURED = ("wall_s", "cpu_s", "memory_peak_bytes", "memory_gb_s", "disk_read_bytes", "disk_written_bytes")


def _sentence(order: CommandOrder, why: Why, exit_code: int | None, number: int | None) -> str:
    end = f"it was killed by {_signal_name(number)}" if number is not None else f"its exit code is {exit_code}"
    if why == "exited":
        return end
    little = f"fewer than {order.free_bytes_min} bytes are free on the disk of {order.directory}, or few files"
    reason = {
        "timeout": f"it was stopped after its timeout of {order.timeout_s:g} s",
        "stopped": "it was stopped",
        "out of memory": f"it used more than {order.limits.memory_bytes_max} bytes of memory",
        "disk full": little,
    }[why]
    return f"{reason}; {end}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _refusal(order: CommandOrder, step: str, number: int) -> str:
    """Why the command could not be started, and what to do."""
    program = order.argv[0]
    if step == "directory":
        return f"cannot run in {order.directory}: {os.strerror(number)}"
    if step != "program":
        return f"cannot start a process: {os.strerror(number) if number else step}"
    if number == errno.ENOENT and "/" not in program:
        return f"there is no program {program!r} on the PATH {order.env.get('PATH', os.defpath)!r}; install it"
    said = {
        errno.ENOENT: "it, or the interpreter that it names, does not exist",
        errno.EACCES: "it is a directory, or not executable",
        errno.ENOEXEC: "it is neither a program for this machine nor a script that begins with #!",
        errno.E2BIG: "its arguments and environment are too long; pass them in a file",
    }.get(number, os.strerror(number))
    return f"cannot run {program!r}: {said}"
