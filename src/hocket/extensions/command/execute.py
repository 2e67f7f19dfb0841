"""Runs commands for a worker through a fork server, a separate process that starts with the first command and ends with
the worker. None of a command's processes is left when `run` returns, however it returns. This needs Linux.

Also makes the order from a manifest: the command line, with a sandbox around it if needed, the environment, and the
limits. A command sees nothing of the worker's environment except the few variables named here.
"""

import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from fnmatch import translate
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

from hocket.extensions.command import sandbox
from hocket.extensions.command.command_runs import (
    CommandOrder,
    ForkServerConnection,
    Gpus,
    Heard,
    ResourceLimits,
    Running,
)
from hocket.extensions.command.execution import Resources
from hocket.extensions.command.manifest import Manifest, Sandbox
from hocket.extensions.command.outputs import Kept
from hocket.extensions.command.workdir import Workdir

__all__ = ["CommandOrder", "CommandResult", "CommandRunner", "Heard", "Kept", "Why"]
# How often a silent command is checked for a request to stop.
ROUND_S = 0.1
# How often an order is sent: to a waiting supervisor, which may have died, to a new one, and to one of a new fork
# server.
TRIES = 3
Why = Literal["exited", "timeout", "stopped", "disk full", "out of memory", "over budget", "not started", "lost"]
_MEASURED = ("wall_s", "cpu_s", "memory_peak_bytes", "memory_gb_s", "disk_read_bytes", "disk_written_bytes")
# The worker's variables that commands get; a star matches anything.
PASSED_ON = ("PATH", "LANG", "LC_*", "TZ")


class CommandLimits(NamedTuple):
    """What a worker allows a command. `run_s_max` applies if the manifest has no timeout, or a longer one."""

    run_s_max: float
    grace_s: float
    output_bytes_max: int
    free_bytes_min: int
    file_bytes_max: int


class RunTerms(NamedTuple):
    """How a worker runs a command. `passed_on` are names of the worker's own variables, `paths` what a sandbox shows
    besides the system, `hidden` what it never shows, `secrets` variables that are not in the manifest. The command of
    another node cannot choose its HOME and TMPDIR.
    """

    is_own: bool
    sandbox: Sandbox
    passed_on: tuple[str, ...] = PASSED_ON
    paths: tuple[str, ...] = ()
    secrets: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()
    limits: ResourceLimits = ResourceLimits()


def order_for(
    manifest: Manifest, workdir: Workdir, told: Mapping[str, str], bounds: CommandLimits, terms: RunTerms
) -> CommandOrder:
    """`told` are variables that identify the job. Raises Usage if a sandbox is required and cannot be made."""
    directory = workdir.begin_in(manifest)
    env = environment(manifest, workdir, told, os.environ, terms)
    order = CommandOrder(
        argv=manifest.argv,
        env=env,
        directory=directory,
        streams=workdir.streams,
        timeout_s=min(manifest.timeout or bounds.run_s_max, bounds.run_s_max),
        grace_s=bounds.grace_s,
        output_bytes_max=bounds.output_bytes_max,
        free_bytes_min=bounds.free_bytes_min,
        file_bytes_max=bounds.file_bytes_max,
        limits=terms.limits,
    )
    return order if terms.sandbox == "off" else _sandboxed(order, workdir, terms)


def _sandboxed(order: CommandOrder, workdir: Workdir, terms: RunTerms) -> CommandOrder:
    """The variables are for the command alone: bubblewrap would load a library that they name before there is a
    sandbox.
    """
    has_network, bubblewrap = terms.sandbox == "network", sandbox.check()
    view = sandbox.View(workdir, order.directory, has_network, terms.paths, terms.hidden)
    is_gated = order.limits.processes_max > 0
    boxed = sandbox.wrapped(bubblewrap, order.argv, view, order.env, is_gated=is_gated)
    return order._replace(
        argv=boxed.argv,
        env={},
        files=boxed.files,
        sandboxed=True,
        network=has_network,
        is_scoped=has_network and not bubblewrap.is_privileged,
    )


def environment(
    manifest: Manifest,
    workdir: Workdir,
    told: Mapping[str, str],
    own: Mapping[str, str],
    terms: RunTerms,
) -> dict[str, str]:
    """The worker's passed-on variables, then a home and a temporary directory, then the manifest's variables, then
    `told`: the later ones win.
    """
    is_passed_on = _fitting(terms.passed_on).match
    places = {"HOME": str(workdir.home), "TMPDIR": str(workdir.temporary)}
    return {
        "PATH": os.defpath,
        **{name: value for name, value in own.items() if is_passed_on(name)},
        **places,
        **(manifest.env or {}),
        **terms.secrets,
        **({} if terms.is_own else places),
        **told,
    }


@cache
def _fitting(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")


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
