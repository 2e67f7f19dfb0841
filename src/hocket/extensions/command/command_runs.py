"""One command as the worker sees it: the order, a socket to its supervisor, which reports what happens to it, and two
pipes with its output. Every descriptor belongs to an object that closes it, so that none is lost when an exception from
another thread comes at the worst moment. The worker asks the fork server for supervisors, which runs on a bare
interpreter, and NVIDIA's library for the GPUs that a command uses. The package `nvidia-ml-py` is optional; without it
or a driver, GPUs are not metered.
"""

import _socket
import importlib
import io
import marshal
import math
import os
import select
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from hocket.extensions.command.fork_server import MESSAGE_BYTES_MAX
from hocket.extensions.command.outputs import Keeping, Kept
from hocket.work.child_processes.bare_interpreter import bare_interpreter, send_fds

READ_BYTES = 65_536
# Output left in a pipe is read after the command's end, but only this much: another process may hold the pipe.
LEFT_BYTES_MAX = 4 * 1024 * 1024
# A supervisor that has not reported this long after it must have killed its command is given up.
OVERDUE_S = 30.0
# Without a report, how long to wait for all processes to close the pipes.
SILENCE_S = 5.0
Heard = Callable[[str, bytes], None]
# How often the library is asked while a command runs.
ASK_S = 1.0
# How long the fork server may take for an order, or to end when no command runs.
ANSWER_S = 30.0
# A process that has closed its sockets is about to end; it gets this long.
ENDING_S = 1.0


class ResourceLimits(NamedTuple):
    """What all processes of a command may use together, and each of them; 0 means no limit. The number of processes is
    limited only in a sandbox, and not for root.
    """

    memory_bytes_max: int = 0
    processes_max: int = 0
    open_files_max: int = 0


class CommandOrder(NamedTuple):
    """A command to run. Of stdout and stderr at most `output_bytes_max` each are kept, in files of these names in the
    directory `streams`. No file of the command grows beyond `file_bytes_max`. The command is stopped when its time is
    up or less than `free_bytes_min` are free on the disk of `directory`. A timeout or limit of 0 means none. If
    `watched_s` is not 0, its usage is reported so often while it runs. `sandboxed` means that the command line is a
    sandbox's, which may need rights that plain commands do not get, and `network` is False if it cannot have used any.
    `files` are read by the first program from descriptors with these numbers. If it `is_scoped`, the command reaches no
    abstract sockets of the machine.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    directory: Path
    streams: Path
    timeout_s: float
    grace_s: float
    output_bytes_max: int
    free_bytes_min: int
    file_bytes_max: int
    sandboxed: bool = False
    network: bool = True
    watched_s: float = 0.0
    is_scoped: bool = False
    files: Mapping[int, bytes] = {}
    limits: ResourceLimits = ResourceLimits()


class Gpus:
    """The GPUs of this machine. A second in which a process of a command has a device open counts for that device's
    class, its model name. Safe to use from several threads.
    """

    def __init__(self, library: Any, devices: list[tuple[str, Any]]) -> None:
        self._library = library
        self._devices = devices

    @classmethod
    def find(cls) -> "Gpus | None":
        """None if there are no GPUs or no library."""
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            library.nvmlInit()
            handles = [library.nvmlDeviceGetHandleByIndex(each) for each in range(library.nvmlDeviceGetCount())]
            devices = [(_text(library.nvmlDeviceGetName(handle)), handle) for handle in handles]
        except library.NVMLError:
            return None
        return cls(library, devices) if devices else None

    @property
    def classes(self) -> list[str]:
        return sorted({name for name, _ in self._devices})

    def in_use(self, processes: Collection[int]) -> Counter[str]:
        """How many devices of each class at least one of the processes has open."""
        used: Counter[str] = Counter()
        for name, handle in self._devices:
            if self._holders(handle).intersection(processes):
                used[name] += 1
        return used

    def _holders(self, handle: Any) -> set[int]:
        library, found = self._library, set()
        for ask in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                found |= {process.pid for process in ask(handle)}
            except library.NVMLError:
                continue  # not every device supports both queries
        return found


class GpuMeter:
    """Seconds by class for one command. A device in use at one look counts until the next look."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self._used: Counter[str] = Counter()
        self._looked = 0.0
        self.seconds: dict[str, float] = {}

    def look(self, processes: Collection[int], now: float) -> None:
        self._count(now)
        self._used = self._gpus.in_use(processes)

    def finish(self, now: float) -> dict[str, float]:
        self._count(now)
        self._used = Counter()
        return self.seconds

    def _count(self, now: float) -> None:
        for name, count in self._used.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + count * (now - self._looked)
        self._looked = now


def _text(name: str | bytes) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


class ForkServerConnection:
    """A running fork server. It ends when this is closed or the worker's process ends."""

    def __init__(self) -> None:
        self.is_open = True
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        self._ready: list[_socket.socket] = []
        self._preparing = threading.Lock()
        try:
            self.process = subprocess.Popen(
                bare_interpreter("extensions.command.fork_server", str(theirs.fileno()), str(os.getpid())),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if _has_stderr() else subprocess.DEVNULL,
                env={name: value for name, value in os.environ.items() if name == "LD_LIBRARY_PATH"},
                cwd="/",
                start_new_session=True,
            )
        finally:
            theirs.close()

    def supervisor(self) -> _socket.socket:
        """The control socket of a supervisor that waits for an order. Its other end is closed if the fork failed or the
        supervisor has died. Raises OSError if there are no descriptors left.
        """
        try:
            return self._ready.pop()
        except IndexError:
            return self._fork()

    def prepare(self) -> None:
        """Has the next supervisor forked ahead of time."""
        with self._preparing, suppress(OSError):  # `supervisor` reports the error
            if self.is_open and not self._ready:
                self._ready.append(self._fork())

    def _fork(self) -> _socket.socket:
        control, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        control.settimeout(ANSWER_S)
        with suppress(OSError):
            send_fds(self._socket, b"fork", [theirs.fileno()])
        theirs.close()
        return control

    def kill(self, supervisor: int) -> None:
        """Has the fork server kill one of its supervisors, and then everything below it."""
        try:
            self._socket.send(b"kill %d" % supervisor, _socket.MSG_NOSIGNAL)
        except OSError:
            pass

    def is_dead(self) -> bool:
        """Whether the fork server has ended; call this after it did not accept an order."""
        try:
            self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return False
        self.is_open = False
        return True

    def close(self) -> None:
        self.is_open = False
        hang_up(self._socket)
        with self._preparing:
            while self._ready:
                hang_up(self._ready.pop())
        try:
            self.process.wait(ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def hang_up(line: _socket.socket) -> None:
    """Closes a socket for the other end, too, even if a fork of this process has a copy of it."""
    try:
        line.shutdown(_socket.SHUT_RDWR)
    except OSError:
        pass  # the other end is gone
    line.close()


def _has_stderr() -> bool:
    try:
        os.fstat(2)
    except OSError:
        return False
    return True


class Running:
    """From the order to the report. `report` is the supervisor's last message; None if it died before. `usage` is what
    the command has used so far, if the order has `watched_s`.
    """

    def __init__(self, order: CommandOrder, gpus: Gpus | None) -> None:
        self.order = order
        self.gpus = GpuMeter(gpus) if gpus is not None else None
        self.kept = {name: Keeping(order.streams / name, order.output_bytes_max) for name in ("stdout", "stderr")}
        self.report: dict[str, Any] | None = None
        self.usage: dict[str, Any] | None = None
        self.supervisor = 0
        self.is_over = False
        self._pipes: dict[int, tuple[str, io.FileIO]] = {}
        self._control: _socket.socket | None = None
        self._poller = select.poll()
        self._is_given = False
        self._is_stopping = False
        self._limit = math.inf

    def give(self, line: ForkServerConnection) -> bool:
        """Sends the order to a supervisor. False if none accepted it."""
        self._is_given = False
        self._hang_up()
        self._control = control = line.supervisor()
        (out, out_end), (err, err_end) = _pipe(), _pipe()
        self._pipes = {out.fileno(): ("stdout", out), err.fileno(): ("stderr", err)}
        self._poller = select.poll()
        for fd in (control.fileno(), *self._pipes):
            self._poller.register(fd, select.POLLIN)
        for fd in self._pipes:
            os.set_blocking(fd, False)
        try:
            head, *parts = _parts(self.order, self.gpus is not None)
            send_fds(control, head, [out_end.fileno(), err_end.fileno()])
            for part in parts:
                control.send(part, _socket.MSG_NOSIGNAL)
            self._is_given = True
            taken = control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            taken = b""
        finally:
            for end in (out_end, err_end):
                end.close()
        if taken:
            self.supervisor = marshal.loads(taken)["number"]
            self._limit = time.monotonic() + (self.order.timeout_s or math.inf) + self.order.grace_s + OVERDUE_S
        return bool(taken)

    def listen(self, heard: Heard, timeout_s: float) -> None:
        """Waits for something to happen, at most this long."""
        assert self._control is not None
        for fd, _ in self._poller.poll(timeout_s * 1000):
            if fd in self._pipes:
                self._read(fd, heard)
            else:
                self._hear(self._control)
        if time.monotonic() > self._limit:
            self.is_over = True

    def stop(self, grace_s: float | None = None) -> None:
        """Asks the supervisor to stop the command, within the order's grace unless there is another. A supervisor
        without the whole order will not begin.
        """
        if self._control is None or not self._is_given:
            self.is_over = True
            self._let_go()
        elif not self._is_stopping:
            self._is_stopping = True
            self._limit = min(self._limit, time.monotonic() + self.order.grace_s + OVERDUE_S)
            try:
                self._control.send(
                    marshal.dumps(self.order.grace_s if grace_s is None else grace_s), _socket.MSG_NOSIGNAL
                )
            except OSError:
                pass  # the command has ended, and the report is on its way

    def drain(self, heard: Heard) -> None:
        """Reads what is left in the pipes. Without a report, reads until all processes have closed them."""
        left = LEFT_BYTES_MAX
        until = time.monotonic() + (0.0 if self.report is not None else SILENCE_S)
        self._let_go()
        while self._pipes and left > 0:
            ready = self._poller.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                return
            left -= sum(self._read(fd, heard) for fd, _ in ready)

    def close(self) -> None:
        self._hang_up()
        for keeping in self.kept.values():
            keeping.close()

    def finish(self) -> dict[str, Kept]:
        return {name: keeping.finish() for name, keeping in self.kept.items()}

    def _hang_up(self) -> None:
        self._let_go()
        for _, pipe in self._pipes.values():
            pipe.close()

    def _let_go(self) -> None:
        """Closes the socket. A supervisor that still has a command kills it."""
        if self._control is not None and self._control.fileno() >= 0:
            try:
                self._poller.unregister(self._control.fileno())
            except KeyError:
                pass
            hang_up(self._control)

    def _read(self, fd: int, heard: Heard) -> int:
        name, pipe = self._pipes[fd]
        chunk = pipe.read(READ_BYTES)
        if chunk:
            self.kept[name].write(chunk)
            heard(name, chunk)
        elif chunk is not None:
            self._poller.unregister(fd)
            del self._pipes[fd]
            pipe.close()
        return len(chunk or b"")

    def _hear(self, control: _socket.socket) -> None:
        try:
            said = control.recv(MESSAGE_BYTES_MAX)
        except OSError:
            said = b""
        if not said:
            self.is_over = True
            return
        message = marshal.loads(said)
        if message["is"] == "usage":
            self.usage = message
        elif message["is"] != "processes":
            self.report = message
            self.is_over = True
        elif self.gpus is not None:
            self.gpus.look(message["numbers"], time.monotonic())


def _pipe() -> list[io.FileIO]:
    """The two ends of a pipe, made and handed to their owning objects in one step of the interpreter."""
    return list(map(io.FileIO, islice(chain.from_iterable(iter(os.pipe, None)), 2), ("rb", "wb")))


def _parts(order: CommandOrder, is_named: bool) -> Iterator[bytes]:
    """The order as messages. Both ends run the same interpreter, so `marshal` is enough."""
    told = {
        "argv": [os.fsencode(each) for each in order.argv],
        "env": {os.fsencode(name): os.fsencode(value) for name, value in order.env.items()},
        "directory": os.fsencode(order.directory),
        "timeout_s": float(order.timeout_s or math.inf),
        "grace_s": float(order.grace_s),
        "free_bytes_min": order.free_bytes_min,
        "file_bytes_max": order.file_bytes_max,
        "no_new_rights": not order.sandboxed,
        "named_s": ASK_S if is_named else 0.0,
        "watched_s": order.watched_s,
        "files": dict(order.files),
        "is_scoped": order.is_scoped,
        **order.limits._asdict(),
        "processes_max": order.limits.processes_max if order.sandboxed else 0,
    }
    whole = marshal.dumps(told)
    yield len(whole).to_bytes(8, "big")
    for at in range(0, len(whole), MESSAGE_BYTES_MAX):
        yield whole[at : at + MESSAGE_BYTES_MAX]
