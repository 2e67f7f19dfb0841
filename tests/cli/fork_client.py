"""Asks a `fork_server` to run a command: `python -I -S fork_client.py SOCKET WORD…`. It imports only what is built into
the interpreter, since it is started for each command and `socket` and `json` would take longer than all the rest.
"""

import _signal
import _socket
import marshal
import os
import sys


def ask(
    asked: _socket.socket,
    words: list[str],
    environment: dict[str, str],
    cwd: str,
    streams: tuple[int, int, int],
    module: str = "hocket.cli",
    group: int | None = None,
) -> None:
    """Starts a command with these standard streams: the function `main` of a module, in a process group if one is
    given, where 0 is a new one. The socket, which is connected to the server, gives its process id, and then its exit
    code.
    """
    request = os.memfd_create("request")
    try:
        os.write(request, marshal.dumps([module, words, environment, cwd, group]))
        fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (request, *streams))
        asked.sendmsg([b"?"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
    finally:
        os.close(request)


def number(asked: _socket.socket) -> int:
    """The next number that the server tells."""
    told = b""
    while byte := asked.recv(1).strip():
        told += byte
    return int(told)


if __name__ == "__main__":
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(sys.argv[1])
    ask(server, sys.argv[2:], dict(os.environ), os.getcwd(), (0, 1, 2))
    pid = number(server)
    for each in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP):
        _signal.signal(each, lambda received, _: os.kill(pid, received))
    code = number(server)
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
