"""`hocket git trust`: the keys of workers outside the mesh whose results in git are trusted here."""

from typing import Annotated

import typer

from hocket.cli.declarations import new_app
from hocket.cli.output import emit, say, table
from hocket.cli.settings import open_service
from hocket.errors import Usage

app = new_app()

Key = Annotated[str, typer.Argument(metavar="KEY", help="A worker's key, as `hocket git show` prints it.")]


@app.callback()
def trust_group() -> None:
    """Keys whose results `hocket git verify` trusts, besides this node's own and those of mesh nodes that may complete
    jobs.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
      hocket git trust list
    """


@app.command()
def add(
    key: Key,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="Whose key it is; shown in the list.")] = "",
) -> None:
    """Trust a key. Ask its owner for it: a repository shows which key signed, not whose key it is.

    \b
      hocket git trust add ed25519:5d0f… --name 'the build server'
    """
    from hocket.service import git_keys

    with open_service() as service:
        text, added = git_keys.add(service, key, name)
    emit({"key": text, "added": added})
    say(f"{'trusted' if added else 'already trusted'}: {text}")


@app.command("list")
def list_keys() -> None:
    """List the trusted keys, and why each is trusted.

    \b
      hocket git trust list
    """
    from hocket.service import git_keys

    with open_service() as service:
        keys = git_keys.listing(service)
    emit(keys)
    table(("key", "because", "name"), [(each.key, each.because, each.name or "-") for each in keys], "no keys")


@app.command()
def remove(key: Key) -> None:
    """Stop trusting a key. A mesh node stays trusted while it may complete jobs; use `hocket revoke`.

    \b
      hocket git trust remove ed25519:5d0f…
    """
    from hocket.service import git_keys

    with open_service() as service:
        text, removed = git_keys.remove(service, key)
    if not removed:
        raise Usage(f"{text} is not a trusted key; `hocket git trust list` shows them")
    emit({"key": text, "removed": True})
    say(f"no longer trusted: {text}")
