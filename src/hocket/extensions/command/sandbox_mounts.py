"""What a command in a sandbox sees of the file system. It begins with nothing: the system's programs and libraries and
a few files of /etc are added to be read, then the owner's paths, then the command's own workdir, which is the only
place that it can write to. Secrets that lie below a path that is shown are covered.
"""

import glob
import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from hocket.extensions.command.workdir import Workdir

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
