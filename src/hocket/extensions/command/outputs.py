"""Finds the output files of a command, by the patterns of its manifest. `*` matches any part of a name, `**`
directories at any depth, and at the end of a pattern all files below. Only regular files count; links are not followed.
"""

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from hocket.errors import Failed

OUTPUTS_MAX = 500
OUTPUTS_BYTES_MAX = 16 * 1024**3
# The most files and directories that are visited, below directories that a pattern leads into.
LOOKED_AT_MAX = 200_000
DEEP = "**"

# Which pattern, and how many of its parts have matched.
_State = tuple[int, int]


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
