"""A sandbox for commands, made by bubblewrap (`bwrap`): the system is readable, the command's own workdir is writable,
and nothing else is visible. The command sees no other processes, and no network unless it asked for it. A command that
requires a sandbox never runs without one.
"""

import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hocket.errors import Usage
from hocket.work.command.workdir import Workdir

PROGRAM = "bwrap"
# How long the trial may take.
TRIAL_S = 10.0
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix/store")
# Where host names are looked up, on systems whose /etc/resolv.conf points there.
RESOLVER = ("/run/systemd/resolve", "/run/resolvconf", "/run/NetworkManager")


class View(NamedTuple):
    """What a command sees: its workdir, the directory in it where it starts, the network or not, and further readable
    `paths`. Those below /dev are devices.
    """

    workdir: Workdir
    directory: Path
    has_network: bool
    paths: tuple[str, ...] = ()


class _Found(NamedTuple):
    """Where the program is, or why there can be no sandbox."""

    program: str
    problem: str


_lock = threading.Lock()
_found: list[_Found] = []


def wrapped(program: str, argv: Sequence[str], view: View, env: Mapping[str, str] = {}) -> tuple[str, ...]:
    """The command line that runs `argv` inside, with these variables set there. `program` is bubblewrap's full path, so
    that the command's own PATH cannot choose another.
    """
    workdir, has_network = view.workdir, view.has_network
    made = [program, "--unshare-all", *(["--share-net"] if has_network else []), "--die-with-parent", "--new-session"]
    made += ["--cap-drop", "ALL"]
    for path in (*SYSTEM, *(RESOLVER if has_network else ())):
        made += ["--ro-bind-try", path, path]
    made += ["--proc", "/proc", "--dev", "/dev", "--bind", str(workdir.temporary), "/tmp"]
    for path in view.paths:
        made += ["--dev-bind-try" if path.startswith("/dev/") else "--ro-bind-try", path, path]
    for own in (workdir.work, workdir.home, workdir.temporary):
        made += ["--bind", str(own), str(own)]
    for name, value in env.items():
        made += ["--setenv", name, value]
    return *made, "--chdir", str(view.directory), "--", *argv


def check() -> str:
    """The program that makes sandboxes. Raises Usage, with what to do, if none can be made."""
    found = _look()
    if found.problem:
        raise Usage(f"the command needs a sandbox, but {found.problem}")
    return found.program


def available() -> bool:
    return not _look().problem


def problem() -> str:
    """Why there can be no sandbox here; empty if there can."""
    return _look().problem


def _look() -> _Found:
    """Makes one sandbox as a trial: even if the program is installed, the kernel may forbid it."""
    with _lock:
        if not _found:
            program = shutil.which(PROGRAM) or ""
            _found.append(_Found(program, _try(program)))
        return _found[0]


def _try(program: str) -> str:
    if not program:
        return "`bwrap` is not installed; install the package bubblewrap"
    with tempfile.TemporaryDirectory() as directory:
        workdir = Workdir(Path(directory))
        for path in (workdir.work, workdir.home, workdir.temporary):
            path.mkdir()
        try:
            ran = subprocess.run(
                wrapped(program, ("true",), View(workdir, workdir.work, has_network=False)),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TRIAL_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"bwrap cannot be run: {error}"
    if ran.returncode != 0:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        return (
            f"bwrap cannot make one: {said[-1] if said else 'no error message'};"
            " allow unprivileged user namespaces, or run the worker where they are allowed"
        )
    return ""
