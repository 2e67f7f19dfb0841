"""What is kept of a command: of its stdout and stderr, and its output files.

Of a stream all is kept up to a limit, beyond that its beginning and its end, with a line between them that says how
many bytes are left out. A full disk ends the keeping, never the reading.

Output files are found by the patterns of the manifest. `*` matches any part of a name, `**` directories at any depth,
and at the end of a pattern all files below. Only regular files count; links are not followed.
"""

import io
import os
from collections import deque
from collections.abc import Iterable
from fnmatch import fnmatchcase
from os import strerror
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Failed

OUTPUTS_MAX = 500
OUTPUTS_BYTES_MAX = 16 * 1024**3
# The most files and directories that are visited, below directories that a pattern leads into.
LOOKED_AT_MAX = 200_000
DEEP = "**"
# Which pattern, and how many of its parts have matched.
_State = tuple[int, int]
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


class Patterns:
    """Patterns, matched name by name on the way down, so that directories that cannot contain an output are not even
    opened.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._parts = [tuple(part for part in pattern.split("/") if part not in ("", ".")) for pattern in patterns]
        self.start = self._skip({(number, 0) for number in range(len(self._parts))})

    def step(self, states: set[_State], name: str) -> set[_State]:
        following: set[_State] = set()
        for number, at in states:
            parts = self._parts[number]
            if at == len(parts):
                continue
            if parts[at] == DEEP:
                following.add((number, at))
                if at + 1 == len(parts):
                    following.add((number, at + 1))
            elif fnmatchcase(name, parts[at]):
                following.add((number, at + 1))
        return self._skip(following)

    def is_match(self, states: set[_State]) -> bool:
        return any(at == len(self._parts[number]) for number, at in states)

    def leads_on(self, states: set[_State]) -> bool:
        return any(at < len(self._parts[number]) for number, at in states)

    def _skip(self, states: set[_State]) -> set[_State]:
        """`**` may match no directory at all, except at the end of a pattern."""
        waiting = [*states]
        while waiting:
            number, at = waiting.pop()
            parts = self._parts[number]
            if at + 1 < len(parts) and parts[at] == DEEP and (number, at + 1) not in states:
                states.add((number, at + 1))
                waiting.append((number, at + 1))
        return states


def collect(directory: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """The files below the directory that match a pattern, by relative path, in order. Raises Failed if they are too
    many or too large, or if a name cannot be stored.
    """
    wanted = Patterns(patterns)
    found: dict[str, Path] = {}
    size = looked_at = 0
    waiting: list[tuple[str, set[_State]]] = [("", wanted.start)]
    while waiting:
        where, states = waiting.pop()
        try:
            entries = os.scandir(directory / where)
        except OSError as error:
            raise Failed(f"cannot look for outputs in {where or '.'!r}: {error.strerror}") from None
        with entries:
            for entry in entries:
                looked_at += 1
                if looked_at > LOOKED_AT_MAX:
                    raise Failed(f"the output patterns cover more than {LOOKED_AT_MAX} files; use narrower patterns")
                following = wanted.step(states, entry.name)
                path = f"{where}/{entry.name}" if where else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if wanted.leads_on(following):
                        waiting.append((path, following))
                elif wanted.is_match(following) and entry.is_file(follow_symlinks=False):
                    size += entry.stat(follow_symlinks=False).st_size
                    found[_checked(path)] = directory / path
                    if len(found) > OUTPUTS_MAX:
                        raise Failed(f"the command made more than {OUTPUTS_MAX} outputs; put them into one archive")
                    if size > OUTPUTS_BYTES_MAX:
                        raise Failed(f"the outputs have more than {OUTPUTS_BYTES_MAX} bytes; store them elsewhere")
    return dict(sorted(found.items()))


def _checked(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Failed(f"the output {os.fsencode(path)!r} has a name that is not UTF-8; rename it") from None
    return path
