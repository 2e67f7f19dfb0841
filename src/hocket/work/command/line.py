"""The worker's line to its keeper: the process, and the socket that orders go over. The keeper runs on a bare
interpreter, without the packages of this one, so that it starts quickly and is small enough to fork cheaply.
"""

import _socket
import os
import subprocess
import sys
from array import array
from pathlib import Path

# How long the keeper may take over an order, or over its end when no command runs.
ANSWER_S = 30.0
# A process that has closed its sockets is about to end; it gets this long.
ENDING_S = 1.0

_HERE = Path(__file__).resolve().parent
_ROOMS = {"hocket": _HERE.parent.parent, "hocket.work": _HERE.parent, "hocket.work.command": _HERE}
# The packages that the keeper's modules are in, but empty: their own beginnings would import all of Hocket.
_BEGIN = """
import sys
for name, path in zip(sys.argv[3::2], sys.argv[4::2]):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [path]
from hocket.work.command.keeper import main
main(int(sys.argv[1]), int(sys.argv[2]))
"""


class Line:
    """A keeper that was started. It ends when this is closed or the worker's process ends."""

    def __init__(self) -> None:
        self.is_open = True
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self._socket.settimeout(ANSWER_S)
        rooms = [text for name, path in _ROOMS.items() for text in (name, str(path))]
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BEGIN, str(theirs.fileno()), str(os.getpid()), *rooms],
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

    def order(self, fds: list[int]) -> None:
        """Raises OSError when nobody takes it."""
        rights = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array("i", fds))
        self._socket.sendmsg([b"run"], [rights], _socket.MSG_NOSIGNAL)

    def kill(self, supervisor: int) -> None:
        """Has the keeper kill one of its supervisors, and then everything below it."""
        try:
            self._socket.send(b"kill %d" % supervisor, _socket.MSG_NOSIGNAL)
        except OSError:
            pass

    def is_dead(self) -> bool:
        """Whether the keeper has ended, asked after it did not take an order."""
        try:
            self.process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return False
        self.is_open = False
        return True

    def close(self) -> None:
        self.is_open = False
        hang_up(self._socket)
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
