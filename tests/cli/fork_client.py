"""Asks a `fork_server` to run a command: `python -I -S fork_client.py SOCKET WORD…`. It imports little, since it is
started for each command.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence


def ask(
    path: str,
    words: Sequence[str],
    environment: Mapping[str, str],
    cwd: str,
    streams: Sequence[int],
    module: str = "hocket.cli",
    group: int | None = None,
) -> socket.socket:
    """Starts a command with these standard streams: the function `main` of a module, in a process group if one is
    given, where 0 is a new one. The socket gives its process id, and then its exit code.
    """
    request = os.memfd_create("request")
    try:
        os.write(request, json.dumps([module, list(words), dict(environment), cwd, group]).encode())
        asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asked.connect(path)
        socket.send_fds(asked, [b"?"], [request, *streams])
        return asked
    finally:
        os.close(request)


if __name__ == "__main__":
    with ask(sys.argv[1], sys.argv[2:], os.environ, os.getcwd(), (0, 1, 2)).makefile("rb") as told:
        pid = int(told.readline())
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, lambda number, _: os.kill(pid, number))
        code = int(told.readline())
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
