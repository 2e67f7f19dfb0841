"""The output of runs while they run and for some time afterwards: one file in the home for each stream of each run.
Output is not on the log, and may be lost: files are removed, the oldest first, when there are too many.

A file keeps the beginning of its stream and, in a ring, the end: so its size is limited, and a reader can follow a
stream that never ends. Positions count all bytes of the stream. A slow reader misses what the ring has lost, and costs
the run nothing.
"""

import os
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# The streams: what a handler prints and logs, and the two of a command.
HANDLER = "handler"
STREAMS = (HANDLER, "stdout", "stderr")
# The artifacts that keep what a command printed.
STREAM_TYPES = {"stdout": "hocket.stdout", "stderr": "hocket.stderr"}

HEAD_BYTES = 256 * 1024
RING_BYTES = 768 * 1024
# What is written at once. A reader takes this much less than the ring for granted, since a write may be under way.
STEP_BYTES = 64 * 1024
_RING_KEPT = RING_BYTES - STEP_BYTES
# All files of a home together. A process looks at all files after it has made this many, or written this much.
FILES_MAX = 10_000
ALL_BYTES_MAX = 256 * 1024 * 1024
CHECK_FILES = 256
CHECK_BYTES = 16 * 1024 * 1024

# The form of the file, where the ring's content begins, how much was written, and whether the run has ended.
_HEADER = struct.Struct(">IQQI")
FORM = 0x484F4331


class OutputPart(NamedTuple):
    """Bytes of a stream from position `start` on. `total` is how much was written so far; `is_over` is whether no more
    will come from the run with this fence.
    """

    fence: int
    start: int
    data: bytes
    total: int
    is_over: bool

    @property
    def end(self) -> int:
        return self.start + len(self.data)


class OutputFile:
    """One stream, for its one writer; the file is made with the first byte. Safe to use from several threads. A full
    disk ends the writing, never the run.
    """

    def __init__(self, directory: Path, name: str, grown: Callable[[int, int], None]) -> None:
        self._directory, self._name, self._grown = directory, name, grown
        # Reentrant: a finaliser that prints may run inside a write.
        self._lock = threading.RLock()
        self._fd = -1
        self._is_lost = False
        self._ring_start = HEAD_BYTES
        self.total = 0

    def write(self, data: bytes) -> None:
        with self._lock:
            self._put(data, False)

    def write_at(self, start: int, data: bytes, is_over: bool) -> None:
        """Continues a copy of the stream, which may be in the file already. Bytes of the ring's part between its end
        and `start` are lost.
        """
        with self._lock:
            self._try_to_open()
            if start > self.total >= HEAD_BYTES:
                self.total = self._ring_start = start
            if start <= self.total:
                self._put(data[self.total - start :], is_over)

    def close(self, is_over: bool = True) -> None:
        """With `is_over`, no more will come. A second call does nothing."""
        with self._lock:
            if self._fd >= 0:
                if is_over:
                    self._put(b"", True)
                os.close(self._fd)
                self._fd = -1
            self._is_lost = True

    def _put(self, data: bytes, is_over: bool) -> None:
        if self._is_lost or (not data and not is_over):
            return
        self._try_to_open()
        self._grown(0, len(data))
        try:
            while not self._is_lost:
                offset, room = _place(self.total)
                written = os.pwrite(self._fd, data[: min(room, STEP_BYTES)], offset)
                self.total += written
                data = data[written:]
                os.pwrite(self._fd, _HEADER.pack(FORM, self._ring_start, self.total, is_over and not data), 0)
                if not data:
                    return
        except OSError:
            self._is_lost = True

    def _try_to_open(self) -> None:
        if self._fd < 0 and not self._is_lost:
            try:
                self._open()
            except OSError:
                self._is_lost = True

    def _open(self) -> None:
        path = self._directory / self._name
        for folder in (self._directory, path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        header = os.pread(self._fd, _HEADER.size, 0)
        if len(header) == _HEADER.size and (known := _HEADER.unpack(header))[0] == FORM:
            _, self._ring_start, self.total, _ = known
        self._grown(1, 0)


CLOSED_FILE = OutputFile(Path(), "", lambda files, size: None)
"""Takes nothing: the output of a run that has ended without any."""
CLOSED_FILE.close()


def _place(position: int) -> tuple[int, int]:
    """Where the byte at a position is in the file, and how many follow it there."""
    if position < HEAD_BYTES:
        return _HEADER.size + position, HEAD_BYTES - position
    turned = (position - HEAD_BYTES) % RING_BYTES
    return _HEADER.size + HEAD_BYTES + turned, RING_BYTES - turned


class OutputFiles:
    """All output that a home has. Safe to use from several threads and processes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._files = CHECK_FILES
        self._bytes = 0

    def file(self, job_id: str, fence: int, stream: str) -> OutputFile:
        return OutputFile(self._directory, _name(job_id, fence, stream), self._grown)

    def read(self, job_id: str, stream: str, fence: int, start: int, size: int) -> OutputPart | None:
        """The next part of the stream: of the run with this fence if it has more, else of the latest one from its
        beginning. None if there is nothing of that run or a later one.
        """
        fences = self._fences(job_id, stream)
        latest = max(fences, default=-1)
        if fence in fences:
            part = self._part(job_id, stream, fence, start, size)
            if latest == fence or (part is not None and part.data):
                return part
        return self._part(job_id, stream, latest, 0, size) if latest > fence else None

    def clear(self) -> None:
        """Removes the oldest files beyond the limits."""
        found = []
        for path in self._directory.glob("*/*"):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        found.sort(reverse=True)
        kept = 0
        for number, (_, size, path) in enumerate(found):
            kept += size
            if number >= FILES_MAX or kept > ALL_BYTES_MAX:
                path.unlink(missing_ok=True)

    def _fences(self, job_id: str, stream: str) -> set[int]:
        names = [path.name.split(".") for path in self._directory.glob(_name(job_id, "*", stream))]
        return {int(parts[1]) for parts in names if len(parts) == 3 and parts[1].isdecimal()}

    def _part(self, job_id: str, stream: str, fence: int, start: int, size: int) -> OutputPart | None:
        try:
            with open(self._directory / _name(job_id, fence, stream), "rb", buffering=0) as file:
                return _read(file.fileno(), fence, start, size)
        except OSError:
            return None

    def _grown(self, files: int, size: int) -> None:
        with self._lock:
            self._files += files
            self._bytes += size
            if not files or (self._files < CHECK_FILES and self._bytes < CHECK_BYTES):
                return
            self._files = self._bytes = 0
        self.clear()


def _name(job_id: str, fence: int | str, stream: str) -> str:
    """The path of a file in the directory. The end of an id is random, so the files spread over a thousand folders."""
    return f"{job_id[-2:]}/{job_id}.{fence}.{stream}"


def _read(fd: int, fence: int, start: int, size: int) -> OutputPart | None:
    """The writer may be at work: what it has overwritten meanwhile does not count."""
    while True:
        header = os.pread(fd, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            return None
        form, ring_start, total, is_over = _HEADER.unpack(header)
        if form != FORM:
            return None
        at = start if start < HEAD_BYTES else max(start, ring_start, total - _RING_KEPT)
        offset, room = _place(at)
        data = os.pread(fd, max(0, min(size, room, total - at)), offset)
        now = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))[2]
        if at < HEAD_BYTES or at >= now - _RING_KEPT:
            return OutputPart(fence, at, data, total, bool(is_over))
