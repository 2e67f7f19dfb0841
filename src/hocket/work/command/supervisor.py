"""Watches over one command, in a process that the keeper forks for it. Linux makes it the parent of all orphans below
it, so that no process of the command can get away: not by forking twice, not by a session of its own. The command is
over when its first process ends; what is left of it is killed then. It is stopped when the time is up, when the disk is
full and when the worker asks; it is killed at once when the worker or the keeper is gone.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import ctypes
import marshal
import os
import resource
import select
import time

from hocket.work.command.metering import LOOK_ADVANCE_S, LOOK_MAX_S, LOOK_S, LOOK_SHARE, Meter
from hocket.work.command.tree import Process, Tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from typing import Any

MESSAGE_BYTES_MAX = 65_536
# How many processes are named to whoever asks which graphics processors they use.
NAMED_MAX = 1_000
# With less room on the disk than this times the least that must stay free, it is looked at as often as at the start.
TIGHT = 4

_MSG_DONTWAIT = 0x40
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
# A signal that whoever started the worker ignores would stay ignored.
_RESET = (
    *("SIGHUP", "SIGINT", "SIGQUIT", "SIGPIPE", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGCHLD", "SIGTSTP"),
    *("SIGTTIN", "SIGTTOU", "SIGXCPU", "SIGXFSZ"),
)

_prctl = ctypes.CDLL(None, use_errno=True).prctl


def adopt_orphans() -> None:
    """Makes this process the parent of every process below it whose own parent ends."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def watch_parent(number: int) -> int | None:
    """A descriptor that tells when the parent, who has this number, ends. None when it has ended already."""
    try:
        fd = os.pidfd_open(number)
    except ProcessLookupError:
        return None
    return fd if os.getppid() == number else None


def name_process(name: bytes) -> None:
    """What lists of processes call this one."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _set(option: int, value: int) -> None:
    if _prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def supervise(control: socket, streams: tuple[int, int], worker: int, keeper: int) -> None:
    """Takes the order from the control socket, runs it and reports. `worker` is a descriptor of the worker's process,
    `keeper` the number of the keeper's.
    """
    os.setsid()
    adopt_orphans()
    name_process(b"hocket-command")
    keeper_gone = watch_parent(keeper)
    if keeper_gone is None:
        return
    order = _order(control)
    if order is None:
        return
    _say(control, {"is": "taken", "number": os.getpid()})
    watch = Watch(control, order)
    if watch.start(streams):
        for stream in streams:
            os.close(stream)
        watch.stay((worker, keeper_gone))
        watch.finish()
        # What would not end for the report is killed all the same, however long it takes.
        while not watch.kill():
            continue


class Watch:
    """One command from its start to its end."""

    def __init__(self, control: socket, order: dict[str, Any]) -> None:
        self._control = control
        self._order = order
        self._tree = Tree()
        self._meter = Meter(time.monotonic())
        self._status: int | None = None
        self._first = 0
        self._why = "exited"
        self._named_at = 0.0
        self._began = time.monotonic()
        self._spent_s = 0.0
        try:
            self._room = os.open(order["directory"], os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._room = -1  # then the command cannot begin there either, which says why

    def start(self, streams: tuple[int, int]) -> bool:
        told, telling = os.pipe()
        supervisor = os.getpid()
        try:
            self._first = os.fork()
        except OSError as error:
            _say(self._control, {"is": "not started", "step": "fork", "errno": error.errno})
            return False
        if self._first == 0:
            _become(self._order, streams, telling, supervisor)
        os.close(telling)
        # The other end closes by itself when the program begins.
        said = os.read(told, 4096)
        os.close(told)
        if said:
            os.waitpid(self._first, 0)
            step, errno = marshal.loads(said)
            _say(self._control, {"is": "not started", "step": step, "errno": errno})
            return False
        return True

    def stay(self, lives: tuple[int, ...]) -> None:
        """Until the command has ended or must be killed."""
        poller = select.poll()
        first = os.pidfd_open(self._first)
        for each in (first, self._control.fileno(), *lives):
            poller.register(each, select.POLLIN)
        order, now = self._order, time.monotonic()
        until = now + order["timeout_s"]
        rest, look_at = LOOK_S, now + LOOK_S
        while True:
            if now >= look_at:
                rest = self._look(now, rest)
                look_at = time.monotonic() + rest
            ready = {fd for fd, _ in poller.poll(max(0.0, min(look_at, until) - now) * 1000)}
            now = time.monotonic()
            if ready.intersection(lives):
                self._why = "abandoned"
                return
            if self._control.fileno() in ready:
                if not _received(self._control):
                    self._why = "abandoned"
                    return
                if self._why == "exited":
                    until = self._stop("stopped", now)
            if first in ready:
                poller.unregister(first)
                look_at = now
            if not self.reap() or (self._why == "exited" and self._status is not None):
                return
            if now >= until:
                if self._why != "exited":
                    return
                until = self._stop("timeout", now)
            elif self._why == "exited" and self._is_full():
                until = self._stop("disk full", now)

    def finish(self) -> None:
        """Ends what is left of the command, and reports."""
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
        """Takes note of the processes that have ended. False when there are none any more."""
        while True:
            try:
                number, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if number == 0:
                return True
            self._meter.ended(usage)
            if number == self._first:
                self._status = status

    def _stop(self, why: str, now: float) -> float:
        """Asks all processes to end; gives the time when their grace is over."""
        self._why = why
        # One that is stopped would not hear it.
        self._tree.tell(signal.SIGTERM, signal.SIGCONT)
        return now + float(self._order["grace_s"])

    def _look(self, now: float, rest: float) -> float:
        processes = self._tree.look()
        self._meter.look(processes, now)
        self._name(processes, now)
        is_urgent = self._why != "exited" or self._is_full(TIGHT)
        rest = LOOK_S if is_urgent else min(rest * 2, LOOK_MAX_S)
        done = time.monotonic()
        self._spent_s += done - now
        return max(rest, (self._spent_s - LOOK_ADVANCE_S) / LOOK_SHARE - (done - self._began))

    def _name(self, processes: dict[int, Process], now: float) -> None:
        every_s = self._order["named_s"]
        if every_s and now - self._named_at >= every_s:
            self._named_at = now
            _say(self._control, {"is": "processes", "numbers": [*processes][:NAMED_MAX]}, wait=False)

    def _is_full(self, times: int = 1) -> bool:
        least = self._order["free_bytes_min"]
        if not least or self._room < 0:
            return False
        try:
            room = os.fstatvfs(self._room)
        except OSError:
            return False
        return bool(room.f_bavail * room.f_frsize < least * times)


def _order(control: socket) -> dict[str, Any] | None:
    """The order comes in several messages; the first says how many bytes all of them have. None when the worker is
    gone before the last.
    """
    size = int.from_bytes(_received(control), "big")
    parts = bytearray()
    while len(parts) < size:
        part = _received(control)
        if not part:
            return None
        parts += part
    return marshal.loads(parts) if size else None


def _received(control: socket) -> bytes:
    try:
        return control.recv(MESSAGE_BYTES_MAX)
    except OSError:
        return b""


def _say(control: socket, message: dict[str, Any], wait: bool = True) -> None:
    try:
        control.send(marshal.dumps(message), 0 if wait else _MSG_DONTWAIT)
    except OSError:
        pass  # nobody is listening any more


def _become(order: dict[str, Any], streams: tuple[int, int], telling: int, supervisor: int) -> None:
    """In the new process: becomes the command, or says what kept it from that."""
    step = "prepare"
    try:
        os.setsid()
        _set(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        if order["no_new_rights"]:
            _set(_PR_SET_NO_NEW_PRIVS, 1)
        for name in _RESET:
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if order["file_bytes_max"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (order["file_bytes_max"],) * 2)
        os.dup2(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), 0)
        os.dup2(streams[0], 1)
        os.dup2(streams[1], 2)
        step = "directory"
        os.chdir(order["directory"])
        step = "program"
        _begin(order["argv"], order["env"])
    except OSError as error:
        os.write(telling, marshal.dumps((step, error.errno)))
    except BaseException as error:
        os.write(telling, marshal.dumps((f"{step}: {error!r}"[:1000], 0)))
    finally:
        os._exit(127)


def _begin(argv: list[bytes], env: dict[bytes, bytes]) -> None:
    """The program is looked for on the PATH of the command, if its name has no slash."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, env)
    worst = FileNotFoundError(2, "not found")
    for directory in env.get(b"PATH", os.defpath.encode()).split(b":"):
        program = os.path.join(directory, argv[0])
        # To look first is much cheaper than to fail.
        if not os.path.exists(program):
            continue
        try:
            os.execve(program, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            worst = error if worst.errno == 2 else worst  # type: ignore[assignment]
    raise worst
