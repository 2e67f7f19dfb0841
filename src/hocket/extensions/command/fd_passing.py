"""Passes file descriptors from one process to another. It runs inside the fork server, so it imports little."""

from __future__ import annotations

import _socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_FD_BYTES = 4
_FDS_BYTES_MAX = 256


def send(line: _socket.socket, message: bytes, fds: Sequence[int]) -> None:
    """Raises OSError if the other end is gone."""
    packed = b"".join(fd.to_bytes(_FD_BYTES, sys.byteorder) for fd in fds)
    line.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)], _socket.MSG_NOSIGNAL)


def receive(line: _socket.socket, size: int) -> tuple[bytes, list[int]]:
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
