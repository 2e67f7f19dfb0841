"""Processes on a bare interpreter, without installed packages: they start quickly, and are small enough to fork
cheaply. Descriptors are passed from one to another. This is loaded on both sides, so it imports little.
"""

from __future__ import annotations

import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_HOUSE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Empty stand-ins for the packages: the real ones would import all of Hocket.
_PACKAGES = ("hocket", "hocket.work", "hocket.work.child_processes", "hocket.extensions", "hocket.extensions.command")
_BEGIN = """
import sys
for name in sys.argv[3].split():
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = [sys.argv[2] + name[6:].replace(".", "/")]
__import__(sys.argv[1], fromlist=["main"]).main(*sys.argv[4:])
"""
_FD_BYTES = 4
_FDS_BYTES_MAX = 256


def bare_interpreter(module: str, *arguments: str) -> list[str]:
    """The words that run `main` of a module of ours with these arguments."""
    return [sys.executable, "-I", "-S", "-c", _BEGIN, f"hocket.{module}", _HOUSE, " ".join(_PACKAGES), *arguments]


def send_fds(line: _socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Raises OSError if the other end is gone."""
    packed = b"".join(fd.to_bytes(_FD_BYTES, sys.byteorder) for fd in fds)
    line.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)], _socket.MSG_NOSIGNAL)


def receive_fds(line: _socket.socket, size: int) -> tuple[bytes, list[int]]:
    """A message of at most `size` bytes, and the descriptors that came with it. Empty if the other end is gone."""
    try:
        message, extra, _, _ = line.recvmsg(size, _FDS_BYTES_MAX, _socket.MSG_CMSG_CLOEXEC)
    except OSError:
        return b"", []
    return message, [
        int.from_bytes(data[at : at + _FD_BYTES], sys.byteorder)
        for _, _, data in extra
        for at in range(0, len(data), _FD_BYTES)
    ]
