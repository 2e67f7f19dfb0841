"""A sandbox for commands, made by bubblewrap (`bwrap`): the system is readable, the command's own workdir is writable,
and nothing else is visible (`sandbox_mounts`). The command sees no other processes, has no network unless it may have
it, and cannot make some system calls (`seccomp`). Its variables go to bubblewrap through a descriptor, because every
user of the machine can read command lines. A command that requires a sandbox never runs without one.
"""

import os
import shutil
import stat
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Usage
from hocket.extensions.command.command_process import GATE
from hocket.extensions.command.sandbox_mounts import View, mounts
from hocket.extensions.command.seccomp import filter_program
from hocket.extensions.command.workdir import Workdir

__all__ = ["Bubblewrap", "View", "available", "check", "problem", "run_inside", "wrapped"]

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


_lock = threading.Lock()
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
