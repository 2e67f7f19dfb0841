"""Linux calls for the fork server's processes. It imports little."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import ctypes
import os
import struct

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# These numbers are the same on x86-64 and on 64-bit ARM.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1

_libc = ctypes.CDLL(None, use_errno=True)
_prctl, _syscall = _libc.prctl, _libc.syscall


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
