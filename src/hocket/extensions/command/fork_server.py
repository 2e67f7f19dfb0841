"""The fork server: a small process beside the worker that starts commands for it. A worker has threads, and a process
with threads cannot fork safely; this process has none, shares no memory or descriptors with the worker, and forks a
supervisor for each command. It ends when the worker does. If a supervisor is killed, the fork server inherits its
processes, and kills them.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import _socket
import gc
import math
import os
import select
import sys
import time

from hocket.extensions.command.metering import LOOK_MAX_S
from hocket.extensions.command.supervisor import supervise
from hocket.work.child_processes.bare_interpreter import receive_fds
from hocket.work.child_processes.process_tree import REST_S, Tree, adopt_orphans, name_process, watch_parent

# How long supervisors may take to end when the worker has died, and when it has closed the connection.
ORPHANED_S = 3.0
CLOSING_S = 25.0
_MESSAGE_BYTES_MAX = 64


class ForkServer:
    def __init__(self, line: _socket.socket, worker: int) -> None:
        self._line = line
        self._worker = worker
        # Pids of the supervisors, with descriptors that tell when they end.
        self._supervisors: dict[int, int] = {}
        self._tree = Tree()
        self._poller = select.poll()
        self._poller.register(line, select.POLLIN)
        self._poller.register(worker, select.POLLIN)
        self._is_open = True
        self._until = math.inf
        # The wait until the next round of killing strays; 0 while there are none.
        self._rest_s = 0.0

    def run(self) -> None:
        """Forks until the worker closes the connection or dies, and stays until the last command has ended."""
        while self._is_open or self._supervisors or self._rest_s:
            ready = {fd for fd, _ in self._poller.poll(self._wait_ms())}
            if self._worker in ready:
                self._poller.unregister(self._worker)
                self._close(ORPHANED_S)
            if time.monotonic() >= self._until:
                self._until = math.inf
                for number in self._supervisors:
                    os.kill(number, signal.SIGKILL)
            if self._is_open and self._line.fileno() in ready:
                self._hear()
            if self._reap() or self._rest_s:
                self._clear()

    def _hear(self) -> None:
        message, fds = receive_fds(self._line, _MESSAGE_BYTES_MAX)
        if not message:
            self._close(CLOSING_S)
        elif message == b"fork" and len(fds) == 1:
            self._fork(fds[0])
        elif message.startswith(b"kill ") and int(message[5:]) in self._supervisors:
            os.kill(int(message[5:]), signal.SIGKILL)
        for fd in fds:
            os.close(fd)

    def _fork(self, control: int) -> None:
        fork_server = os.getpid()
        try:
            number = os.fork()
        except OSError as error:
            # Without a supervisor the control socket closes, and the worker reports that the command was not started.
            print(f"hocket: the fork server cannot fork: {error.strerror}", file=sys.stderr)
            return
        if number == 0:
            code = 1
            try:
                os.close(self._line.detach())
                for fd in self._supervisors.values():
                    os.close(fd)
                supervise(_socket.socket(fileno=control), self._worker, fork_server)
                code = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(code)
        self._supervisors[number] = os.pidfd_open(number)
        self._poller.register(self._supervisors[number], select.POLLIN)

    def _wait_ms(self) -> float | None:
        wait_s = min(self._rest_s or math.inf, self._until - time.monotonic())
        return max(0.0, wait_s) * 1000 if wait_s < math.inf else None

    def _close(self, patience_s: float) -> None:
        """Forks no more. Supervisors end their commands themselves; one that a command has suspended cannot, and is
        killed after `patience_s`.
        """
        self._until = min(self._until, time.monotonic() + patience_s)
        if self._is_open:
            self._is_open = False
            self._poller.unregister(self._line)
            self._line.close()

    def _reap(self) -> bool:
        """Reaps the supervisors that have ended. True if one of them left processes behind."""
        left = False
        while True:
            try:
                number, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return left
            if number == 0:
                return left
            if number in self._supervisors:
                fd = self._supervisors.pop(number)
                self._poller.unregister(fd)
                os.close(fd)
                left = left or status != 0

    def _clear(self) -> None:
        """Kills the processes inherited from a dead supervisor; again after a wait, until there are none."""
        has_strays = self._tree.kill_strays(self._supervisors)
        self._rest_s = min(max(REST_S, self._rest_s * 2), LOOK_MAX_S) if has_strays else 0.0


def main(line: str, worker: str) -> None:
    """`line` is the descriptor of the fork server's end of the socket to the worker. `worker` is the worker's pid."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    adopt_orphans()
    name_process(b"hocket-fork")
    worker_gone = watch_parent(int(worker))
    if worker_gone is None:
        return
    # Existing objects never become garbage, and collecting would only copy pages in every child.
    gc.freeze()
    gc.disable()
    ForkServer(_socket.socket(fileno=int(line)), worker_gone).run()
