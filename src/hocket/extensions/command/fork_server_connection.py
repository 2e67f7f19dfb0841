"""The worker's connection to its fork server: the process, and the socket for requesting supervisors. The fork server
runs on a bare interpreter.
"""

import _socket
import os
import subprocess
import threading
from contextlib import suppress

from hocket.work.child_processes.bare_interpreter import bare_interpreter, send_fds

# How long the fork server may take for an order, or to end when no command runs.
ANSWER_S = 30.0
# A process that has closed its sockets is about to end; it gets this long.
ENDING_S = 1.0


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
