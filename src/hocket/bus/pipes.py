"""Hints between the processes of one machine. Each listener keeps a named pipe in a shared directory; a publisher
writes one message into each matching pipe. The pipe's name carries the listener's topics, so no listener is woken in
vain. A pipe without a reader belongs to a dead process and is removed.

A message fits into what every POSIX system writes atomically, so messages of several processes do not mix. A pipe may
be full: then the message is dropped, and the reader finds so much in the pipe that it takes it for ANYTHING. Processes
of different versions can share a directory: an unreadable message or name means ANYTHING.
"""

import base64
import errno
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hocket.bus.changes import (
    ANYTHING,
    NOTHING,
    Changes,
    decode_changes,
    decode_or_anything,
    encode_within,
)
from hocket.store import Session

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

STAMP_GRAIN_NS = 50_000_000
# The smallest PIPE_BUF that POSIX allows.
MESSAGE_BYTES_MAX = 512
# A pipe holds at least one page. If a message did not fit, it contained more than this.
FULL_BYTES = 4096 - MESSAGE_BYTES_MAX
READ_BYTES = 65_536
# A file's name has at most 255 bytes, and base64 takes four for three.
TOPICS_BYTES_MAX = 150
# Earlier versions write into pipes with these suffixes, and keep such pipes themselves.
SUFFIXES = (".any", ".ready")


class PipeSubscription:
    """One listener's end."""

    def __init__(self, directory: Path, topics: Changes) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        name = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._topics = topics
        self._path = directory / f"{name}.{_topics_text(topics)}{SUFFIXES[0]}"
        # It gets its name once it is open: a publisher that found it before would remove it as a dead process's.
        unnamed = directory / f"{name}.new"
        os.mkfifo(unnamed, 0o600)
        # Open for both ends, so that the pipe never reports end of file when a publisher closes it.
        self._fd = os.open(unnamed, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        os.rename(unnamed, self._path)
        self._reading = threading.Lock()
        self._is_closed = False
        self._loop: AbstractEventLoop | None = None

    def wait(self, timeout_s: float | None) -> Changes:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._reading:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            while not self._is_closed:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                poll.poll(None if left is None else left * 1000)
                if not self._is_closed and (came := self._read()):
                    return came
                if left == 0.0:
                    break
        return NOTHING

    def tell(self, changes: Changes) -> None:
        """Tells this listener alone, from its own process."""
        if changes.matches(self._topics):
            with suppress(BlockingIOError):  # then it reads ANYTHING
                os.write(self._fd, encode_within(changes, MESSAGE_BYTES_MAX))

    def attach(self, loop: "AbstractEventLoop", heard: Callable[[Changes], None]) -> None:
        def ready() -> None:
            if came := self._read():
                heard(came)

        self._loop = loop
        loop.add_reader(self._fd, ready)

    def _read(self) -> Changes:
        try:
            data = os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return NOTHING
        came = ANYTHING if len(data) > FULL_BYTES else decode_or_anything(data)
        return came if came.matches(self._topics) else NOTHING

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
        self._path.unlink(missing_ok=True)
        try:
            os.write(self._fd, b"\0")  # ends a wait in another thread
        except BlockingIOError:
            pass
        with self._reading:
            os.close(self._fd)


class _Reader(NamedTuple):
    """Another process's pipe, as a publisher sees it."""

    fd: int
    topics: Changes


class Pipes:
    """The bus of a directory. A publisher lists the pipes again only if the directory has changed. A directory that was
    removed comes back, without the pipes of processes that made theirs before; those processes look again by
    themselves.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fd = self._open_directory()
        self._readers: dict[str, _Reader] = {}
        self._seen = -1
        self._lock = threading.Lock()

    def announce(self, session: Session, changes: Changes) -> None:
        """`publish` reaches every listener."""

    def subscribe(self, topics: Changes) -> PipeSubscription:
        return PipeSubscription(self._directory, topics)

    def is_heard(self) -> bool:
        if self._fd < 0:
            return False
        found = os.fstat(self._fd)
        return bool(self._readers) or found.st_mtime_ns != self._seen or found.st_nlink == 0

    def publish(self, changes: Changes) -> None:
        with self._lock:
            if self._fd < 0:
                return
            self._look()
            names = [name for name, reader in self._readers.items() if changes.matches(reader.topics)]
            message = encode_within(changes, MESSAGE_BYTES_MAX) if names else b""
            for name in names:
                self._write(name, message)

    def close(self) -> None:
        with self._lock:
            for reader in self._readers.values():
                os.close(reader.fd)
            self._readers.clear()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1  # by the next call, the number may be another file's

    def _open_directory(self) -> int:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _look(self) -> None:
        try:
            if os.fstat(self._fd).st_nlink == 0:
                removed, self._fd, self._seen = self._fd, self._open_directory(), -1
                os.close(removed)
            changed = os.fstat(self._fd).st_mtime_ns
            if changed == self._seen:
                return
            names = {name for name in os.listdir(self._directory) if name.endswith(SUFFIXES)}
        except FileNotFoundError:
            return
        # A directory's timestamp is coarse: a pipe made just after this look might not change it, so a recent timestamp
        # is not trusted.
        self._seen = changed if time.time_ns() - changed > STAMP_GRAIN_NS else -1
        for name in self._readers.keys() - names:
            os.close(self._readers.pop(name).fd)
        for name in names - self._readers.keys():
            self._open(name)

    def _open(self, name: str) -> None:
        path = self._directory / name
        try:
            fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno == errno.ENXIO:
                path.unlink(missing_ok=True)
        else:
            self._readers[name] = _Reader(fd, _topics_of(name))

    def _write(self, name: str, message: bytes) -> None:
        try:
            os.write(self._readers[name].fd, message)
        except BlockingIOError:
            pass
        except OSError:
            os.close(self._readers.pop(name).fd)
            (self._directory / name).unlink(missing_ok=True)


def _topics_text(topics: Changes) -> str:
    return base64.urlsafe_b64encode(encode_within(topics, TOPICS_BYTES_MAX)).decode().rstrip("=")


def _topics_of(name: str) -> Changes:
    try:
        _, text, _ = name.split(".")
        topics = decode_changes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except ValueError:
        return ANYTHING
    return topics
