"""What every `hocket git` command needs: the home, the repository, and telling others of a job; and `hocket git trust`:
the keys whose pushes this home trusts.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from hocket.cli.declarations import App, Argument, Option
from hocket.cli.printing import emit, notice, say, table
from hocket.cli.settings import open_runtime, open_service, settings
from hocket.errors import Usage

if TYPE_CHECKING:
    from hocket.extensions.git.plane import Plane
    from hocket.node.home import Home

Repository = Annotated[str, Argument(metavar="REPO", help="A directory, or the address of a git repository.")]


@contextmanager
def opened_plane(repo: str) -> "Iterator[Plane]":
    """Opens the repository. Reading it needs no home; without one, objects from a remote are not cached."""
    import tempfile

    from hocket.extensions.git.planes import open_plane

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
    from hocket.extensions.git.announcements import announce, note_submitted
    from hocket.node.message_bus import bus_settings

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


trust_app = App()

Key = Annotated[str, Argument(metavar="KEY", help="A worker's key, as `hocket git show` prints it.")]


@trust_app.callback()
def trust_group() -> None:
    """Keys whose results `hocket git verify` trusts, besides this node's own and those of mesh nodes that may complete
    jobs.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
      hocket git trust list
    """


@trust_app.command()
def add(
    key: Key,
    name: Annotated[str, Option("--name", metavar="TEXT", help="Whose key it is; shown in the list.")] = "",
) -> None:
    """Trust a key. Ask its owner for it: a repository shows which key signed, not whose key it is.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
    """
    from hocket.extensions.git import trust

    with open_service() as service:
        text, added = trust.add(service, key, name)
    emit({"key": text, "added": added})
    say(f"{'trusted' if added else 'already trusted'}: {text}")


@trust_app.command("list")
def list_keys() -> None:
    """List the trusted keys, and why each is trusted.

    \b
      hocket git trust list
    """
    from hocket.extensions.git import trust

    with open_service() as service:
        keys = trust.listing(service)
    emit(keys)
    table(("key", "because", "name"), [(each.key, each.because, each.name or "-") for each in keys], "no keys")


@trust_app.command()
def remove(key: Key) -> None:
    """Stop trusting a key. A mesh node stays trusted while it may complete jobs; use `hocket node revoke`.

    \b
      hocket git trust remove ed25519:5d0f…
    """
    from hocket.extensions.git import trust

    with open_service() as service:
        text, removed = trust.remove(service, key)
    if not removed:
        raise Usage(f"{text} is not a trusted key; `hocket git trust list` shows them")
    emit({"key": text, "removed": True})
    say(f"no longer trusted: {text}")
