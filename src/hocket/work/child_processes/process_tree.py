"""The processes below this one, read from Linux's /proc, and the calls by which a process becomes their parent and ends
with its own. It runs on a bare interpreter, so it imports little.

Processes that existed before the command are not its own and are not read again, which keeps a look cheap on a machine
with many processes.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # the part in C alone, which loads in no time
import ctypes
import os
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from typing import Any


# The wait between two rounds of killing doubles from the first to the second.
REST_S = 0.001
REST_MAX_S = 0.02
# After this many rounds that found no process, everything is read again.
BLIND_ROUNDS = 3
# How long killing is tried in a row; some processes hang in the kernel until a disk answers.
KILL_S = 20.0

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Process:
    """What /proc says about one process."""

    __slots__ = ("cpu_s", "group", "memory_bytes", "parent")

    def __init__(self, stat: bytes) -> None:
        # The program's name comes first, in brackets, and may contain anything.
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
        self.memory_bytes = int(fields[21]) * _PAGE_BYTES


class Tree:
    """All processes below this one. Existing processes do not count, except those in `below`."""

    def __init__(self, below: Collection[int] = ()) -> None:
        self._root = os.getpid()
        self._group = os.getpgrp()
        self._strangers = {*_numbers()} - {self._root, *below}

    def look(self) -> dict[int, Process]:
        """The processes of the tree, by pid."""
        return dict(self._find())

    def _find(self) -> Iterator[tuple[int, Process]]:
        """The processes of the tree one by one, each as soon as it is identified."""
        there = _numbers()
        self._strangers.intersection_update(there)
        mine = {self._root}
        unknown: dict[int, Process] = {}
        for number in there:
            if number in self._strangers or number == self._root or (process := _read(number)) is None:
                continue
            if process.parent in mine:
                mine.add(number)
                yield number, process
            else:
                unknown[number] = process
        settled = False
        while not settled:
            settled = True
            for number, process in [*unknown.items()]:
                if process.parent in mine:
                    mine.add(number)
                    yield number, unknown.pop(number)
                    settled = False
                elif process.parent in self._strangers:
                    # A stranger's child can never become ours. A process whose parent is unknown or gone may be ours.
                    self._strangers.add(number)
                    del unknown[number]
                    settled = False

    def look_anew(self, apart: Collection[int] = ()) -> dict[int, Process]:
        """Finds the processes without trusting earlier results, since pids are reused, if rarely. `apart` are processes
        that are left out with all below them.
        """
        everything = {number: process for number in _numbers() if (process := _read(number)) is not None}
        mine: dict[int, Process] = {}
        for number, process in everything.items():
            line = number
            while line in everything and line != self._root and line not in apart:
                line = everything[line].parent
            if line == self._root and number != self._root:
                mine[number] = process
        self._strangers = everything.keys() - mine.keys() - {self._root}
        return mine

    def tell(self, *signals: int) -> bool:
        """Sends signals to all processes of the tree. False if there is none."""
        return self._tell(self._find(), signals)

    def kill_strays(self, apart: Collection[int]) -> bool:
        """Kills everything except what is `apart`. False if there is nothing else."""
        return self._tell(self.look_anew(apart).items(), (signal.SIGKILL,))

    def _tell(self, processes: Iterable[tuple[int, Process]], signals: tuple[int, ...]) -> bool:
        """A group gets a signal as a whole and at once: members that fork meanwhile do not escape. It gets the signal
        before the search continues, which takes long while many processes crowd the machine.
        """
        groups = {0, self._group}
        pid = 0
        for pid, process in processes:
            for number in signals:
                if process.group not in groups:
                    _send(os.killpg, process.group, number)
                elif process.group in (0, self._group):
                    _send(os.kill, pid, number)
            groups.add(process.group)
        return pid != 0

    def kill(self, reap: Callable[[], bool]) -> bool:
        """Kills until `reap` reports that there is no child left; then there is nothing below one either, since Linux
        makes orphans children of this process. False if some do not end.
        """
        rest, blind, until = REST_S, 0, time.monotonic() + KILL_S
        while reap():
            if time.monotonic() > until:
                return False
            found = self.tell(signal.SIGKILL) if blind < BLIND_ROUNDS else self.kill_strays(())
            blind = 0 if found else blind + 1
            if reap():
                time.sleep(rest)
                rest = min(rest * 2, REST_MAX_S)
        return True


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(number: int) -> Process | None:
    """None if it is gone."""
    try:
        fd = os.open(f"/proc/{number}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return Process(os.read(fd, 4096))
    except OSError:
        return None
    finally:
        os.close(fd)


def _send(kill: Callable[[int, int], None], target: int, number: int) -> None:
    try:
        kill(target, number)
    except (ProcessLookupError, PermissionError):
        pass


_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# These numbers are the same on x86-64 and on 64-bit ARM.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1

_libc = ctypes.CDLL(None, use_errno=True)
# Other systems than Linux have neither; nothing here is called there.
_prctl: Any = getattr(_libc, "prctl", None)
_syscall: Any = getattr(_libc, "syscall", None)


def adopt_orphans() -> None:
    """Makes this process the parent of every process below it whose own parent ends."""
    _set(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Has this process killed when its parent ends."""
    _set(_PR_SET_PDEATHSIG, signal.SIGKILL)


def forgo_new_rights() -> None:
    """From now on no program gives this process, or one below it, new privileges."""
    _set(_PR_SET_NO_NEW_PRIVS, 1)


def keep_to_own_sockets() -> None:
    """From now on this process, and those below it, connect to abstract sockets of their own only, where the kernel can
    see to that (Landlock, Linux 6.12).
    """
    scope = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)
    fd = _syscall(_LANDLOCK_CREATE_RULESET, scope, ctypes.c_size_t(len(scope)), ctypes.c_uint(0))
    if fd >= 0:
        _syscall(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(fd), ctypes.c_uint(0))
        os.close(fd)


def watch_parent(number: int) -> int | None:
    """A descriptor that tells when the parent, which has this pid, ends. None if it has already ended."""
    try:
        fd = os.pidfd_open(number)
    except ProcessLookupError:
        return None
    return fd if os.getppid() == number else None


def name_process(name: bytes) -> None:
    """Sets the name of this process in process lists."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _set(option: int, value: int) -> None:
    if _prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
