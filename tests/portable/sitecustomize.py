"""Python as it is on systems like macOS and the BSDs: without Linux's own calls, and without /proc. A program loads
this before everything else if the folder is on its path.
"""

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

MISSING = {
    os: ("O_PATH", "O_TMPFILE", "memfd_create", "pidfd_open", "sched_getaffinity", "eventfd", "getrandom"),
    select: ("epoll",),
    signal: ("pidfd_send_signal",),
    socket: ("SO_PEERCRED", "MSG_CMSG_CLOEXEC"),
    time: ("CLOCK_BOOTTIME",),
}
for module, names in MISSING.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
WITH_PATHS = {
    "open",
    "os.listdir",
    "os.scandir",
    "os.chmod",
    "os.link",
    "socket.bind",
    "socket.connect",
    "socket.sendto",
}


def is_away(path: object) -> bool:
    text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
    return f"{text}/".startswith(("/proc/", "/sys/"))


def look(event: str, arguments: tuple[Any, ...]) -> None:
    if event in WITH_PATHS and any(is_away(each) for each in arguments):
        raise FileNotFoundError(2, "No such file or directory")
    if event == "ctypes.dlsym" and arguments[1] in ("prctl", "syscall"):
        raise AttributeError(f"symbol not found: {arguments[1]}")


def without(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(path: Any, *args: Any, **options: Any) -> Any:
        if is_away(path):
            raise FileNotFoundError(2, "No such file or directory", path)
        return call(path, *args, **options)

    return called


sys.addaudithook(look)
os.readlink, os.stat = without(os.readlink), without(os.stat)  # no event tells of these
