"""One command as the worker sees it: a socket to its supervisor, which reports what happens to it, and two pipes with
its output. Every descriptor belongs to an object that closes it, so that none is lost when an exception from another
thread comes at the worst moment.
"""

import _socket
import io
import marshal
import math
import os
import select
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from hocket.extensions.command.fork_server_connection import ForkServerConnection, hang_up
from hocket.extensions.command.gpus import ASK_S, GpuMeter, Gpus
from hocket.extensions.command.streams import Keeping, Kept
from hocket.extensions.command.supervisor import MESSAGE_BYTES_MAX
from hocket.work.child_processes.bare_interpreter import send_fds

READ_BYTES = 65_536
# Output left in a pipe is read after the command's end, but only this much: another process may hold the pipe.
LEFT_BYTES_MAX = 4 * 1024 * 1024
# A supervisor that has not reported this long after it must have killed its command is given up.
OVERDUE_S = 30.0
# Without a report, how long to wait for all processes to close the pipes.
SILENCE_S = 5.0

Heard = Callable[[str, bytes], None]


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
