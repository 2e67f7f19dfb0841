"""Wakes the other processes of a node. Whoever waits keeps a named pipe in the home; whoever commits writes a
byte into each. The name says what the owner waits for: `ready` for what workers should look at, `any` for every
change. A full pipe means that its owner will look anyway; a pipe without a reader belongs to a dead process and
is removed.
"""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Literal

Wish = Literal["ready", "any"]
STAMP_GRAIN_NS = 50_000_000


class Bell:
    """One waiter's pipe. `fileno` becomes readable when somebody rings; `clear` makes it quiet again."""

    def __init__(self, directory: Path, name: str, wish: Wish) -> None:
        self.path = directory / f"{name}.{wish}"
        # It gets its name once it is open: a ringer that found it before would take its owner for dead and remove it.
        unnamed = directory / f"{name}.new"
        os.mkfifo(unnamed, 0o600)
        # Open for both ends, so that the pipe never reports its end when a ringer closes it.
        self._fd = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(unnamed, self.path)

    def fileno(self) -> int:
        return self._fd

    def clear(self) -> None:
        try:
            while os.read(self._fd, 4096):
                pass
        except BlockingIOError:
            pass

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._fd)


class Bells:
    """Rings the pipes of a home. The list of them is read again only when the directory has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._pipes: dict[str, int] = {}
        self._seen = -1
        self._lock = threading.Lock()

    def ring(self, stirring: bool) -> None:
        if not self._pipes and os.fstat(self._fd).st_mtime_ns == self._seen:
            return
        with self._lock:
            self._look()
            for name, fd in list(self._pipes.items()):
                if stirring or name.endswith(".any"):
                    self._write(name, fd)

    def close(self) -> None:
        with self._lock:
            for fd in (*self._pipes.values(), self._fd):
                os.close(fd)
            self._pipes.clear()

    def _look(self) -> None:
        try:
            changed = os.fstat(self._fd).st_mtime_ns
            if changed == self._seen:
                return
            names = {name for name in os.listdir(self._directory) if name.endswith((".ready", ".any"))}
        except FileNotFoundError:
            return
        # A directory's time stamp is coarse: a pipe made just after this look might not move it, so a fresh
        # stamp is not trusted.
        self._seen = changed if time.time_ns() - changed > STAMP_GRAIN_NS else -1
        for name in self._pipes.keys() - names:
            os.close(self._pipes.pop(name))
        for name in names - self._pipes.keys():
            self._open(name)

    def _open(self, name: str) -> None:
        path = self._directory / name
        try:
            self._pipes[name] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:
                path.unlink(missing_ok=True)

    def _write(self, name: str, fd: int) -> None:
        try:
            os.write(fd, b"\1")
        except BlockingIOError:
            pass
        except OSError:
            os.close(self._pipes.pop(name))
            (self._directory / name).unlink(missing_ok=True)
