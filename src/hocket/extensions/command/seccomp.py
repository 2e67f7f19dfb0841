"""The system calls that a command in a sandbox may not make, as a program for the kernel's seccomp filter. A refused
call fails with an error number; a call of another architecture kills the process, because the numbers here mean other
calls there.
"""

import errno
import struct
from functools import cache
from platform import machine
from typing import NamedTuple

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ERROR, _ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
# Where the kernel puts the number of the call, the architecture, and the low half of each argument.
_NUMBER, _ARCHITECTURE, _ARGUMENTS, _ARGUMENT_BYTES = 0, 4, 16, 8

# The numbers on x86-64 and on 64-bit ARM; None if there is no such call.
_REFUSED: dict[str, tuple[int | None, int | None]] = {
    # Mounts and roots.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # Keys of the user's session.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Parts of the kernel with many faults.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "vhangup": (153, 58),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "nfsservctl": (180, 42),
    # The machine.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
}
# Calls that programs do without where the kernel has none. The flags of clone3 are in memory, which a filter cannot
# read.
_ABSENT: dict[str, tuple[int | None, int | None]] = {
    "clone3": (435, 435),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
}
_CLONE, _UNSHARE, _IOCTL, _SOCKET, _SOCKETPAIR = (56, 220), (272, 97), (16, 29), (41, 198), (53, 199)
# Namespaces: mounts, cgroups, host names, IPC, users, processes, networks; and times, which only unshare can make.
_NAMESPACES = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_TIME_NAMESPACE = 0x80
# Requests that put characters into a terminal.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Other families, like the sockets of virtual machines, pass by the network's namespace. Of netlink, programs need the
# part that lists interfaces.
_UNIX, _IPV4, _IPV6, _NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0


class _Machine(NamedTuple):
    """`column` is its place in the tables. Calls from `foreign` on belong to another architecture with the same id."""

    column: int
    architecture: int
    foreign: int | None


_MACHINES = {"x86_64": _Machine(0, 0xC000_003E, 0x4000_0000), "aarch64": _Machine(1, 0xC000_00B7, None)}


@cache
def filter_program() -> bytes | None:
    """None if we know no numbers for this machine."""
    known = _MACHINES.get(machine())
    return None if known is None else _assembled(known)


def _assembled(known: _Machine) -> bytes:
    column = known.column
    program = [_load(_ARCHITECTURE), _step(_EQUAL, known.architecture, 1, 0), _step(_RETURN, _KILL), _load(_NUMBER)]
    if known.foreign is not None:
        program += [_step(_AT_LEAST, known.foreign, 0, 1), _step(_RETURN, _KILL)]
    for table, number in ((_REFUSED, errno.EPERM), (_ABSENT, errno.ENOSYS)):
        for call in filter(None, (numbers[column] for numbers in table.values())):
            program += [_step(_EQUAL, call, 0, 1), _step(_RETURN, _ERROR | number)]
    program += _for_call(_CLONE[column], [_argument(0), _step(_ANY_BIT, _NAMESPACES, 0, 1), *_refusal()])
    program += _for_call(
        _UNSHARE[column], [_argument(0), _step(_ANY_BIT, _NAMESPACES | _TIME_NAMESPACE, 0, 1), *_refusal()]
    )
    program += _for_call(
        _IOCTL[column], [_argument(1), _step(_EQUAL, _TIOCSTI, 1, 0), _step(_EQUAL, _TIOCLINUX, 0, 1), *_refusal()]
    )
    for socket in (_SOCKET, _SOCKETPAIR):
        program += _for_call(socket[column], _families())
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _families() -> list[bytes]:
    allowed = [_step(_EQUAL, family, 6 - at, 0) for at, family in enumerate((_UNIX, _IPV4, _IPV6))]
    netlink = [_step(_EQUAL, _NETLINK, 0, 2), _argument(2), _step(_EQUAL, _NETLINK_ROUTE, 1, 0)]
    return [_argument(0), *allowed, *netlink, _step(_RETURN, _ERROR | errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]


def _refusal() -> list[bytes]:
    return [_step(_RETURN, _ERROR | errno.EPERM), _step(_RETURN, _ALLOW)]


def _for_call(number: int, steps: list[bytes]) -> list[bytes]:
    """Steps that every path leaves by a return, for one call."""
    return [_step(_EQUAL, number, 0, len(steps)), *steps]


def _argument(index: int) -> bytes:
    return _load(_ARGUMENTS + _ARGUMENT_BYTES * index)


def _load(offset: int) -> bytes:
    return _step(_LOAD, offset)


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)
