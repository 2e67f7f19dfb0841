"""A sandbox for commands, made by bubblewrap (`bwrap`): the system is readable, the command's own workdir is writable,
and nothing else is visible. The command sees no other processes, has no network unless it may have it, and cannot make
some system calls. Its variables go to bubblewrap through a descriptor, because every user of the machine can read
command lines. A command that requires a sandbox never runs without one.

Its view of the file system begins with nothing: the system's programs and libraries and a few files of /etc are added
to be read, then the owner's paths, then the command's own workdir, which is the only place that it can write to.
Secrets that lie below a path that is shown are covered.

A refused system call fails with an error number; a call of another architecture kills the process, because the numbers
here mean other calls there.
"""

import errno
import glob
import os
import shutil
import stat
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from platform import machine
from typing import NamedTuple

from hocket.errors import Usage
from hocket.extensions.command.command_process import GATE
from hocket.extensions.command.workdir import Workdir

PROGRAM = "bwrap"
# How long the trial may take.
TRIAL_S = 10.0
# The descriptors that bubblewrap reads: its arguments, the filter of system calls, and the files made for the command.
DESCRIPTORS = range(200, 206)
# The namespaces that are tried, the best first. In the first, the command can make no namespace of users, in which it
# would be root; that needs bubblewrap 0.8.
_NAMESPACES = (("--unshare-all", "--unshare-user", "--disable-userns"), ("--unshare-all",))
# In a namespace of users, the kernel refuses a /proc where something covers a part of the machine's, as in many
# containers. Root needs no such namespace, and the command has no capabilities in either.
_OF_ROOT = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
_NAMES = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
_LOCAL = "127.0.0.1 localhost\n::1 localhost\n"
_lock = threading.Lock()
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
# Programs of the owner's. It is not shown if a secret lies below it, because there are likely to be others.
OPTIONAL = "/opt"
# What programs read in /etc: how libraries, times, fonts and certificates are found. No keys and no passwords. Each
# mount costs time when a command starts, so the list is short.
ETC = (
    *("ld.so.cache", "ld-musl-*.path", "alternatives", "localtime", "os-release", "fonts", "java-*"),
    *("ssl/certs", "ssl/cert.pem", "ssl/openssl.cnf", "pki/tls/certs", "pki/tls/cert.pem", "pki/ca-trust/extracted"),
    *("ca-certificates/extracted", "crypto-policies", "OpenCL", "vulkan"),
)
NETWORK = tuple(f"/etc/{name}" for name in ("resolv.conf", "hosts", "gai.conf", "host.conf", "services", "protocols"))
# Root could write to these, or read there what other users cannot.
PROC_READ_ONLY = ("sysrq-trigger", "irq", "bus", "fs", "driver")
PROC_HIDDEN = ("kcore", "keys", "key-users", "kmsg", "latency_stats", "sched_debug", "timer_list", "vmcore", "mtrr")
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
_NAMESPACE_FLAGS = 0x0002_0000 | 0x0200_0000 | 0x0400_0000 | 0x0800_0000 | 0x1000_0000 | 0x2000_0000 | 0x4000_0000
_TIME_NAMESPACE = 0x80
# Requests that put characters into a terminal.
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
# Other families, like the sockets of virtual machines, pass by the network's namespace. Of netlink, programs need the
# part that lists interfaces.
_UNIX, _IPV4, _IPV6, _NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0


class View(NamedTuple):
    """What a command sees: its workdir, the directory in it where it starts, the network or not, and further readable
    `paths`. Those below /dev are devices. It sees nothing of the `hidden` paths, which have no symbolic links in them.
    """

    workdir: Workdir
    directory: Path
    has_network: bool
    paths: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class _Shown(NamedTuple):
    """A path of the machine, where it really is, and how bubblewrap shows it."""

    path: str
    real: str
    option: str = "--ro-bind-try"


def mounts(view: View) -> list[str]:
    """Bubblewrap's arguments that make the file system. What is mounted later lies over what is mounted before."""
    system = _allowed(_system(view.has_network), view.hidden)
    chosen = _allowed([_chosen(path) for path in view.paths], view.hidden)
    covered = [*_covered((*system, *chosen), view.hidden)]
    empty = [path for path in covered if os.path.isdir(path.real)]
    own = view.workdir
    made = [word for path, real in _links().items() for word in ("--symlink", real, path)]
    made += [*_binds(system), "--proc", "/proc", *_proc(os.geteuid() == 0)]
    made += ["--dev", "/dev", "--bind", str(own.shm), "/dev/shm"]
    made += ["--symlink", "/tmp", "/var/tmp", "--bind", str(own.temporary), "/tmp", *_binds(chosen)]
    for each in covered:
        # A device on a mount without devices cannot be opened.
        made += ["--tmpfs", each.path] if each in empty else ["--ro-bind", "/dev/null", each.path]
    for directory in (own.work, own.home, own.temporary):
        made += ["--bind", str(directory), str(directory)]
    for path in (*(each.path for each in empty), "/dev", "/"):
        made += ["--remount-ro", path]
    return made


def _allowed(shown: Sequence[_Shown], hidden: Sequence[str]) -> list[_Shown]:
    return [
        each
        for each in shown
        if not any(_is_below(each.real, secret) for secret in hidden)
        and not (each.path == OPTIONAL and any(_is_below(secret, each.real) for secret in hidden))
    ]


def _covered(shown: Sequence[_Shown], hidden: Sequence[str]) -> Iterator[_Shown]:
    """The secrets that would be seen, each under every path that it would be seen at."""
    for each in shown:
        for secret in hidden:
            if _is_below(secret, each.real) and os.path.exists(secret):
                yield _Shown(each.path + secret[len(each.real) :], secret)


def _is_below(path: str, directory: str) -> bool:
    """Whether it is the directory itself, or in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _binds(shown: Sequence[_Shown]) -> Iterator[str]:
    for each in shown:
        yield from (each.option, each.path, each.path)


@cache
def _links() -> dict[str, str]:
    """Paths of the system that lead below /usr, like /bin, and where they lead. A link costs less than a mount."""
    named = {path: os.path.realpath(path) for path in (*SYSTEM, *_etc()) if os.path.exists(path)}
    return {path: real for path, real in named.items() if path != real and _is_below(real, "/usr")}


@cache
def _system(has_network: bool) -> tuple[_Shown, ...]:
    named = (*SYSTEM, OPTIONAL, *_etc(), *(NETWORK if has_network else ()))
    return tuple(
        _Shown(path, os.path.realpath(path)) for path in named if os.path.exists(path) and path not in _links()
    )


def _etc() -> list[str]:
    return [path for pattern in ETC for path in sorted(glob.glob(f"/etc/{pattern}"))]


def _chosen(path: str) -> _Shown:
    """A path that the owner named."""
    is_device = path.startswith("/dev/") and not _is_below(path, "/dev/shm")
    return _Shown(path, os.path.realpath(path), "--dev-bind-try" if is_device else "--ro-bind-try")


@cache
def _proc(is_root: bool) -> tuple[str, ...]:
    read_only = ("/proc/sys", *(f"/proc/{name}" for name in PROC_READ_ONLY if is_root))
    hidden = [f"/proc/{name}" for name in PROC_HIDDEN if is_root]
    pairs = [(path, path) for path in read_only] + [("/dev/null", path) for path in hidden]
    return tuple(word for source, path in pairs if os.path.exists(path) for word in ("--ro-bind", source, path))


class _Machine(NamedTuple):
    """`column` is its place in the tables. Calls from `foreign` on belong to another architecture with the same id."""

    column: int
    architecture: int
    foreign: int | None


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
    program += _for_call(_CLONE[column], [_argument(0), _step(_ANY_BIT, _NAMESPACE_FLAGS, 0, 1), *_refusal()])
    program += _for_call(
        _UNSHARE[column], [_argument(0), _step(_ANY_BIT, _NAMESPACE_FLAGS | _TIME_NAMESPACE, 0, 1), *_refusal()]
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


class Sandboxed(NamedTuple):
    """A command line, and what it reads from descriptors, by their numbers."""

    argv: tuple[str, ...]
    files: dict[int, bytes]


class Bubblewrap(NamedTuple):
    """Where the program is, or why there can be no sandbox. `namespaces` are its options for them."""

    program: str
    problem: str
    namespaces: tuple[str, ...] = _NAMESPACES[-1]

    @property
    def is_privileged(self) -> bool:
        """Whether it gets root's rights when it starts, as on systems where users can make no namespaces."""
        return bool(os.stat(self.program).st_mode & stat.S_ISUID)


_found: list[Bubblewrap] = []


def wrapped(
    bubblewrap: Bubblewrap,
    argv: Sequence[str],
    view: View,
    env: Mapping[str, str],
    descriptors: Sequence[int] = DESCRIPTORS,
    is_gated: bool = False,
) -> Sandboxed:
    """The command line that runs `argv` inside, with these variables and no others. The full path of bubblewrap stands
    in it, so that the command's own PATH cannot choose another. If it `is_gated`, the sandbox reports its first process
    and waits at the descriptors `GATE`.
    """
    arguments, filtering, *generated = descriptors
    files: dict[int, bytes] = {}
    made = [*bubblewrap.namespaces, *(["--share-net"] if view.has_network else [])]
    made += ["--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    for fd, (path, content) in zip(generated, _generated(view).items(), strict=False):
        made += ["--perms", "0444", "--file", str(fd), path]
        files[fd] = content.encode()
    made += [*mounts(view), "--clearenv"]
    for name, value in env.items():
        made += ["--setenv", name, value]
    if (program := filter_program()) is not None:
        made += ["--seccomp", str(filtering)]
        files[filtering] = program
    if is_gated:
        made += ["--info-fd", str(GATE[0]), "--block-fd", str(GATE[1])]
    made += ["--chdir", str(view.directory)]
    files[arguments] = b"".join(os.fsencode(each) + b"\0" for each in made)
    return Sandboxed((bubblewrap.program, "--args", str(arguments), "--", *argv), files)


def check() -> Bubblewrap:
    """The program that makes sandboxes. Raises Usage, with what to do, if none can be made."""
    found = _look()
    if found.problem:
        raise Usage(f"the command needs a sandbox, but {found.problem}")
    return found


def available() -> bool:
    return not _look().problem


def problem() -> str:
    """Why there can be no sandbox here; empty if there can."""
    return _look().problem


def run_inside(
    bubblewrap: Bubblewrap,
    argv: Sequence[str],
    paths: tuple[str, ...] = (),
    hidden: tuple[str, ...] = (),
    has_network: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a short program of our own with the view of a command, and returns what it printed. Raises OSError or
    TimeoutExpired.
    """
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        workdir = Workdir(Path(directory))
        for path in workdir.own:
            path.mkdir()
        view = View(workdir, workdir.work, has_network, paths, hidden)
        fds = [os.memfd_create("hocket") for _ in DESCRIPTORS]
        for fd in fds:
            stack.callback(os.close, fd)
        boxed = wrapped(bubblewrap, argv, view, {"PATH": os.defpath}, fds)
        for fd, content in boxed.files.items():
            os.write(fd, content)
            os.lseek(fd, 0, os.SEEK_SET)
        return subprocess.run(
            boxed.argv, env={}, stdin=subprocess.DEVNULL, capture_output=True, timeout=TRIAL_S, pass_fds=fds
        )


def _generated(view: View) -> dict[str, str]:
    """Files of /etc that would tell about the machine. At most as many as there are descriptors for them."""
    user, group, home = os.geteuid(), os.getegid(), view.workdir.home
    return {
        "/etc/passwd": f"hocket:x:{user}:{group}::{home}:/bin/sh\nnobody:x:65534:65534::/nonexistent:/bin/false\n",
        "/etc/group": f"hocket:x:{group}:\nnogroup:x:65534:\n",
        "/etc/nsswitch.conf": _NAMES,
        **({} if view.has_network else {"/etc/hosts": _LOCAL}),
    }


def _look() -> Bubblewrap:
    """Makes one sandbox as a trial: even if the program is installed, the kernel may forbid it."""
    with _lock:
        if not _found:
            program = shutil.which(PROGRAM) or ""
            for namespaces in (*_NAMESPACES, *([_OF_ROOT] if os.geteuid() == 0 else [])):
                tried = Bubblewrap(program, "", namespaces)
                tried = tried._replace(problem=_problem(tried))
                if not tried.problem:
                    break
            _found.append(tried)
        return _found[0]


def _problem(bubblewrap: Bubblewrap) -> str:
    if not bubblewrap.program:
        return "`bwrap` is not installed; install the package bubblewrap"
    try:
        ran = run_inside(bubblewrap, ("true",))
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap cannot be run: {error}"
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        return (
            f"bwrap cannot make one: {said[-1] if said else 'no error message'};"
            " allow unprivileged user namespaces, or run the worker where they are allowed"
        )
    return ""


_MACHINES = {"x86_64": _Machine(0, 0xC000_003E, 0x4000_0000), "aarch64": _Machine(1, 0xC000_00B7, None)}
