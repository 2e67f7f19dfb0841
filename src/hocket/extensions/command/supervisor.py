"""Supervises one command, in a process that the fork server forks for it. Linux makes it the parent of all orphans
below it, so that no process of the command can escape: not by forking twice, not by a session of its own. The command
is over when its first process ends; the remaining processes are then killed. The command is stopped when its time is
up, when the disk is full and when the worker asks; it is killed at once when the worker or the fork server dies.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import resource
import select
import time

from hocket.extensions.command.command_process import CommandProcess
from hocket.extensions.command.metering import LOOK_ADVANCE_S, LOOK_MAX_S, LOOK_S, LOOK_SHARE, UsageMeter
from hocket.work.child_processes.bare_interpreter import receive_fds
from hocket.work.child_processes.process_tree import Process, Tree, adopt_orphans, name_process, watch_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE_BYTES_MAX = 65_536
# The name of a supervisor in process lists, before it has an order and after.
READY, BUSY = b"hocket-ready", b"hocket-command"
# How many processes are reported for GPU metering.
NAMED_MAX = 1_000
# If less disk space is free than this times the required minimum, it is checked as often as at the start.
TIGHT = 4
# A disk is full, too, when it has room for fewer files than this, or than this part of all.
FREE_FILES_MIN, FREE_FILES_PART = 10_000, 100
# How long a sandbox may take to report its first process.
GATE_S = 10.0

_MSG_DONTWAIT = 0x40


def supervise(control: _socket.socket, worker: int, fork_server: int) -> None:
    """Waits for an order on the control socket, runs it and reports. `worker` is a descriptor of the worker's process,
    `fork_server` the fork server's pid.
    """
    os.setsid()
    adopt_orphans()
    name_process(READY)
    fork_server_gone = watch_parent(fork_server)
    if fork_server_gone is None:
        return
    lives = (worker, fork_server_gone)
    first = _first()
    _rehearse(control, first)
    if _first_of(control.fileno(), lives) in lives:
        return
    order, streams = _order(control)
    if not order:
        return
    _say(control, {"is": "taken", "number": os.getpid()})
    name_process(BUSY)
    watch = CommandWatch(control, marshal.loads(order), first)
    if watch.start(order, streams):
        for stream in streams:
            os.close(stream)
        watch.stay(lives)
        watch.finish()
        # Processes that did not end before the report are still killed, however long it takes.
        while not watch.kill():
            continue


def _rehearse(control: _socket.socket, first: CommandProcess | None) -> None:
    """A fork copies shared memory when it is first touched. So this goes through the motions once while nothing waits
    for it.
    """
    order = marshal.dumps({"argv": [b""], "env": {b"": b""}, "directory": b"", "timeout_s": 1.0})
    CommandWatch(control, marshal.loads(order), first).reap()


def _first() -> CommandProcess | None:
    """None if no further process can be created now."""
    try:
        return CommandProcess()
    except OSError:
        return None


class CommandWatch:
    """One command from its start to its end."""

    def __init__(self, control: _socket.socket, order: dict[str, Any], first: CommandProcess | None) -> None:
        self._control = control
        self._order = order
        self._first = first
        self._tree = Tree((first.number,) if first is not None else ())
        self._meter = UsageMeter(time.monotonic())
        self._status: int | None = None
        self._why = "exited"
        self._named_at = 0.0
        self._began = time.monotonic()
        self._spent_s = 0.0
        try:
            self._workdir = os.open(order["directory"], os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._workdir = -1  # the command cannot start there either, and reports why

    def start(self, order: bytes, streams: list[int]) -> bool:
        """Starts the first process; if it has died while waiting, starts another one."""
        gate: _Gate | None = None
        try:
            gate = _Gate() if self._order["processes_max"] else None
            given = [*streams, *(gate.ends if gate is not None else ())]
            self._first = self._first or CommandProcess()
            try:
                problem = self._first.begin(order, given)
            except OSError:
                self._first = CommandProcess()
                problem = self._first.begin(order, given)
        except OSError as error:
            problem = "fork", error.errno or 0
        if gate is not None:
            gate.open(self._order["processes_max"])
        if problem is not None:
            self.kill()
            _say(self._control, {"is": "not started", "step": problem[0], "errno": problem[1]})
        return problem is None

    def stay(self, lives: tuple[int, ...]) -> None:
        """Returns when the command has ended or must be killed."""
        poller = select.poll()
        assert self._first is not None
        first = os.pidfd_open(self._first.number)
        for each in (first, self._control.fileno(), *lives):
            poller.register(each, select.POLLIN)
        order, now = self._order, time.monotonic()
        until = now + order["timeout_s"]
        rest, look_at = LOOK_S, now + LOOK_S
        while True:
            if now >= look_at:
                rest = self._look(now, rest)
                look_at = time.monotonic() + rest
            wake_at = min(look_at, until, now + self._disk_rest_s())
            ready = {fd for fd, _ in poller.poll(max(0.0, wake_at - now) * 1000)}
            now = time.monotonic()
            if ready.intersection(lives):
                self._why = "abandoned"
                return
            if self._control.fileno() in ready:
                told = _received(self._control)
                if not told:
                    self._why = "abandoned"
                    return
                if self._why == "exited":
                    until = self._stop("stopped", now, marshal.loads(told))
            if first in ready:
                poller.unregister(first)
                look_at = now
            if not self.reap() or (self._why == "exited" and self._status is not None):
                return
            if now >= until:
                if self._why != "exited":
                    return
                until = self._stop("timeout", now, order["grace_s"])
            elif self._why == "exited" and self._is_full():
                until = self._stop("disk full", now, order["grace_s"])
            elif 0 < order["memory_bytes_max"] < self._meter.memory_bytes:
                # It would take more while it ends.
                self._why = "out of memory"
                return

    def finish(self) -> None:
        """Ends the remaining processes of the command, and reports."""
        is_gone = self.kill()
        status = self._status
        exit_code = os.waitstatus_to_exitcode(status) if status is not None else None
        if self._why == "exited" and exit_code != 0 and self._is_full():
            self._why = "disk full"
        report = {
            "is": "ended",
            "why": self._why,
            "exit_code": exit_code if exit_code is not None and exit_code >= 0 else None,
            "signal": -exit_code if exit_code is not None and exit_code < 0 else None,
            "hanging": 0 if is_gone else len(self._tree.look()),
            **self._meter.total(time.monotonic()),
        }
        _say(self._control, report)

    def kill(self) -> bool:
        return self._tree.kill(self.reap)

    def reap(self) -> bool:
        """Reaps the processes that have ended. False if there are none left."""
        while True:
            try:
                number, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if number == 0:
                return True
            self._meter.ended(usage)
            if self._first is not None and number == self._first.number:
                self._status = status

    def _stop(self, why: str, now: float, grace_s: float) -> float:
        """Asks all processes to end; returns the time when their grace is over."""
        self._why = why
        # A suspended process would not receive it.
        self._tree.tell(signal.SIGTERM, signal.SIGCONT)
        return now + grace_s

    def _look(self, now: float, rest: float) -> float:
        """Samples the processes; returns how long until the next time."""
        before = time.thread_time()
        processes = self._tree.look()
        self._meter.look(processes, now)
        self._name(processes, now)
        if self._order["watched_s"]:
            _say(self._control, {"is": "usage", **self._meter.total(now)}, wait=False)
        rest = min(rest * 2, self._order["watched_s"] or LOOK_MAX_S) if self._why == "exited" else LOOK_S
        self._spent_s += time.thread_time() - before
        return max(rest, (self._spent_s - LOOK_ADVANCE_S) / LOOK_SHARE - (time.monotonic() - self._began))

    def _name(self, processes: dict[int, Process], now: float) -> None:
        every_s = self._order["named_s"]
        if every_s and now - self._named_at >= every_s:
            self._named_at = now
            _say(self._control, {"is": "processes", "numbers": [*processes][:NAMED_MAX]}, wait=False)

    def _disk_rest_s(self) -> float:
        """How long until the disk is checked again. However long it takes to sample the processes, this goes on."""
        if not self._order["free_bytes_min"] or self._why != "exited":
            return float("inf")
        return LOOK_S if self._is_full(TIGHT) else LOOK_MAX_S

    def _is_full(self, times: int = 1) -> bool:
        least = self._order["free_bytes_min"]
        if not least or self._workdir < 0:
            return False
        try:
            workdir = os.fstatvfs(self._workdir)
        except OSError:
            return False
        files_min = min(FREE_FILES_MIN, workdir.f_files // FREE_FILES_PART)
        return bool(workdir.f_bavail * workdir.f_frsize < least * times or workdir.f_favail < files_min * times)


class _Gate:
    """Limits the processes of a command in a sandbox before it begins. The limit must be set inside: outside, the
    kernel compares it with all processes of the user.
    """

    def __init__(self) -> None:
        self._report, report_end = os.pipe()
        wait_end, self._wait = os.pipe()
        self.ends = (report_end, wait_end)

    def open(self, processes_max: int) -> None:
        for fd in self.ends:
            os.close(fd)
        try:
            first = self._first()
            if first:
                resource.prlimit(first, resource.RLIMIT_NPROC, (processes_max, processes_max))
            os.write(self._wait, b"go")
        except OSError:
            pass  # the sandbox has ended, and its exit code says why
        finally:
            os.close(self._report)
            os.close(self._wait)

    def _first(self) -> int:
        """The pid of the first process inside; 0 if there is none. The report is read to its end: it comes in parts."""
        poller, report = select.poll(), b""
        poller.register(self._report, select.POLLIN)
        while b"}" not in report and poller.poll(GATE_S * 1000):
            part = os.read(self._report, MESSAGE_BYTES_MAX)
            if not part:
                return 0
            report += part
        number = report.partition(b'"child-pid":')[2].partition(b",")[0].strip()
        return int(number) if number.isdigit() else 0


def _first_of(control: int, lives: tuple[int, ...]) -> int:
    """Waits until one of these descriptors is readable."""
    poller = select.poll()
    for each in (*lives, control):
        poller.register(each, select.POLLIN)
    return poller.poll()[0][0]


def _order(control: _socket.socket) -> tuple[bytes, list[int]]:
    """The order, and where the command's stdout and stderr go. It comes in several messages; the first has the total
    length. Empty if the worker dies before the last.
    """
    head, streams = receive_fds(control, MESSAGE_BYTES_MAX)
    size = int.from_bytes(head, "big")
    parts = bytearray()
    while len(parts) < size:
        part = _received(control)
        if not part:
            return b"", []
        parts += part
    return bytes(parts), streams


def _received(control: _socket.socket) -> bytes:
    try:
        return control.recv(MESSAGE_BYTES_MAX)
    except OSError:
        return b""


def _say(control: _socket.socket, message: dict[str, Any], wait: bool = True) -> None:
    try:
        control.send(marshal.dumps(message), 0 if wait else _MSG_DONTWAIT)
    except OSError:
        pass  # the worker is gone
