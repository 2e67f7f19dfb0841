"""What every `hocket git` command needs: the home, the repository, and telling others of a job."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli.output import notice
from hocket.cli.settings import open_runtime, settings

if TYPE_CHECKING:
    from hocket.gitplane.plane import Plane
    from hocket.node.home import Home

Repository = Annotated[str, typer.Argument(metavar="REPO", help="A directory, or the address of a git repository.")]


@contextmanager
def opened_plane(repo: str) -> "Iterator[Plane]":
    """Opens the repository. Reading it needs no home; without one, objects from a remote are not cached."""
    import tempfile

    from hocket.gitplane.opening import open_plane

    home = home_here()
    with ExitStack() as stack:
        if home.is_complete():
            cache = home.git_cache
        else:
            cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hocket-git-")))
        yield stack.enter_context(closing(open_plane(repo, cache, os.environ)))


def announce_elsewhere(repo: str, content_id: bytes) -> None:
    """Wakes the git workers on other machines, if this machine has a home."""
    home = home_here()
    if not home.processes.is_dir():
        return
    from hocket.node.bus_settings import bus_settings
    from hocket.node.git_announcements import announce, note_submitted

    servers = bus_settings(home)
    with open_runtime() as runtime:
        note_submitted(runtime, repo, content_id, now_ms())
        if not announce(runtime, servers, content_id):
            notice(
                f"the bus {servers} did not take the announcement; a server or a worker of this home repeats it, and"
                " workers find the job when they list the refs"
            )


def home_here() -> "Home":
    from hocket.node.home import Home, default_home

    return Home(settings.home or default_home())


def now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000
