"""What is kept of a command's stdout or stderr: all of it up to a limit, beyond that its beginning and its end, with a
line between them that says how many bytes are left out. A full disk ends the keeping, never the reading.

Listeners for the output of running commands, and how they end. A slow listener slows the command down, as a pipe would.
"""

import io
import threading
from collections import deque
from os import strerror
from pathlib import Path
from typing import NamedTuple, Protocol

from hocket.extensions.command.execution import Execution

# The end of a stream is held in memory until the stream ends: half of the limit, at most this.
END_BYTES_MAX = 256 * 1024
# Below this limit, only the beginning is kept.
SPLIT_BYTES_MIN = 1024


class Kept(NamedTuple):
    """The file with the kept output, its size, and how many bytes the command wrote."""

    path: Path
    size: int
    total: int


class Keeping:
    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path = path
        self.problem: str | None = None
        self._file = io.FileIO(path, "wb")
        self._limit = bytes_max
        self._end_room = min(bytes_max // 2, END_BYTES_MAX) if bytes_max >= SPLIT_BYTES_MIN else 0
        self._end: deque[bytes] = deque()
        self._end_bytes = 0
        self._size = 0
        self._total = 0

    def write(self, chunk: bytes) -> None:
        self._total += len(chunk)
        workdir = self._limit - self._end_room - self._size
        if workdir > 0 and not self._end:
            self._put(chunk[:workdir])
            chunk = chunk[workdir:]
        if chunk and self._end_room:
            self._end.append(chunk)
            self._end_bytes += len(chunk)
            while self._end_bytes - len(self._end[0]) >= self._end_room:
                self._end_bytes -= len(self._end.popleft())

    def finish(self) -> Kept:
        """Writes the end and closes the file. A second call does nothing."""
        end = b"".join(self._end)
        self._end.clear()
        left_out = self._total - self._size - len(end)
        if left_out + max(0, len(end) - self._end_room) > 0 and end:
            said = b"\n[%d bytes left out]\n"
            workdir = self._end_room - len(said % self._total)
            end = said % (self._total - self._size - workdir) + end[-workdir:]
        self._put(end)
        self.close()
        return Kept(self.path, self._size, self._total)

    def close(self) -> None:
        self._file.close()

    def _put(self, data: bytes) -> None:
        while data and self.problem is None:
            try:
                written = self._file.write(data) or 0
            except OSError as error:
                self.problem = strerror(error.errno or 0)
                return
            self._size += written
            data = data[written:]


class OutputListener(Protocol):
    """Called in any thread."""

    def heard(self, stream: str, chunk: bytes) -> None:
        """Output on "stdout" or "stderr"; the first chunk is empty and means that all of it will be heard."""

    def ended(self, execution: Execution) -> None:
        """How a run ended. The log tells whether the job has ended."""


class OutputListeners:
    """Safe to use from several threads. Jobs are keyed by their ids as text."""

    def __init__(self) -> None:
        self._listeners: dict[str, OutputListener] = {}
        self._lock = threading.Lock()

    def listen(self, job_id: str, listener: OutputListener) -> None:
        with self._lock:
            self._listeners[job_id] = listener

    def leave(self, job_id: str) -> None:
        with self._lock:
            self._listeners.pop(job_id, None)

    def tell(self, job_id: str, stream: str, chunk: bytes) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.heard(stream, chunk)

    def tell_end(self, job_id: str, execution: Execution) -> None:
        if (listener := self._of(job_id)) is not None:
            listener.ended(execution)

    def _of(self, job_id: str) -> OutputListener | None:
        with self._lock:
            return self._listeners.get(job_id)
